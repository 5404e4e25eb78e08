"""The changes that no commit has written yet, and what may be asked of them meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from ..changes import Change, Changes, Kind
from ..contract import Pressure
from ..dead_letter import DeadLetter
from ..entry import Entry
from ..queue.slots import Slot
from ..store.records import Batch, Counters
from . import batches
from .batches import Draft, choose_part

_ADDED_UNIQUE, _ADDED, _DONE = Kind.ADDED_UNIQUE, Kind.ADDED, Kind.DONE


class Uncommitted:
    """The list of changes, and an overlay of what it says over what is stored.

    The overlay answers at once what the list would have to be searched for.

    :ivar pressure: how many changes a commit would write; a request that was added and has ended
        is one.
    :ivar size: bytes of payload among them.
    :ivar unwritten: keys of requests that are not stored yet.
    :ivar ended: key of each request that is done or dead, and may be stored otherwise -> whether it
        is done.
    :ivar seen: fingerprints that are seen and not stored as such.
    :ivar forgotten: fingerprints that are no longer seen, and may be stored as such -> how often
        that is in the list.
    :ivar claims: start requests' occurrences claimed by this run -> the run's number.
    """

    def __init__(self) -> None:
        self.pressure = Pressure()
        self.size = 0
        self.unwritten: set[bytes] = set()
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
        #: How many of the changes are requests that are done.
        self._done = 0
        #: How many more early batches there may be: what comes meanwhile must not put off the ends
        #: of pages for ever.
        self._early_left: int | None = None

    def __iter__(self) -> Iterator[Change]:
        """The changes, in order; first, those that early batches have left."""
        return chain(self._deferred, self._list)

    # Changes, as they happen

    def add(self, key: bytes, slot: Slot, entry: Entry, claim: bytes | None) -> None:
        """A request was accepted."""
        unique = entry.unique
        if unique:
            self.seen.add(entry.fingerprint)
        payload = entry.payload
        if payload is None:
            self._memory_only[key] = claim
            return
        self._list.append(_ADDED_UNIQUE if unique else _ADDED, key, slot, entry, claim)
        self.unwritten.add(key)
        pressure = self.pressure
        pressure.changes += 1
        self.size = size = self.size + len(payload)
        if size > batches.BATCH_BYTES:
            pressure.urgent = True

    def end(self, key: bytes, slot: Slot, entry: Entry, why: DeadLetter | None) -> None:
        """A request is done, or, if there is a *why*, dead."""
        is_unwritten = key in self.unwritten
        if not is_unwritten:
            self.pressure.changes += 1
            if entry.payload is None:
                # It may have been forgotten meanwhile.
                is_seen = entry.unique and entry.fingerprint in self.seen
                kind = _ADDED_UNIQUE if is_seen else _ADDED
                self._list.append(kind, key, slot, entry, self._memory_only.pop(key))
                self.unwritten.add(key)
        self.ended[key] = why is None
        if why is None:
            if is_unwritten:
                self.size -= len(entry.payload or b"")
            self._done += 1
            self._list.append(_DONE, key, slot)
        else:
            if not is_unwritten:
                self.size += len(entry.payload or b"")
            self._list.append(Kind.DIED, key, slot, entry, why)

    def mark(self, fingerprint: bytes) -> None:
        """A fingerprint is seen, without a request."""
        self.seen.add(fingerprint)
        self._list.append(Kind.MARKED, fingerprint)
        self.pressure.changes += 1

    def forget(self, fingerprint: bytes) -> None:
        """A fingerprint, which is seen, is so no longer."""
        self.seen.discard(fingerprint)
        self.forgotten[fingerprint] = self.forgotten.get(fingerprint, 0) + 1
        self._list.append(Kind.FORGOTTEN, fingerprint)
        self.pressure.changes += 1

    def skip(self, claim: bytes) -> None:
        """A start request was skipped."""
        self._list.append(Kind.SKIPPED, claim)
        self.pressure.changes += 1

    def clear(self, fingerprint: bytes) -> None:
        """Nothing is held against a request any more; its end is the change that counts."""
        self._list.append(Kind.CLEARED, fingerprint)

    # Writing them

    def prepare(self, base: Counters, run: int) -> Draft:
        """The next batch: an early one of bounded size, or the last with all that is left.

        :param base: counters that the batch goes on counting from; theirs are the rest.
        :param run: the number of this run.
        """
        most, most_bytes = batches.BATCH, batches.BATCH_BYTES
        early = self.pressure.changes - self._done
        if self._early_left is None:
            self._early_left = -(-early // most) + -(-self.size // most_bytes)
        draft = Draft(Batch(base), run, self.seen)
        if self._early_left > 0 and (early > most or self.size > most_bytes):
            part = choose_part(self._list, self.ended, most, most_bytes)
            if part.length < len(self._list):
                draft.write_part(part)
                return draft
        draft.write_all(self._deferred, self._list)
        return draft

    def settle(self, draft: Draft) -> None:
        """Forget what *draft* has written; changes may have come since it was prepared."""
        ended, accepted, died = self.ended, draft.accepted, draft.died
        # What has ended was taken off then.
        alive = accepted.keys() - ended.keys()
        self.unwritten.difference_update(accepted)
        for key in chain(draft.done, died):
            del ended[key]
        self._done -= len(draft.done)
        self.size -= sum(map(accepted.__getitem__, alive)) + sum(died.values())
        ends = len(draft.done) + len(died)
        self.pressure.changes -= len(alive) + ends + draft.others
        self._settle_names(draft)
        for slot, count in draft.stored.items():
            slot.stored = count
        for slot, count in draft.removed.items():
            slot.removed += count
        self._settle_list(draft)

    def _settle_names(self, draft: Draft) -> None:
        """Forget what the overlay says of fingerprints and of claims."""
        forgotten = self.forgotten
        for fingerprint in draft.forgotten:
            forgotten[fingerprint] -= 1
            if not forgotten[fingerprint]:
                del forgotten[fingerprint]
        # What was forgotten since, and added again, is still to be written.
        self.seen.difference_update(name for name in draft.batch.seen if name not in forgotten)
        for claim, _ in draft.batch.started:
            self.claims.pop(claim, None)

    def _settle_list(self, draft: Draft) -> None:
        self._list.drop(draft.length)
        if draft.part is None:
            self._deferred = Changes()
            self._early_left = None
            return
        assert self._early_left is not None
        self._early_left -= 1
        for change in draft.part.deferred:
            self._deferred.append(*change)
