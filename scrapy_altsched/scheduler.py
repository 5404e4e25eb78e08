"""Scrapy's scheduler interface to an open crawl."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from scrapy.core.scheduler import BaseScheduler
from scrapy.dupefilters import BaseDupeFilter
from scrapy.utils.misc import build_from_crawler, load_object

from .canonical import Rules
from .crawl.clock import CrawlClock
from .crawl.exit_code import exit_code
from .crawl.fed import is_fed
from .crawl.garbage import freeze, thaw
from .crawl.outcome import Outcome
from .crawl.reports import Reports, name_of
from .crawl.session import Session, Setup
from .crawl.tally import Tally
from .dupefilter import DupeFilter
from .engine.engine import Engine, fingerprinter_of, keep_spider_state
from .engine.event_loop import thread_caller
from .errors import AltschedError, FrontierFailedError
from .feeds import JobFeeds, check_files, find_files, warn_of_unsafe_feeds
from .frontier import Components, Frontier, OnEvent, Options
from .frontier.options import SharedOptions
from .maintenance.opening import open_frontier
from .plugins import warn_of_unsafe_plugins
from .requests.codec import PickleCodec
from .requests.entries import Codec, Entries
from .requests.fingerprint import NOTE, are_sha1, describe, shorten
from .requests.identity import PageIdentity
from .settings import Config
from .stock.job import StockJob
from .stock.report import report_import
from .worker import PARAMETER, name_worker

if TYPE_CHECKING:
    from scrapy import Request, Spider
    from scrapy.crawler import Crawler
    from scrapy.statscollectors import StatsCollector
    from twisted.internet.defer import Deferred
    from typing_extensions import Self

logger = logging.getLogger(__name__)


class _Queue:
    """Stands in for a queue of Scrapy's scheduler, for other code that looks at it.

    :param length: returns the number of its requests.
    :param pop: returns the scheduler's next request.
    """

    def __init__(self, length: Callable[[], int], pop: Callable[[], Request | None]) -> None:
        self._length = length
        self.pop = pop

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
        self.df = dupefilter
        self.jobdir = jobdir
        self.dqclass = dqclass
        self.mqclass = mqclass
        self.pqclass = pqclass
        self.logunser = logunser
        self.stats: StatsCollector = stats  # type: ignore[assignment]
        self.crawler: Crawler = crawler  # type: ignore[assignment]
        self._session: Session | None = None
        #: The session that has ended.
        self._ended: Session | None = None
        #: Stand-ins for the queues of Scrapy's scheduler.
        self.mqs = _Queue(lambda: self._count_queue(in_memory=True), self.next_request)
        self.dqs: _Queue | None = None
        self.dqdir: str | None = None
        #: Whether this crawl continues a job that earlier runs left unfinished.
        self.resumed = False
        #: The feeds of the job in JOBDIR; kept after the scheduler has closed, as they close later.
        self.feeds: JobFeeds | None = None

    # Opening and closing

    def open(self, spider: Spider) -> Deferred[None] | None:
        """Open the frontier, resuming the job in JOBDIR if there is one.

        :raises AltschedError: a setting or the job directory cannot be used; the reason has been
            logged, and nothing in the job directory was changed.
        """
        self.spider = spider
        try:
            if hasattr(spider, "open_redis_queue"):  # as RedisQueueMixin has it
                spider.open_redis_queue(self)
            self._session = self._open(spider)
        except AltschedError as error:
            logger.critical("%s", error, extra={"spider": spider})
            if isinstance(error, FrontierFailedError):
                exit_code.set(Outcome.UNFINISHED)
            exit_code.fail()
            keep_spider_state(self.crawler)
            raise
        job = self._session.frontier.job
        self.resumed = job.resumed
        self.feeds = self._session.feeds
        self.dqdir = str(job.path) if job.path is not None else None
        if job.path is not None:
            self.dqs = _Queue(lambda: self._count_queue(in_memory=False), self.next_request)
        return self.df.open()

    def _open(self, spider: Spider) -> Session:
        engine = Engine(self.crawler)
        # The spider may change the working directory.
        jobdir = str(Path(self.jobdir).absolute()) if self.jobdir else None
        if engine.interactive:
            jobdir = None
            keep_spider_state(self.crawler)
        given = {
            "SCHEDULER_DISK_QUEUE": self.dqclass,
            "SCHEDULER_MEMORY_QUEUE": self.mqclass,
            "SCHEDULER_PRIORITY_QUEUE": self.pqclass,
        }
        settings = self.crawler.settings
        config = Config.from_settings(settings, disk=jobdir is not None, **given)
        if not hasattr(spider, PARAMETER):
            setattr(spider, PARAMETER, name_worker(config.shared_worker, jobdir))
        shared = config.shared_options(spider.name)
        reports = Reports(
            spider,
            self.stats,
            jobdir,
            shared=None if shared is None else shared.key,
            logs_reason=self.logunser,
        )
        identity, fingerprint_note = self._identify(config, spider)
        keeps_items = jobdir is not None or shared is not None
        if keeps_items:
            warn_of_unsafe_feeds(settings, spider)
            warn_of_unsafe_plugins(settings, spider)
            if identity.is_refused is not None and type(self.df) is not BaseDupeFilter:
                reports.log_foreign_filter(self.df)
        tally = Tally()
        setup = Setup(
            crawler=self.crawler,
            spider=spider,
            engine=engine,
            config=config,
            clock=CrawlClock(),
            jobdir=jobdir,
            dupefilter=self.df,
            identity=identity,
            fingerprint_note=fingerprint_note,
            feed_files=find_files(settings, spider) if keeps_items else (),
            entries=Entries(
                self._codec_of(config, spider, jobdir),
                engine,
                tally,
                by_slot=config.order.policy == "slots",
            ),
            reports=reports,
            tally=tally,
            stats=self.stats,
        )
        session = Session(setup, lambda on_event: self._open_frontier(setup, on_event))
        if config.gc_freeze:
            freeze()
        return session

    def _identify(self, config: Config, spider: Spider) -> tuple[PageIdentity, bytes]:
        """What decides which page a request is, and the note about how fingerprints are made."""
        if isinstance(self.df, DupeFilter):
            self.df.use_rules(config.rules_of(spider))
            return self.df.identity, self.df.fingerprint_note
        fingerprinter = fingerprinter_of(self.crawler)
        note = describe(fingerprinter, Rules())
        identity = PageIdentity(
            lambda request: shorten(fingerprinter.fingerprint(request)),
            is_refused=self.df.request_seen,
            are_sha1=are_sha1(note),
        )
        return identity, note

    def _codec_of(self, config: Config, spider: Spider, jobdir: str | None) -> Codec | None:
        if config.shared:
            from .frontier.shared.additions import MOST_BYTES
            from .requests.portable import PortableCodec

            classes = [load_object(path) for path in config.shared_request_classes]
            return PortableCodec(
                spider, classes, most_bytes=MOST_BYTES, pickle=config.shared_pickle
            )
        return None if jobdir is None else PickleCodec(spider)

    def _open_shared(
        self, setup: Setup, options: Options, shared: SharedOptions, on_event: OnEvent
    ) -> Frontier:
        from .frontier.shared.opening import Worker, open_shared

        worker = Worker(
            spider=setup.spider.name,
            fingerprints=setup.fingerprint_note,
            are_sha1=setup.identity.are_sha1,
            jobdir=setup.jobdir,
            check=lambda: check_files(setup.feed_files, self.crawler.settings, setup.spider),
            wake=thread_caller(),
            fail=setup.reports.log_unreachable,
            warn=setup.reports.log_server,
        )
        if is_fed(setup.spider):
            # What it takes from its queue must find the crawl open.
            shared = replace(shared, idle="wait")
        return open_shared(options, shared, worker, on_event)

    def _open_frontier(self, setup: Setup, on_event: OnEvent) -> Frontier:
        name, jobdir = setup.spider.name, setup.jobdir
        options = replace(setup.config.frontier, clock=setup.clock)
        if not isinstance(self.df, DupeFilter) and type(self.df) is not BaseDupeFilter:
            options = replace(options, components=Components(dupefilter=name_of(self.df)))
        frontier: Frontier
        shared = setup.config.shared_options(name)
        if shared is not None:
            frontier = self._open_shared(setup, options, shared, on_event)
        elif jobdir is None:
            frontier = open_frontier(None, name, options, on_event=on_event)
        else:
            stock = StockJob(
                jobdir,
                setup.spider,
                fingerprint=setup.identity.of,
                slot_key=setup.engine.slot_key,
                notes={NOTE: setup.fingerprint_note},
                takes_seen=setup.identity.is_refused is None,
                trusts_seen=setup.config.trust_stock_seen,
            )
            frontier = open_frontier(
                jobdir,
                name,
                options,
                locate=setup.entries.locate,
                source=stock,
                check=lambda: check_files(setup.feed_files, self.crawler.settings, setup.spider),
                on_event=on_event,
            )
            try:
                place = stock.move_away()
            except BaseException:
                frontier.close()
                raise
            report_import(stock, place, setup.spider, self.stats)
        if isinstance(self.df, DupeFilter):
            self.df.share(frontier, setup.tally)
        return frontier

    def close(self, reason: str) -> Deferred[None] | None:
        """Commit everything, log the state of the job in one line, and close."""
        session = self._session
        if session is not None:
            session.frontier.check_owner()
            try:
                session.close(reason)
            finally:
                self._session, self._ended = None, session
                thaw()
            self.mqs.close()
            if self.dqs is not None:
                self.dqs.close()
        return self.df.close(reason)

    # While it is open

    def enqueue_request(self, request: Request) -> bool:
        """Accept *request*, unless it is a duplicate; whether it was accepted.

        Nothing is any more once the scheduler has closed: an asynchronous ``start()`` goes on.
        """
        if (session := self._session) is not None:
            return session.enqueue(request)
        assert self._ended is not None, "the scheduler is not open"
        return False

    def next_request(self) -> Request | None:
        """The next request, or ``None``: nothing is pending, or nothing is ready yet."""
        if (session := self._session) is not None:
            return session.next_request()
        assert self._ended is not None, "the scheduler is not open"
        return None

    def has_pending_requests(self) -> bool:
        """Whether there are requests to hand out; those handed out are the engine's to count.

        While nothing can be saved or read, ``spider_idle`` is what keeps the spider open.
        """
        return self._session is not None and self._session.has_requests()

    def __len__(self) -> int:
        return 0 if self._session is None else self._session.pending

    def __bool__(self) -> bool:
        return True

    def checkpoint(self, *, force: bool = False) -> bool:
        """Commit now; whether everything that was accepted survives the process's death.

        :param force: whether to force the commit to the disk, too, and wait for that.

        For feeders: acknowledge what you fed after this is true, or on ``frontier_committed``.
        Requests that cannot be serialized never survive it and do not count.

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
        """Whether all requests that were accepted up to *position* survive the process's death.

        May be asked after the scheduler has closed, too.
        """
        session = self._session or self._ended
        return session is not None and session.is_durable(position)

    def _count_queue(self, *, in_memory: bool) -> int:
        return 0 if self._session is None else self._session.count_queue(in_memory=in_memory)
