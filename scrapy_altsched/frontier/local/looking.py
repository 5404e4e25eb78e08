"""Where a request is in the frontier of one process, as it is now: nothing is changed."""

from __future__ import annotations

from collections.abc import Iterable

from ..entry import NEVER_SEEN, STARTED, Lease, Place
from ..queue.slots import Slot
from ..queue.window import Window
from ..store.seen import UNFINISHED
from .delayed import DelayedQueue
from .persistence import NoPersistence, Persistence


def find_waiting(
    fingerprint: bytes,
    own: Iterable[Slot],
    window: Window,
    stored: Iterable[tuple[bytes, bytes]],
    withheld: Iterable[Lease],
    delayed: DelayedQueue,
) -> Place | None:
    """Where a request is that is pending or delayed.

    :param own: the slot that it should be in, if there is one: there it is told how many come
        before it.
    :param stored: key and stored form of all pending requests, which are read in one go if it is in
        another one: slot by slot that takes eight times as long with a hundred thousand of them.
    :raises StoreError: what is stored cannot be read.
    """
    for slot in own:
        for ahead, (_, entry) in enumerate(window.walk(slot)):
            if entry.fingerprint == fingerprint:
                return Place("pending", entry.payload or b"", ahead=ahead)
    if (found := window.find(fingerprint, stored)) is not None:
        return Place("pending", found.payload or b"")
    for lease in withheld:
        if lease.entry.fingerprint == fingerprint:
            return Place("pending", lease.entry.payload or b"")
    for due, entry in delayed.walk():
        if entry.fingerprint == fingerprint:
            return Place("delayed", entry.payload or b"", at=due)
    return None


def find_seen(fingerprint: bytes, kept: Persistence | NoPersistence) -> Place:
    """Where a request is that nothing else is kept of, by what was seen or claimed."""
    seen_key = kept.seen_key_of(fingerprint)
    if not kept.has_seen(seen_key):
        return STARTED if kept.has_started(fingerprint) else NEVER_SEEN
    if kept.ages is None:
        return Place("done")
    value = kept.seen_value(seen_key)
    is_done = value != UNFINISHED
    return Place("done" if is_done else "seen", at=kept.ages.finished_at(value or b""))
