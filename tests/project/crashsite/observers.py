"""Extensions that look at a running crawl and print what they see."""

from __future__ import annotations

import json

from scrapy import signals
from scrapy.exceptions import DontCloseSpider
from scrapy.utils.engine import get_engine_status

from scrapy_altsched.engine.engine import Engine
from scrapy_altsched.engine.event_loop import call_later


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


class Idle:
    """Prints what the scheduler's public methods say when the spider is idle, and at its end.

    Idle is what everything was committed before; then the spider is closed.
    """

    #: How often to look, and the seconds between two looks.
    patience, interval = 200, 0.05

    @classmethod
    def from_crawler(cls, crawler):
        return cls(crawler)

    def __init__(self, crawler):
        self.crawler = crawler
        self.looks = 0
        crawler.signals.connect(self.stay_open, signals.spider_idle)
        crawler.signals.connect(self.show_end, signals.spider_closed)

    def stay_open(self):
        if not self.looks:
            self.scheduler = self.crawler.engine._slot.scheduler
            self.look()
        raise DontCloseSpider

    def look(self):
        self.looks += 1
        answers = self.ask()
        is_saved = answers["position"] is None or (answers["checkpoint"] and answers["durable"])
        if not is_saved and self.looks < self.patience:
            call_later(self.interval, self.look)
            return
        answers["next"] = self.scheduler.next_request()
        self.show("idle", answers)
        Engine(self.crawler).close_spider(self.crawler.spider, "finished")

    def show_end(self):
        self.show("end", self.ask())

    def ask(self):
        scheduler = self.scheduler
        self.position = scheduler.position() or getattr(self, "position", 0)
        return {
            "bool": bool(scheduler),
            "len": len(scheduler),
            "pending": scheduler.has_pending_requests(),
            "queues": [None if queue is None else len(queue) for queue in queues_of(scheduler)],
            "position": scheduler.position(),
            "checkpoint": scheduler.checkpoint(),
            "durable": scheduler.is_durable(self.position),
        }

    def show(self, when, answers):
        name = self.crawler.settings["ALTSCHED_SHARED_KEY"]
        print(json.dumps({"name": name, "when": when, **answers}), flush=True)


def queues_of(scheduler):
    return scheduler.mqs, scheduler.dqs
