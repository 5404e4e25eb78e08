"""A site that answers nothing for a while, in the middle of a crawl by a real Scrapy."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

from scrapy import Request, Spider
from scrapy.crawler import CrawlerProcess
from scrapy.http import Response

from ..contenders import OURS, Contender
from ..loopback import LOOPBACK
from ..site import Outage, run_site
from . import Case, Metric, Outcome, Place

METRICS = (
    Metric("missing", "pages that were not crawled", is_main=True, digits=0),
    Metric("asked", "requests while it answered nothing", digits=0),
)
#: Consecutive failures after which ours leaves a site alone.
_BREAKER = 5


def cases(scale: float, _: Any) -> list[Case]:
    """3,000 pages, from the 1,000th on an outage of 30 s, times *scale*."""
    pages, seconds = max(60, int(3_000 * scale)), max(2.0, 30.0 * scale)
    parameters = {"pages": pages, "seconds": seconds}
    title = f"{pages:,} pages, {seconds:g} s"
    return [Case(title, parameters, ("stock-disk", OURS), rounds=1)]


class OutageSpider(Spider):
    """Fetches a page that leads to all others."""

    name = "outage"
    first: str
    pages: int

    async def start(self) -> AsyncIterator[Any]:
        yield Request(f"{self.first}/0")

    def parse(self, response: Response, **_: Any) -> Iterator[Request]:
        if response.url.endswith("/0"):
            for number in range(1, self.pages):
                yield Request(f"{self.first}/{number}")


def run(contender: Contender, place: Place, pages: int, seconds: float) -> Outcome:
    """Crawl it to the end."""
    outage = Outage(pages // 3, seconds)
    settings = {
        **LOOPBACK,
        "ADDONS": {"scrapy_altsched.Addon": 0},
        "ALTSCHED_BREAKER": _BREAKER,
        # It is doubled each time: three or four trials.
        "ALTSCHED_BREAKER_DELAY": seconds / 8,
        "LOG_LEVEL": "ERROR",
        "RETRY_ENABLED": True,
        **place.settings(contender),
    }
    with run_site(latency=0.005, outage=outage) as site:
        process = CrawlerProcess(settings)
        crawler = process.create_crawler(OutageSpider)
        process.crawl(crawler, first=f"http://host.test:{site.port}", pages=pages)
        process.start()
    assert crawler.stats is not None
    crawled = crawler.stats.get_value("downloader/response_status_count/200", 0)
    begin = site.arrivals[outage.after - 1].time
    asked = sum(begin <= arrival.time < begin + seconds * 1e9 for arrival in site.arrivals)
    reason = crawler.stats.get_value("finish_reason")
    return Outcome({"missing": pages - crawled, "asked": asked}, {"all": f"ended: {reason}"})
