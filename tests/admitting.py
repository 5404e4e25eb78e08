"""A crawl whose downloads start when the spider says so; run as a module, by a real engine."""

from __future__ import annotations

import json
import os
import sys
from typing import Any
from urllib.parse import urlsplit
from urllib.request import urlopen

from scrapy import Request, Spider, signals
from scrapy.crawler import Crawler, CrawlerProcess
from scrapy.exceptions import IgnoreRequest
from scrapy.http import Response
from twisted.internet.defer import Deferred, succeed
from twisted.python.failure import Failure

from scrapy_altsched.engine.engine import Engine


def path_of(request: Request | Response) -> str:
    return urlsplit(request.url).path


class AdmittingSpider(Spider):
    """Asks for *paths*, which begin with what becomes of them.

    - ``/free``: they have no pace;
    - ``/now``: they may start;
    - ``/late``: they may when one that was to start ``/now`` is there;
    - ``/never``: they may not.

    When one that begins with ``/late/watched`` is said to have been sent, the site is asked for
    ``/sent`` and its path, while all else stands still.

    :ivar told: what has happened, in order.
    """

    name = "admitting"
    url: str
    paths: list[str]
    #: With so many responses the process ends.
    enough: int | None = None

    @classmethod
    def from_crawler(cls, crawler: Crawler, *arguments: Any, **named: Any) -> AdmittingSpider:
        spider = super().from_crawler(crawler, *arguments, **named)
        crawler.signals.connect(spider.begin, signals.spider_opened)
        spider.told = []
        spider.late = []
        spider.responses = 0
        return spider

    told: list[dict[str, Any]]
    late: list[Deferred[None]]
    responses: int

    def begin(self) -> None:
        Engine(self.crawler).pace_downloads(self.admit, self.note_sent, self.end)

    async def start(self) -> Any:
        for path in self.paths:
            yield Request(f"{self.url}{path}", errback=self.fail)

    def admit(self, request: Request) -> Deferred[None] | None:
        path = path_of(request)
        self.told.append({"what": "asked", "path": path})
        if path.startswith("/free"):
            return None
        if path.startswith("/now"):
            return succeed(None)
        waiting: Deferred[None] = Deferred()
        if path.startswith("/never"):
            waiting.errback(IgnoreRequest("never"))
        else:
            self.late.append(waiting)
        return waiting

    def note_sent(self, request: Request) -> None:
        path = path_of(request)
        self.told.append({"what": "sent", "path": path})
        if path.startswith("/late/watched"):
            with urlopen(f"{self.url}/sent{path}"):
                pass

    def end(self, request: Request) -> None:
        self.told.append({"what": "ended", "path": path_of(request)})

    def parse(self, response: Response) -> None:
        path, slot = path_of(response), response.meta["download_slot"]
        found = self.crawler.engine.downloader.slots[slot]  # type: ignore[union-attr]
        state = {"slot": slot, "waiting": len(found.queue), "delay": found.delay}
        self.told.append({"what": "response", "path": path, **state})
        self.responses += 1
        if self.responses == self.enough:
            print(json.dumps(self.told), flush=True)
            os._exit(0)
        if path.startswith("/now"):
            for waiting in self.late:
                waiting.callback(None)
            self.late.clear()

    def fail(self, failure: Failure) -> None:
        path = path_of(failure.request)  # type: ignore[attr-defined]
        self.told.append({"what": type(failure.value).__name__, "path": path})


def main() -> None:
    """Crawl with the arguments and the settings that are given; print what has happened."""
    arguments, settings = json.loads(sys.argv[1])
    process = CrawlerProcess({"LOG_LEVEL": "ERROR", **settings})
    crawler = process.create_crawler(AdmittingSpider)
    process.crawl(crawler, **arguments)
    process.start()
    assert isinstance(crawler.spider, AdmittingSpider)
    print(json.dumps(crawler.spider.told))


if __name__ == "__main__":
    main()
