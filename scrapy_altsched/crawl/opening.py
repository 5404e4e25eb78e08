"""Opens a crawl as its settings say."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from scrapy.dupefilters import BaseDupeFilter
from scrapy.utils.python import global_object_name

from ..canonical import Rules
from ..engine.engine import Engine, fingerprinter_of, keep_spider_state
from ..engine.event_loop import thread_caller
from ..feeds import check_files, find_files, warn_of_unsafe_feeds
from ..frontier import Components, Frontier, OnEvent, Options
from ..frontier.options import SharedOptions
from ..maintenance.opening import open_frontier
from ..plugins import warn_of_unsafe_plugins
from ..requests.entries import Entries, codec_of
from ..requests.fingerprint import shorten
from ..requests.identity import PageIdentity
from ..requests.made_by import NOTE, are_sha1, describe
from ..settings import Config
from ..stock.job import StockJob
from ..stock.report import report_import
from ..worker import PARAMETER, name_worker
from .garbage import freeze
from .messages import SERVER, UNREACHABLE
from .reports import Reports
from .session import Session
from .setup import CrawlClock, Setup, is_fed

if TYPE_CHECKING:
    from collections.abc import Callable

    from scrapy import Request
    from scrapy.crawler import Crawler

    from ..dupefilter import DupeFilter
    from ..scheduler import Scheduler


def open_session(scheduler: Scheduler, own_filter: DupeFilter | None) -> Session:
    """Open the crawl of *scheduler*'s spider, and resume its job if there is one.

    :param own_filter: the scheduler's dupefilter, if that can share a frontier.
    :raises AltschedError: a setting or the job directory cannot be used.
    """
    crawler, spider = scheduler.crawler, scheduler.spider
    settings, engine = crawler.settings, Engine(crawler)
    # The spider may change the working directory.
    jobdir = str(Path(scheduler.jobdir).absolute()) if scheduler.jobdir else None
    if engine.interactive:
        jobdir = None
        keep_spider_state(crawler)
    config = Config.from_settings(
        settings,
        disk=jobdir is not None,
        SCHEDULER_DISK_QUEUE=scheduler.dqclass,
        SCHEDULER_MEMORY_QUEUE=scheduler.mqclass,
        SCHEDULER_PRIORITY_QUEUE=scheduler.pqclass,
    )
    if not hasattr(spider, PARAMETER):
        setattr(spider, PARAMETER, name_worker(config.shared_worker, jobdir))
    shared = config.shared_options(spider.name)
    key = None if shared is None else shared.key
    reports = Reports(spider, scheduler.stats, jobdir, key, logs_reason=scheduler.logunser)
    df = scheduler.df
    rules = config.rules_of(spider)
    identity, fingerprint_note = identify(crawler, own_filter, rules, df.request_seen)
    keeps_items = jobdir is not None or shared is not None
    if keeps_items:
        warn_of_unsafe_feeds(settings, spider)
        warn_of_unsafe_plugins(settings, spider)
        if identity.is_refused is not None and type(df) is not BaseDupeFilter:
            reports.log_foreign_filter(df)
    tally: defaultdict[str, int] = defaultdict(int)
    codec = codec_of(config, spider) if keeps_items else None
    setup = Setup(
        crawler=crawler,
        spider=spider,
        engine=engine,
        config=config,
        clock=CrawlClock(),
        jobdir=jobdir,
        dupefilter=df,
        identity=identity,
        fingerprint_note=fingerprint_note,
        feed_files=find_files(settings, spider) if keeps_items else (),
        entries=Entries(codec, engine, tally, by_slot=config.order.policy == "slots"),
        reports=reports,
        tally=tally,
    )
    options = replace(config.frontier, clock=setup.clock)
    if own_filter is None and type(df) is not BaseDupeFilter:
        options = replace(options, components=Components(dupefilter=global_object_name(type(df))))

    def open_own(on_event: OnEvent) -> Frontier:
        if shared is not None:
            frontier = _open_shared(setup, options, shared, on_event)
        elif jobdir is not None:
            frontier = _open_job(setup, options, jobdir, on_event)
        else:
            frontier = open_frontier(None, spider.name, options, on_event=on_event)
        if own_filter is not None:
            own_filter.share(frontier, tally)
        return frontier

    session = Session(setup, open_own)
    if config.gc_freeze:
        freeze()
    return session


def identify(
    crawler: Crawler,
    own_filter: DupeFilter | None,
    rules: Rules,
    is_refused: Callable[[Request], bool] | None = None,
) -> tuple[PageIdentity, bytes]:
    """What decides which page a request is, and the note about how fingerprints are made.

    :param is_refused: without a filter of ours, another package's.
    """
    if own_filter is not None:
        own_filter.use_rules(rules)
        return own_filter.identity, own_filter.fingerprint_note
    fingerprinter = fingerprinter_of(crawler)
    note = describe(fingerprinter, Rules())
    identity = PageIdentity(
        lambda request: shorten(fingerprinter.fingerprint(request)),
        is_refused=is_refused,
        are_sha1=are_sha1(note),
    )
    return identity, note


def _open_shared(
    setup: Setup, options: Options, shared: SharedOptions, on_event: OnEvent
) -> Frontier:
    from ..frontier.shared.opening import Worker, open_shared

    worker = Worker(
        spider=setup.spider.name,
        fingerprints=setup.fingerprint_note,
        are_sha1=setup.identity.are_sha1,
        jobdir=setup.jobdir,
        check=partial(check_files, setup.feed_files, setup.crawler.settings, setup.spider),
        wake=thread_caller(),
        fail=lambda error: setup.reports.log(UNREACHABLE, error=error),
        warn=lambda warning: setup.reports.log(SERVER, warning=warning),
    )
    if is_fed(setup.spider):
        # What it takes from its queue must find the crawl open.
        shared = replace(shared, idle="wait")
    return open_shared(options, shared, worker, on_event)


def _open_job(setup: Setup, options: Options, jobdir: str, on_event: OnEvent) -> Frontier:
    """Open the job in *jobdir*; what Scrapy's own scheduler has left there is imported."""
    stock = StockJob(
        path=Path(jobdir),
        spider=setup.spider,
        encode=codec_of(setup.config, setup.spider).encode,
        fingerprint=setup.identity.of,
        slot_key=setup.engine.slot_key,
        notes={NOTE: setup.fingerprint_note},
        is_filtered=setup.identity.is_refused is None,
        trusts_seen=setup.config.trust_stock_seen,
    )
    frontier = open_frontier(
        jobdir,
        setup.spider.name,
        options,
        locate=setup.entries.locate,
        source=stock,
        check=partial(check_files, setup.feed_files, setup.crawler.settings, setup.spider),
        on_event=on_event,
    )
    try:
        place = stock.move_away()
    except BaseException:  # nothing else would release the job directory
        frontier.close()
        raise
    report_import(stock, place, setup.crawler.stats)
    return frontier
