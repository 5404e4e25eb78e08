"""Scrapy's scheduler interface to an open crawl."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from scrapy import Request
from scrapy.core.scheduler import BaseScheduler
from scrapy.dupefilters import BaseDupeFilter
from scrapy.utils.misc import build_from_crawler, load_object

from .crawl.garbage import freeze, thaw
from .crawl.outcome import Outcome
from .crawl.session import Session
from .crawl.setup import FedSpider, Setup
from .dupefilter import DupeFilter
from .engine.components import keep_spider_state
from .errors import AltschedError, FrontierFailedError
from .exit_code import exit_code
from .feeds import JobFeeds
from .steering.actions import Forget

if TYPE_CHECKING:
    from scrapy import Spider
    from scrapy.crawler import Crawler
    from scrapy.statscollectors import StatsCollector
    from twisted.internet.defer import Deferred
    from typing_extensions import Self

    from .frontier.contract import Standing
    from .frontier.entry import Place

logger = logging.getLogger(__name__)


class _Queue:
    """Stands in for a queue of Scrapy's scheduler, for other code that looks at it."""

    def __init__(self, length: Callable[[], int], pop: Callable[[], Request | None]) -> None:
        self._length, self.pop = length, pop

    def __len__(self) -> int:
        return self._length()

    def __bool__(self) -> bool:
        return self._length() > 0

    def close(self) -> None:
        self._length = int


