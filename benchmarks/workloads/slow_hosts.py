"""Hosts with a long delay, and others, crawled by a real Scrapy: what the others get."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from itertools import pairwise
from typing import Any

from scrapy import Request, Spider
from scrapy.crawler import CrawlerProcess
from scrapy.http import Response

from ..contenders import OURS, Contender
from ..loopback import LOOPBACK
from ..site import Arrival, run_site
from . import Case, Metric, Outcome, Place

METRICS = (
    Metric("cost", "ms a page of the others", is_main=True),
    Metric("gap", "s, longest gap of one of the others", digits=2),
)
_SLOW, _OTHERS = 40, 12
_SLOW_DELAY, _DELAY = 30.0, 0.2
_CONCURRENCY = 16


def cases(scale: float, _: Any) -> list[Case]:
    """Both policies, for 70 s times *scale*; all delays are as much shorter."""
    scale = max(scale, 0.02)
    return [
        Case(f"policy {policy}", {"policy": policy, "scale": scale}, (OURS,), rounds=1)
        for policy in ("stock", "polite")
    ]


class SlowHostsSpider(Spider):
    """Fetches a page that leads to all others."""

    name = "slow_hosts"
    port: int
    pages: dict[str, int]

    async def start(self) -> AsyncIterator[Any]:
        yield Request(f"http://first.test:{self.port}/")

    def parse(self, response: Response, **_: Any) -> Iterator[Request]:
        if "first.test" in response.url:
            for host, pages in self.pages.items():
                for number in range(pages):
                    yield Request(f"http://{host}:{self.port}/{number}")


def run(contender: Contender, place: Place, policy: str, scale: float) -> Outcome:
    """Crawl until the time is up: each host has more pages than it can give by then."""
    seconds = 70.0 * scale
    slow = {f"slow-{number}.test": _SLOW_DELAY * scale for number in range(_SLOW)}
    others = {f"other-{number}.test": _DELAY * scale for number in range(_OTHERS)}
    delays = slow | others
    settings = {
        **LOOPBACK,
        "ALTSCHED_POLICY": policy,
        "CLOSESPIDER_TIMEOUT": seconds,
        "CONCURRENT_REQUESTS": _CONCURRENCY,
        "DOWNLOAD_SLOTS": {
            host: {"delay": delay, "concurrency": 1, "randomize_delay": False}
            for host, delay in delays.items()
        },
        "LOG_LEVEL": "ERROR",
        **place.settings(contender),
    }
    pages = {host: int(seconds / delay) + _CONCURRENCY for host, delay in delays.items()}
    with run_site(latency=0.0) as site:
        process = CrawlerProcess(settings)
        process.crawl(SlowHostsSpider, port=site.port, pages=pages)
        process.start()
    begin = site.arrivals[0].time
    within = [it for it in site.arrivals[1:] if it.time - begin < seconds * 1e9]
    found = sum(arrival.host in others for arrival in within)
    figures = {
        "cost": seconds * 1e3 / max(found, 1),
        "gap": _longest_gap(within, begin, begin + seconds * 1e9, set(others)) / 1e9,
    }
    return Outcome(figures)


def _longest_gap(arrivals: list[Arrival], begin: float, end: float, hosts: set[str]) -> float:
    times: defaultdict[str, list[float]] = defaultdict(list)
    for arrival in arrivals:
        times[arrival.host].append(arrival.time)
    return max(
        later - earlier for host in hosts for earlier, later in pairwise([begin, *times[host], end])
    )
