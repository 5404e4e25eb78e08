"""Threads that die of an error that nothing expects: the crawl ends, and says so."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import pytest

from ..crawls import Crawl
from ..servers import RedisServer
from ..sites import Page, Site

KINDS = ("ValueError", "MemoryError", "OSError", "UnicodeDecodeError", "KeyError")
MOMENTS = ("first", "middle", "closing")
THREADS = ("exchange", "queue", "sync")
#: What is tried each time; the others are slow ones.
QUICK = {
    ("exchange", "middle", "ValueError"),
    ("exchange", "closing", "OSError"),
    ("queue", "first", "KeyError"),
    ("sync", "closing", "MemoryError"),
}
PAGES = {"/0": Page([f"/{n}" for n in range(1, 20)]), **{f"/{n}": Page() for n in range(1, 20)}}
#: Seconds within which a crawl has to end.
WITHIN = 10.0


def cases() -> list[Any]:
    found = [(thread, moment, kind) for thread in THREADS for moment in MOMENTS for kind in KINDS]
    return [
        pytest.param(*case, marks=[] if case in QUICK else pytest.mark.slow, id="-".join(case))
        for case in found
    ]


def crawl_of(directory: Path, site: Site, server: RedisServer, thread: str) -> Crawl:
    if thread != "queue":
        return Crawl(directory, "pages", f"{site.url}/0")
    with server.client() as client:
        client.rpush("fed", f"{site.url}/0")
    return Crawl(directory, "queue", site.url, redis_key="fed")


def settings_of(server: RedisServer, thread: str) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "REDIS_PORT": server.port,
        "CONCURRENT_REQUESTS": 2,
        "ALTSCHED_LEASE_TIMEOUT": 1,
    }
    if thread == "exchange":
        settings |= {"ALTSCHED_SHARED": 1, "ALTSCHED_SHARED_PREFETCH": 2}
    elif thread == "queue":
        settings |= {"SPIDER_MODULES": "crashsite.fed", "MAX_IDLE_TIME_BEFORE_CLOSE": 1}
    else:
        settings["ALTSCHED_SYNC"] = 1
    return settings


@pytest.mark.parametrize(("thread", "moment", "kind"), cases())
def test_the_crawl_ends_and_says_why(
    tmp_path: Path, server: RedisServer, thread: str, moment: str, kind: str
) -> None:
    with Site(PAGES) as site:
        crawl = crawl_of(tmp_path, site, server, thread)
        dying: dict[str, Any] = {"DIE_IN": thread, "DIE_AT": moment, "DIE_OF": kind}
        dying["DOWNLOAD_DELAY"] = 0.05
        if moment == "closing":
            # Of a shared crawl that is finished, nothing is told then.
            dying["CLOSESPIDER_ITEMCOUNT"] = 3
        process = crawl.start(**settings_of(server, thread), **dying)
        assert process.stdout is not None
        assert process.stdout.readline() == "dies\n", crawl.log
        since = time.monotonic()
        process.communicate(timeout=60)
        took = time.monotonic() - since
        assert process.returncode == 4, crawl.log
        assert took < WITHIN, crawl.log
        died = f"has died of {kind}: "
        assert died in crawl.log
        assert crawl.log.count("CRITICAL: The thread that") == 1, crawl.log
        if (thread, moment) != ("exchange", "first"):
            # Scrapy logs what opening a crawl has raised, more than once.
            assert crawl.log.count("Traceback (most recent call last)") == 1, crawl.log
        if moment == "middle":
            assert crawl.stat("finish_reason") == "frontier_failed"
        # The next run has all that this one has not done.
        crawl.run(**settings_of(server, thread))
        assert set(crawl.item_paths()) == set(PAGES)


@pytest.mark.slow
@pytest.mark.parametrize("thread", THREADS)
def test_a_signal_ends_it(tmp_path: Path, server: RedisServer, thread: str) -> None:
    with Site(PAGES) as site:
        crawl = crawl_of(tmp_path, site, server, thread)
        dying: dict[str, Any] = {"DIE_IN": thread, "DIE_AT": "middle", "DIE_OF": "ValueError"}
        # Otherwise the crawl may be over before the thread is called for the first time.
        dying["DOWNLOAD_DELAY"] = 0.25
        process = crawl.start(**settings_of(server, thread), **dying)
        assert process.stdout is not None
        assert process.stdout.readline() == "dies\n"
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=WITHIN)
        assert process.returncode == 4, crawl.log
