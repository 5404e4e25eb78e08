"""The only module that names private attributes of Scrapy.

Those that a crawl cannot do without exist in Scrapy 2.13 to 2.19, and are checked when it opens.  A
crawler without an open spider, as in some projects' tests, has none of them: a request handed out
then counts as done when the next one is asked for.
"""

from __future__ import annotations

import inspect
import logging
import re
import sys
from collections.abc import AsyncIterator, Callable, Set
from functools import partial
from operator import attrgetter
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import scrapy
from scrapy import Request, signals
from scrapy.core.downloader import Downloader, Slot
from scrapy.core.engine import ExecutionEngine
from scrapy.crawler import Crawler
from scrapy.http import Response
from scrapy.utils.defer import deferred_from_coro, maybe_deferred_to_future
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from ..errors import UnsupportedScrapyError
from ..limit import Limit
from .components import spider_for
from .event_loop import AfterTurns, call_later, sleep
from .request_parts import reader_of, slot_of
from .start_watch import StartWatch

if TYPE_CHECKING:
    from scrapy import Spider
    from scrapy.extensions.httpcache import FilesystemCacheStorage
    from scrapy.settings import Settings

logger = logging.getLogger(__name__)

#: What is needed of Scrapy's engine.
_NEEDED = ["_start", "_slot.inprogress", "_slot.nextcall", "_slot.close_if_idle", "_slot.close"]
_NEEDED += ["scraper.enqueue_scrape"]
#: The host of a simple URL: urllib takes twenty times as long.
_match_host = re.compile(r"https?://([a-z0-9._-]+)(?::[0-9]*)?(?:[/?#]|$)").match
#: Seconds between two looks at whether the engine runs.
_SOON = 0.01
#: Turns of the event loop that the downloader takes to send a request, as measured: to write it to
#: a connection that is there takes one; to open one to a host whose address is known, three more.
_TURNS_TO_SEND = 4
_place_of = reader_of("meta", "url")


