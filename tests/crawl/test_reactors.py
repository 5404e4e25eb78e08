"""Crawls under each kind of reactor that Scrapy has, and under none."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from scrapy.settings import default_settings

from ..crawls import Crawl
from ..sites import Page, Site, random_graph

ASYNCIO = "twisted.internet.asyncioreactor.AsyncioSelectorReactor"
SELECT = "twisted.internet.selectreactor.SelectReactor"
#: The settings of each kind, and what the log then says.
KINDS: dict[str, tuple[dict[str, Any], str]] = {
    "asyncio": ({"TWISTED_REACTOR": ASYNCIO}, f"Using reactor: {ASYNCIO}"),
    "select": ({"TWISTED_REACTOR": SELECT}, f"Using reactor: {SELECT}"),
}
if hasattr(default_settings, "TWISTED_REACTOR_ENABLED"):  # new in Scrapy 2.15
    KINDS["none"] = ({"TWISTED_REACTOR_ENABLED": False}, "Not using a Twisted reactor")

EACH_KIND = pytest.mark.parametrize("kind", KINDS)


@EACH_KIND
def test_a_killed_crawl_is_resumed_to_its_end(tmp_path: Path, kind: str) -> None:
    settings, sentence = KINDS[kind]
    graph = random_graph(50, 3, 31)
    with Site(graph) as site:
        crawl = Crawl(tmp_path, "pages", f"{site.url}/0")
        for event, number in (("item", 12), ("committed", 9), ("scheduled", 15)):
            kill = {"KILL_AT": number, "KILL_ON": event, "ALTSCHED_COMMIT_EVERY": 1}
            assert crawl.run(**kill, **settings) == -signal.SIGKILL
        assert crawl.run(LOG_LEVEL="DEBUG", **settings) == 0
        assert sentence in crawl.log
        assert "is finished: 50 requests done, none pending, 0 dead" in crawl.log
        assert set(site.hits) == set(graph)
        assert set(crawl.item_paths()) == set(graph)


@EACH_KIND
def test_a_crawl_that_is_held_full_still_commits(tmp_path: Path, kind: str) -> None:
    settings, sentence = KINDS[kind]
    held = threading.Event()
    pages = {"/held": Page(held=held), "/late/1": Page(), "/late/2": Page()}
    full = {"CONCURRENT_REQUESTS": 1, "ALTSCHED_COMMIT_INTERVAL": 0.5, **settings}
    with Site(pages) as site:
        crawl = Crawl(tmp_path, "filled", site.url, after=0.1)
        process = crawl.start(REPORT="committed", LOG_LEVEL="DEBUG", **full)
        assert process.stdout is not None
        for line in process.stdout:
            if line == "late\n":
                break
        # The engine is full and asks the scheduler for nothing, and of two requests the second came
        # in the midst of the first one's commit: only the timer can commit it.
        assert process.stdout.readline() == "committed\n"
        site.wait_for(lambda site: site.hits["/held"])
        assert "Crawled (" not in crawl.log
        crawl.kill(process)
        held.set()
        assert sentence in crawl.log
        assert site.hits == {"/held": 1}
        assert crawl.run(**full) == 0
        assert site.hits == {"/held": 2, "/late/1": 1, "/late/2": 1}
        assert "is finished: 3 requests done" in crawl.log
