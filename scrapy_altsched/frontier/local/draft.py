"""The batches that a commit makes of changes, each of them small.

What may be written early goes in as many batches as it takes to keep each one small; one last batch
says which pages are done, and carries the notes (see :mod:`..changes`).
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from itertools import chain, pairwise

from ..changes import Change, Changes, Kind
from ..entry import Entry
from ..queue.slots import Slot
from ..store.records import Batch
from ..store.states import (
    DEAD,
    DELAYED,
    FAILED,
    PENDING,
    encode_delayed,
    encode_failed_key,
    encode_value,
)

#: Most changes in one batch, but for the ends of pages: to prepare and to write them takes some 12
#: ms with ten million seen, and RocksDB's write holds the interpreter's lock.  With less, two
#: batches would be needed for most commits of 2,000 changes, half of them the ends of pages: 1.5 %
#: more instructions a request with 800.
BATCH = 1_000
#: Most bytes of payload in one batch, but for that of a single request: some 3 ms a MiB.
BATCH_BYTES = 4 * 1024 * 1024

#: Point deletions in one slot past which one over its range spares later reads walking over them.
_RANGE_DELETE_FROM = 1_000

# Names of this module are found faster than members of an enumeration.
_ADDED_UNIQUE, _ADDED, _DONE, _DIED = Kind.ADDED_UNIQUE, Kind.ADDED, Kind.DONE, Kind.DIED
_MARKED, _FORGOTTEN, _CLEARED = Kind.MARKED, Kind.FORGOTTEN, Kind.CLEARED
_DUE, _FAILED = Kind.DUE, Kind.FAILED
_DISCARDED, _REQUEUED = Kind.DISCARDED, Kind.REQUEUED
_LAST = frozenset((_DONE, _FAILED, _CLEARED, _DISCARDED))


def choose_part(
    changes: Iterable[Change],
    ended: Mapping[bytes, bool],
    most: float,
    most_bytes: int,
    followers: Container[bytes] = frozenset(),
) -> tuple[Changes, Changes]:
    """The beginning of *changes* that an early batch covers: what it writes, and what it leaves.

    :param ended: key of each request that has ended -> whether it is not dead.
    :param followers: keys of those that are stored with the end of another one at the earliest.
    :param most: about how many changes it writes; *most_bytes*: of payload, in more than one.
    """
    written, deferred = Changes(), Changes()
    count = size = 0
    last: Change | None = None
    for change, following in pairwise(chain(changes, (None,))):
        assert change is not None
        kind, entry = change[0], change[3]
        if _waits(change, ended, followers) or (
            # A mark may be that of the request that comes next.
            kind is _MARKED
            and following is not None
            and _is_added(following)
            and _waits(following, ended, followers)
        ):
            deferred.append(change)
            continue
        if entry is not None:
            size += len(entry.payload or b"")
        is_full = count >= most or size > most_bytes
        if is_full and last is not None and not _belong_together(last, change):
            break
        written.append(change)
        count += 1
        last = change
    return written, deferred


def _waits(change: Change, ended: Mapping[bytes, bool], followers: Container[bytes]) -> bool:
    """Whether a change is for the last batch."""
    kind, key = change[0], change[1]
    if kind is _ADDED_UNIQUE or kind is _ADDED:  # first: most are that
        # One that is over is not pending if that is in the same batch.
        return ended.get(key, False)
    if kind is _DUE:
        return ended.get(key, False) or change[4] in followers
    if kind is _DIED:
        return key in followers
    return kind in _LAST


def _is_added(change: Change) -> bool:
    return change[0] is _ADDED_UNIQUE or change[0] is _ADDED


def _belong_together(first: Change, second: Change) -> bool:
    """Whether *first* must not be durable without *second*, which comes next."""
    if first[0] is _MARKED:
        return _is_added(second)
    # What lives in memory only is in the list once it has ended.
    return _is_added(first) and first[3] is not None and first[3].payload is None


class Draft:
    """A batch in the making, and the changes that it writes.

    :ivar seen: seen key -> whether it is seen, of those of which that changes.
    :ivar stored: how many requests of each slot the batch leaves in the store; *removed*: rows.
    :ivar written: key -> bytes of payload, of requests that were accepted or have become due;
        *died*: of dead ones.
    :ivar accepted: how many were accepted.
    :ivar done: keys of requests that are done, have failed, or were discarded.
    :ivar dropped: how many failed requests it has no more room for.
    :ivar others: how many changes it writes of kinds that have no list here.
    :ivar length: how many changes of the list it covers.
    :ivar deferred: those of them that it leaves for the last batch; ``None``: it is the last one.
    """

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        #: Requests that become pending, or are delayed: their entries, and their slots if pending.
        self._entries: dict[bytes, Entry] = {}
        self._slots: dict[bytes, Slot | None] = {}
        self.seen: dict[bytes, bool] = {}
        self.stored: dict[Slot, int] = {}
        self.removed: dict[Slot, int] = {}
        self.written: dict[bytes, int] = {}
        self.done: list[bytes] = []
        self.died: dict[bytes, int] = {}
        self.forgotten: list[bytes] = []
        self.accepted = self.others = self.length = self.dropped = self.discarded = 0
        self.deferred: Changes | None = None

    def fold(self, changes: Iterable[Change]) -> None:
        batch, seen, written = self.batch, self.seen, self.written
        entries, slots, run = self._entries, self._slots, self.batch.counters.run
        accepted = 0
        for kind, key, slot, entry, detail in changes:
            if kind is _ADDED_UNIQUE or kind is _ADDED:
                assert entry is not None
                entries[key] = entry
                slots[key] = slot
                written[key] = len(entry.payload or b"")
                accepted += 1
                if kind is _ADDED_UNIQUE:
                    seen[entry.seen_key] = True
                if detail is not None:
                    batch.started.append((detail, run))
            elif kind is _DONE:
                self.done.append(key)
                self._end(key, slot)
                if entry is not None:
                    follower, home = detail
                    entries[follower] = entry
                    slots[follower] = home
                    written[follower] = len(entry.payload or b"")
                    accepted += 1
            elif kind is _FAILED:
                assert entry is not None
                self.done.append(key)
                self._end(key, slot)
                why, when = detail
                row = FAILED.join(why, encode_value(entry))
                batch.stored[FAILED].append((encode_failed_key(when, key), row))
            elif kind is _DIED:
                assert entry is not None
                self.died[key] = len(entry.payload or b"")
                self._end(key, slot)
                batch.stored[DEAD].append((key, DEAD.join(detail, encode_value(entry))))
            elif kind is _DUE:
                assert entry is not None
                if entries.pop(detail, None) is None:
                    batch.removed[DELAYED].append(detail)
                entries[key] = entry
                slots[key] = slot
                written[key] = len(entry.payload or b"")
            elif kind is _DISCARDED:
                self.done.append(key)
                self.discarded += 1
                if slot is not None:
                    self._end(key, slot)
                elif entries.pop(key, None) is None:
                    batch.removed[DELAYED].append(key)
            elif kind is _REQUEUED:
                assert entry is not None
                state, old = detail
                batch.removed[state].append(old)
                entries[key] = entry
                slots[key] = slot
                written[key] = len(entry.payload or b"")
            elif kind is _CLEARED:
                batch.suspects.append((key, None))
            else:
                self.others += 1
                if kind is _MARKED:
                    seen[key] = True
                elif kind is _FORGOTTEN:
                    seen[key] = False
                    self.forgotten.append(key)
                else:
                    batch.started.append((key, run))
        self.accepted += accepted

    def _end(self, key: bytes, slot: Slot) -> None:
        if self._entries.pop(key, None) is None:
            self.stored[slot] = self.stored.get(slot, slot.stored) - 1
            self.removed[slot] = self.removed.get(slot, 0) + 1
            self.batch.removed[PENDING].append(key)

    def render(self) -> None:
        batch, counters, stored, slots = self.batch, self.batch.counters, self.stored, self._slots
        pending, delayed = batch.stored[PENDING], batch.stored[DELAYED]
        for key, entry in self._entries.items():
            slot = slots[key]
            if slot is None:
                delayed.append((key, encode_delayed(entry)))
                continue
            stored[slot] = stored.get(slot, slot.stored) + 1
            pending.append((key, encode_value(entry)))
        for seen_key, is_seen in self.seen.items():
            (batch.seen if is_seen else batch.forgotten).append(seen_key)
        counters.accepted += self.accepted - self.discarded
        counters.delayed += len(delayed) - len(batch.removed[DELAYED])
        counters.dead += len(self.died) - len(batch.removed[DEAD])
        failed = len(batch.stored[FAILED])
        counters.failed += failed - len(batch.removed[FAILED])
        counters.done += len(self.done) - failed - self.discarded
        counters.forgotten += len(self.forgotten)
        for slot, count in stored.items():
            batch.slots.append((slot.prefix, count, slot.name))
            if not count and slot.removed + self.removed.get(slot, 0) >= _RANGE_DELETE_FROM:
                batch.removed_slots.append(slot.prefix)
