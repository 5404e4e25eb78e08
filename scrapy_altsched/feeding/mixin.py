"""A spider that takes its start requests from a queue on a Redis server, and loses none."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from scrapy import FormRequest, Request
from scrapy.exceptions import DontCloseSpider
from scrapy.signals import (
    request_reached_downloader,
    spider_closed,
    spider_idle,
    spider_opened,
)
from twisted.internet.defer import Deferred

from ..crawl.outcome import close_failed
from ..crawl.setup import CrawlClock, FedSpider
from ..engine.engine import Engine
from ..engine.event_loop import thread_caller
from ..errors import AltschedError, ConfigError
from ..settings import Config, read_redis

if TYPE_CHECKING:
    from scrapy.crawler import Crawler
    from typing_extensions import Self

    from ..scheduler import Scheduler
    from .feeder import Feeder

logger = logging.getLogger(__name__)

#: scrapy-redis's default of REDIS_START_URLS_KEY.
_KEY = "%(name)s:start_urls"
#: Characters of an entry that are shown in the log.
_SHOWN = 300


class RedisQueueMixin(FedSpider):
    """Takes start requests from a list, a set or a sorted set, while the spider runs.

    ::

        class BooksSpider(RedisQueueMixin, CrawlSpider):
            name = "books"
            redis_key = "books:start_urls"

    An entry is removed from the server only when the requests made from it survive the death of
    this process.  Attributes and settings are those of scrapy-redis's ``RedisSpider``; the key's
    own type says how it is read.

    :cvar redis_key: the key; ``%(name)s`` is the spider's name.  ``None``: the setting
        ``REDIS_START_URLS_KEY``, by default ``"%(name)s:start_urls"``.
    :cvar redis_batch_size: how many entries are taken at a time, when fewer requests than that are
        pending.  ``None``: ``CONCURRENT_REQUESTS``.
    :cvar redis_encoding: of entries.  ``None``: the setting ``REDIS_ENCODING``, by default UTF-8.
    :cvar max_idle_time: seconds with nothing to crawl, and nothing in the queue, after which the
        spider is closed; 0: it never is.  ``None``: the setting ``MAX_IDLE_TIME_BEFORE_CLOSE``, by
        default 0.
    """

    redis_key: str | None = None
    redis_batch_size: int | str | None = None
    redis_encoding: str | None = None
    max_idle_time: int | str | None = None
    redis_feeding: Feeding

    @classmethod
    def from_crawler(cls, crawler: Crawler, *args: Any, **kwargs: Any) -> Self:
        spider = super().from_crawler(crawler, *args, **kwargs)
        spider.redis_feeding = Feeding(spider, crawler)
        return spider

    def open_queue(self, scheduler: Scheduler) -> None:
        self.redis_feeding.connect(scheduler)

    def make_request_from_data(self, data: bytes) -> Request | Iterable[Request] | None:
        """The request, or requests, that an entry of the queue stands for; ``None``: none at all.

        An entry is a URL, or a JSON object with ``url`` and, if they are needed, ``method``,
        ``meta`` and fields of a form.  Requests are not filtered as duplicates.

        :raises Exception: whatever is wrong with the entry, which is then put with the dead ones.
        """
        text = data.decode(self.redis_encoding or "utf-8").strip()
        if not text.startswith("{"):
            return Request(text, dont_filter=True)
        fields = json.loads(text)
        if not isinstance(fields.get("url"), str):
            raise ValueError("it has no 'url'")
        url, method = fields.pop("url"), str(fields.pop("method", "GET")).upper()
        meta = fields.pop("meta", {})
        if not isinstance(meta, dict):
            raise TypeError("its 'meta' is no object")
        return FormRequest(url, method=method, meta=meta, formdata=fields, dont_filter=True)


class Feeding:
    """What feeds one spider, from its creation until it has closed."""

    def __init__(self, spider: RedisQueueMixin, crawler: Crawler) -> None:
        self._spider = spider
        self._crawler = crawler
        self._clock = CrawlClock()
        self._worked_at = self._clock.monotonic()
        self._scheduler: Scheduler | None = None
        self._feeder: Feeder | None = None
        signals = crawler.signals
        signals.connect(self._open, spider_opened)
        signals.connect(self._note_work, request_reached_downloader)
        signals.connect(self._stay_open, spider_idle)
        signals.connect(self._close, spider_closed)

    def connect(self, scheduler: Scheduler) -> None:
        """Connect to the queue, unless the spider only looks at some pages.

        :raises ConfigError: a setting cannot be used, or a package is missing.
        :raises SharedError: the server cannot be reached.
        """
        spider, settings = self._spider, self._crawler.settings
        if Engine(self._crawler).interactive:
            return
        values = read_redis(settings, "RedisQueueMixin")
        key = spider.redis_key or settings["REDIS_START_URLS_KEY"] or _KEY
        spider.redis_key = self._key = str(key) % {"name": spider.name}
        if spider.redis_encoding is None:
            spider.redis_encoding = settings["REDIS_ENCODING"] or "utf-8"
        self._batch = self._number("redis_batch_size", "CONCURRENT_REQUESTS", 16, least=1)
        spider.redis_batch_size = self._batch
        self._max_idle = self._number("max_idle_time", "MAX_IDLE_TIME_BEFORE_CLOSE", 0, least=0)
        self._timeout = Config.from_settings(settings, disk=None).lease_timeout
        # What it needs is optional.
        from ..redis_client.connection import connect
        from .queue import RedisQueue

        self._queue = RedisQueue(connect(values), self._key, os.urandom(16), self._timeout)
        self._scheduler = scheduler

    def _number(self, name: str, setting: str, default: int, *, least: int) -> int:
        """An attribute of the spider, or else a setting."""
        value = getattr(self._spider, name)
        source = name
        if value is None:
            source = setting
            value = self._crawler.settings.get(setting, default)
        try:
            number = int(value)
        except (TypeError, ValueError):
            number = least - 1
        if number < least:
            raise ConfigError(
                f"{source} = {value!r} cannot be used: it must be a whole number, {least} or more."
            )
        return number

    def _open(self) -> None:
        from .feeder import Feeder

        engine = Engine(self._crawler)
        if engine.interactive:
            # What is only looked at takes nothing away.
            return
        if self._scheduler is None:
            logger.critical(
                "SCHEDULER = %(value)r does not tell when a request survives the death of the"
                " process, which RedisQueueMixin needs to know: set it to"
                " 'scrapy_altsched.Scheduler'. The spider is closed (no_scheduler).",
                {"value": self._crawler.settings["SCHEDULER"]},
                extra={"spider": self._spider},
            )
            engine.close_spider(self._spider, "no_scheduler")
            return
        self._log(
            logging.INFO,
            "Start requests are taken from %(key)r on the Redis server, %(batch)d at a time",
            batch=self._batch,
        )
        if self._scheduler.position() is None:
            self._log(
                logging.WARNING,
                "Neither JOBDIR nor ALTSCHED_SHARED is set: what is taken from %(key)r is lost if"
                " this process dies.",
            )
        self._feeder = feeder = Feeder(
            self._queue,
            self._scheduler,
            self,
            self._clock,
            thread_caller(),
            batch=self._batch,
            timeout=self._timeout,
        )
        engine.call_when_closing(feeder.note_closing)
        feeder.start()

    def _note_work(self) -> None:
        self._worked_at = self._clock.monotonic()

    def _stay_open(self) -> None:
        feeder = self._feeder
        if feeder is None:
            return
        since = max(self._worked_at, feeder.active_at)
        is_over = self._max_idle and self._clock.monotonic() - since >= self._max_idle
        if feeder.has_failed or not is_over:
            raise DontCloseSpider

    def _close(self) -> Deferred[None] | None:
        if self._feeder is None:
            return None
        left: Deferred[None] = Deferred()
        self._feeder.leave(lambda: left.callback(None))
        return left

    # For the feeder

    def take(self, entry: bytes) -> bool:
        """Have the spider make requests of an entry, and crawl them; whether it could.

        What is wrong with an entry is logged in one line, with the entry.
        """
        stats, engine = self._crawler.stats, self._crawler.engine
        assert stats is not None
        assert engine is not None
        count = 0
        try:
            made = self._spider.make_request_from_data(entry)
            for request in [made] if isinstance(made, Request) else made or ():
                engine.crawl(request)
                count += 1
        except Exception as error:  # of the spider's own code
            stats.inc_value("altsched/queue/dead")
            self._log(
                logging.ERROR,
                "No request can be made of an entry of %(key)r, which is moved to %(dead)r"
                " (%(error)s): %(entry)r",
                dead=self._queue.dead_key,
                error=f"{type(error).__name__}: {error}",
                entry=entry if len(entry) <= _SHOWN else entry[:_SHOWN] + b"...",
            )
            return False
        stats.inc_value("altsched/queue/taken")
        logger.debug("%d requests made of an entry of %r: %r", count, self._key, entry[:_SHOWN])
        return True

    def note_failure(self, error: AltschedError) -> None:
        """The first of failures in a row."""
        self._log(
            logging.ERROR,
            "%(error)s Nothing is taken from %(key)r until it answers.",
            error=error,
        )

    def fail(self, error: AltschedError) -> None:
        close_failed(Engine(self._crawler), self._spider, error)

    def note_recovery(self) -> None:
        self._log(logging.INFO, "Start requests are taken from %(key)r again")

    def _log(self, level: int, message: str, **values: Any) -> None:
        logger.log(level, message, {"key": self._key, **values}, extra={"spider": self._spider})
