"""Opens the frontier of a crawl as its settings say."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from scrapy.dupefilters import BaseDupeFilter
from scrapy.utils.python import global_object_name

from ..engine.event_loop import thread_caller
from ..feeds import check_files
from ..frontier import Components, Frontier, OnEvent, Options
from ..frontier.options import SharedOptions
from ..maintenance.opening import open_frontier
from ..requests.made_by import NOTE
from ..stock.job import StockJob
from ..stock.report import report_import
from .messages import SERVER, UNREACHABLE
from .setup import Setup, is_fed


def open_crawl(setup: Setup, on_event: OnEvent) -> Frontier:
    """Open the frontier of a crawl, and resume its job if there is one.

    :raises AltschedError: the job directory or the server cannot be used.
    """
    df, own_filter = setup.dupefilter, setup.own_filter
    options = replace(setup.config.frontier, clock=setup.clock)
    if own_filter is None and type(df) is not BaseDupeFilter:
        options = replace(options, components=Components(dupefilter=global_object_name(type(df))))
    if setup.shared is not None:
        frontier = _open_shared(setup, options, setup.shared, on_event)
    elif setup.jobdir is not None:
        frontier = _open_job(setup, options, setup.jobdir, on_event)
    else:
        frontier = open_frontier(None, setup.spider.name, options, on_event=on_event)
    if own_filter is not None:
        own_filter.share(frontier, setup.tally)
    return frontier


def _open_shared(
    setup: Setup, options: Options, shared: SharedOptions, on_event: OnEvent
) -> Frontier:
    from ..frontier.shared.opening import Worker, open_shared

    worker = Worker(
        spider=setup.spider.name,
        fingerprints=setup.fingerprint_note,
        are_sha1=setup.identity.are_sha1,
        jobdir=setup.jobdir,
        check=_check_of(setup),
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
        setup.spider.name,
        options,
        locate=setup.entries.locate,
        source=stock,
        check=_check_of(setup),
        on_event=on_event,
    )
    try:
        place = stock.move_away()
    except BaseException:  # nothing else would release the job directory
        frontier.close()
        raise
    report_import(stock, place, setup.spider, setup.crawler.stats)
    return frontier


def _check_of(setup: Setup) -> partial[None]:
    return partial(check_files, setup.feed_files, setup.crawler.settings, setup.spider)
