"""Workers of one shared crawl: real processes, started, stopped and killed."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import redis
from scrapy import Request
from scrapy.utils.request import fingerprint

from example_project.example_project.site import FIRST_PAGE
from example_project.example_project.site import Site as ExampleSite
from scrapy_altsched.frontier.shared.keys import Keys
from scrapy_altsched.frontier.store.states import decode_value

from .crawls import KILLED, Crawl
from .processes import Process
from .servers import RedisServer
from .sites import Site, random_graph

EXAMPLE_PROJECT = Path(__file__).parent.parent / "example_project"
#: Seconds for a crawl to get somewhere.
PATIENCE = 120.0

#: Small steps, so that a few hundred pages are many batches.
_SETTINGS = {
    "ALTSCHED_SHARED": "True",
    "ALTSCHED_SHARED_PREFETCH": 16,
    "CONCURRENT_REQUESTS": 8,
    "LOG_LEVEL": "INFO",
}


class Worker(Crawl):
    """One of the workers, with a feed and a log of its own.

    :param has_jobdir: whether it has a job directory, too.
    :ivar deaths: how often it was killed.
    """

    def __init__(
        self,
        directory: Path,
        spider: str,
        url: str,
        settings: dict[str, Any],
        *,
        has_jobdir: bool,
        **arguments: Any,
    ) -> None:
        super().__init__(directory, spider, url, **arguments)
        directory.mkdir()
        self._settings = settings if has_jobdir else {**settings, "JOBDIR": None}
        self.deaths = 0
        self._process: Process | None = None

    @property
    def process(self) -> Process:
        assert self._process is not None, "it was not started"
        return self._process

    def launch(self, **settings: Any) -> Worker:
        """Start it, or start it again when it has ended."""
        self._process = self.start(**self._settings, **settings)
        return self

    def die(self) -> None:
        """Kill it, if it still runs."""
        self.kill(self.process)
        self.deaths += self.process.returncode == KILLED

    def wait(self, timeout: float = PATIENCE) -> int:
        """Wait until it ends by itself; its exit code."""
        self.output, _ = self.process.communicate(timeout=timeout)
        return self.process.returncode

    def wait_for(self, text: str) -> None:
        """Wait until its log says so."""
        self.wait_for_log(self.process, text)

    def wait_until_open(self) -> None:
        """Wait until it has joined the crawl."""
        self.wait_for("Crawled 0 pages")

    @property
    def logs(self) -> str:
        """What all of its runs have logged."""
        paths = sorted(self.directory.glob("log.*"), key=lambda path: int(path.suffix[1:]))
        return "".join(path.read_text() for path in paths)


class Workers:
    """The workers of a crawl, all with the same spider, arguments and settings.

    While it is entered, workers run; all that are left are killed at the end.

    :param port: of the server, or of what is before it.
    :param settings: for each of them, besides those of a server on loopback.
    """

    def __init__(
        self,
        directory: Path,
        spider: str,
        url: str,
        port: int,
        count: int = 3,
        *,
        has_jobdir: bool = True,
        arguments: dict[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        settings = {**_SETTINGS, "REDIS_HOST": "127.0.0.1", "REDIS_PORT": port, **settings}
        self.url = url
        self.all = [
            Worker(
                directory / f"worker-{number}",
                spider,
                url,
                settings,
                has_jobdir=has_jobdir,
                **arguments or {},
            )
            for number in range(count)
        ]

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.all:
            if worker._process is not None and worker.process.poll() is None:
                worker.process.kill()
                worker.process.communicate()

    def __iter__(self) -> Iterator[Worker]:
        return iter(self.all)

    def __getitem__(self, number: int) -> Worker:
        return self.all[number]

    def launch(self) -> Workers:
        """Start all of them."""
        for worker in self:
            worker.launch()
        return self

    @property
    def is_any_running(self) -> bool:
        return any(worker.process.poll() is None for worker in self)

    def wait(self, timeout: float = PATIENCE) -> None:
        """Wait until all have ended by themselves, without an error.

        :param timeout: seconds for all of them.
        """
        deadline = time.monotonic() + timeout
        for worker in self:
            assert worker.wait(max(0.1, deadline - time.monotonic())) == 0, worker.log
            assert "Traceback" not in worker.logs, worker.logs

    def wait_through_deaths(self, most: int) -> int:
        """Wait until all have ended by themselves; start again those that are killed meanwhile.

        :param most: deaths that there may be.
        :return: how many there were.
        """
        deaths, deadline = 0, time.monotonic() + 2 * PATIENCE
        while running := [worker for worker in self if worker.process.poll() != 0]:
            for worker in running:
                if worker.process.poll() is not None:
                    assert worker.process.returncode == KILLED, worker.log
                    worker.process.communicate()
                    deaths += 1
                    assert deaths <= most
                    worker.launch()
            assert time.monotonic() < deadline, f"after {deaths} deaths"
            time.sleep(0.02)
        return deaths

    def item_paths(self) -> list[str]:
        """The path of every item's page, from all feeds."""
        return [path for worker in self for path in worker.item_paths()]


