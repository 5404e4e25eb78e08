"""The only module that uses Scrapy's private attributes.

These exist in every Scrapy from 2.13 to 2.19: ``engine._slot`` with ``inprogress``, ``nextcall``,
``close_if_idle`` and ``close``, and ``engine._start``.  They are checked when a crawl opens, so
that a Scrapy without them fails then, with a clear error.

A crawler without an open spider, as in some projects' tests, has none of them: a request handed out
then counts as done when the next one is asked for.
"""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator, Callable, Set
from contextlib import suppress
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import scrapy
from scrapy import Request, signals
from scrapy.core.downloader import Downloader
from scrapy.core.engine import ExecutionEngine
from scrapy.crawler import Crawler
from scrapy.extensions.spiderstate import SpiderState
from scrapy.utils.defer import deferred_from_coro
from scrapy.utils.reactor import is_reactor_installed
from scrapy.utils.request import RequestFingerprinter, RequestFingerprinterProtocol

from .errors import UnsupportedScrapyError

if TYPE_CHECKING:
    from scrapy import Spider
    from scrapy.settings import Settings

logger = logging.getLogger(__name__)

_scrapy_asyncio: Any = None
with suppress(ImportError):  # its call_later is new in Scrapy 2.14
    _scrapy_asyncio = import_module("scrapy.utils.asyncio")

#: The host of a simple URL: urllib takes twenty times as long.
_match_host = re.compile(r"https?://([a-z0-9._-]+)(?::[0-9]*)?(?:[/?#]|$)").match

#: What a plain request is made of.
REQUEST_PARTS = (
    "url",
    "method",
    "headers",
    "body",
    "cookies",
    "meta",
    "encoding",
    "priority",
    "dont_filter",
    "flags",
    "cb_kwargs",
    "callback",
    "errback",
)


def _name_of(part: str) -> str:
    """The attribute that holds *part*: a property is slower, and creates missing values."""
    private = f"_{part}"
    is_property = isinstance(getattr(Request, part, None), property)
    return private if is_property and hasattr(Request("http://site.test/"), private) else part


def reader_of(*parts: str) -> Callable[[Request], tuple[Any, ...]]:
    """A function: plain request -> two or more of its parts, ``None`` or empty if missing.

    Only for requests of Scrapy's own class: a subclass may override the properties.
    """
    return cast("Callable[[Request], tuple[Any, ...]]", attrgetter(*map(_name_of, parts)))


_place_of = reader_of("meta", "url")


class StartWatch:
    """``Spider.start()``'s output on its way to the engine: what it yields, and how it ends.

    :param on_end: called when nothing more will come.

    A start request is recognized by identity, never by ``meta["is_start_request"]``, which retries
    and redirects inherit.
    """

    def __init__(
        self, source: AsyncIterator[Any] | None, on_end: Callable[[], object] | None = None
    ) -> None:
        self._source = source
        self._on_end = on_end
        #: What it yielded last; ``None`` from :meth:`take` on.
        self.last: object = None
        #: Whether ``start()`` ran to its end, without an exception.
        self.exhausted = source is None
        #: Whether nothing more will come, for whatever reason.
        self.ended = source is None

    def __aiter__(self) -> StartWatch:
        return self

    async def __anext__(self) -> Any:
        assert self._source is not None
        try:
            self.last = await self._source.__anext__()
        except BaseException as error:
            self.exhausted = isinstance(error, StopAsyncIteration)
            self.ended = True
            if self._on_end is not None:
                self._on_end()
            raise
        return self.last

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    def take(self, request: Request) -> bool:
        """Whether *request* is what ``start()`` yielded last; true once for each request."""
        if request is not self.last:
            return False
        self.last = None
        return True


class ActiveDownloads:
    """Slot -> number of requests in it, read from the downloader at the time of the call.

    Like Scrapy's own queue (scrapy/pqueues.py); to count by signals is off at one call in seven.
    """

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    def active(self, slot: str, /) -> int:
        """How many requests are in *slot*."""
        found = self._engine.downloader.slots.get(slot)
        return 0 if found is None else len(found.active)


class _NextCall:
    def schedule(self) -> None:
        """Do nothing: no engine asks for the next request."""


class _NoSpider:
    """Stands in for the engine's slot when no spider is open."""

    inprogress: Set[Request] = frozenset()
    nextcall = _NextCall()
    close_if_idle = True

    def close(self) -> None:
        """Do nothing."""


