"""What a forked child does first: above all, it closes files.

A lock taken with ``flock`` belongs to the open file, which a forked child shares: a worker of a
``ProcessPoolExecutor`` that outlives its crawl would hold the crawl's job directory.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Callable
from contextlib import suppress

_kept: list[object] = []
_closers: set[weakref.WeakMethod[Callable[[], None]]] = set()


def close_in_child(close: Callable[[], None]) -> None:
    """Have each forked child call *close*, a method, as long as its object lives."""
    _closers.add(weakref.WeakMethod(close, _closers.discard))


def never_free(value: object) -> None:
    """Keep *value* until the process is gone, even while its interpreter ends."""
    _kept.append(value)
    # When CPython ends, it frees what modules hold; PyPy, which counts no references, does not.
    if hasattr(ctypes, "pythonapi"):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))


def _close_all() -> None:
    for reference in list(_closers):
        close = reference()
        if close is not None:
            with suppress(OSError):
                close()


if hasattr(os, "register_at_fork"):  # Windows forks nothing
    os.register_at_fork(after_in_child=_close_all)
