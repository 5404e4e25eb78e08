"""Crawls of spiders that are fed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..crawls import Crawl
from ..processes import Process
from ..servers import RedisServer
from ..sites import Site


def start(crawl: Crawl, server: RedisServer, **settings: Any) -> Process:
    """Start a crawl that waits for 2 s before it ends."""
    always = {
        # Not among the others: scrapy-redis is not everywhere.
        "SPIDER_MODULES": "crashsite.fed",
        "MAX_IDLE_TIME_BEFORE_CLOSE": 2,
        "REDIS_PORT": server.port,
    }
    return crawl.start(**{**always, **settings})


def end(crawl: Crawl, process: Process) -> None:
    """Wait until it has ended by itself, as finished."""
    process.communicate(timeout=120)
    assert process.returncode == 0
    assert crawl.stat("finish_reason") == "finished", crawl.log
    assert crawl.stat("log_count/ERROR") is None, crawl.log


def crawl_of(directory: Path, spider: str, site: Site) -> Crawl:
    directory.mkdir()
    return Crawl(directory, spider, site.url, redis_key=directory.name)


def wait_for_items(crawl: Crawl, process: Process, count: int) -> None:
    """Wait until so many items are in the feed, as pages that are done."""
    crawl.wait_until(
        process, lambda: crawl.items.exists() and crawl.items.read_text().count("\n") >= count
    )
