"""What has changed since the last commit, and the batches that say so.

What may be written early goes in as many batches as it takes to keep each one small: requests that
were added, then dead letters, then fingerprints without a request, and start requests that were
skipped.  None of it says that a page is done, so that each of these batches leaves a state in which
nothing is lost.  One last batch says so of all pages that are, and carries the notes: what a note
says of a page (as how far its rows reach in a file) is never stored without the end of that page,
nor the end without the note.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import replace
from itertools import accumulate, chain, islice, takewhile
from types import MappingProxyType

from ..contract import Entry
from ..queue.order import Slot
from ..store.records import Batch, Counters, encode_dead, encode_value

#: Most changes in one batch, but for the ends of pages: to prepare and to write 2,000 takes 20 to
#: 30 ms with ten million seen, and RocksDB's write holds the interpreter's lock.
BATCH = 1_250
#: Most bytes of payload in one batch, but for that of a single request: some 3 ms a MiB.
BATCH_BYTES = 4 * 1024 * 1024

#: Point deletions in one slot past which one over its range spares later reads walking over them.
_RANGE_DELETE_FROM = 1_000

NO_NOTES: Mapping[str, bytes] = MappingProxyType({})


#: A request that is done: its slot; the request, ``None`` if nothing of it will be written; whether
#: the store holds it as pending.
Ending = tuple[Slot, Entry | None, bool]
#: A request that is dead: its slot; the request; whether the store holds it as pending; the reason.
Death = tuple[Slot, Entry, bool, str]


class Changes:
    """Changes that no commit has written yet.

    :ivar adds: key -> entry, whose home is its slot, in the order they were accepted.
    :ivar deaths: key -> death, in the order they came.
    :ivar size: bytes of the payloads of both.
    :ivar endings: key -> ending, in the order they came.
    :ivar seen: fingerprints that are seen and not stored as such.
    :ivar forgotten: fingerprints that are not seen any more, and may be stored as such.
    :ivar marks: those of *seen* that are without a request.
    :ivar claims: start requests' occurrences claimed by this run -> the run's number.
    :ivar skips: of these, the ones whose request was skipped.
    :ivar cleared: fingerprints of stored suspects that are none any more.
    """

    def __init__(self) -> None:
        self.adds: dict[bytes, Entry] = {}
        self.deaths: dict[bytes, Death] = {}
        self.size = 0
        self.endings: dict[bytes, Ending] = {}
        self.seen: set[bytes] = set()
        self.forgotten: dict[bytes, None] = {}
        self.marks: list[bytes] = []
        self.claims: dict[bytes, int] = {}
        self.skips: list[bytes] = []
        self.cleared: list[bytes] = []
        self._notes: dict[str, bytes] = {}
        #: How many more early batches there may be before the last one: what comes meanwhile must
        #: not put off the ends of pages for ever.
        self._early_left: int | None = None

    def __len__(self) -> int:
        return (
            len(self.adds)
            + len(self.deaths)
            + len(self.endings)
            + len(self.forgotten)
            + len(self.marks)
            + len(self.skips)
        )

    def new_notes(self, notes: Mapping[str, bytes]) -> dict[str, bytes]:
        """Those of *notes* that are not as they were written last."""
        return {name: note for name, note in notes.items() if self._notes.get(name) != note}

    def forget(self, fingerprint: bytes) -> None:
        """Have *fingerprint*, which is seen, not be so."""
        self.seen.discard(fingerprint)
        self.forgotten[fingerprint] = None

    def end(self, key: bytes, slot: Slot, entry: Entry, why: str | None) -> int:
        """Note that a request is done, or dead; how many changes more that is."""
        unwritten = self.adds.pop(key, None)
        stored = unwritten is None and entry.payload is not None
        if why is not None:
            if unwritten is None:
                self.size += len(entry.payload or b"")
            self.deaths[key] = (slot, entry, stored, why)
        else:
            if unwritten is not None:
                self.size -= len(unwritten.payload or b"")
            # Of most that end there is nothing more to tell, and a commit's worth of them takes
            # memory.
            self.endings[key] = (slot, None if stored else entry, stored)
        return 1 if unwritten is None else 0

    def prepare(
        self,
        base: Counters,
        run: int,
        notes: Mapping[str, bytes],
    ) -> Draft:
        """The next batch: an early one of bounded size, or the last with all that is left.

        :param base: counters that the batch goes on counting from; theirs are the rest.
        :param run: the number of this run.
        """
        early = self._count_early()
        if self._early_left is None:
            self._early_left = -(-early // BATCH) + -(-self.size // BATCH_BYTES)
        bounded = self._early_left > 0 and (early > BATCH or self.size > BATCH_BYTES)
        draft = Draft(Batch(replace(base)), self.seen)
        # What was forgotten may have been added again since: its row goes before that of the add.
        draft.batch.forgotten += self.forgotten
        draft.batch.counters.forgotten += len(self.forgotten)
        self._choose_early(draft, BATCH if bounded else early, BATCH_BYTES if bounded else None)
        draft.is_last = draft.count_early() == early
        if draft.is_last:
            draft.endings = dict(self.endings)
        draft.add(run)
        draft.end(run)
        draft.count_slots()
        draft.batch.seen += [name for name in draft.marks if name in self.seen]
        draft.batch.started += [(claim, run) for claim in draft.skips]
        if draft.is_last:
            draft.batch.suspects += [(fingerprint, None) for fingerprint in self.cleared]
            draft.batch.notes.update(self.new_notes(notes))
        return draft

    def _count_early(self) -> int:
        """How many changes may be written before the last batch."""
        return len(self.adds) + len(self.deaths) + len(self.marks) + len(self.skips)

    def _choose_early(self, draft: Draft, room: int, most_bytes: int | None) -> None:
        """Put into *draft* at most *room* changes, and at least one if there are any.

        :param most_bytes: of payload, but for that of a single request; ``None``: any number.
        """
        keys = list(islice(chain(self.adds, self.deaths), room))
        if most_bytes is not None and self.size > most_bytes:
            sizes = accumulate(len(self._entry(key).payload or b"") for key in keys)
            del keys[max(1, sum(1 for _ in takewhile(lambda size: size <= most_bytes, sizes))) :]
        for key in keys:
            if key in self.adds:
                draft.adds[key] = self.adds[key]
            else:
                draft.deaths[key] = self.deaths[key]
        # A mark may be that of a request that was added after it: never before all of these.
        if len(keys) == len(self.adds) + len(self.deaths):
            room -= len(keys)
            draft.marks = self.marks[:room]
            draft.skips = self.skips[: room - len(draft.marks)]

    def _entry(self, key: bytes) -> Entry:
        return self.adds[key] if key in self.adds else self.deaths[key][1]

    def settle(self, draft: Draft) -> None:
        """Forget what *draft* has written; changes may have come since it was prepared."""
        batch = draft.batch
        for fingerprint in batch.forgotten:
            self.forgotten.pop(fingerprint, None)
        # What was forgotten since, and added again, is still to be written.
        self.seen.difference_update(name for name in batch.seen if name not in self.forgotten)
        for claim, _ in batch.started:
            self.claims.pop(claim, None)
        for key, entry in draft.adds.items():
            if self.adds.pop(key, None) is not None:
                self.size -= len(entry.payload or b"")
            elif key in self.deaths:  # it has ended since
                self.deaths[key] = (*self.deaths[key][:2], True, self.deaths[key][3])
            else:
                slot, ended, _ = self.endings[key]
                self.endings[key] = (slot, ended, True)
        for key, (slot, entry, stored, _) in draft.deaths.items():
            del self.deaths[key]
            self.size -= len(entry.payload or b"")
            slot.removed += stored
        for key, (slot, _, stored) in draft.endings.items():
            del self.endings[key]
            slot.removed += stored
        for slot, count in draft.stored.items():
            slot.stored = count
        del self.marks[: len(draft.marks)]
        del self.skips[: len(draft.skips)]
        del self.cleared[: len(batch.suspects)]
        self._notes.update(batch.notes)
        assert self._early_left is not None
        self._early_left = None if draft.is_last else self._early_left - 1


class Draft:
    """A batch in the making, and the changes that it writes.

    :param unwritten: fingerprints that are seen and not stored as such.
    :ivar stored: how many requests of each slot the batch leaves in the store.
    :ivar is_last: whether it says of all pages that are done that they are.
    """

    def __init__(self, batch: Batch, unwritten: Container[bytes]) -> None:
        self.batch = batch
        self._unwritten = unwritten
        self.adds: dict[bytes, Entry] = {}
        self.deaths: dict[bytes, Death] = {}
        self.endings: dict[bytes, Ending] = {}
        self.marks: list[bytes] = []
        self.skips: list[bytes] = []
        self.stored: dict[Slot, int] = {}
        self.is_last = False

    def count_early(self) -> int:
        """How many changes it writes besides the ends of pages."""
        return len(self.adds) + len(self.deaths) + len(self.marks) + len(self.skips)

    def add(self, run: int) -> None:
        """Store the added requests as pending."""
        stored, pending = self.stored, self.batch.pending
        for key, entry in self.adds.items():
            slot: Slot = entry.home
            stored[slot] = stored.get(slot, slot.stored) + 1
            pending.append((key, encode_value(entry)))
            self._accept(entry, run)

    def end(self, run: int) -> None:
        """Store that requests are dead, or done."""
        batch, counters = self.batch, self.batch.counters
        for key, (slot, entry, is_stored, why) in self.deaths.items():
            counters.dead += 1
            self._remove(key, slot, entry, is_stored, run)
            batch.dead.append((key, encode_dead(why, encode_value(entry))))
        for key, (slot, ended, is_stored) in self.endings.items():
            counters.done += 1
            self._remove(key, slot, ended, is_stored, run)

    def _remove(
        self, key: bytes, slot: Slot, entry: Entry | None, is_stored: bool, run: int
    ) -> None:
        """Have a request that has ended not be pending, though it was accepted."""
        if is_stored:
            self.stored[slot] = self.stored.get(slot, slot.stored) - 1
            self.batch.removed.append(key)
        elif entry is not None:
            self._accept(entry, run)

    def count_slots(self) -> None:
        """Store the slots' new counts."""
        for slot, count in self.stored.items():
            self.batch.slots.append((slot.prefix, count, slot.name))
            if not count and slot.removed >= _RANGE_DELETE_FROM:
                self.batch.removed_slots.append(slot.prefix)

    def _accept(self, entry: Entry, run: int) -> None:
        """Store all that is to be known of a request once it is accepted."""
        self.batch.counters.accepted += 1
        # It is in neither place if it was forgotten meanwhile.
        if entry.unique and entry.fingerprint in self._unwritten:
            self.batch.seen.append(entry.fingerprint)
        if entry.claim is not None:
            self.batch.started.append((entry.claim, run))
