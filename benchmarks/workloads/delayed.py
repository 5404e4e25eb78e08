"""A million requests that wait for their time, against a million that do not: memory and cost.

All that wait are due in the same second, and taken from then on.
"""

from __future__ import annotations

import time
from typing import Any

from scrapy import Request

from scrapy_altsched.crawl import setup

from ..contenders import STORES, Contender
from ..engine import Clock, Crawl, collections_timed, link, start_request
from ..process import resident
from . import Case, Metric, Outcome, Place, microseconds, work_of
from .unique import HOSTS, IN, url

METRICS = (
    Metric("cost", "us a request, in and out", is_main=True),
    Metric("in", "us a request in"),
    Metric("out", "us a request out"),
    Metric("resident", "MB more when all are in", digits=0),
    Metric("longest", "ms, longest call"),
    Metric("longest_processor", "ms of processor time, longest call"),
    Metric("longest_own", "the same without garbage collection"),
)
#: Seconds from the first request to the moment at which all are due.
_DAY = 86_400.0


def cases(scale: float, _: Any) -> list[Case]:
    """A million of both, times *scale*."""
    requests = max(IN, int(1_000_000 * scale))
    return [
        Case(f"{requests:,} {kind}", {"requests": requests, "kind": kind}, STORES, rounds=1)
        for kind in ("pending", "delayed")
    ]


class _Clock(setup.CrawlClock):
    """The machine's clock, put forward by some seconds."""

    ahead = 0.0

    @staticmethod
    def monotonic() -> float:
        return time.monotonic() + _Clock.ahead

    @staticmethod
    def wall() -> float:
        return time.time() + _Clock.ahead

    def since_boot(self) -> float:
        return super().since_boot() + self.ahead


def run(contender: Contender, place: Place, requests: int, kind: str) -> Outcome:
    """Find all on one page, let a day pass, and take all."""
    setup.CrawlClock = _Clock  # type: ignore[misc]  # a class has one value for mypy
    clock = Clock(each=True)
    crawl = Crawl(place.settings(contender), clock)
    meta = {"altsched_not_before": time.time() + _DAY} if kind == "delayed" else {}
    figures: dict[str, float] = {}

    def scrape(page: Request) -> list[Request]:
        """All come from the first page, and so while one request is in flight."""
        if not figures:
            before = resident()
            for first in range(0, requests, IN):
                links = [link(url(number, HOSTS), page) for number in range(first, first + IN)]
                for request in links:
                    request.meta.update(meta)
                crawl.enqueue(links)
            figures["in"] = microseconds(clock.enqueueing, requests)
            figures["resident"] = (resident() - before) / 1e6
        return []

    crawl.enqueue([start_request("https://start.example/")])
    with collections_timed(clock):
        crawl.run(scrape)
        _Clock.ahead = _DAY
        crawl.run(scrape)
    work = work_of(crawl)
    crawl.close()
    figures |= {
        "cost": microseconds(clock.total, requests),
        "out": microseconds(clock.taking, requests),
        "longest": clock.longest * 1e3,
        "longest_processor": clock.longest_processor * 1e3,
        "longest_own": clock.longest_own * 1e3,
    }
    return Outcome(figures, {"all": work})
