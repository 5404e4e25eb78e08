"""What has changed since the last commit, and the batches that say so.

Requests are kept in two lists, and all of the first goes before any of the second: *adds* (pending
or leased, not stored yet) and *endings* (done or dead, stored or not).  Lesser changes follow.  A
batch may therefore stop anywhere, to stay small: every prefix is a state in which nothing is lost.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import replace
from itertools import accumulate, islice, takewhile
from types import MappingProxyType

from .contract import Entry
from .order import Slot
from .records import Batch, Counters, encode_dead, encode_value

#: Most changes in one batch: to prepare and to write 2,000 takes 20 to 30 ms with ten million seen,
#: and RocksDB's write holds the interpreter's lock.
BATCH = 1_250
#: Most bytes of payload in one batch, but for that of a single request: some 3 ms a MiB.
BATCH_BYTES = 4 * 1024 * 1024

#: Point deletions in one slot past which one over its range spares later reads walking over them.
_RANGE_DELETE_FROM = 1_000

NO_NOTES: Mapping[str, bytes] = MappingProxyType({})


#: A request that is done or dead: its slot; the request, ``None`` if nothing of it will be written;
#: whether the store holds it as pending; the reason if it is dead.
Ending = tuple[Slot, Entry | None, bool, str | None]


class Changes:
    """Changes that no commit has written yet.

    :ivar adds: key -> entry, whose home is its slot, in the order they were accepted.
    :ivar size: bytes of these entries' payloads.
    :ivar endings: key -> ending, in the order they came.
    :ivar seen: fingerprints that are seen and not stored as such.
    :ivar marks: of these, the ones without a request.
    :ivar claims: start requests' occurrences claimed by this run -> the run's number.
    :ivar skips: of these, the ones whose request was skipped.
    :ivar cleared: fingerprints of stored suspects that are none any more.
    """

    def __init__(self) -> None:
        self.adds: dict[bytes, Entry] = {}
        self.size = 0
        self.endings: dict[bytes, Ending] = {}
        self.seen: set[bytes] = set()
        self.marks: list[bytes] = []
        self.claims: dict[bytes, int] = {}
        self.skips: list[bytes] = []
        self.cleared: list[bytes] = []
        self._notes: dict[str, bytes] = {}

    def __len__(self) -> int:
        return len(self.adds) + len(self.endings) + len(self.marks) + len(self.skips)

    def new_notes(self, notes: Mapping[str, bytes]) -> dict[str, bytes]:
        """Those of *notes* that are not as they were written last."""
        return {name: note for name, note in notes.items() if self._notes.get(name) != note}

    def end(self, key: bytes, slot: Slot, entry: Entry, why: str | None) -> int:
        """Note that a request is done, or dead; how many changes more that is."""
        unwritten = self.adds.pop(key, None)
        if unwritten is not None:
            self.size -= len(unwritten.payload or b"")
        stored = unwritten is None and entry.payload is not None
        # Of most that end there is nothing more to tell, and a commit's worth of them takes memory.
        is_told = not stored or why is not None
        self.endings[key] = (slot, entry if is_told else None, stored, why)
        return 1 if unwritten is None else 0

    def prepare(
        self,
        base: Counters,
        run: int,
        notes: Mapping[str, bytes],
    ) -> Draft:
        """A batch of at most :data:`BATCH` changes and :data:`BATCH_BYTES` bytes of payload.

        :param base: counters that the batch goes on counting from; theirs are the rest.
        :param run: the number of this run.
        """
        draft = Draft(Batch(replace(base)), self.seen)
        draft.adds = dict(islice(self.adds.items(), self._count_next_adds()))
        # None of what follows may be written before all of the adds.
        room = BATCH - len(draft) if len(draft.adds) == len(self.adds) else 0
        draft.endings = self._next_endings(room)
        draft.marks = self.marks[: room - len(draft.endings)]
        draft.skips = self.skips[: room - len(draft.endings) - len(draft.marks)]
        draft.is_last = len(draft) == len(self)
        draft.add(run)
        draft.end(run)
        draft.count_slots()
        draft.batch.seen += draft.marks
        draft.batch.started += [(claim, run) for claim in draft.skips]
        if draft.is_last:
            draft.batch.suspects += [(fingerprint, None) for fingerprint in self.cleared]
            draft.batch.notes.update(self.new_notes(notes))
        return draft

    def _count_next_adds(self) -> int:
        """How many adds to write next: at least one, if there are any."""
        if self.size <= BATCH_BYTES:
            return BATCH
        sizes = accumulate(len(entry.payload or b"") for entry in self.adds.values())
        fitting = takewhile(lambda size: size <= BATCH_BYTES, islice(sizes, BATCH))
        return max(1, sum(1 for _ in fitting))

    def _next_endings(self, room: int) -> dict[bytes, Ending]:
        """As many endings as there is *room* for.

        If that is not all, dead requests that are not stored come first: the parent that would
        bring them back may be among the others.
        """
        endings: Iterable[tuple[bytes, Ending]] = self.endings.items()
        if 0 < room < len(self.endings):
            endings = sorted(endings, key=_may_wait)
        return dict(islice(endings, room))

    def settle(self, draft: Draft) -> None:
        """Forget what *draft* has written; changes may have come since it was prepared."""
        batch = draft.batch
        self.seen.difference_update(batch.seen)
        for claim, _ in batch.started:
            self.claims.pop(claim, None)
        for key, entry in draft.adds.items():
            if self.adds.pop(key, None) is not None:
                self.size -= len(entry.payload or b"")
            else:  # it has ended since
                slot, ended, _, why = self.endings[key]
                self.endings[key] = (slot, ended, True, why)
        for key, (slot, _, stored, _) in draft.endings.items():
            del self.endings[key]
            slot.removed += stored
        for slot, count in draft.stored.items():
            slot.stored = count
        del self.marks[: len(draft.marks)]
        del self.skips[: len(draft.skips)]
        del self.cleared[: len(batch.suspects)]
        self._notes.update(batch.notes)


def _may_wait(item: tuple[bytes, Ending]) -> bool:
    """Whether nothing is lost if others are written before this ending, and not this one."""
    _, (_, _, is_stored, why) = item
    return is_stored or why is None


class Draft:
    """A batch in the making, and the changes that it writes.

    :param unwritten: fingerprints that are seen and not stored as such.
    :ivar stored: how many requests of each slot the batch leaves in the store.
    :ivar is_last: whether no change is left after it.
    """

    def __init__(self, batch: Batch, unwritten: Container[bytes]) -> None:
        self.batch = batch
        self._unwritten = unwritten
        self.adds: dict[bytes, Entry] = {}
        self.endings: dict[bytes, Ending] = {}
        self.marks: list[bytes] = []
        self.skips: list[bytes] = []
        self.stored: dict[Slot, int] = {}
        self.is_last = False

    def __len__(self) -> int:
        return len(self.adds) + len(self.endings) + len(self.marks) + len(self.skips)

    def add(self, run: int) -> None:
        """Store the added requests as pending."""
        stored, pending = self.stored, self.batch.pending
        for key, entry in self.adds.items():
            slot: Slot = entry.home
            stored[slot] = stored.get(slot, slot.stored) + 1
            pending.append((key, encode_value(entry)))
            self._accept(entry, run)

    def end(self, run: int) -> None:
        """Store that requests are done, or dead."""
        batch, counters, stored = self.batch, self.batch.counters, self.stored
        for key, (slot, entry, is_stored, why) in self.endings.items():
            if is_stored:
                stored[slot] = stored.get(slot, slot.stored) - 1
                batch.removed.append(key)
            if why is None:
                counters.done += 1
            else:
                counters.dead += 1
            if entry is None:
                continue
            if not is_stored:
                self._accept(entry, run)
            if why is not None:
                batch.dead.append((key, encode_dead(why, encode_value(entry))))

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
