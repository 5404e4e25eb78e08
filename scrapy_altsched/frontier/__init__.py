"""START HERE.  The frontier: every request of a crawl and its state.

Read :mod:`.contract` for the states, the transitions and what a caller may rely on; then

* :mod:`.order`: who is next;
* :mod:`.local`: the frontier of one process, in memory, with or without a journal;
* :mod:`.window`: how much of the queue is in memory;
* :mod:`.journal`: that journal, a RocksDB store;
* :mod:`.jobdir`: whose the directory is that the store lies in.

Nothing here imports Scrapy.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress

from ..errors import StoreError
from .contract import Busy, Counts, Entry, Frontier, Lease, Verdict
from .journal import Journal
from .local import LocalFrontier, Options
from .order import Order

__all__ = [
    "Busy",
    "Counts",
    "Entry",
    "Frontier",
    "Lease",
    "LocalFrontier",
    "Options",
    "Order",
    "Verdict",
    "open_frontier",
]


def open_frontier(
    path: str | os.PathLike[str] | None,
    owner: str,
    options: Options | None = None,
    *,
    locate: Callable[[bytes], tuple[str, bool]] | None = None,
) -> LocalFrontier:
    """Open the frontier of a job, or one that lives in memory.

    :param path: the job directory, or ``None``.
    :param owner: the spider's name.
    :param locate: payload -> (download slot, whether a start request); asked when a job is
        resumed in another order than it was stored in.
    :raises JobdirError: the directory cannot be used; nothing in it was changed.
    :raises StoreError: the store in it does not open.
    """
    options = options or Options()
    if path is None:
        return LocalFrontier(options)
    journal = Journal(path, owner)
    try:
        return LocalFrontier(options, journal, locate)
    except BaseException:
        with suppress(StoreError):
            journal.close()
        raise
