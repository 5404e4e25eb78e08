"""Files that a forked child must not keep open.

A lock taken with ``flock`` belongs to the open file, which a forked child shares: a worker of a
``ProcessPoolExecutor`` that outlives its crawl would hold the crawl's job directory.  Closing the
descriptor in the child takes nothing from the parent.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from contextlib import suppress

_closers: set[weakref.WeakMethod[Callable[[], None]]] = set()


def close_in_child(close: Callable[[], None]) -> None:
    """Have each forked child call *close*, a method that closes its object's files."""
    _closers.add(weakref.WeakMethod(close, _closers.discard))


def _close_all() -> None:
    for reference in list(_closers):
        close = reference()
        if close is not None:
            with suppress(OSError):
                close()


os.register_at_fork(after_in_child=_close_all)
