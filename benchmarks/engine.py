"""A stand-in for Scrapy's engine: it calls a scheduler as the real one does, without a network.

What a scheduler is called with, and what it finds in the engine, is that of a real crawl of the
example site: ``tests/docs/test_benchmarks.py`` compares both.  In it, ``next_request`` was called
four or five times in a row, 33 requests were in flight on average when it was (up to 16 in the
downloader, the rest waiting for their callbacks), and each request came with ``depth`` and
``Referer``, its URL already parsed by the offsite middleware.

Only the scheduler's own calls are timed.
"""

from __future__ import annotations

import gc
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from time import perf_counter, thread_time
from typing import Any

from scrapy import Request, Spider
from scrapy.core.downloader import Slot
from scrapy.utils.httpobj import urlparse_cached
from scrapy.utils.misc import build_from_crawler, load_object
from scrapy.utils.reactor import install_reactor, is_reactor_installed
from scrapy.utils.test import get_crawler

from tests.engines import Engine

from .process import resident

#: Scrapy's defaults for CONCURRENT_REQUESTS and CONCURRENT_REQUESTS_PER_DOMAIN.
CONCURRENCY = 16
_PER_SLOT = 8
#: Downloads that end between two turns of the reactor.
_END_AT_ONCE = 4
#: Pages that wait for their callbacks while there is enough to download.
_IN_SCRAPER = 16

#: Download slots that are kept although nothing is downloaded there.  Scrapy's downloader drops
#: those that were not used for 60 s: at a hundred pages a second, there are six thousand at most.
_IDLE_SLOTS = 6_000

#: What a page's callback yields.
Scrape = Callable[[Request], list[Request]]


class BudgetExceeded(Exception):  # noqa: N818  (it is no error)
    """The scheduler has used up its seconds."""


class Clock:
    """Seconds that a scheduler's calls took.

    :ivar enqueueing: in ``enqueue_request``.
    :ivar taking: in ``next_request``.
    :ivar processor: of processor time, in both, in the thread that called.
    :ivar longest: in the longest single call of those that were timed one by one.
    :ivar longest_processor: the same of processor time: time in which the process
        waits does not count.
    :ivar longest_own: the same without garbage collections, which come at any time and also
        visit the objects of others.
    :ivar collecting: of processor time in garbage collections, while :func:`collections_timed`.
    :ivar longest_collection: in the longest of these.
    :ivar each: whether ``enqueue_request`` is timed call by call, which itself takes 0.5 us.
    """

    def __init__(self, *, each: bool = False) -> None:
        self.enqueueing = 0.0
        self.taking = 0.0
        self.processor = 0.0
        self.longest = self.longest_processor = self.longest_own = 0.0
        self.collecting = self.longest_collection = 0.0
        self.each = each

    @property
    def total(self) -> float:
        """Seconds in all."""
        return self.enqueueing + self.taking

    def note(self, seconds: float, processor: float, collecting: float) -> None:
        """Count a single call, by all three measures."""
        self.longest = max(self.longest, seconds)
        self.longest_processor = max(self.longest_processor, processor)
        self.longest_own = max(self.longest_own, processor - collecting)


@contextmanager
def collections_timed(clock: Clock) -> Iterator[None]:
    """Let *clock* also count the time of garbage collections."""
    start = 0.0

    def on_collection(phase: str, _: dict[str, int]) -> None:
        nonlocal start
        if phase == "start":
            start = thread_time()
            return
        seconds = thread_time() - start
        clock.collecting += seconds
        clock.longest_collection = max(clock.longest_collection, seconds)

    gc.callbacks.append(on_collection)
    try:
        yield
    finally:
        gc.callbacks.remove(on_collection)


class _Engine(Engine):
    def close_spider(self, spider: Spider, reason: str) -> None:
        raise RuntimeError(f"the scheduler closed the spider {spider.name}: {reason}")


