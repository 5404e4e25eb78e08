"""Extensions that look at a running crawl and print what they see."""

from __future__ import annotations

import json

from scrapy import signals
from scrapy.utils.engine import get_engine_status


class Status:
    """Prints what the telnet console's ``est()`` shows, each time that a response is there."""

    @classmethod
    def from_crawler(cls, crawler):
        return cls(crawler)

    def __init__(self, crawler):
        self.crawler = crawler
        crawler.signals.connect(self.show, signals.response_received)

    def show(self):
        engine = self.crawler.engine
        status = dict(get_engine_status(engine))
        # A property of the engine's since Scrapy 2.19.
        scheduler = getattr(engine, "scheduler", engine._slot.scheduler)
        status["scheduler"] = type(scheduler).__module__
        status["pending"] = len(scheduler)
        print(json.dumps(status, default=str), flush=True)


class EmptyHanded:
    """Prints whenever the scheduler had nothing to give, and whether it had something to keep."""

    @classmethod
    def from_crawler(cls, crawler):
        return cls(crawler)

    def __init__(self, crawler):
        self.crawler = crawler
        crawler.signals.connect(self.show, signals.scheduler_empty)

    def show(self):
        scheduler = self.crawler.engine._slot.scheduler
        print("empty-handed", scheduler.has_pending_requests(), flush=True)
