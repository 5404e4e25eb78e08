"""START HERE.  The frontier: every request of a crawl and its state.

Read :mod:`.contract` for the states, the transitions and what a caller may rely on; then

* :mod:`.order`: who is next;
* :mod:`.local`: the frontier of one process, in memory, with or without a journal;
* :mod:`.window`: how much of the queue is in memory;
* :mod:`.journal`: that journal, a RocksDB store;
* :mod:`.jobdir`: whose the directory is that the store lies in;
* :mod:`.importing`: taking over what another scheduler has stored there.

Nothing here imports Scrapy.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress

from ..errors import StoreError
from .contract import (
    Accompanied,
    Busy,
    Counts,
    DeadLettered,
    Entry,
    Event,
    Frontier,
    Isolated,
    Lease,
    OnEvent,
    Verdict,
)
from .importing import Imported, Source, take_over
from .journal import Journal
from .local import LocalFrontier, Options, ignore_events
from .order import Order
from .runs import Components, Runs
from .store import Store

__all__ = [
    "Accompanied",
    "Busy",
    "Components",
    "Counts",
    "DeadLettered",
    "Entry",
    "Event",
    "Frontier",
    "Imported",
    "Isolated",
    "Lease",
    "LocalFrontier",
    "Options",
    "Order",
    "Runs",
    "Source",
    "Verdict",
    "open_frontier",
]


def open_frontier(
    path: str | os.PathLike[str] | None,
    owner: str,
    options: Options | None = None,
    *,
    locate: Callable[[bytes], tuple[str, bool]] | None = None,
    source: Source | None = None,
    on_event: OnEvent | None = None,
) -> LocalFrontier:
    """Open the frontier of a job, or one that lives in memory.

    :param path: the job directory, or ``None``.
    :param owner: the spider's name.
    :param locate: payload -> (download slot, whether a start request); asked when a job is
        resumed in another order than it was stored in.
    :param source: what another scheduler has stored in the directory, to be taken over.
    :param on_event: told of what nobody asked for, from within calls to the frontier.
    :raises JobdirError: the directory cannot be used, or *source* not be taken over; nothing in it
        was changed.
    :raises StoreError: the store in it does not open.
    """
    options = options or Options()
    if path is None:
        return LocalFrontier(options, on_event=on_event or ignore_events)

    def fill(store: Store, is_new: bool = True) -> None:
        if source is not None:
            take_over(store, source, options.order, options.components, is_new=is_new)

    journal = Journal(path, owner, fill)
    try:
        fill(journal, is_new=False)
        return LocalFrontier(options, journal, locate, on_event or ignore_events)
    except BaseException:
        with suppress(StoreError):
            journal.close()
        raise
