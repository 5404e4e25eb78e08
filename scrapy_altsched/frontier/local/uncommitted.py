"""The changes that no commit has written yet, and what may be asked of them meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from ..changes import Added, Change, Cleared, Died, Done, Forgotten, Marked, Skipped
from ..contract import Entry, Pressure
from ..queue.slots import Slot
from ..store.records import Batch, Counters
from . import batches
from .batches import Deferred, Draft, choose_part


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
    :ivar claims: start requests' occurrences claimed by this run -> the run's number.
    """

    def __init__(self) -> None:
        self.pressure = Pressure()
        self.size = 0
        self.unwritten: set[bytes] = set()
        self.ended: dict[bytes, bool] = {}
        self.seen: set[bytes] = set()
        self.claims: dict[bytes, int] = {}
        #: Fingerprints that are not seen any more, and may be stored as such -> how often that
        #: is in the list.
        self._forgotten: dict[bytes, int] = {}
        #: Requests that live in memory only: what the store is told of them, it is told once they
        #: have ended.
        self._memory_only: dict[bytes, Added] = {}
        self._list: list[Change] = []
        #: What early batches have left for the last one.
        self._deferred = Deferred()
        #: How many changes may be written before the last batch.
        self._early = 0
        #: How many more early batches there may be: what comes meanwhile must not put off the ends
        #: of pages for ever.
        self._early_left: int | None = None

    def __iter__(self) -> Iterator[Change]:
        """The changes, in order; first, those that early batches have left."""
        deferred = self._deferred
        marks = map(Marked, deferred.marks)
        return chain(marks, deferred.added, deferred.ends, self._list)

    def has_seen(self, fingerprint: bytes) -> bool | None:
        """Whether *fingerprint* is seen; ``None``: the list does not tell."""
        if fingerprint in self.seen:
            return True
        if self._forgotten and fingerprint in self._forgotten:
            return False
        return None

    # Changes, as they happen

    def add(self, key: bytes, slot: Slot, entry: Entry, claim: bytes | None) -> None:
        """A request was accepted."""
        if entry.unique:
            self.seen.add(entry.fingerprint)
        added = Added(key, slot, entry, entry.unique, claim)
        payload = entry.payload
        if payload is None:
            self._memory_only[key] = added
            return
        self._list.append(added)
        self.unwritten.add(key)
        self._early += 1
        self.size += len(payload)
        pressure = self.pressure
        pressure.changes += 1
        if self.size > batches.BATCH_BYTES:
            pressure.urgent = True

    def end(self, key: bytes, slot: Slot, entry: Entry, reason: str | None) -> None:
        """A request is done, or, for a *reason*, dead."""
        size = len(entry.payload or b"")
        is_unwritten = key in self.unwritten
        if is_unwritten:
            self._early -= 1
            self.size -= size
        else:
            self.pressure.changes += 1
            added = self._memory_only.pop(key, None)
            if added is not None:
                # It may have been forgotten meanwhile.
                marks = added.marks and entry.fingerprint in self.seen
                self._list.append(added._replace(marks=marks))
                self.unwritten.add(key)
        self.ended[key] = reason is None
        if reason is None:
            self._list.append(Done(key, slot))
        else:
            self._early += 1
            self.size += size
            self._list.append(Died(key, slot, entry, reason))

    def mark(self, fingerprint: bytes) -> None:
        """A fingerprint is seen, without a request."""
        self.seen.add(fingerprint)
        self._list.append(Marked(fingerprint))
        self._early += 1
        self.pressure.changes += 1

    def forget(self, fingerprint: bytes) -> None:
        """A fingerprint, which is seen, is so no longer."""
        self.seen.discard(fingerprint)
        self._forgotten[fingerprint] = self._forgotten.get(fingerprint, 0) + 1
        self._list.append(Forgotten(fingerprint))
        self._early += 1
        self.pressure.changes += 1

    def skip(self, claim: bytes) -> None:
        """A start request was skipped."""
        self._list.append(Skipped(claim))
        self._early += 1
        self.pressure.changes += 1

    def clear(self, fingerprint: bytes) -> None:
        """Nothing is held against a request any more; its end is the change that counts."""
        self._list.append(Cleared(fingerprint))

    # Writing them

    def prepare(self, base: Counters, run: int) -> Draft:
        """The next batch: an early one of bounded size, or the last with all that is left.

        :param base: counters that the batch goes on counting from; theirs are the rest.
        :param run: the number of this run.
        """
        most, most_bytes = batches.BATCH, batches.BATCH_BYTES
        if self._early_left is None:
            self._early_left = -(-self._early // most) + -(-self.size // most_bytes)
        draft = Draft(Batch(base), run, self._is_seen)
        if self._early_left > 0 and (self._early > most or self.size > most_bytes):
            part = choose_part(self._list, self.ended, most, most_bytes)
            if part.length < len(self._list):
                draft.write_part(part)
                return draft
        draft.write_all(self._deferred, self._list)
        return draft

    def _is_seen(self, fingerprint: bytes) -> bool:
        return fingerprint in self.seen and fingerprint not in self._forgotten

    def settle(self, draft: Draft) -> None:
        """Let go of what *draft* has written; changes may have come since it was prepared."""
        changes = early = draft.others + len(draft.forgotten)
        size = 0
        for key, _, entry, *_ in draft.accepted:
            self.unwritten.discard(key)
            if key not in self.ended:  # else it was taken off when it ended
                changes += 1
                early += 1
                size += len(entry.payload or b"")
        for end in draft.ends:
            self.ended.pop(end.key, None)
            changes += 1
            if isinstance(end, Died):
                early += 1
                size += len(end.entry.payload or b"")
        self._early -= early
        self.size -= size
        self.pressure.changes -= changes
        self._settle_names(draft)
        for slot, count in draft.stored.items():
            slot.stored = count
        for slot, count in draft.removed.items():
            slot.removed += count
        self._settle_list(draft)

    def _settle_names(self, draft: Draft) -> None:
        """Let go of what the overlay says of fingerprints and of claims."""
        forgotten = self._forgotten
        for fingerprint in draft.forgotten:
            forgotten[fingerprint] -= 1
            if not forgotten[fingerprint]:
                del forgotten[fingerprint]
        # What was forgotten since, and added again, is still to be written.
        self.seen.difference_update(name for name in draft.batch.seen if name not in forgotten)
        for claim, _ in draft.batch.started:
            self.claims.pop(claim, None)

    def _settle_list(self, draft: Draft) -> None:
        del self._list[: draft.length]
        if draft.part is None:
            self._deferred = Deferred()
            self._early_left = None
            return
        assert self._early_left is not None
        self._early_left -= 1
        deferred, left = self._deferred, draft.part.deferred
        deferred.added += left.added
        deferred.ends += left.ends
        deferred.marks += left.marks
