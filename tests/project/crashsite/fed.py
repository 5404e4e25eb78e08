"""Spiders that take their start requests from a key on a Redis server."""

from __future__ import annotations

import os
import signal

from scrapy.linkextractors import LinkExtractor
from scrapy.spiders import Rule
from scrapy_redis.spiders import RedisCrawlSpider, RedisSpider

from scrapy_altsched import RedisQueueMixin


class RedisPagesSpider(RedisSpider):
    """scrapy-redis's own: follows every link and yields an item a page."""

    name = "redis-pages"

    def parse(self, response):
        yield {"url": response.url}
        yield from response.follow_all(css="a")


class RedisRulesSpider(RedisCrawlSpider):
    """scrapy-redis's own, with rules."""

    name = "redis-rules"
    rules = [Rule(LinkExtractor(), callback="parse_page", follow=True)]

    def parse_start_url(self, response):
        return self.parse_page(response)

    def parse_page(self, response):
        return {"url": response.url}


class QueueSpider(RedisQueueMixin):
    """Follows every link; dies when it has been handed so many entries (argument ``die_at``)."""

    name = "queue"
    handed = 0

    def make_request_from_data(self, data):
        self.handed += 1
        if self.handed == int(getattr(self, "die_at", 0)):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().make_request_from_data(data)

    def parse(self, response):
        yield {"url": response.url}
        yield from response.follow_all(css="a")
