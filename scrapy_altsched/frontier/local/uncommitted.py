"""The changes that no commit has written yet, and the batches that a commit makes of them.

What may be written early goes in as many batches as it takes to keep each one small; one last batch
says which pages are done, and carries the notes (see :mod:`..changes`).
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from itertools import chain, pairwise

from ..changes import Change, Changes, Kind
from ..contract import Pressure
from ..entry import DeadLetter, Entry, PageFailure
from ..queue.slots import Slot
from ..store.records import Batch, Counters
from ..store.states import (
    DEAD,
    DELAYED,
    FAILED,
    PENDING,
    encode_delayed,
    encode_failed_key,
    encode_value,
)

#: Most changes in one batch, but for the ends of pages: to prepare and to write 2,000 takes 20 to
#: 30 ms with ten million seen, and RocksDB's write holds the interpreter's lock.
BATCH = 1_250
#: Most bytes of payload in one batch, but for that of a single request: some 3 ms a MiB.
BATCH_BYTES = 4 * 1024 * 1024

#: Point deletions in one slot past which one over its range spares later reads walking over them.
_RANGE_DELETE_FROM = 1_000

# Names of this module are found faster than members of an enumeration.
_ADDED_UNIQUE, _ADDED, _DONE, _DIED = Kind.ADDED_UNIQUE, Kind.ADDED, Kind.DONE, Kind.DIED
_MARKED, _FORGOTTEN, _CLEARED = Kind.MARKED, Kind.FORGOTTEN, Kind.CLEARED
_DUE, _FAILED, _ENDED = Kind.DUE, Kind.FAILED, Kind.ENDED


def choose_part(
    changes: Iterable[Change],
    ended: Mapping[bytes, bool],
    most: int,
    most_bytes: int,
    followers: Container[bytes] = frozenset(),
) -> tuple[Changes, Changes]:
    """The beginning of *changes* that an early batch covers: what it writes, and what it leaves.

    :param ended: key of each request that has ended -> whether it is not dead.
    :param followers: keys of those that are stored with the end of another one at the earliest.
    :param most: about how many changes it writes; *most_bytes*: of payload, in more than one.
    """
    written, deferred = Changes(), Changes()
    size = 0
    last: Change | None = None
    for change, following in pairwise(chain(changes, (None,))):
        assert change is not None
        kind, entry = change[0], change[3]
        if _waits(change, ended, followers) or (
            # A mark may be that of the request that comes next.
            kind is _MARKED and following is not None and _is_late(following, ended)
        ):
            deferred.append(*change)
            continue
        if entry is not None:
            size += len(entry.payload or b"")
        is_full = len(written) >= most or size > most_bytes
        if is_full and last is not None and not _belong_together(last, change):
            break
        written.append(*change)
        last = change
    return written, deferred


def _waits(change: Change, ended: Mapping[bytes, bool], followers: Container[bytes]) -> bool:
    """Whether a change is for the last batch."""
    kind, key = change[:2]
    if kind is _DUE:
        return ended.get(key, False) or change[4] in followers
    if kind is _DIED:
        return key in followers
    is_last = kind is _DONE or kind is _FAILED or kind is _CLEARED or kind is _ENDED
    return is_last or _is_late(change, ended)


def _is_late(change: Change, ended: Mapping[bytes, bool]) -> bool:
    """Whether it adds a request that is over, which is not pending if that is in the same batch."""
    kind = change[0]
    return (kind is _ADDED_UNIQUE or kind is _ADDED) and ended.get(change[1], False)


def _belong_together(first: Change, second: Change) -> bool:
    """Whether *first* must not be durable without *second*, which comes next."""
    if first[0] is _MARKED:
        return second[0] is _ADDED_UNIQUE or second[0] is _ADDED
    # What lives in memory only is in the list once it has ended.
    return (first[0] is _ADDED_UNIQUE or first[0] is _ADDED) and (
        first[3] is not None and first[3].payload is None
    )


class Draft:
    """A batch in the making, and the changes that it writes.

    :ivar seen: seen key -> whether it is seen, of those of which that changes.
    :ivar stored: how many requests of each slot the batch leaves in the store; *removed*: rows.
    :ivar written: key -> bytes of payload, of requests that were accepted or have become due;
        *died*: of dead ones.
    :ivar accepted: how many were accepted.
    :ivar done: keys of requests that are done, or have failed.
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
        self.accepted = self.others = self.length = self.dropped = 0
        self.deferred: Changes | None = None

    def fold(self, changes: Iterable[Change]) -> None:
        batch, seen, written = self.batch, self.seen, self.written
        entries, slots, run = self._entries, self._slots, self.batch.counters.run
        for kind, key, slot, entry, detail in changes:
            if kind is _ADDED_UNIQUE or kind is _ADDED:
                assert entry is not None
                entries[key] = entry
                slots[key] = slot
                written[key] = len(entry.payload or b"")
                self.accepted += 1
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
                    self.accepted += 1
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
            elif kind is _ENDED:
                batch.seen_rows.append((key, detail))
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
        counters.accepted += self.accepted
        counters.delayed += len(delayed) - len(batch.removed[DELAYED])
        counters.dead += len(self.died)
        failed = len(batch.stored[FAILED])
        counters.failed += failed
        counters.done += len(self.done) - failed
        counters.forgotten += len(self.forgotten)
        for slot, count in stored.items():
            batch.slots.append((slot.prefix, count, slot.name))
            if not count and slot.removed + self.removed.get(slot, 0) >= _RANGE_DELETE_FROM:
                batch.removed_slots.append(slot.prefix)


