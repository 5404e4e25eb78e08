"""A spider trap: what it holds of pending requests is discarded while a real Scrapy crawls."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from time import perf_counter
from typing import Any

from scrapy import Request, Spider
from scrapy.crawler import CrawlerProcess
from scrapy.http import Response

from ..contenders import STORES, Contender
from ..loopback import LOOPBACK
from ..site import run_site
from . import Case, Metric, Outcome, Place

METRICS = (
    Metric("stall", "ms, longest wait of the reactor meanwhile", is_main=True),
    Metric("before", "ms, longest in 3 s before"),
    Metric("seconds", "s from the command to its end", digits=2),
)
#: Pages that are on their way at each moment.
_CHAINS = 2
#: Seconds of the crawl that its wait for the command is compared with.
_BEFORE = 3.0
#: Seconds between two looks at the reactor.
_TICK = 0.001


def cases(scale: float, _: Any) -> list[Case]:
    """200,000 requests, times *scale*."""
    # Some hundreds are crawled before the command begins its work.
    trapped = max(5_000, int(200_000 * scale))
    return [Case(f"{trapped:,} pending", {"trapped": trapped}, STORES, rounds=1)]


class TrapSpider(Spider):
    """Finds all links of a trap on its first page, and goes on elsewhere until they are discarded.

    :param command: that discards them.
    :ivar figures: by names of metrics.
    """

    name = "trap"
    site: str
    trapped: int
    command: list[str]

    async def start(self) -> AsyncIterator[Any]:
        self.figures: dict[str, float] = {}
        self._number = 0
        yield Request(f"{self.site}/first")

    def parse(self, response: Response, **_: Any) -> Iterator[Request]:
        if response.url.endswith("/first"):
            assert self.crawler.engine is not None
            # All at once: pages of the trap would be crawled while Scrapy goes through its links.
            for number in range(self.trapped):
                self.crawler.engine.crawl(Request(f"{self.site}/trap/{number}", priority=-1))
            for _ in range(_CHAINS):
                yield self._next_page()
            self._watching = asyncio.ensure_future(self._watch())
        elif "/page/" in response.url and not self.figures:
            yield self._next_page()

    def _next_page(self) -> Request:
        self._number += 1
        return Request(f"{self.site}/page/{self._number}")

    async def _watch(self) -> None:
        begin = perf_counter()
        before = await _longest_wait(lambda: perf_counter() - begin > _BEFORE)
        begin = perf_counter()
        discarding = subprocess.Popen(self.command, stdout=subprocess.DEVNULL)
        stall = await _longest_wait(lambda: discarding.poll() is not None)
        self.figures = {
            "stall": stall * 1e3,
            "before": before * 1e3,
            "seconds": perf_counter() - begin,
        }


async def _longest_wait(is_over: Callable[[], bool]) -> float:
    """By how many seconds calls of the reactor are late at most, until something is over."""
    loop, over = asyncio.get_running_loop(), asyncio.Event()
    longest = 0.0

    def look(due: float) -> None:
        nonlocal longest
        longest = max(longest, loop.time() - due)
        if is_over():
            over.set()
        else:
            # asyncio.sleep() would take one more turn of the loop.
            due = loop.time() + _TICK
            loop.call_at(due, look, due)

    look(loop.time())
    await over.wait()
    return longest


def run(contender: Contender, place: Place, trapped: int) -> Outcome:
    """Crawl to the end, which comes soon only without the trap."""
    settings = {
        **LOOPBACK,
        "ADDONS": {"scrapy_altsched.Addon": 0},
        "LOG_LEVEL": "ERROR",
        **place.settings(contender),
    }
    command = [sys.executable, "-m", "scrapy", "altsched", "discard", settings["JOBDIR"], "--yes"]
    with run_site(latency=0.05) as site:
        host = f"host.test:{site.port}"
        command += ["--pattern", f"{host}/trap/"]
        process = CrawlerProcess(settings)
        crawler = process.create_crawler(TrapSpider)
        process.crawl(crawler, site=f"http://{host}", trapped=trapped, command=command)
        process.start()
    assert crawler.stats is not None
    assert isinstance(crawler.spider, TrapSpider)
    fetched = sum(arrival.path.startswith("/trap/") for arrival in site.arrivals)
    if fetched > trapped // 2:
        raise RuntimeError(f"{fetched:,} pages of the trap were crawled")
    reason = crawler.stats.get_value("finish_reason")
    return Outcome(crawler.spider.figures, {"all": f"ended: {reason}"})