@contextmanager
def crawling(
    pages: Any, directory: Path, server: RedisServer, count: int = 3, **settings: Any
) -> Iterator[tuple[Site, Workers]]:
    """A site, and workers that crawl it from ``/0`` on with the spider "pages"."""
    with (
        Site(pages) as site,
        Workers(directory, "pages", f"{site.url}/0", server.port, count, **settings) as workers,
    ):
        yield site, workers


def small_graph(pages: int, seed: int) -> dict[str, list[str]]:
    """A graph for the example site with a few links a page, which are soon parsed."""
    graph = random_graph(pages, 3, seed)

    def name(path: str) -> str:
        return FIRST_PAGE if path == "/0" else path

    return {name(path): [name(link) for link in page.links] for path, page in graph.items()}


def example_workers(
    directory: Path, site: ExampleSite, port: int, count: int = 3, **settings: Any
) -> Workers:
    """Workers with the spider of the example project."""
    workers = Workers(directory, "docs", f"{site.url}{FIRST_PAGE}", port, count, **settings)
    for worker in workers:
        worker.project = EXAMPLE_PROJECT
    return workers


class Crawled:
    """What a server knows of a shared crawl.

    :param key: the crawl's name.
    """

    def __init__(self, client: redis.Redis, key: str) -> None:
        self._client = client
        self._keys = Keys(key)

    def meta(self, field: str) -> str | None:
        value: Any = self._client.hget(self._keys.meta, field)
        return None if value is None else value.decode()

    def count(self, field: str) -> int:
        return int(self.meta(field) or 0)

    def leased(self) -> Counter[bytes]:
        """Fingerprint -> how many requests with it are leased by any worker."""
        found: Counter[bytes] = Counter()
        for key in self._client.scan_iter(self._keys.leases(b"*"), count=1000):
            rows: Any = self._client.hvals(key)
            found.update(decode_value(row).fingerprint for row in rows)
        return found

    def assert_finished(self, pages: int) -> None:
        """The crawl is finished: all pages are done, each once, and none is dead."""
        fields = ("state", "accepted", "done", "dead", "leased")
        values = {field: self.meta(field) for field in fields}
        assert values == {
            "state": "finished",
            "accepted": str(pages),
            "done": str(pages),
            "dead": "0",
            "leased": "0",
        }


class Refetches:
    """Which pages may be fetched twice: those that were leased at a fault."""

    def __init__(self, crawled: Crawled, site: Any) -> None:
        self._crawled = crawled
        self._site = site
        self._leased: Counter[bytes] = Counter()

    def note_fault(self) -> None:
        """A worker was just killed."""
        self._leased.update(self._crawled.leased().keys())

    def assert_no_others(self, paths: Collection[str]) -> None:
        for path in paths:
            name = fingerprint(Request(f"{self._site.url}{path}"))
            assert self._site.hits[path] <= 1 + self._leased[name], path


def kill_rounds(
    workers: Workers,
    site: ExampleSite,
    rounds: int,
    rng: random.Random,
    killed: Callable[[], object] = lambda: None,
) -> int:
    """Kill each worker once a round, at random moments of the crawl, and start it again.

    Rounds are spread over the pages of the site.

    :param killed: called after each kill, before the worker is started again.
    :return: how many kills there were.
    """
    kills = 0
    share = len(site.reachable) * 0.9 / (rounds * len(workers.all))
    for number in range(rounds):
        order = rng.sample(workers.all, len(workers.all))
        for place, worker in enumerate(order):
            least = (number * len(order) + place + rng.random()) * share
            wait_for_pages(site, int(least), workers)
            before = worker.deaths
            worker.die()
            killed()
            kills += worker.deaths - before
            worker.launch()
    return kills


def wait_for_pages(site: ExampleSite, count: int, workers: Workers) -> None:
    """Wait until so many different pages were served, or no worker runs any more."""
    deadline = time.monotonic() + PATIENCE
    with site.changed:
        while len(site.hits) < count and workers.is_any_running:
            assert time.monotonic() < deadline, f"{len(site.hits)} of {count} pages were served"
            site.changed.wait(0.2)
