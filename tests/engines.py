"""A stand-in for Scrapy's engine, for schedulers that are driven by calls."""

from __future__ import annotations

import weakref
from collections.abc import AsyncIterator
from typing import Any

from scrapy import Request, Spider
from scrapy.core.downloader import Downloader, Slot
from scrapy.crawler import Crawler
from scrapy.exceptions import IgnoreRequest
from scrapy.signals import request_dropped, request_scheduled
from scrapy.utils.misc import build_from_crawler, load_object
from scrapy.utils.test import get_crawler


class _NextCall:
    """Counts how often the engine was to ask for the next request."""

    def __init__(self) -> None:
        self.scheduled = 0

    def schedule(self) -> None:
        self.scheduled += 1


class _EngineSlot:
    """What Scrapy's engine has of an open spider."""

    close_if_idle = True

    def __init__(self) -> None:
        self.inprogress: set[Request] = set()
        self.nextcall = _NextCall()
        self.is_closing = False

    def close(self) -> None:
        self.is_closing = True


class _Downloader:
    """Scrapy's downloader as far as a scheduler sees it: slots, and what is under way in them."""

    ip_concurrency = 0
    DOWNLOAD_SLOT = Downloader.DOWNLOAD_SLOT
    get_slot_key = Downloader.get_slot_key

    def __init__(self) -> None:
        self.slots: dict[str, Slot] = {}
        self.active: set[Request] = set()


class Engine:
    """Keeps the requests that a scheduler hands out until they are said to be done."""

    def __init__(self) -> None:
        self._slot = _EngineSlot()
        self._start: AsyncIterator[Any] | None = None
        self.start_time: float | None = None
        self.running = True
        self.downloader = _Downloader()
        self.closed_with: str | None = None
        self.paused = False
        self.scheduler: Any = None

    @property
    def in_progress(self) -> set[Request]:
        """What was handed out and is not over."""
        return self._slot.inprogress

    def begin(self, request: Request) -> None:
        """The engine's part right after ``next_request``."""
        self._slot.inprogress.add(request)
        downloader = self.downloader
        name = downloader.get_slot_key(request)
        slot = downloader.slots.setdefault(name, Slot(8, 0, 0))
        request.meta["download_slot"] = name
        downloader.active.add(request)
        slot.active.add(request)

    def download(self, request: Request) -> None:
        """The response is there."""
        self.downloader.active.discard(request)
        self.downloader.slots[request.meta["download_slot"]].active.discard(request)

    def end(self, request: Request) -> None:
        """The request's callback and its items are through."""
        self.download(request)
        self._slot.inprogress.discard(request)

    def close_spider(self, spider: Spider, reason: str) -> None:
        self.closed_with = reason

    def crawl(self, request: Request) -> None:
        """As the engine does for requests that no page has led to."""
        assert self.scheduler is not None
        signals, named = self.scheduler.crawler.signals, {"request": request, "spider": None}
        results = signals.send_catch_log(request_scheduled, dont_log=IgnoreRequest, **named)
        if any(isinstance(getattr(it, "value", None), IgnoreRequest) for _, it in results):
            return
        if not self.scheduler.enqueue_request(request):
            signals.send_catch_log(request_dropped, **named)

    def pause(self) -> None:
        self.paused = True

    def unpause(self) -> None:
        self.paused = False


class StandIn:
    """A crawler, its stand-in engine, and a scheduler that is open, or about to be."""

    def __init__(
        self, settings: dict[str, Any], spider_class: type[Spider] = Spider, *, opens: bool = True
    ) -> None:
        self.crawler: Crawler = get_crawler(spider_class, settings)
        self.engine = Engine()
        self.crawler.engine = self.engine  # type: ignore[assignment]
        self.spider = spider_class.from_crawler(self.crawler, name="spider")
        self.crawler.spider = self.spider
        self.scheduler: Any = build_from_crawler(
            load_object(self.crawler.settings["SCHEDULER"]), self.crawler
        )
        # Scrapy 2.13 keeps a crawler, and so its engine, for ever.
        self.engine.scheduler = weakref.proxy(self.scheduler)
        if opens:
            self.scheduler.open(self.spider)

    def next(self) -> Request | None:
        request = self.scheduler.next_request()
        if request is not None:
            self.engine.begin(request)
        return request

    def stat(self, name: str) -> Any:
        assert self.crawler.stats is not None
        return self.crawler.stats.get_value(name)


OURS = {
    "SCHEDULER": "scrapy_altsched.Scheduler",
    "DUPEFILTER_CLASS": "scrapy_altsched.DupeFilter",
}
SLOTS = "scrapy.pqueues.DownloaderAwarePriorityQueue"
ONE = "scrapy.pqueues.ScrapyPriorityQueue"
