"""A spider whose requests wait, and that tells what came before its time."""

from __future__ import annotations

import random
import time

from scrapy import Request, Spider, signals


class DelayingSpider(Spider):
    """Requests pages that need no server (argument ``count``), each after a time of its own.

    :ivar least, most: seconds that they wait.
    """

    name = "delaying"
    count, least, most = "10", "0.5", "1.5"

    @classmethod
    def from_crawler(cls, crawler, *args, **kwargs):
        spider = super().from_crawler(crawler, *args, **kwargs)
        crawler.signals.connect(spider.note_left, signals.request_left_downloader)
        crawler.signals.connect(spider.note_reached, signals.request_reached_downloader)
        return spider

    async def start(self):
        yield Request("data:,start")

    def parse(self, response):
        draw = random.Random(1)
        for number in range(int(self.count)):
            delay = draw.uniform(float(self.least), float(self.most))
            yield Request(
                f"data:,{number}",
                self.parse_late,
                meta={"altsched_delay": delay},
                cb_kwargs={"due": time.time() + delay},
            )

    def note_reached(self, request):
        if time.time() < request.cb_kwargs.get("due", 0):
            self.logger.error("%s is too early", request)

    def note_left(self, request):
        if "altsched_delay" in request.meta:
            self.logger.error("%s would wait again", request)

    def parse_late(self, response, due):
        yield {"url": response.url, "late": time.time() - due}