class Uncommitted:
    """The list of changes, and an overlay of what it says over what is stored.

    :ivar pressure: of changes; a request that was added and has ended is one.
    :ivar size: bytes of payload among them.
    :ivar unwritten: keys of requests that are not stored yet.
    :ivar followers: of these, the ones of requests that another one's end brings.
    :ivar ended: key of each that has ended, and may be stored otherwise -> whether it is not dead.
    :ivar seen: seen keys that are not stored.
    :ivar forgotten: those that may be stored as seen, and are not -> how often that is in the list.
    :ivar claims: start requests' occurrences claimed by this run -> the run's number.
    """

    def __init__(self) -> None:
        self.pressure = Pressure()
        self.size = 0
        self.unwritten: set[bytes] = set()
        self.followers: set[bytes] = set()
        self.ended: dict[bytes, bool] = {}
        self.seen: set[bytes] = set()
        self.claims: dict[bytes, int] = {}
        self.forgotten: dict[bytes, int] = {}
        #: Key -> claim, if any, of requests that live in memory only: what the store is told of
        #: them, it is told once they have ended.
        self._memory_only: dict[bytes, bytes | None] = {}
        self._list = Changes()
        #: What early batches have left for the last one.
        self._deferred = Changes()
        #: How many of the changes are requests that are done, or have failed.
        self._done = 0
        #: How many more early batches there may be: what comes meanwhile must not put off the ends
        #: of pages for ever.
        self._early_left: int | None = None

    def add(self, key: bytes, slot: Slot | None, entry: Entry, claim: bytes | None) -> None:
        """Note that a request was accepted; no *slot*: it is delayed."""
        unique = entry.unique
        if unique:
            self.seen.add(entry.seen_key)
        payload = entry.payload
        if payload is None:
            self._memory_only[key] = claim
            return
        self._list.append(_ADDED_UNIQUE if unique else _ADDED, key, slot, entry, claim)
        self._note_unwritten(key, payload)

    def move(self, old: bytes, key: bytes, slot: Slot, entry: Entry) -> None:
        """Note that a request that was delayed under the key *old* is pending."""
        payload = entry.payload
        if payload is None:
            self._memory_only[key] = self._memory_only.pop(old)
            return
        self._list.append(_DUE, key, slot, entry, old)
        if old in self.followers:
            self.followers.add(key)
        self._note_unwritten(key, payload)

    def _note_unwritten(self, key: bytes, payload: bytes) -> None:
        self.unwritten.add(key)
        pressure = self.pressure
        pressure.changes += 1
        self.size = size = self.size + len(payload)
        if size > BATCH_BYTES:
            pressure.urgent = True

    def end(
        self,
        key: bytes,
        slot: Slot,
        entry: Entry,
        why: DeadLetter | None,
        follower: tuple[bytes, Slot | None, Entry] | None = None,
        failed: tuple[PageFailure, int] | None = None,
    ) -> None:
        """Note that a request is done, or why it is dead.

        :param failed: how one has failed, and when, in milliseconds since the epoch.
        :param follower: key, slot and request of what follows one that is done, in the same change;
            as for :meth:`add`.
        """
        is_unwritten = key in self.unwritten
        if not is_unwritten:
            self.pressure.changes += 1
            if entry.payload is None:
                # It may have been forgotten meanwhile.
                is_seen = entry.unique and entry.seen_key in self.seen
                kind = _ADDED_UNIQUE if is_seen else _ADDED
                self._list.append(kind, key, slot, entry, self._memory_only.pop(key))
                self.unwritten.add(key)
        self.ended[key] = why is None
        if why is None:
            if is_unwritten:
                self.size -= len(entry.payload or b"")
            self._done += 1
            if failed is not None:
                self._list.append(_FAILED, key, slot, entry, failed)
            elif follower is None:
                self._list.append(_DONE, key, slot)
            else:
                self._append_follower(key, slot, *follower)
        else:
            if not is_unwritten:
                self.size += len(entry.payload or b"")
            self._list.append(_DIED, key, slot, entry, why)

    def _append_follower(
        self, key: bytes, slot: Slot, follower: bytes, home: Slot | None, entry: Entry
    ) -> None:
        payload = entry.payload
        if payload is None:
            self._list.append(_DONE, key, slot)
            self._memory_only[follower] = None
            return
        self._list.append(_DONE, key, slot, entry, (follower, home))
        self.followers.add(follower)
        self._note_unwritten(follower, payload)

    def mark(self, seen_key: bytes) -> None:
        self.seen.add(seen_key)
        self._append(_MARKED, seen_key)

    def forget(self, seen_key: bytes) -> None:
        self.seen.discard(seen_key)
        self.forgotten[seen_key] = self.forgotten.get(seen_key, 0) + 1
        self._append(_FORGOTTEN, seen_key)

    def _append(self, kind: Kind, key: bytes) -> None:
        self._list.append(kind, key)
        self.pressure.changes += 1

    def note_end(self, seen_key: bytes, row: bytes) -> None:
        self._list.append(_ENDED, seen_key, detail=row)

    def clear(self, fingerprint: bytes) -> None:
        self._list.append(_CLEARED, fingerprint)

    def prepare(self, base: Counters) -> Draft:
        """The next batch, counted from *base*: an early one, or the last with all that is left."""
        early = self.pressure.changes - self._done
        if self._early_left is None:
            self._early_left = -(-early // BATCH) + -(-self.size // BATCH_BYTES)
        draft = Draft(Batch(base))
        if self._early_left > 0 and (early > BATCH or self.size > BATCH_BYTES):
            changes, deferred = choose_part(
                self._list, self.ended, BATCH, BATCH_BYTES, self.followers
            )
            draft.length = len(changes) + len(deferred)
            if draft.length < len(self._list):
                draft.deferred = deferred
                draft.fold(changes)
                draft.render()
                return draft
        draft.length = len(self._list)
        draft.fold(self._deferred)
        # Changes that came after these may have been written already.
        for seen_key in [each for each in draft.seen if each not in self.seen]:
            del draft.seen[seen_key]
        draft.fold(self._list)
        draft.render()
        return draft

    def settle(self, draft: Draft) -> None:
        ended, written, died = self.ended, draft.written, draft.died
        # What has ended was taken off then.
        alive = written.keys() - ended.keys()
        self.unwritten.difference_update(written)
        self.followers.difference_update(written)
        for key in chain(draft.done, died):
            del ended[key]
        self._done -= len(draft.done)
        self.size -= sum(map(written.__getitem__, alive)) + sum(died.values())
        self.pressure.changes -= len(alive) + len(draft.done) + len(died) + draft.others
        for seen_key in draft.forgotten:
            self.forgotten[seen_key] -= 1
            if not self.forgotten[seen_key]:
                del self.forgotten[seen_key]
        # What was forgotten since, and added again, is still to be written.
        self.seen.difference_update(it for it in draft.batch.seen if it not in self.forgotten)
        for claim, _ in draft.batch.started:
            self.claims.pop(claim, None)
        for slot, count in draft.stored.items():
            slot.stored = count
        for slot, count in draft.removed.items():
            slot.removed += count
        self._list.drop(draft.length)
        if draft.deferred is None:
            self._deferred = Changes()
            self._early_left = None
        else:
            assert self._early_left is not None
            self._early_left -= 1
            for change in draft.deferred:
                self._deferred.append(*change)
