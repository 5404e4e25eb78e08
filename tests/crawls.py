"""Running ``scrapy crawl`` in a process of its own."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scrapy_altsched.frontier.store.engines import Choice

from .processes import Process
from .sites import Site

PROJECT = Path(__file__).parent / "project"
#: The project and the package beside these tests, whatever else is installed.
PYTHONPATH = os.pathsep.join(map(str, (PROJECT, PROJECT.parent.parent)))
#: Commits come often, so that a short crawl has many.
QUICK = {"ALTSCHED_COMMIT_INTERVAL": "0.05"}
#: Page by page: the next one is fetched when all that the last one led to is scheduled.  Without
#: the second setting Scrapy fetches ahead of the callbacks, by as much as chance will have it.
ONE_BY_ONE = {"CONCURRENT_REQUESTS": 1, "SCRAPER_SLOT_MAX_ACTIVE_SIZE": 1}
#: Seconds between two requests of a host: the second one is not sent.  With more, the first one
#: would wait, too, if the machine has not been up for as long: Scrapy 2.19 takes a slot's last
#: request as one at the moment that the monotonic clock starts from.
LONG_DELAY = 100
#: The exit code of a crawl that was killed.
KILLED = -signal.SIGKILL
#: Scrapy's own classes, with the tests' extensions left in place.
STOCK = {"ADDONS": "{}"}

#: Not the default before Scrapy 2.14.
BY_SLOT = {"SCHEDULER_PRIORITY_QUEUE": "scrapy.pqueues.DownloaderAwarePriorityQueue"}


def run_python(
    *arguments: object, cwd: Path = PROJECT, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run Python in a directory, with the project and the package at hand, to its end."""
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": PYTHONPATH, **environment},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def run_scrapy(
    *arguments: object, cwd: Path = PROJECT, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run ``scrapy``, as a user types it."""
    with tempfile.NamedTemporaryFile() as errors:
        path = Path(errors.name)
        whole = {**os.environ, "PYTHONPATH": PYTHONPATH, **environment}
        process = Process([*map(str, arguments)], cwd, whole, path)
        output, _ = process.communicate(timeout=240)
        return subprocess.CompletedProcess(
            process.args, process.wait(), output, path.read_text(encoding="utf-8")
        )


def altsched(
    *arguments: object, cwd: Path = PROJECT, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run ``scrapy altsched``, as a user types it."""
    return run_scrapy("altsched", *arguments, cwd=cwd, **environment)


class Crawl:
    """A crawl in a directory of its own, to be run, killed and run again.

    :param directory: where the job directory, the items and the logs go.
    :param engine: of a new job's store.
    :param arguments: of the spider.
    """

    def __init__(
        self, directory: Path, spider: str, url: str, *, engine: Choice = "auto", **arguments: Any
    ) -> None:
        self.directory = directory
        self.spider = spider
        self.arguments = {"url": url, **arguments}
        self.engine = engine
        self.jobdir = directory / "job"
        self.items = directory / "items.jsonl"
        self.runs = 0
        #: Where its settings and its spiders are.
        self.project = PROJECT
        #: The interpreter; each has the packages of its own environment.
        self.python: str | Path = sys.executable
        #: What the command is run by.
        self.prefix: list[str] = []

    def start(self, feed: tuple[str, ...] | None = None, **settings: Any) -> Process:
        """Start a run; its log goes to a file, its standard output to a pipe."""
        self.runs += 1
        arguments = ["crawl", self.spider]
        for name, value in self.arguments.items():
            arguments += ["-a", f"{name}={value}"]
        own = {"JOBDIR": self.jobdir, "ALTSCHED_STORE": self.engine}
        for name, value in {**own, **QUICK, **settings}.items():
            if value is not None:
                arguments += ["-s", f"{name}={value}"]
        arguments += feed if feed is not None else ("-o", str(self.items))
        environment = {**os.environ, "PYTHONPATH": PYTHONPATH}
        if not self.prefix and self.python == sys.executable:
            return Process(arguments, self.project, environment, self.log_path)
        with self.log_path.open("wb") as log:
            return subprocess.Popen(
                [*self.prefix, str(self.python), "-m", "scrapy", *arguments],
                cwd=self.project,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment,
            )

    def run(self, feed: tuple[str, ...] | None = None, **settings: Any) -> int:
        """Run until it ends by itself; the exit code, negative if a signal ended it."""
        process = self.start(feed, **settings)
        output, _ = process.communicate(timeout=240)
        self.output = output
        return process.returncode

    def kill(self, process: Process) -> None:
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=180)

    def wait_for_log(self, process: Process, text: str, timeout: float = 180) -> None:
        """Wait until the running crawl has logged *text*."""
        self.wait_until(process, lambda: text in self.log, timeout)

    def wait_until(
        self, process: Process, reached: Callable[[], bool], timeout: float = 180
    ) -> None:
        """Wait until *reached*, which looks at what the running crawl has written, is true."""
        deadline = time.monotonic() + timeout
        while not reached():
            assert process.poll() is None, self.log
            assert time.monotonic() < deadline, self.log
            time.sleep(0.02)

    @property
    def log_path(self) -> Path:
        return self.directory / f"log.{self.runs}"

    @property
    def log(self) -> str:
        return self.log_path.read_text()

    def stat(self, name: str) -> Any:
        """A stat at the end of the last run, or ``None``."""
        found = re.search(rf"'{re.escape(name)}': (.+?)[,}}]\n?", self.log)
        return None if found is None else json.loads(found[1].replace("'", '"'))

    def item_paths(self) -> list[str]:
        """The path of every item's page; a torn line fails."""
        if not self.items.exists():
            return []
        urls = [json.loads(line)["url"] for line in self.items.read_text().splitlines()]
        return [re.sub(r"^http://[^/]+", "", url) for url in urls]


def assert_complete(crawl: Crawl, site: Site, paths: set[str]) -> None:
    """Every page was visited, and has its item in the feed; nothing is dead."""
    assert crawl.stat("altsched/dead") == 0
    assert set(site.hits) & paths == paths
    assert paths <= set(crawl.item_paths())
    assert "is finished" in crawl.log


def write_project(directory: Path, **files: str) -> Path:
    """A project whose settings are in ``settings.py``; *files*: name -> content."""
    for name, text in {"scrapy.cfg": "[settings]\ndefault = settings\n", **files}.items():
        (directory / name).write_text(text)
    return directory


def listing(directory: Path) -> dict[str, tuple[int, bytes]]:
    """Every file below *directory*: time of change and content."""
    return {
        str(path.relative_to(directory)): (path.stat().st_mtime_ns, path.read_bytes())
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }
