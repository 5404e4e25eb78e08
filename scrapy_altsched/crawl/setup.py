"""What an open crawl is created from: its settings, its frontier, its clock, and its spider."""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from scrapy import Request, Spider
from scrapy.dupefilters import BaseDupeFilter
from scrapy.utils.python import global_object_name

from ..canonical import Rules
from ..engine.components import fingerprinter_of, keep_spider_state
from ..engine.engine import Engine
from ..engine.event_loop import call_later, thread_caller
from ..feeds import check_files, find_files, find_part, name_archive, warn_of_unsafe_feeds
from ..frontier import Components, Frontier, OnEvent, Options
from ..frontier.clock import Call, SystemClock
from ..frontier.options import SharedOptions
from ..maintenance.opening import open_frontier
from ..plugins import warn_of_unsafe_plugins
from ..requests.entries import Entries, codec_of
from ..requests.fingerprint import shorten
from ..requests.identity import PageIdentity, describe
from ..settings import Config
from ..stock.job import StockJob
from ..stock.report import report_import
from ..worker import PARAMETER, name_worker
from .limits import find_limits
from .messages import SERVER, UNREACHABLE
from .reports import Reports

if TYPE_CHECKING:
    from scrapy.crawler import Crawler

    from ..dupefilter import DupeFilter
    from ..scheduler import Scheduler


class CrawlClock(SystemClock):
    """The machine's clock; without event loop or reactor, as in a script, nothing is called."""

    def call_at(self, when: float, call: Callable[[], object]) -> Call:
        planned: Call = call_later(max(0.0, when - self.monotonic()), call)
        return planned


class Setup:
    """What the parts of an open crawl are created from, as *scheduler* and settings say.

    :param own_filter: the scheduler's dupefilter, if that can share a frontier.
    :ivar jobdir: the job directory, absolute; ``None``: all is in memory.
    :ivar shared: how this worker takes part in a shared crawl; ``None``: it is none.
    :ivar ages: after which pages may be crawled again; none: they are not.
    :ivar archive: the first part of the archive of finished requests; ``None``: there is none.
    :ivar feed_files: the local files that the feeds of a job, and the archive, will write to.
    :ivar tally: how often each stat is to be increased: ``stats.inc_value()`` takes 2.4
        microseconds, several times what it counts.
    :raises ConfigError: a setting cannot be used.
    """

    def __init__(self, scheduler: Scheduler, own_filter: DupeFilter | None) -> None:
        self.crawler, self.spider = crawler, spider = scheduler.crawler, scheduler.spider
        settings, self.engine, self.clock = crawler.settings, Engine(crawler), CrawlClock()
        # The spider may change the working directory.
        self.jobdir = str(Path(scheduler.jobdir).absolute()) if scheduler.jobdir else None
        if self.engine.interactive:
            self.jobdir = None
            keep_spider_state(crawler)
        self.config = config = Config.from_settings(
            settings,
            disk=self.jobdir is not None,
            SCHEDULER_DISK_QUEUE=scheduler.dqclass,
            SCHEDULER_MEMORY_QUEUE=scheduler.mqclass,
            SCHEDULER_PRIORITY_QUEUE=scheduler.pqclass,
        )
        if not hasattr(spider, PARAMETER):
            setattr(spider, PARAMETER, name_worker(config.shared_worker, self.jobdir))
        self.shared = config.shared_options(spider.name)
        key = None if self.shared is None else self.shared.key
        place = quote(self.jobdir or "")
        if self.shared is not None:
            place = f"--shared {self.shared.words}"
        self.reports = Reports(
            spider, scheduler.stats, self.jobdir, key, place, logs_reason=scheduler.logunser
        )
        self.dupefilter = df = scheduler.df
        self.own_filter = own_filter
        rules = config.rules_of(spider)
        self.identity = identify(crawler, own_filter, rules, df.request_seen)
        own = [] if config.recrawl_after is None else [config.recrawl_after]
        self.ages = [*own, *rules.ages]
        is_stored = self.jobdir is not None or self.shared is not None
        if is_stored:
            warn_of_unsafe_feeds(settings, spider)
            warn_of_unsafe_plugins(settings, spider)
            if self.identity.is_refused is not None and type(df) is not BaseDupeFilter:
                self.reports.log_foreign_filter(df)
        self.tally: defaultdict[str, int] = defaultdict(int)
        codec = codec_of(config, spider) if is_stored else None
        by_slot = config.order.policy == "slots"
        self.entries = Entries(codec, self.engine, self.tally, rules, by_slot=by_slot)
        self.archive = name_archive(config.archive, spider) if config.archive else None
        self.feed_files = find_files(settings, spider) if is_stored else []
        if is_stored and self.archive is not None:
            self.feed_files.append(find_part(self.archive))

    def open_frontier(self, on_event: OnEvent) -> Frontier:
        """Open the frontier, and resume its job if there is one; AltschedError: it cannot be."""
        kind = type(self.dupefilter)
        options = replace(self.config.frontier, clock=self.clock, records_ages=bool(self.ages))
        if self.own_filter is None and kind is not BaseDupeFilter:
            options = replace(options, components=Components(dupefilter=global_object_name(kind)))
        if self.shared is not None:
            frontier = self._open_shared(options, self.shared, on_event)
        elif self.jobdir is not None:
            frontier = self._open_job(options, self.jobdir, on_event)
        else:
            frontier = open_frontier(None, self.spider.name, options, on_event=on_event)
        if self.own_filter is not None:
            self.own_filter.share(frontier, self.tally)
        return frontier

    def _open_shared(self, options: Options, shared: SharedOptions, on_event: OnEvent) -> Frontier:
        from ..frontier.shared.opening import Worker, open_shared

        worker = Worker(
            spider=self.spider.name,
            fingerprints=self.identity.note,
            are_sha1=self.identity.are_sha1,
            jobdir=self.jobdir,
            check=self._check_feeds,
            wake=thread_caller(),
            fail=lambda error: self.reports.log(UNREACHABLE, error=error),
            warn=lambda warning: self.reports.log(SERVER, warning=warning),
            duplicates=lambda: self.crawler.stats.get_value("dupefilter/filtered", 0),
        )
        if is_fed(self.spider):
            # What it takes from its queue must find the crawl open.
            shared = replace(shared, idle="wait")
        limits = find_limits(self)
        shared = replace(shared, limits=limits, unpaced=limits is None)
        return open_shared(options, shared, worker, on_event)

    def _open_job(self, options: Options, jobdir: str, on_event: OnEvent) -> Frontier:
        """Open the job in *jobdir*; what Scrapy's own scheduler has left there is imported."""
        stock = StockJob(
            path=Path(jobdir),
            spider=self.spider,
            encode=codec_of(self.config, self.spider).encode,
            fingerprint=self.identity.of,
            slot_key=self.engine.slot_key,
            notes=self.identity.notes(),
            is_filtered=self.identity.is_refused is None,
            trusts_seen=self.config.trust_stock_seen,
        )
        frontier = open_frontier(
            jobdir,
            self.spider.name,
            options,
            locate=self.entries.locate,
            source=stock,
            check=self._check_feeds,
            on_event=on_event,
        )
        try:
            place = stock.move_away()
        except BaseException:  # nothing else would release the job directory
            frontier.close()
            raise
        report_import(stock, place, self.crawler.stats)
        return frontier

    def _check_feeds(self) -> None:
        check_files(self.feed_files, self.crawler.settings, self.spider)


def identify(
    crawler: Crawler,
    own_filter: DupeFilter | None,
    rules: Rules,
    is_refused: Callable[[Request], bool] | None = None,
) -> PageIdentity:
    """What decides which page a request is; *is_refused* is another package's filter."""
    if own_filter is not None:
        own_filter.use_rules(rules)
        return own_filter.identity
    fingerprinter = fingerprinter_of(crawler)
    return PageIdentity(
        lambda request: shorten(fingerprinter.fingerprint(request)),
        describe(fingerprinter, Rules()),
        is_refused=is_refused,
    )


class FedSpider(Spider):
    """A spider that takes requests from a queue, and decides how long it waits for more."""

    @abstractmethod
    def open_queue(self, scheduler: Scheduler) -> None:
        """Connect to the queue, before *scheduler* opens; AltschedError: it cannot be used."""


def is_fed(spider: Spider) -> bool:
    """Whether a spider takes requests from a queue, and decides how long it waits for more."""
    return isinstance(spider, FedSpider) or has_fed_starts(spider)


def has_fed_starts(spider: Spider) -> bool:
    """Whether ``start()`` brings what others have put into a queue: equal ones are not the same."""
    # A spider of scrapy-redis has imported it.
    scrapy_redis: Any = sys.modules.get("scrapy_redis.spiders")
    return scrapy_redis is not None and isinstance(spider, scrapy_redis.RedisMixin)
