"""What a URL that was seen takes of a Redis server's memory, and a request that is pending."""

from __future__ import annotations

import asyncio
from typing import Any

import redis
from scrapy import Request

from ..contenders import SHARED, Contender
from ..engine import link
from ..loop import LoopCrawl, run_in_loop
from . import Case, Metric, Outcome, Place, unique

METRICS = (Metric("bytes", "bytes each, of used_memory", is_main=True),)
#: Between two turns of the event loop.
_PORTION = 500


def cases(scale: float, _: Any) -> list[Case]:
    """A million URLs seen times *scale*, and a tenth as many pending requests."""
    seen = max(1_000, int(1_000_000 * scale))
    return [
        Case(f"{seen:,} seen", {"number": seen, "pending": False}, SHARED, rounds=1),
        Case(f"{seen // 10:,} pending", {"number": seen // 10, "pending": True}, SHARED, rounds=1),
    ]


def run(contender: Contender, place: Place, number: int, pending: bool) -> Outcome:
    """Fill the server with one worker, which then leaves."""
    assert place.redis_url is not None
    server = redis.Redis.from_url(place.redis_url)
    before = _used(server)
    run_in_loop(contender, place, lambda crawl: _fill(crawl, number, pending=pending))
    return Outcome({"bytes": (_used(server) - before) / number})


async def _fill(crawl: LoopCrawl, number: int, *, pending: bool) -> None:
    page = Request("https://host-0.example/catalogue/", meta={"depth": 3})
    for first in range(0, number, _PORTION):
        numbers = range(first, min(first + _PORTION, number))
        requests = [link(unique.url(each, unique.HOSTS), page) for each in numbers]
        if pending:
            crawl.enqueue(requests)
        else:
            for request in requests:
                crawl.scheduler.df.request_seen(request)
        await asyncio.sleep(0)
    crawl.close()


def _used(server: redis.Redis) -> int:
    found: Any = server.info("memory")
    used: int = found["used_memory"]
    return used