class Engine:
    """A crawler's engine; UnsupportedScrapyError: it is Scrapy's own, and lacks what is needed.

    :ivar in_progress: requests whose output was not all scheduled yet, or whose items are in
        pipelines; always the same set.
    """

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self._engine: Any = _find(crawler)
        #: Whether download slots are hosts, as in Scrapy's own downloader.
        self._by_host: bool | None = None
        for path in _NEEDED if isinstance(self._engine, ExecutionEngine) else ():
            try:
                attrgetter(path)(self._engine)
            except AttributeError:
                raise UnsupportedScrapyError(
                    f"Scrapy {scrapy.__version__} has no engine.{path}, which scrapy_altsched needs"
                    " to know when a request is done. Install a Scrapy that this version of"
                    " scrapy_altsched supports (see its README), or upgrade scrapy_altsched."
                ) from None
        self._slot: Any = getattr(self._engine, "_slot", None)
        if not hasattr(self._slot, "nextcall"):  # no spider is open
            self._slot = SimpleNamespace(inprogress=frozenset(), close_if_idle=True, close=bool)
            self._slot.nextcall = SimpleNamespace(schedule=bool)
        self.in_progress: Set[Request] = self._slot.inprogress

    def find_parent(self) -> Request | None:
        """The request in progress whose callback, errback or download has led to this call, if any.

        Scrapy does not pass it on, but its frames have it: to look takes some ten microseconds.
        """
        in_progress = self.in_progress
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            for name in ("request", "response"):
                found = frame.f_locals.get(name)
                if isinstance(found, Response | Failure):
                    found = getattr(found, "request", None)
                if isinstance(found, Request) and found in in_progress:
                    return found
            frame = frame.f_back
        return None

    @property
    def interactive(self) -> bool:
        """Whether this is no crawl to resume, whatever JOBDIR says.

        ``scrapy shell`` stays open when idle; other commands replace the spider's ``start()``.
        """
        start = getattr(getattr(self._crawler, "spidercls", None), "start", None)
        is_replaced = str(getattr(start, "__module__", "")).startswith("scrapy.commands.")
        return is_replaced or not self._slot.close_if_idle

    def watch_start(
        self, on_end: Callable[[], object], is_held: Callable[[], bool], turns: float
    ) -> StartWatch:
        start = getattr(self._engine, "_start", None)
        watch = StartWatch(start if hasattr(start, "__anext__") else None, on_end, is_held, turns)
        if not watch.exhausted:
            self._engine._start = watch
        return watch

    def start_again(self, on_end: Callable[[], object], is_held: Callable[[], bool]) -> StartWatch:
        """Run ``Spider.start()`` once more, while all else goes on; without its items."""
        engine, spider = self._engine, self._engine.spider

        async def run() -> AsyncIterator[Any]:
            # The caller needs the watch before it brings anything.
            await sleep(0)
            process_start = engine.scraper.spidermw.process_start
            async for output in await process_start(*spider_for(process_start, spider)):
                yield output

        watch = StartWatch(run(), on_end, is_held)

        async def bring() -> None:
            try:
                async for request in watch:
                    if not engine.running or engine.spider is not spider:
                        return
                    if isinstance(request, Request):
                        engine.crawl(request)
                    # A list of a million is not to keep all else waiting.
                    await sleep(0)
            except Exception:
                text = "Error while reading start items and requests once more"
                logger.exception(text, extra={"spider": spider})
            finally:
                watch.end()

        deferred_from_coro(bring())
        return watch

    def slot_key(self, request: Request) -> str:
        if self._by_host is None:
            downloader = getattr(self._engine, "downloader", None)
            if downloader is None:  # no crawl runs
                return slot_of(request.url, request.meta)
            is_scrapys_own = type(downloader).get_slot_key is Downloader.get_slot_key
            self._by_host = is_scrapys_own and not getattr(downloader, "ip_concurrency", 0)
        if self._by_host:
            if type(request) is Request:
                meta, url = _place_of(request)
            else:
                meta, url = request.meta, request.url
            if not (meta and Downloader.DOWNLOAD_SLOT in meta):
                match = _match_host(url)
                if match is not None:
                    return match[1]
        key: str = self._engine.downloader.get_slot_key(request)
        return key

    def active(self, slot: str, /) -> int:
        """How many requests are in a download slot: signals are wrong at one call in seven."""
        found = self._engine.downloader.slots.get(slot)
        return 0 if found is None else len(found.active)

    def waiting(self, slot: str, /) -> int:
        """How many requests wait in a download slot until its delay is over."""
        found = self._engine.downloader.slots.get(slot)
        return 0 if found is None else len(found.queue)

    def delay(self, slot: str, /) -> float:
        """Seconds between two downloads of a slot, on average, as Scrapy has them now."""
        downloader = self._engine.downloader
        found = downloader.slots.get(slot)
        if found is not None:
            return float(found.delay)
        own = downloader.per_slot_settings.get(slot, {})
        if "delay" in own:
            return float(own["delay"])
        default: Any = getattr(downloader, "_delay", None)
        if default is None:  # before Scrapy 2.19
            default = self._crawler.settings.getfloat("DOWNLOAD_DELAY")
            default = getattr(self._crawler.spider, "download_delay", default) or 0.0
        return float(default)

    @property
    def can_pace(self) -> bool:
        """Whether :meth:`pace_downloads` knows the downloader."""
        return isinstance(getattr(self._engine, "downloader", None), Downloader)

    def limits(self) -> tuple[Limit, dict[str, Limit]]:
        """How hard the downloader asks a slot; and each that has settings of its own."""
        downloader = self._engine.downloader
        settings = self._crawler.settings
        jitter = getattr(downloader, "_jitter", None)
        if jitter is None:  # before Scrapy 2.19
            jitter = 0.5 * settings.getbool("RANDOMIZE_DOWNLOAD_DELAY")
        delay = self.delay("")
        if settings.getbool("AUTOTHROTTLE_ENABLED"):
            # It sets the delay when the spider is open.
            delay = max(delay, settings.getfloat("AUTOTHROTTLE_START_DELAY"))
        default = Limit(delay, min(jitter, 1.0), downloader.domain_concurrency)
        found = {}
        for name, own in downloader.per_slot_settings.items():
            older = 0.5 * bool(own["randomize_delay"]) if "randomize_delay" in own else jitter
            varies = min(float(own.get("jitter", older)), 1.0)
            own_delay, cap = own.get("delay", delay), own.get("concurrency", default.cap)
            found[name] = Limit(float(own_delay), varies, int(cap))
        return default, found

    def set_delay(self, slot: str, delay: float | None) -> None:
        """Have a slot that Scrapy has just made go on with a delay, if that is known."""
        found = self._engine.downloader.slots.get(slot)
        if found is None and delay is not None:
            self.slow_down(slot, delay)

    def pace_downloads(
        self,
        admit: Callable[[Request], Deferred[None] | None],
        note_sent: Callable[[Request], object],
        end: Callable[[Request], object],
    ) -> None:
        """Have downloads start when *admit* says so, after all middlewares.

        :param admit: request -> fires when it may start, and then the downloader neither delays it
            nor counts it among others; ``None``: it is treated as ever.
        :param note_sent: called with each of these when it has been sent, as far as that is known.
            On a busy event loop that is a while after its start.
        :param end: called with each of these after its download.
        """
        downloader = self._engine.downloader
        enqueue, find_slot = downloader._enqueue_request, downloader._get_slot
        admitted: set[Request] = set()
        started = AfterTurns(_TURNS_TO_SEND, note_sent)

        def get_slot(request: Request, *spider: Any) -> tuple[str, Slot]:
            # The downloader's own slot is made, too: extensions look at its delay.
            key, slot = find_slot(request, *spider)
            return key, Slot(1, 0.0, 0) if request in admitted else slot

        def begin(request: Request, *spider: Any) -> Any:
            admitted.add(request)
            started.add(request)
            return enqueue(request, *spider)

        def finish(request: Request) -> None:
            admitted.discard(request)
            end(request)

        async def download(request: Request, waiting: Deferred[None]) -> Response:
            try:
                await maybe_deferred_to_future(waiting)
                return cast("Response", await begin(request))
            finally:
                finish(request)

        def enqueue_paced(request: Request, *spider: Any) -> Any:
            waiting = admit(request)
            if waiting is None:
                return enqueue(request, *spider)
            if inspect.iscoroutinefunction(enqueue):
                return download(request, waiting)

            def after(result: Any) -> Any:
                finish(request)
                return result

            waiting.addCallback(lambda _: begin(request, *spider))
            return waiting.addBoth(after)

        downloader._enqueue_request, downloader._get_slot = enqueue_paced, get_slot

    def slow_down(self, slot: str, delay: float) -> None:
        """Have a download slot wait for so many seconds between two downloads, at least."""
        downloader = self._engine.downloader
        if (found := downloader.slots.get(slot)) is not None:
            found.delay = max(found.delay, delay)
        own = downloader.per_slot_settings.get(slot, {})
        own = {**own, "delay": max(self.delay(slot), delay)}
        downloader.per_slot_settings[slot] = own

    def wake(self) -> None:
        self._slot.nextcall.schedule()

    def pause(self) -> None:
        """Hand out no more requests; what is in flight is finished, and ``start()`` goes on."""
        if self._engine is not None:
            self._engine.pause()

    def unpause(self) -> None:
        if self._engine is not None:
            self._engine.unpause()
            self.wake()

    def crawl(self, request: Request) -> None:
        """Schedule a request as if the spider had yielded it, but for its spider middlewares."""
        self._engine.crawl(request)

    def watch_results(self, note: Callable[[Request, Response | Failure], object]) -> None:
        """Call *note* with what each download came to, but for those replaced, as for a retry."""
        scraper = getattr(self._engine, "scraper", None)
        if scraper is None:  # no engine of Scrapy's
            return
        enqueue = scraper.enqueue_scrape

        def note_and_enqueue(result: Response | Failure, request: Request, *spider: Any) -> Any:
            note(request, result)
            return enqueue(result, request, *spider)

        scraper.enqueue_scrape = note_and_enqueue

    def call_when_closing(self, call: Callable[[], object]) -> None:
        """Call *call* when the engine begins to close its spider: Scrapy sends no signal then."""
        close = self._slot.close

        def call_and_close() -> Any:
            call()
            return close()

        self._slot.close = call_and_close

    @property
    def is_started(self) -> bool:
        """Whether the engine was started: ``engine_stopped`` will be sent then, last of all."""
        return getattr(self._engine, "start_time", None) is not None

    def call_when_stopped(self, call: Callable[[], object]) -> None:
        """Call *call* before ``crawl()`` returns: now, if the engine was never started."""
        if self.is_started:
            self._call_once(call, signals.engine_stopped)
        else:
            call()

    def _call_once(self, call: Callable[[], object], signal: object) -> None:
        manager = self._crawler.signals

        def once() -> None:
            manager.disconnect(once, signal)
            call()

        manager.connect(once, signal, weak=False)

    def close_spider(self, spider: Spider, reason: str) -> None:
        """Close the spider cleanly; returns before it is closed.

        One that is being opened sends nothing, and is closed as soon as the engine runs: only then
        are all extensions open, and only an engine that runs can be stopped.
        """
        engine, again = self._engine, partial(self.close_spider, spider, reason)
        if not engine.running:
            engine.pause()
            if not self.is_started:
                self._call_once(lambda: call_later(0, again), signals.engine_started)
            elif engine.spider is not None:
                # The signal is sent just before the engine runs; its handlers may take their time.
                call_later(_SOON, again)
        elif hasattr(engine, "close_spider_async"):  # new in Scrapy 2.14
            deferred_from_coro(engine.close_spider_async(reason=reason))
        else:
            engine.close_spider(spider, reason=reason)


def prepare_crawler(spider_class: type[Spider], settings: Settings) -> Crawler:
    """A crawler that is not run, with its addons, fingerprinter and every setting in place."""
    crawler = Crawler(spider_class, settings, init_reactor=True)
    crawler._apply_settings()
    return crawler


def current_scheduler(crawler: Crawler) -> Any:
    """The scheduler of a running crawl, or ``None``."""
    return getattr(getattr(_find(crawler), "_slot", None), "scheduler", None)


def cache_entry(storage: FilesystemCacheStorage, spider: Spider, request: Request) -> Path:
    """The directory of *request*'s entry in Scrapy's HTTP cache in files."""
    return Path(storage._get_request_path(spider, request))


def _find(crawler: Crawler) -> Any:
    try:
        return crawler.engine
    except (AttributeError, RuntimeError):  # not set yet, in Scrapy before and after 2.19
        return None
