"""Takes entries of a queue when the crawl has little left, and acknowledges them when it may."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from scrapy import Request
from scrapy.exceptions import DontCloseSpider
from scrapy.signals import request_reached_downloader, spider_closed, spider_idle
from scrapy.utils.defer import maybe_deferred_to_future
from twisted.internet.defer import Deferred

from ..background import Background
from ..crawl.outcome import close_failed
from ..crawl.setup import CrawlClock
from ..engine.engine import Engine
from ..engine.event_loop import thread_caller
from ..errors import AltschedError, ConfigError, FrontierFailedError
from ..frontier.clock import Call
from ..redis_client.connection import connect
from ..settings import Config
from .queue import Answer, Question, RedisQueue

if TYPE_CHECKING:
    from ..scheduler import Scheduler
    from .mixin import RedisQueueMixin

logger = logging.getLogger(__name__)

#: Seconds between two questions, at first, at most, and at most while the server fails.
_POLL_FIRST, _POLL_MOST, _RETRY_MOST = 0.05, 1.0, 5.0
#: Seconds for which the end of a crawl waits for the server.
_LEAVE_WITHIN = 20.0
#: Batches that may wait for their acknowledgement: no more are taken then.
_MOST_HELD = 20
#: A taker is heard of as often as this in the time after which its entries go back.
_RENEWALS = 4
#: Characters of an entry that are shown in the log.
_SHOWN = 300


class Feeder:
    """Feeds a spider from when it is opened until it has closed; on the crawl's thread.

    :param server: the settings of the server, by name.
    :raises AltschedError: as :meth:`.mixin.RedisQueueMixin.open_queue` does.
    """

    def __init__(
        self, spider: RedisQueueMixin, scheduler: Scheduler, server: Mapping[str, Any]
    ) -> None:
        self._spider, self._scheduler = spider, scheduler
        self._crawler, settings = spider.crawler, spider.settings
        self._engine = Engine(self._crawler)
        # The defaults are scrapy-redis's.
        key = spider.redis_key or settings["REDIS_START_URLS_KEY"] or "%(name)s:start_urls"
        spider.redis_key = self._key = str(key) % {"name": spider.name}
        if spider.redis_encoding is None:
            spider.redis_encoding = settings["REDIS_ENCODING"] or "utf-8"
        self._batch = self._number("redis_batch_size", "CONCURRENT_REQUESTS", 16, least=1)
        spider.redis_batch_size = self._batch
        self._max_idle = self._number("max_idle_time", "MAX_IDLE_TIME_BEFORE_CLOSE", 0, least=0)
        timeout = Config.from_settings(settings, disk=None).lease_timeout
        self._renew_every = timeout / _RENEWALS
        self._queue = RedisQueue(connect(server), self._key, os.urandom(16), timeout)
        self._clock = CrawlClock()
        #: When there was last anything to crawl, in the queue, or in the hands of another taker.
        self._active_at = self._clock.monotonic()
        #: Id of an entry that was handed over -> the position behind its requests.
        self._held: dict[int, int] = {}
        self._stored: list[int] = []
        self._dead: list[int] = []
        self._next, self._overdue = 1, b""
        self._asked: Question | None = None
        self._asked_at, self._poll = 0.0, _POLL_FIRST
        #: Whether the server did not answer the last question.
        self._has_failed = False
        #: Whether nothing is taken any more; and whether nothing is asked either.
        self._is_closing = self._is_over = False
        self._left: Deferred[None] | None = None
        #: The next look; and when the end of the crawl waits no longer.
        self._call: Call | None = None
        self._limit: Call | None = None

    def _number(self, name: str, setting: str, default: int, *, least: int) -> int:
        """An attribute of the spider, or else a setting."""
        value = getattr(self._spider, name)
        if value is None:
            name, value = setting, self._spider.settings.get(setting, default)
        with suppress(TypeError, ValueError):
            if (number := int(value)) >= least:
                return number
        raise ConfigError(
            f"{name} = {value!r} cannot be used: it must be a whole number, {least} or more."
        )

    def start(self) -> None:
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
        call = thread_caller()
        self._thread: Background[Question, Answer | AltschedError] = Background(
            "altsched-queue",
            "takes entries of the queue",
            self._work,
            wake=lambda: call(self._take),
            end=self._queue.close,
        )
        signals = self._crawler.signals
        signals.connect(self._note_work, request_reached_downloader)
        signals.connect(self._stay_open, spider_idle)
        signals.connect(self._leave, spider_closed)
        self._engine.call_when_closing(self._note_closing)
        self._plan(0.0)

    def _work(self, question: Question) -> Answer | AltschedError:
        try:
            return self._queue.ask(question)
        except AltschedError as error:
            return error

    def _note_work(self) -> None:
        self._active_at = self._clock.monotonic()

    def _stay_open(self) -> None:
        idle = self._clock.monotonic() - self._active_at
        if self._has_failed or not self._max_idle or idle < self._max_idle:
            raise DontCloseSpider

    def _note_closing(self) -> None:
        self._is_closing = True

    async def _leave(self) -> None:
        """Acknowledge what may be, and give all else back."""
        self._is_closing = True
        self._cancel()
        if self._is_over:
            return
        self._left = left = Deferred[None]()
        until = self._clock.monotonic() + _LEAVE_WITHIN
        self._limit = self._clock.call_at(until, self._give_up)
        if self._asked is None:
            self._ask()
        await maybe_deferred_to_future(left)

    def _give_up(self) -> None:
        self._log_failure(
            f"The Redis server did not answer for {_LEAVE_WITHIN:g} s: what was taken goes back"
            " after ALTSCHED_LEASE_TIMEOUT."
        )
        self._end()

    def _end(self) -> None:
        self._is_over = self._is_closing = True
        self._cancel()
        if self._limit is not None:
            self._limit.cancel()
        self._thread.stop()
        if self._left is not None:
            self._left.callback(None)

    def _plan(self, seconds: float) -> None:
        self._cancel()
        self._call = self._clock.call_at(self._clock.monotonic() + seconds, self._look)

    def _cancel(self) -> None:
        if self._call is not None:
            self._call.cancel()

    def _look(self) -> None:
        """Ask the server if there is anything to ask or to tell."""
        self._collect()
        is_due = self._clock.monotonic() >= self._asked_at + self._renew_every
        if self._wants() or self._stored or self._dead or (self._held and is_due):
            self._ask()
        else:
            self._plan(_POLL_FIRST)

    def _wants(self) -> int:
        if self._is_closing or len(self._held) > _MOST_HELD * self._batch:
            return 0
        return self._batch if len(self._scheduler) < self._batch else 0

    def _collect(self) -> None:
        for entry, position in list(self._held.items()):
            if not self._scheduler.is_durable(position):
                break
            del self._held[entry]
            self._stored.append(entry)

    def _ask(self) -> None:
        self._collect()
        self._asked = Question(
            want=self._wants(),
            held=len(self._held),
            first=self._next,
            stored=tuple(self._stored),
            dead=tuple(self._dead),
            overdue=self._overdue,
            leaving=self._left is not None,
        )
        self._asked_at = self._clock.monotonic()
        self._thread.give(self._asked)

    def _take(self) -> None:
        if self._is_over:
            return
        try:
            answer = self._thread.take()
        except FrontierFailedError as error:
            self._is_over = True
            close_failed(self._engine, self._spider, error)
            self._end()
            return
        assert answer is not None
        assert self._asked is not None
        question, self._asked = self._asked, None
        if isinstance(answer, Answer):
            self._take_answer(question, answer)
        else:
            if not self._has_failed:
                self._log_failure(answer)
            self._has_failed = True
            self._poll = min(self._poll * 2, _RETRY_MOST)
            self._plan(self._poll)
        if question.leaving:
            self._end()
        elif self._left is not None:
            self._cancel()
            self._ask()

    def _take_answer(self, question: Question, answer: Answer) -> None:
        if self._has_failed:
            self._has_failed = False
            self._log(logging.INFO, "Start requests are taken from %(key)r again")
        del self._stored[: len(question.stored)]
        del self._dead[: len(question.dead)]
        self._overdue = answer.overdue
        new = dict(answer.entries)
        if answer.differs:
            # Those that are not named belong to another taker by now.
            self._held = {entry: at for entry, at in self._held.items() if entry in new}
            new = {entry: text for entry, text in new.items() if entry not in self._held}
        self._next = max([self._next - 1, *new]) + 1
        if self._is_closing:
            # They go back when this taker leaves.
            new = {}
        for entry, text in new.items():
            self._hand_over(entry, text)
        if new or answer.left or answer.others:
            self._note_work()
        is_useful = bool(new or answer.overdue)
        self._poll = _POLL_FIRST if is_useful else min(self._poll * 2, _POLL_MOST)
        self._plan(0.0 if is_useful else self._poll)

    def _hand_over(self, entry: int, text: bytes) -> None:
        if not self._feed(text):
            self._dead.append(entry)
        elif (position := self._scheduler.position()) is None:
            # Nothing would keep it in any case.
            self._stored.append(entry)
        else:
            self._held[entry] = position

    def _feed(self, entry: bytes) -> bool:
        """Have the spider make requests of an entry, and crawl them; whether it could."""
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

    def _log_failure(self, error: AltschedError | str) -> None:
        message = "%(error)s Nothing is taken from %(key)r until it answers."
        self._log(logging.ERROR, message, error=error)

    def _log(self, level: int, message: str, **values: Any) -> None:
        logger.log(level, message, {"key": self._key, **values}, extra={"spider": self._spider})
