"""Opening a job: what has to be done to what is stored, before a frontier continues it."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace

from ..errors import CodecError, StoreError
from ..frontier.contract import Frontier, Locate
from ..frontier.events import OnEvent, ignore_events
from ..frontier.local.frontier import LocalFrontier
from ..frontier.options import Options
from ..frontier.queue.order import Order
from ..frontier.shared.record import NAME_CRAWL, refuse_worker
from ..frontier.store.journal import Journal
from ..frontier.store.states import decode_value
from ..frontier.store.store import Store
from .ages import record_ages
from .importing import Source, import_job
from .requeue import failed_requests, requeue
from .rewriter import Rewriter, order_of

logger = logging.getLogger(__name__)


def open_frontier(
    path: str | os.PathLike[str] | None,
    owner: str,
    options: Options | None = None,
    *,
    locate: Locate | None = None,
    source: Source | None = None,
    check: Callable[[], None] = lambda: None,
    on_event: OnEvent = ignore_events,
) -> Frontier:
    """Open the frontier of the job of spider *owner*; without a *path*, one that lives in memory.

    :param locate: asked when a job is resumed in another order than it was stored in.
    :param source: what another scheduler has stored in the directory, to be imported.
    :param check: called when the directory is this process's, before a run begins.  The job is as
        it was if this raises.
    :param on_event: receives unsolicited events, from within calls to the frontier.
    :raises JobdirError: the directory cannot be used, or *source* not be imported; nothing in it
        was changed.
    :raises StoreError: the store in it does not open.
    """
    options = options or Options()
    if path is None:
        return LocalFrontier(options, on_event=on_event)

    def fill(store: Store, is_new: bool = True) -> None:
        if source is not None:
            import_job(store, source, options.order, options.components, is_new=is_new)

    journal = Journal(path, owner, fill, engine=options.store)
    try:
        refuse_worker(
            journal,
            journal.jobdir.path,
            "Set ALTSCHED_SHARED = True to go on with it, or another JOBDIR for a crawl of one"
            " machine.",
        )
        check()
        fill(journal, is_new=False)
        _reorder(journal, options.order, locate)
        if options.records_ages:
            record_ages(journal, max(options.clock.wall(), journal.counters().time))
        retried = 0
        if options.retry_failed and locate is not None:
            # Before the run begins: nothing can take events yet.
            before = LocalFrontier(options, journal, is_visit=True)
            retried = requeue(before, failed_requests(journal.failed()), locate)
        frontier = LocalFrontier(options, journal, on_event)
        frontier.job = replace(frontier.job, retried=retried)
        return frontier
    except BaseException:  # nothing else would let go of the job directory
        with suppress(StoreError):
            journal.close()
        raise


def visit(path: str | os.PathLike[str], owner: str, options: Options) -> LocalFrontier:
    """Open the frontier of a job between two of its runs, to change what waits there.

    :raises JobdirError: a crawl runs, or the directory has no job that can be used; StoreError.
    """
    journal = Journal(path, owner)
    try:
        refuse_worker(journal, journal.jobdir.path, NAME_CRAWL)
        # Of a change that was cut short, rows may have the ids of slots to come.
        journal.remove_orphans(journal.counters().next_slot)
        options = replace(options, order=order_of(journal) or options.order)
        return LocalFrontier(options, journal, is_visit=True)
    except BaseException:  # nothing else would let go of the job directory
        with suppress(StoreError):
            journal.close()
        raise


def _reorder(journal: Journal, new: Order, locate: Locate | None) -> None:
    """Have all pending requests in order *new*, if they are in another one: all or nothing."""
    # In any case: rows of a change that was cut short must be gone before the crawl continues.
    rewriter = Rewriter(journal)
    old = order_of(journal) or new
    if old == new:
        return
    is_placed_alike = old.policy == new.policy and (old.start is None) == (new.start is None)

    def reordered() -> Iterator[tuple[str, bytes, bytes]]:
        for key, slot, value in rewriter.pending():
            priority, start, sequence = old.decode(key[8:])
            if locate is not None and not is_placed_alike:
                try:
                    slot, start = locate(decode_value(value).payload or b"")
                except CodecError:
                    logger.debug("A stored request that cannot be decoded keeps its place")
            yield new.slot_of(slot), new.encode(priority, start, sequence), value

    total = journal.counts().pending
    rewriter.replace_queue(reordered())
    rewriter.final.notes["order"] = str(new).encode()
    rewriter.finish()
    logger.info("The order of %d stored requests was changed from %s to %s", total, old, new)
