"""Spiders that end, or that somebody ends, in the middle of their work."""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing
import os
import signal
from concurrent.futures import ProcessPoolExecutor

from scrapy import Request, Spider, signals
from scrapy.exceptions import CloseSpider, IgnoreRequest

from scrapy_altsched.errors import ForkedError
from scrapy_altsched.signals import frontier_committed, frontier_committing

from .pages import PagesSpider


class ClosingSpider(PagesSpider):
    """Is killed when it was closed (argument ``die``), as by a container that has no patience."""

    name = "closing"

    @classmethod
    def from_crawler(cls, crawler, *args, **kwargs):
        spider = super().from_crawler(crawler, *args, **kwargs)
        crawler.signals.connect(spider.end, signals.spider_closed)
        return spider

    def end(self):
        if int(getattr(self, "die", 0)):
            os.kill(os.getpid(), signal.SIGKILL)


class TroubledSpider(PagesSpider):
    """Does something terrible at its n-th page (argument ``at``), if it is told to (``action``)."""

    name = "troubled"
    action = ""
    at = "0"

    @classmethod
    def from_crawler(cls, crawler, *args, **kwargs):
        spider = super().from_crawler(crawler, *args, **kwargs)
        spider.visited = 0
        if spider.action == "committing":
            crawler.signals.connect(spider.fail, frontier_committing)
        if spider.action == "committed":
            crawler.signals.connect(spider.fail, frontier_committed)
        return spider

    def fail(self):
        print("failed", flush=True)
        raise RuntimeError("a handler of the test fails")

    def parse(self, response):
        self.visited += 1
        visited = self.visited
        yield {"url": response.url}
        if visited == int(self.at):
            getattr(self, f"end_by_{self.action}", lambda: None)()
        yield from response.follow_all(css="a")

    def end_by_exit(self):
        os._exit(7)

    def end_by_close(self):
        raise CloseSpider("enough")

    def end_by_memory(self):
        raise MemoryError

    def end_by_error(self):
        raise RuntimeError("this page cannot be parsed")

    def end_by_fork(self):
        child = os.fork()
        if not child:
            self.use_in_child()
            os._exit(0)
        os.waitpid(child, 0)

    def end_by_worker(self):
        worker = multiprocessing.get_context("fork").Process(target=self.use_in_child)
        worker.start()
        worker.join()

    def end_by_pool(self):
        self.pool = ProcessPoolExecutor(1, multiprocessing.get_context("fork"))
        print(self.pool.submit(os.getpid).result(), flush=True)

    def use_in_child(self):
        scheduler = self.crawler.engine._slot.scheduler
        for verb in (
            lambda: scheduler.enqueue_request(Request("http://127.0.0.1:1/")),
            scheduler.next_request,
            scheduler.checkpoint,
            lambda: scheduler.close("finished"),
        ):
            try:
                verb()
            except ForkedError:
                print("refused", flush=True)


class EndlessSpider(PagesSpider):
    """Goes on with its start requests, one after the other, while others close slowly."""

    name = "endless"

    @classmethod
    def from_crawler(cls, crawler, *args, **kwargs):
        spider = super().from_crawler(crawler, *args, **kwargs)
        crawler.signals.connect(spider.linger, signals.spider_closed)
        return spider

    async def linger(self):
        await asyncio.sleep(0.3)

    async def start(self):
        for number in itertools.count():
            await asyncio.sleep(0.01)
            yield Request(f"{self.url}/{number}")


class FailingSpider(Spider):
    """Its pages fail in each of the ways in which pages do."""

    name = "failing"

    async def start(self):
        yield Request(f"{self.url}/", self.parse)

    def parse(self, response):
        nowhere = "http://127.0.0.1:1"
        yield Request(f"{nowhere}/1")
        yield Request(f"{nowhere}/2", errback=lambda failure: [{"url": failure.request.url}])
        yield Request(f"{nowhere}/3", errback=self.fail)
        yield Request(f"{self.url}/busy")
        yield Request(f"{self.url}/wanted", self.keep, meta={"handle_httpstatus_list": [503]})
        yield Request(f"{self.url}/missing")
        yield Request(f"{self.url}/good", self.fail)
        yield Request(f"{self.url}/followed", lambda _: self.fail(_))
        yield Request(f"{self.url}/ignored", meta={"ignored": True})

    def keep(self, response):
        yield {"url": response.url}

    def fail(self, _):
        raise ValueError("as the test wants it \x1b[31m")


class IgnoringMiddleware:
    """Keeps requests from being downloaded, as one that obeys robots.txt does."""

    def process_request(self, request, spider=None):
        if request.meta.get("ignored"):
            raise IgnoreRequest
