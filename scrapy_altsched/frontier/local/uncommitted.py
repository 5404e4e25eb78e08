"""The changes that no commit has written yet, and an overlay of them over what is stored."""

from __future__ import annotations

import math
from itertools import chain

from ..changes import Changes, Kind
from ..contract import Pressure
from ..entry import DeadLetter, Entry, PageFailure
from ..queue.slots import Slot
from ..store.records import Batch, Counters
from ..store.states import State
from .draft import BATCH, BATCH_BYTES, Draft, choose_part

# Names of this module are found faster than members of an enumeration.
_ADDED_UNIQUE, _ADDED, _DONE, _DIED = Kind.ADDED_UNIQUE, Kind.ADDED, Kind.DONE, Kind.DIED
_MARKED, _FORGOTTEN, _CLEARED = Kind.MARKED, Kind.FORGOTTEN, Kind.CLEARED
_DUE, _FAILED = Kind.DUE, Kind.FAILED


class Uncommitted:
    """The list of changes, and an overlay of what it says over what is stored.

    :param most: changes in one batch, if the store is to have fewer of them than others.
    :ivar pressure: of changes; a request that was added and has ended is one.
    :ivar size: bytes of payload among them.
    :ivar unwritten: keys of requests that are not stored yet.
    :ivar followers: of these, the ones of requests that another one's end brings.
    :ivar ended: key of each that has ended, and may be stored otherwise -> whether it is not dead.
    :ivar seen: seen keys that are to be stored, most of which are not yet.
    :ivar restated: seen keys that are stored, and of which the list says otherwise, or again.
    :ivar forgotten: those that may be stored as seen, and are not -> how often that is in the list.
    :ivar requeued: keys of dead or failed requests that are pending again.
    :ivar claims: start requests' occurrences claimed by this run -> the run's number.
    """

    def __init__(self, most: float = math.inf) -> None:
        self._most = most
        # The ends of pages are in one batch, and take half as long each.
        self.pressure = Pressure(enough=2 * most)
        self.size = 0
        self.unwritten: set[bytes] = set()
        self.followers: set[bytes] = set()
        self.ended: dict[bytes, bool] = {}
        self.seen: set[bytes] = set()
        self.restated: set[bytes] = set()
        self.claims: dict[bytes, int] = {}
        self.requeued: set[bytes] = set()
        self.forgotten: dict[bytes, int] = {}
        #: Key -> claim, if any, of requests that live in memory only: what the store is told of
        #: them, it is told once they have ended.
        self._memory_only: dict[bytes, bytes | None] = {}
        self._list = Changes()
        #: Seen key -> its row, of pages that are finished, in a job that records when.
        self._page_ends: dict[bytes, bytes] = {}
        #: What early batches have left for the last one.
        self._deferred = Changes()
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
        append = self._list.append  # see "Cheap requests" in docs/architecture.rst
        append((_ADDED_UNIQUE if unique else _ADDED, key, slot, entry, claim))
        self._note_unwritten(key, payload)

    def move(self, old: bytes, key: bytes, slot: Slot, entry: Entry) -> None:
        """Note that a request that was delayed under the key *old* is pending."""
        payload = entry.payload
        if payload is None:
            self._memory_only[key] = self._memory_only.pop(old)
            return
        self._list.append((_DUE, key, slot, entry, old))
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
                self._list.append((kind, key, slot, entry, self._memory_only.pop(key)))
                self.unwritten.add(key)
        self.ended[key] = why is None
        if why is None:
            if is_unwritten:
                self.size -= len(entry.payload or b"")
            self.pressure.done += 1
            if failed is not None:
                self._list.append((_FAILED, key, slot, entry, failed))
            elif follower is None:
                append = self._list.append  # as in add()
                append((_DONE, key, slot, None, None))
            else:
                self._append_follower(key, slot, *follower)
        else:
            if not is_unwritten:
                self.size += len(entry.payload or b"")
            self._list.append((_DIED, key, slot, entry, why))

    def _append_follower(
        self, key: bytes, slot: Slot, follower: bytes, home: Slot | None, entry: Entry
    ) -> None:
        payload = entry.payload
        if payload is None:
            self._list.append((_DONE, key, slot, None, None))
            self._memory_only[follower] = None
            return
        self._list.append((_DONE, key, slot, entry, (follower, home)))
        self.followers.add(follower)
        self._note_unwritten(follower, payload)

    def discard(self, key: bytes, slot: Slot | None, entry: Entry) -> None:
        """Note that a pending request was dropped; no *slot*: it was delayed."""
        if key in self.unwritten:
            self.size -= len(entry.payload or b"")
        else:
            self.pressure.changes += 1
        self.ended[key] = True
        self.pressure.done += 1
        self._list.append((Kind.DISCARDED, key, slot, None, None))

    def requeue(self, state: State, old: bytes, key: bytes, slot: Slot, entry: Entry) -> None:
        """Note that a request of another state is pending; *old*: its key there."""
        self.requeued.add(old)
        self._list.append((Kind.REQUEUED, key, slot, entry, (state, old)))
        self._note_unwritten(key, entry.payload or b"")

    def mark(self, seen_key: bytes) -> None:
        self.seen.add(seen_key)
        self._append(_MARKED, seen_key)

    def forget(self, seen_key: bytes) -> None:
        if seen_key in self.seen:
            self.seen.remove(seen_key)
        else:
            self.restated.add(seen_key)
        self._page_ends.pop(seen_key, None)
        self.forgotten[seen_key] = self.forgotten.get(seen_key, 0) + 1
        self._append(_FORGOTTEN, seen_key)

    def _append(self, kind: Kind, key: bytes) -> None:
        self._list.append((kind, key, None, None, None))
        self.pressure.changes += 1

    def note_end(self, seen_key: bytes, row: bytes) -> None:
        self._page_ends[seen_key] = row

    def clear(self, fingerprint: bytes) -> None:
        self._list.append((_CLEARED, fingerprint, None, None, None))

    def prepare(self, base: Counters, *, whole: bool = False) -> Draft:
        """The next batch, counted from *base*: an early one, or the last with all that is left.

        :param whole: whether there is to be no early one.
        """
        early, most = self.pressure.changes - self.pressure.done, min(BATCH, self._most)
        if self._early_left is None:
            needed = math.ceil(early / most) + math.ceil(self.size / BATCH_BYTES)
            # Else what comes meanwhile would be in the last one, and make it long.
            self._early_left = 2 * needed
        draft = Draft(Batch(base))
        if not whole and self._early_left > 0 and (early > most or self.size > BATCH_BYTES):
            changes, deferred = choose_part(
                self._list, self.ended, most, BATCH_BYTES, self.followers
            )
            draft.length = len(changes) + len(deferred)
            if draft.length < len(self._list):
                draft.deferred = deferred
                draft.fold(changes)
                self._render(draft)
                return draft
        draft.length = len(self._list)
        draft.fold(self._deferred)
        # Changes that came after these may have been written already.
        for seen_key in [each for each in draft.seen if each not in self.seen]:
            del draft.seen[seen_key]
        draft.fold(self._list)
        draft.batch.seen_rows += self._page_ends.items()
        self._render(draft)
        return draft

    def recount_batches(self) -> None:
        """Count anew how many early batches there may be, since much may come while writes fail."""
        self._early_left = None

    def _render(self, draft: Draft) -> None:
        draft.render()
        batch, counters = draft.batch, draft.batch.counters
        if counters.seen is not None:
            # One that the overlay does not know was written by an earlier batch.
            new = self.seen.intersection(batch.seen)
            if self.forgotten or self.restated:
                new |= self.forgotten.keys() & batch.seen
                new -= self.restated
                counters.seen -= len(self.restated.intersection(batch.forgotten))
            counters.seen += len(new)

    @property
    def seen_more(self) -> int:
        """By how many more fingerprints are seen than are stored as that."""
        restated = sum(it in self.seen or it in self.forgotten for it in self.restated)
        return len(self.seen) - restated

    def settle(self, draft: Draft) -> None:
        ended, written, died = self.ended, draft.written, draft.died
        # What has ended was taken off then.
        alive = written.keys() - ended.keys()
        self.unwritten.difference_update(written)
        self.followers.difference_update(written)
        for key in chain(draft.done, died):
            del ended[key]
        self.pressure.done -= len(draft.done)
        self.size -= sum(map(written.__getitem__, alive)) + sum(died.values())
        self.pressure.changes -= len(alive) + len(draft.done) + len(died) + draft.others
        for seen_key in draft.forgotten:
            self.forgotten[seen_key] -= 1
            if not self.forgotten[seen_key]:
                del self.forgotten[seen_key]
        # What was forgotten since, and added again, is still to be written.
        batch = draft.batch
        stored = batch.seen
        if self.forgotten:
            stored = [seen_key for seen_key in stored if seen_key not in self.forgotten]
        self.seen.difference_update(stored)
        if self.forgotten or self.restated:
            restated = self.restated.difference(batch.forgotten).union(batch.seen)
            self.restated = {it for it in restated if it in self.seen or it in self.forgotten}
        for seen_key, row in batch.seen_rows:
            if self._page_ends.get(seen_key) is row:
                del self._page_ends[seen_key]
        for claim, _ in batch.started:
            self.claims.pop(claim, None)
        for slot, count in draft.stored.items():
            slot.stored = count
        for slot, count in draft.removed.items():
            slot.removed += count
        if self.requeued:
            self.requeued.difference_update(chain(*batch.removed.values()))
        self._list.drop(draft.length)
        if draft.deferred is None:
            self._deferred = Changes()
            self._early_left = None
        else:
            if self._early_left is not None:
                self._early_left -= 1
            for change in draft.deferred:
                self._deferred.append(change)