class Scheduler(BaseScheduler):
    """Scrapy's scheduler: what it accepted survives any death of the process, if JOBDIR is set.

    The parameters are those of :class:`scrapy.core.scheduler.Scheduler`; of the queue classes only
    their order is used.  ``None`` means the setting's value.
    """

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        dupefilter = build_from_crawler(load_object(crawler.settings["DUPEFILTER_CLASS"]), crawler)
        return cls(
            dupefilter,
            jobdir=crawler.settings["JOBDIR"] or None,
            logunser=crawler.settings.getbool("SCHEDULER_DEBUG"),
            stats=crawler.stats,
            crawler=crawler,
        )

    def __init__(
        self,
        dupefilter: BaseDupeFilter,
        jobdir: str | None = None,
        dqclass: type | None = None,
        mqclass: type | None = None,
        logunser: bool = False,
        stats: StatsCollector | None = None,
        pqclass: type | None = None,
        crawler: Crawler | None = None,
    ) -> None:
        self.df, self.jobdir, self.logunser = dupefilter, jobdir, logunser
        self.dqclass, self.mqclass, self.pqclass = dqclass, mqclass, pqclass
        self.stats: StatsCollector = stats  # type: ignore[assignment]
        self.crawler: Crawler = crawler  # type: ignore[assignment]
        #: The session that is open, or that has ended.
        self._session: Session | None = None
        self._ended: Session | None = None
        self._enqueue: Callable[[Request], bool] = self._refuse
        self._next: Callable[[], Request | None] = self._hand_out_none
        self.dqs: _Queue | None = None
        self.dqdir: str | None = None
        #: Whether this crawl continues a job that earlier runs left unfinished.
        self.resumed = False
        #: The feeds of the job; kept after the scheduler has closed, as they close later.
        self.feeds: JobFeeds | None = None

    def open(self, spider: Spider) -> Deferred[None] | None:
        """Open the frontier, resuming the job in JOBDIR if there is one.

        :raises AltschedError: a setting or the job directory, in which nothing was changed, cannot
            be used; the reason has been logged.
        """
        self.spider = spider
        try:
            if isinstance(spider, FedSpider):
                spider.open_queue(self)
            own_filter = self.df if isinstance(self.df, DupeFilter) else None
            setup = Setup(self, own_filter)
            self._session = session = Session(setup)
        except AltschedError as error:
            logger.critical("%s", error, extra={"spider": spider})
            if isinstance(error, FrontierFailedError):
                exit_code.set(Outcome.UNFINISHED.code)
            exit_code.fail()
            keep_spider_state(self.crawler)
            raise
        if setup.config.gc_freeze:
            freeze()
        self._enqueue, self._next = session.traffic.enqueue, session.traffic.next_request
        job, self.feeds = session.frontier.job, session.feeds
        self.resumed = job.resumed
        self.mqs = _Queue(partial(session.count_queue, in_memory=True), self.next_request)
        if job.path is not None:
            self.dqdir = str(job.path)
            self.dqs = _Queue(partial(session.count_queue, in_memory=False), self.next_request)
        return self.df.open()

    def close(self, reason: str) -> Deferred[None] | None:
        session = self._session
        if session is not None:
            session.frontier.run.check_owner()
            try:
                session.close(reason)
            finally:
                self._session, self._ended = None, session
                self._enqueue, self._next = self._refuse, self._hand_out_none
                thaw()
            self.mqs.close()
            if self.dqs is not None:
                self.dqs.close()
        return self.df.close(reason)

    def enqueue_request(self, request: Request) -> bool:
        """Accept *request*, unless it is a duplicate or the scheduler has closed."""
        # By a local name: see "Cheap requests" in docs/architecture.rst.
        enqueue = self._enqueue
        return enqueue(request)

    def next_request(self) -> Request | None:
        next_request = self._next  # as above
        return next_request()

    def _refuse(self, _: Request) -> bool:
        assert self._ended is not None, "the scheduler is not open"
        return False

    def _hand_out_none(self) -> None:
        assert self._ended is not None, "the scheduler is not open"

    def has_pending_requests(self) -> bool:
        """Whether there are requests to hand out; ``spider_idle`` waits for what is not saved."""
        return self._session is not None and self._session.has_requests()

    def __len__(self) -> int:
        return 0 if self._session is None else self._session.pending

    def __bool__(self) -> bool:
        return True

    def defer_slot(self, slot: str | None, seconds: float) -> bool:
        """Leave a download slot alone for so long; whether that is possible.

        What is in flight is not affected.  Then one request is let through first, and the others
        when it is done.  With JOBDIR it holds for later runs, too.  In a shared crawl it holds for
        all workers.

        :param slot: its name, as in ``request.meta["download_slot"]``: a host, most often;
            ``None``: all of them, in this run, or by this worker.
        :return: false for one slot with ScrapyPriorityQueue, which has none, and in a shared crawl
            where each worker has a pace of its own (``ALTSCHED_SHARED_PACE``).
        :raises ConfigError: *seconds* is no number, or less than 0.
        """
        return self._session is not None and self._session.deferrals.defer(slot, seconds)

    def push(self, *requests: Request | str) -> int:
        """Take in requests, or URLs, as if the spider had yielded them, also while it is paused.

        :return: how many were accepted, and not filtered as seen; 0: the scheduler is not open.
        """
        if self._session is None:
            return 0
        made = [Request(it) if isinstance(it, str) else it for it in requests]
        return self._session.steering.push(made)

    def pause(self) -> bool:
        """Hand out no more requests until :meth:`resume`; whether that is a change.

        Downloads in flight finish.  With JOBDIR it holds for later runs, too.  ``start()`` goes on,
        and so do the settings ``CLOSESPIDER_*``.  In a shared crawl it is this worker that pauses.
        """
        return self._session is not None and self._session.steering.hold.pause()

    def resume(self) -> bool:
        """Hand out requests again; whether the crawl was paused."""
        return self._session is not None and self._session.steering.hold.resume()

    def forget(self, *urls: str) -> int:
        """Let pages be crawled again that were seen, once they are found again, or pushed.

        Those that are pending, delayed or in flight are left as they are; of a shared crawl, those
        that this worker has.  All that is pending is read for that, and nothing else goes on
        meanwhile: for one to three seconds where there are a million requests.

        :return: how many of them were seen, and are forgotten.
        """
        if self._session is None:
            return 0
        return self._session.steering.apply(Forget(urls)).changed

    def status(self) -> Standing | None:
        """How the crawl stands now, with what no commit has stored yet; ``None``: it is not open.

        Speeds are those since the last calls and commits of the last minute; in a shared crawl the
        numbers are those of all workers, as the server has told them last.
        """
        return None if self._session is None else self._session.look()

    def peek(self, number: int = 20, slot: str | None = None) -> list[Request]:
        """Copies of the next pending requests, at most so many, the next one first; none is taken.

        It is the order while nothing is downloaded: download slots take turns, and those that are
        deferred come last.  In a shared crawl it is what this worker has fetched ahead.

        :param slot: only those of this download slot.
        :raises StoreError: the store cannot be read.
        """
        if self._session is None:
            return []
        return self._session.peek(number, slot)

    def locate(self, request: Request | str) -> Place | None:
        """Where a request, or a plain one for a URL, is now: its ``state`` is one of

        "in flight", "pending", "delayed", "failed", "dead", "done", "never seen"; or "seen", if it
        was seen without being any of these.  Where there are several with its fingerprint, the
        first of these states counts.  Without JOBDIR, what has failed is done.

        It commits, and may read all pending requests, and nothing else goes on meanwhile: for a
        second or so where there are a million.

        :return: ``None``: the spider is not open, or this worker of a shared crawl has no such
            request: ``scrapy altsched explain --shared`` asks the server.
        :raises ValueError: it is no URL that Scrapy can request.
        :raises StoreError: the store cannot be read.
        """
        if self._session is None:
            return None
        return self._session.locate(Request(request) if isinstance(request, str) else request)

    def checkpoint(self, *, force: bool = False) -> bool:
        """Commit now; whether everything that was accepted survives the process's death.

        For feeders: acknowledge what you fed after this is true, or on ``frontier_committed``.
        Requests that cannot be serialized never survive it and do not count.

        :param force: whether to force the commit to the disk, too, and wait for that.
        :raises ForkedError: called in a forked child process.
        """
        return self._session is not None and self._session.checkpoint(force=force)

    def position(self) -> int | None:
        """A number that stands for all requests that were accepted so far.

        For feeders that do not want a commit for each of them: acknowledge when
        :meth:`is_durable`.  ``None``: no request survives the process's death, as without JOBDIR.
        """
        return None if self._session is None else self._session.position

    def is_durable(self, position: int) -> bool:
        """Whether all that was accepted up to *position* survives; also asked after the end."""
        session = self._session or self._ended
        return session is not None and session.is_durable(position)
