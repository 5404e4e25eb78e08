"""A host that yields a million links under a budget, in a shared crawl by a real Scrapy: memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import redis
from scrapy import Request, Spider
from scrapy.crawler import CrawlerProcess
from scrapy.http import Response

from ..contenders import SHARED, Contender
from ..loopback import LOOPBACK
from ..process import resident
from ..site import run_site
from . import Case, Metric, Outcome, Place

METRICS = (
    Metric("worker", "MB resident in the worker at the end", is_main=True),
    Metric("worker_early", "MB at a tenth"),
    Metric("server", "MB used by the server at the end"),
    Metric("server_early", "MB at a tenth"),
)
_LINKS = 1_000


def cases(scale: float, _: Any) -> list[Case]:
    """A million links, times *scale*."""
    pages = max(10, int(1_000 * scale))
    title = f"{pages * _LINKS:,} links, budget {pages:,}"
    return [Case(title, {"pages": pages}, SHARED[1:], rounds=1)]


class BudgetSpider(Spider):
    """Finds so many links on each page that only a part of them is within the budget.

    :ivar figures: by names of metrics.
    """

    name = "budget"
    site: str
    pages: int
    server: redis.Redis

    async def start(self) -> AsyncIterator[Any]:
        self.figures: dict[str, float] = {}
        self._scraped = self._found = 0
        yield Request(f"{self.site}/0")

    def parse(self, response: Response, **_: Any) -> Iterator[Request]:  # noqa: ARG002  (its URL does not matter)
        for _ in range(_LINKS):
            self._found += 1
            yield Request(f"{self.site}/{self._found}")
        self._scraped += 1
        if self._scraped == self.pages // 10:
            self._look("_early")
        elif self._scraped == self.pages:
            self._look("")

    def _look(self, suffix: str) -> None:
        found: Any = self.server.info("memory")
        self.figures[f"worker{suffix}"] = resident() / 1e6
        self.figures[f"server{suffix}"] = found["used_memory"] / 1e6


def run(contender: Contender, place: Place, pages: int) -> Outcome:
    """Crawl to the end: as many pages as the budget allows."""
    assert place.redis_url is not None
    settings = {
        **LOOPBACK,
        "ADDONS": {"scrapy_altsched.Addon": 0},
        "ALTSCHED_SLOT_BUDGET": pages,
        "LOG_LEVEL": "ERROR",
        # Of 32 pages, links are taken at the same time; without it, of all: a hundred tasks each.
        "SCRAPER_SLOT_MAX_ACTIVE_SIZE": 32 * 1024,
        **place.settings(contender),
    }
    with run_site(latency=0.0) as site:
        process = CrawlerProcess(settings)
        crawler = process.create_crawler(BudgetSpider)
        server = redis.Redis.from_url(place.redis_url)
        url = f"http://host.test:{site.port}"
        process.crawl(crawler, site=url, pages=pages, server=server)
        process.start()
    assert crawler.stats is not None
    assert isinstance(crawler.spider, BudgetSpider)
    crawled = crawler.stats.get_value("downloader/response_status_count/200", 0)
    return Outcome(crawler.spider.figures, {"all": f"{crawled} crawled"})