class Crawl:
    """A crawl of made-up pages.

    :param settings: of the crawl; they choose the scheduler.
    :param clock: gets the time of the scheduler's calls.
    :param budget: seconds that the scheduler may take before :class:`BudgetExceeded` is raised.
    :ivar accepted: requests that the scheduler took.
    :ivar refused: requests that it did not.
    :ivar taken: requests that it handed out.
    :ivar digest: of the URLs of these, whatever their order; hashes are the same in all processes
        where PYTHONHASHSEED is.
    :ivar is_starving: whether the scheduler had too little for the downloader in the last turn.
    :ivar opened_in: seconds that opening the scheduler took.
    :ivar opened_with: bytes of memory that are resident since.
    """

    def __init__(
        self, settings: dict[str, Any], clock: Clock | None = None, budget: float = float("inf")
    ) -> None:
        self.clock = clock or Clock()
        self._budget = budget
        if not is_reactor_installed():  # wanted by crawlers of Scrapy 2.13, though none runs
            install_reactor("twisted.internet.asyncioreactor.AsyncioSelectorReactor")
        self.crawler = get_crawler(Spider, settings)
        self._engine = _Engine()
        self._in_progress = self._engine.in_progress
        self.crawler.engine = self._engine  # type: ignore[assignment]
        self.spider = Spider.from_crawler(self.crawler, name="benchmark")
        self.crawler.spider = self.spider
        self._downloading: deque[Request] = deque()
        #: Names of slots in which the last download has ended, the one used last at the end.
        self._idle: OrderedDict[str, None] = OrderedDict()
        self._scraping: deque[Request] = deque()
        #: Requests that are done.  Freeing one is not the scheduler's work: done outside the time.
        self._over: list[Request] = []
        self.accepted = self.refused = self.taken = self.digest = 0
        self.is_starving = False
        scheduler_class = load_object(self.crawler.settings["SCHEDULER"])
        gc.collect()
        start, before = perf_counter(), resident()
        self.scheduler: Any = build_from_crawler(scheduler_class, self.crawler)
        self.scheduler.open(self.spider)
        self.opened_in = perf_counter() - start
        self.opened_with = resident() - before

    def run(self, scrape: Scrape) -> None:
        """Run until nothing is pending and no callback yields anything.

        :raises BudgetExceeded: the scheduler took more than its budget.
        """
        while self.step(scrape):
            if self.clock.total > self._budget:
                raise BudgetExceeded

    def step(self, scrape: Scrape) -> bool:
        """Do one turn of the engine; whether there is more to do."""
        for _ in range(min(_END_AT_ONCE, len(self._downloading))):
            self._end_download()
        self.is_starving = not (is_full := self._download())
        # With nothing to download, the scraper catches up.
        keep = _IN_SCRAPER if is_full else 0
        while len(self._scraping) > keep:
            self._scrape(scrape)
        return bool(self._downloading) or self.scheduler.has_pending_requests()

    def enqueue(self, requests: list[Request]) -> None:
        """Hand requests to the scheduler."""
        for request in requests:
            urlparse_cached(request)  # as the offsite middleware does before
        enqueue_request = self.scheduler.enqueue_request
        accepted = 0
        clock = self.clock
        start_processor = thread_time()
        if clock.each:
            for request in requests:
                collecting, processor = clock.collecting, thread_time()
                start = perf_counter()
                accepted += enqueue_request(request)
                seconds = perf_counter() - start
                clock.enqueueing += seconds
                clock.note(seconds, thread_time() - processor, clock.collecting - collecting)
        else:
            start = perf_counter()
            for request in requests:
                accepted += enqueue_request(request)
            clock.enqueueing += perf_counter() - start
        clock.processor += thread_time() - start_processor
        self.accepted += accepted
        self.refused += len(requests) - accepted

    def allow(self, seconds: float) -> None:
        """Let the scheduler take *seconds* more from now on."""
        self._budget = self.clock.total + seconds

    def close(self) -> None:
        """Close the scheduler, which keeps what is pending."""
        self.scheduler.close("shutdown")

    # The engine's part

    def _download(self) -> bool:
        """Fill the downloader; whether the scheduler had enough for it."""
        active = self._engine.downloader.active
        known = len(active)
        is_full = self._fill(active)
        self._over.clear()
        # Middlewares come in between: requests reach their slots only in the next turn.
        for request in islice(self._downloading, known, None):
            self._reach_slot(request)
        return is_full

    def _fill(self, active: set[Request]) -> bool:
        clock = self.clock
        while len(active) < CONCURRENCY:
            collecting, start_processor = clock.collecting, thread_time()
            start = perf_counter()
            request = self.scheduler.next_request()
            seconds = perf_counter() - start
            processor = thread_time() - start_processor
            clock.processor += processor
            clock.taking += seconds
            clock.note(seconds, processor, clock.collecting - collecting)
            if request is None:
                return False
            self._begin_download(request)
        return True

    def _begin_download(self, request: Request) -> None:
        self.taken += 1
        # Of URLs that differ in their fragments, the order decides which one is taken.
        self.digest = (self.digest + hash(request.url.partition("#")[0])) % (1 << 64)
        self._in_progress.add(request)
        self._engine.downloader.active.add(request)
        self._downloading.append(request)

    def _reach_slot(self, request: Request) -> None:
        downloader = self._engine.downloader
        name = downloader.get_slot_key(request)
        slot = downloader.slots.get(name)
        if slot is None:
            slot = downloader.slots[name] = Slot(_PER_SLOT, 0, 0)
        self._idle.pop(name, None)
        request.meta["download_slot"] = name
        slot.active.add(request)

    def _end_download(self) -> None:
        request = self._downloading.popleft()
        downloader = self._engine.downloader
        downloader.active.remove(request)
        name = request.meta["download_slot"]
        active = downloader.slots[name].active
        active.remove(request)
        if not active:
            self._idle[name] = None
            if len(self._idle) > _IDLE_SLOTS:
                del downloader.slots[self._idle.popitem(last=False)[0]]
        self._scraping.append(request)

    def _scrape(self, scrape: Scrape) -> None:
        request = self._scraping.popleft()
        children = scrape(request)
        if children:
            self.enqueue(children)
        self._in_progress.remove(request)
        self._over.append(request)


def start_request(url: str) -> Request:
    """A request as it comes from ``Spider.start()``."""
    return Request(url, meta={"is_start_request": True})


def link(url: str, page: Request) -> Request:
    """A request for a link on *page*, as Scrapy's spider middlewares leave it."""
    depth = page.meta.get("depth", 0) + 1
    return Request(url, headers={"Referer": page.url}, meta={"depth": depth})
