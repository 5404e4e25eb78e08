"""Spiders for shared crawls."""

from __future__ import annotations

import asyncio
from pathlib import Path

from scrapy import Request
from scrapy.http import HtmlResponse
from twisted.internet.task import LoopingCall

from .pages import PagesSpider


class AnswerLarge:
    """Answers requests that have a body, so that nobody has to send it."""

    def process_request(self, request, spider=None):
        return HtmlResponse(request.url, request=request) if request.body else None


class LargeSpider(PagesSpider):
    """One of its requests has a body of so many bytes (argument ``size``)."""

    name = "large"
    custom_settings = {"DOWNLOADER_MIDDLEWARES": {AnswerLarge: 1}}

    async def start(self):
        yield Request(f"{self.url}/0")
        yield Request(f"{self.url}/1", body=bytes(int(self.size)))
        yield Request(f"{self.url}/2")

    def parse(self, response):
        yield {"url": response.url}


class FeederSpider(PagesSpider):
    """Brings many start requests (argument ``count``), and works on none of them."""

    name = "feeder"
    custom_settings = {"DOWNLOAD_DELAY": 1_000}

    async def start(self):
        self.brought = 0
        watch = LoopingCall(self.watch)
        watch.start(0.1)
        for number in range(int(self.count)):
            self.brought = number
            yield Request(f"{self.url}/{number}", dont_filter=number % 2 == 0)

    def parse(self, response):
        pass

    def watch(self):
        frontier = self.crawler.engine._slot.scheduler._session.frontier
        if frontier.pressure.is_full:
            self.logger.info("held at %d", self.brought)
        else:
            self.logger.info("brought %d", self.brought)


class RepeatedSpider(PagesSpider):
    """Its start() waits in its middle until there is a file (argument ``go``)."""

    name = "repeated"

    async def start(self):
        self.logger.info("start() begins")
        yield Request(f"{self.url}/0")
        while not Path(self.go).exists():
            await asyncio.sleep(0.02)
        yield Request(f"{self.url}/1")
        self.logger.info("start() ends")
