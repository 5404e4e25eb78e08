"""Reading a job as a whole, to be moved to another place.  Nothing of it is changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ..frontier.content import (
    Claim,
    Content,
    Head,
    Part,
    SeenPage,
    SlotBudget,
    StoredRequest,
    Suspect,
    place_of,
)
from ..frontier.queue.order import DEFAULT_ORDER
from ..frontier.store.records import DAMAGE, ORPHANS, describe_orphans
from ..frontier.store.rows import Rows
from ..frontier.store.runs import NOTES as RUNS
from ..frontier.store.seen import FINGERPRINTS, KEYS, PASS, SINCE
from ..frontier.store.states import (
    DEAD,
    DELAYED,
    FAILED,
    PENDING,
    State,
    decode_delayed_key,
    decode_failed_key,
    decode_value,
)
from .rewriter import order_of

_LAST = (1 << 64) - 1
#: Notes that are true wherever the job is; others are of its feeds' files, or of its directory.
_NOTES = (DAMAGE, ORPHANS, SINCE, PASS, *RUNS)


def read_job(rows: Rows, spider: str, *notes: str) -> Content:
    """All of a job, as of its last commit; StoreError, while the parts are gone through.

    :param notes: names of those that are to be read, too; or the beginnings of names.
    """
    counters = rows.counters()
    found = {name: value for name, value in rows.notes().items() if is_moved(name, notes)}
    head = Head(
        spider,
        order_of(rows) or DEFAULT_ORDER,
        rows.note(KEYS) or FINGERPRINTS,
        counters,
        found,
    )
    if counters.memory_only and (orphans := describe_orphans(counters, rows.note(ORPHANS))):
        head.remarks.append(orphans)
    counts = rows.counts()
    total = counts.left + counts.failed + counts.dead + counters.accepted
    return Content(head, _parts(rows), total, trusted=True)


def is_moved(name: str, notes: Sequence[str]) -> bool:
    """Whether a note is one that :func:`read_job` reads, with these *notes*."""
    return name.startswith((*_NOTES, *notes))


def _parts(rows: Rows) -> Iterator[Part]:
    names = {slot_id: name for slot_id, _, name in rows.slots()}
    for key, row in rows.pending():
        name = names.get(int.from_bytes(key[:8], "big"))
        # One queue for all has no name, and its requests have slots nevertheless.
        yield _held(PENDING, key[8:], row, name or None)
    queue = rows.counters().delayed_queue.to_bytes(8, "big")
    for key, row in rows.requests(DELAYED, queue):
        due, sequence = decode_delayed_key(key)
        (priority, start, slot), value = DELAYED.split(row)
        entry = decode_value(value)
        entry.priority, entry.start = priority, start
        yield StoredRequest(DELAYED, entry, slot, sequence, due)
    failed = (
        _held(FAILED, pending_key[8:], value, None, at, why)
        for key, why, value in rows.failed()
        for at, pending_key in (decode_failed_key(key),)
    )
    dead = (_held(DEAD, key[8:], value, None, why=why) for key, why, value in rows.dead())
    # Their keys begin with ids of slots, which other places have other ones of.
    for requests in (failed, dead):
        yield from sorted(requests, key=lambda it: (it.at, it.sequence))
    for key, value in rows.seen():
        yield SeenPage(key, value)
    for key, value in rows.started():
        yield Claim(key, int.from_bytes(value, "big"))
    for fingerprint, suspicion in rows.suspects():
        yield Suspect(fingerprint, suspicion)
    for slot, accepted in rows.budgets():
        yield SlotBudget(slot, accepted)


def _held(
    state: State, order_key: bytes, value: bytes, slot: str | None, at: int = 0, why: Any = None
) -> StoredRequest:
    entry = decode_value(value)
    entry.priority, entry.start, sequence = place_of(order_key, _LAST)
    return StoredRequest(state, entry, slot, sequence, at, why)