class Engine:
    """A crawler's engine, as a scheduler needs it.

    :raises UnsupportedScrapyError: Scrapy's own engine lacks something that is needed.
    """

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self._engine: Any = _find(crawler)
        self._slot: Any = getattr(self._engine, "_slot", None)
        #: Whether download slots are hosts, as in Scrapy's own downloader.
        self._by_host: bool | None = None
        if isinstance(self._engine, ExecutionEngine):
            _require(self._engine, "_start", "engine")
            for name in ("inprogress", "nextcall", "close_if_idle", "close"):
                _require(self._slot, name, "engine._slot")
        elif not hasattr(self._slot, "nextcall"):
            self._slot = _NoSpider()

    @property
    def in_progress(self) -> Set[Request]:
        """The requests that were handed out and are not done.

        One is done when all output of its callback was scheduled and its items went through the
        pipelines.
        """
        requests: Set[Request] = self._slot.inprogress
        return requests

    @property
    def interactive(self) -> bool:
        """Whether this only looks at some pages and is no crawl to resume, whatever JOBDIR says.

        ``scrapy shell`` does not close when it is idle; ``parse``, ``fetch``, ``view`` and
        ``check`` replace the spider's ``start()`` with their own.
        """
        start = getattr(getattr(self._crawler, "spidercls", None), "start", None)
        is_replaced = str(getattr(start, "__module__", "")).startswith("scrapy.commands.")
        return is_replaced or not self._slot.close_if_idle

    def watch_start(self, on_end: Callable[[], object]) -> StartWatch:
        """Wrap ``Spider.start()``, to see what it yields to the engine.

        :param on_end: called when ``start()`` has ended, for whatever reason.
        """
        start = getattr(self._engine, "_start", None)
        watch = StartWatch(start if hasattr(start, "__anext__") else None, on_end)
        if not watch.exhausted:
            self._engine._start = watch
        return watch

    def slot_key(self, request: Request) -> str:
        """The name of the download slot that *request* will use."""
        if self._by_host is None:
            downloader = self._engine.downloader
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

    def active_downloads(self) -> ActiveDownloads:
        """How many requests are in each download slot, at the time of the call."""
        return ActiveDownloads(self._engine)

    def wake(self) -> None:
        """Make the engine ask for the next request soon."""
        self._slot.nextcall.schedule()

    def call_when_closing(self, call: Callable[[], object]) -> None:
        """Call *call* when the engine begins to close its spider.

        Scrapy sends no signal then, and closes the scheduler only when nothing is in progress.
        """
        close = self._slot.close

        def call_and_close() -> Any:
            call()
            return close()

        self._slot.close = call_and_close

    @property
    def is_started(self) -> bool:
        """Whether the engine was started, so that ``engine_stopped`` will be sent, last of all."""
        return getattr(self._engine, "start_time", None) is not None

    def call_when_stopped(self, call: Callable[[], object]) -> None:
        """Call *call* when the engine has stopped, before ``crawl()`` returns."""
        manager = self._crawler.signals

        def stopped() -> None:
            manager.disconnect(stopped, signals.engine_stopped)
            call()

        # Nothing else refers to the scheduler by then.
        manager.connect(stopped, signals.engine_stopped, weak=False)

    def close_spider(self, spider: Spider, reason: str) -> None:
        """Close the spider cleanly; returns before it is closed."""
        if hasattr(self._engine, "close_spider_async"):  # new in Scrapy 2.14
            deferred_from_coro(self._engine.close_spider_async(reason=reason))
        else:
            self._engine.close_spider(spider, reason=reason)


def keep_spider_state(crawler: Crawler) -> None:
    """Keep Scrapy's SpiderState from writing its file if the job in JOBDIR was not opened.

    The file would look newer than what was committed, or be truncated: the extension opens it for
    writing before it notices that there is no state.
    """
    for extension in _spider_states(crawler):
        crawler.signals.disconnect(extension.spider_closed, signals.spider_closed)


def place_spider_state(crawler: Crawler, jobdir: str) -> None:
    """Let Scrapy's SpiderState find its file even if the working directory changes.

    :param jobdir: the absolute path of JOBDIR.
    """
    for extension in _spider_states(crawler):
        if extension.jobdir and str(Path(extension.jobdir).absolute()) == jobdir:
            extension.jobdir = jobdir


def _spider_states(crawler: Crawler) -> list[SpiderState]:
    extensions = getattr(crawler, "extensions", None)
    found = getattr(extensions, "middlewares", ())
    return [extension for extension in found if isinstance(extension, SpiderState)]


def prepare_crawler(spider_class: type[Spider], settings: Settings) -> Crawler:
    """A crawler that is not run, with its addons, fingerprinter and every setting in place.

    Scrapy does this at the beginning of ``Crawler.crawl()``, and offers no other way to do it.
    """
    crawler = Crawler(spider_class, settings, init_reactor=True)
    crawler._apply_settings()
    return crawler


def current_scheduler(crawler: Crawler) -> Any:
    """The scheduler of a running crawl, or ``None``."""
    return getattr(getattr(_find(crawler), "_slot", None), "scheduler", None)


def fingerprinter_of(crawler: Crawler) -> RequestFingerprinterProtocol:
    """The crawler's fingerprinter; Scrapy's default one for a crawler that never started."""
    try:
        return crawler.request_fingerprinter or RequestFingerprinter()
    except (AttributeError, RuntimeError):
        return RequestFingerprinter()


def _find(crawler: Crawler) -> Any:
    try:
        return crawler.engine
    except (AttributeError, RuntimeError):  # not set yet, in Scrapy before and after 2.19
        return None


def _require(owner: object, name: str, path: str) -> None:
    if not hasattr(owner, name):
        raise UnsupportedScrapyError(
            f"Scrapy {scrapy.__version__} has no {path}.{name}, which scrapy_altsched needs to know"
            " when a request is done. Install a Scrapy that this version of scrapy_altsched"
            " supports (see its README), or upgrade scrapy_altsched."
        )


class _NeverCalled:
    def cancel(self) -> None:
        pass


def call_later(delay: float, call: Callable[[], object]) -> Any:
    """Schedule *call* on the event loop or reactor that Scrapy runs on, if there is one.

    :param delay: seconds.
    :return: its ``cancel()`` may be called at any time.
    """
    if _scrapy_asyncio is not None:
        try:
            _scrapy_asyncio.is_asyncio_available()
        except RuntimeError:  # neither is there
            return _NeverCalled()
        return _Delayed(_scrapy_asyncio.call_later(delay, call))
    if not is_reactor_installed():
        return _NeverCalled()
    from twisted.internet import reactor

    return _Delayed(cast("Any", reactor).callLater(delay, call))


class _Delayed:
    """A call of asyncio or Twisted; the latter's may be cancelled only while it is to come."""

    def __init__(self, call: Any) -> None:
        self._call = call

    def cancel(self) -> None:
        if not hasattr(self._call, "active") or self._call.active():
            self._call.cancel()
