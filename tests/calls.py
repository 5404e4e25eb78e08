"""A scheduler that writes down how it is called; run as a module, by a real engine."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

from scrapy import Request, Spider
from scrapy.core.scheduler import Scheduler
from scrapy.crawler import CrawlerProcess
from scrapy.http import Response
from scrapy.utils import httpobj

from .sites import Page, Site


class RecordingScheduler(Scheduler):
    """Scrapy's scheduler in memory, and a line for each call."""

    def open(self, spider: Spider) -> Any:
        self.calls: list[dict[str, Any]] = []
        spider.crawler.calls = self.calls  # type: ignore[attr-defined]
        return super().open(spider)

    def enqueue_request(self, request: Request) -> bool:
        in_progress = {page.url for page in self._in_progress}
        call = {
            "call": "enqueue",
            "url": request.url,
            "meta": sorted(request.meta),
            "headers": sorted(name.decode() for name in request.headers),
            "callback": request.callback is not None,
            "is_parsed": request in httpobj._urlparse_cache,
            "page_in_progress": request.headers.get("Referer", b"").decode() in in_progress,
        }
        self.calls.append(
            {**self._under_way(), **call, "accepted": super().enqueue_request(request)}
        )
        return self.calls[-1]["accepted"]

    def next_request(self) -> Request | None:
        under_way = self._under_way()
        request = super().next_request()
        call = {"call": "next", "url": request.url if request is not None else None}
        self.calls.append({**under_way, **call, "requests": len(self)})
        return request

    @property
    def _in_progress(self) -> set[Request]:
        return self.crawler.engine._slot.inprogress  # type: ignore[union-attr]

    def _under_way(self) -> dict[str, Any]:
        """What a scheduler finds when it looks around."""
        downloader = self.crawler.engine.downloader  # type: ignore[union-attr]
        slots = {name: len(slot.active) for name, slot in downloader.slots.items() if slot.active}
        return {
            "in_progress": len(self._in_progress),
            "downloads": len(downloader.active),
            "downloads_in_slots": sum(slots.values()),
            "are_in_progress": downloader.active <= self._in_progress,
        }


class FollowingSpider(Spider):
    name = "following"

    async def start(self) -> Any:
        yield Request(self.url)

    def parse(self, response: Response) -> Iterator[Request]:
        yield from response.follow_all(css="a")


def main() -> None:
    """Crawl the site that is given as path -> links; print the calls."""
    graph = json.loads(sys.argv[1])
    with Site({path: Page(links) for path, links in graph.items()}) as site:
        process = CrawlerProcess({"SCHEDULER": RecordingScheduler, "LOG_LEVEL": "ERROR"})
        crawler = process.create_crawler(FollowingSpider)
        process.crawl(crawler, url=f"{site.url}/0")
        process.start()
    print(json.dumps(crawler.calls))  # type: ignore[attr-defined]


if __name__ == "__main__":
    main()
