"""An operator at a terminal looks at a crawl, pauses it, pushes a page, and has it go on."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scrapy_altsched.frontier.store.engines import Choice

from ..crawls import ONE_BY_ONE, Crawl
from ..servers import RedisServer
from ..sites import Page, Site
from ..stores import BY_ENGINE
from ..terminals import show

PAGES = {f"/{number}" for number in range(6)}


class SlowSite(Site):
    """Pages that the first one leads to, and one that none leads to.

    :ivar go: what they wait for, but for the first one.
    """

    def __init__(self) -> None:
        self.go = threading.Event()
        held = {path: Page(held=self.go) for path in [*sorted(PAGES), "/pushed"]}
        super().__init__({**held, "/0": Page(sorted(PAGES))})


@pytest.fixture
def site() -> Iterator[SlowSite]:
    with SlowSite() as site:
        yield site


@BY_ENGINE
def test_a_session(tmp_path: Path, site: SlowSite, engine: Choice) -> None:
    crawl = Crawl(tmp_path, "pages", f"{site.url}/0", engine=engine)
    process = crawl.start(**ONE_BY_ONE)
    site.wait_for(lambda it: len(it.order) == 2)
    crawl.wait_until(process, lambda: "/0" in crawl.item_paths())
    assert "running" in show("status", crawl.jobdir)
    assert "It is paused, also in later runs" in show("pause", crawl.jobdir)
    assert "1 accepted, 0 seen before." in show("push", crawl.jobdir, f"{site.url}/pushed")
    assert "0 accepted, 1 seen before." in show("push", crawl.jobdir, f"{site.url}/1")
    site.go.set()
    crawl.wait_until(process, lambda: len(crawl.item_paths()) == 2)
    # What was asked for is through, and nothing more is.
    assert "paused" in show("status", crawl.jobdir)
    assert len(site.order) == 2
    assert "It is not paused: requests are handed out." in show("resume", crawl.jobdir)
    process.communicate(timeout=60)
    assert process.returncode == 0
    assert sorted(crawl.item_paths()) == sorted([*PAGES, "/pushed"])


def test_a_run_is_stopped_and_goes_on(tmp_path: Path, site: SlowSite) -> None:
    crawl = Crawl(tmp_path, "pages", f"{site.url}/0")
    process = crawl.start(**ONE_BY_ONE)
    site.wait_for(lambda it: len(it.order) == 2)
    assert "It stops once what is being downloaded is finished." in show("stop", crawl.jobdir)
    site.go.set()
    process.communicate(timeout=60)
    assert len(site.order) == 2
    assert crawl.stat("finish_reason") == "shutdown"
    assert crawl.run() == 0
    assert sorted(crawl.item_paths()) == sorted(PAGES)


def test_a_session_with_two_workers(tmp_path: Path, site: SlowSite, server: RedisServer) -> None:
    settings: dict[str, Any] = {
        **ONE_BY_ONE,
        "JOBDIR": None,
        "ALTSCHED_SHARED": 1,
        "ALTSCHED_SHARED_KEY": "pages",
        "REDIS_PORT": server.port,
        "ALTSCHED_SHARED_PREFETCH": 1,
    }
    crawl = ["--shared", "pages", "-s", f"REDIS_PORT={server.port}"]
    workers = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        workers.append(Crawl(tmp_path / name, "pages", f"{site.url}/0"))
    processes = [worker.start(**settings) for worker in workers]
    # One page for each of them is on its way.
    site.wait_for(lambda it: len(it.order) == 3)
    assert "running" in show("status", *crawl)
    assert "It is paused, also in later runs" in show("pause", *crawl)
    assert "1 accepted, 0 seen before." in show("push", *crawl, f"{site.url}/pushed")
    assert "0 accepted, 1 seen before." in show("push", *crawl, f"{site.url}/1")
    site.go.set()

    def crawled() -> list[str]:
        return [path for worker in workers for path in worker.item_paths()]

    workers[0].wait_until(processes[0], lambda: len(crawled()) == 3)
    assert "paused" in show("status", *crawl)
    assert len(site.order) == 3
    assert "It is not paused: requests are handed out." in show("resume", *crawl)
    for process in processes:
        process.communicate(timeout=60)
        assert process.returncode == 0
    assert sorted(crawled()) == sorted([*PAGES, "/pushed"])
