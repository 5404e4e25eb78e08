"""From the list of changes to batches for a store: folded, and in parts if there is much.

What may be written early goes in as many batches as it takes to keep each one small.  None of it
says that a page is done, so that each of these batches leaves a state in which nothing is lost.
One last batch says so of all pages that are, and carries the notes (see :mod:`..changes`).
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain, pairwise

from ..changes import Change, Changes, Kind
from ..entry import Entry
from ..queue.slots import Slot
from ..store.records import Batch
from ..store.states import DEAD, PENDING, encode_value

#: Most changes in one batch, but for the ends of pages: to prepare and to write 2,000 takes 20 to
#: 30 ms with ten million seen, and RocksDB's write holds the interpreter's lock.
BATCH = 1_250
#: Most bytes of payload in one batch, but for that of a single request: some 3 ms a MiB.
BATCH_BYTES = 4 * 1024 * 1024

#: Point deletions in one slot past which one over its range spares later reads walking over them.
_RANGE_DELETE_FROM = 1_000

# Names of this module are found faster than members of an enumeration.
_ADDED_UNIQUE, _ADDED, _DONE, _DIED = Kind.ADDED_UNIQUE, Kind.ADDED, Kind.DONE, Kind.DIED
_MARKED, _FORGOTTEN, _SKIPPED, _CLEARED = (
    Kind.MARKED,
    Kind.FORGOTTEN,
    Kind.SKIPPED,
    Kind.CLEARED,
)


@dataclass(slots=True)
class Part:
    """What of the list goes into one early batch.

    :ivar length: how many changes of the list it covers.
    :ivar changes: those of them that it writes.
    :ivar deferred: those that it leaves for the last batch.
    """

    length: int = 0
    changes: Changes = field(default_factory=Changes)
    deferred: Changes = field(default_factory=Changes)


def choose_part(
    changes: Iterable[Change], ended: Mapping[bytes, bool], most: int, most_bytes: int
) -> Part:
    """The beginning of *changes* that goes into an early batch.

    :param ended: key of each request that has ended -> whether it is done.
    :param most: how many changes it writes, about.
    :param most_bytes: of payload, but for that of a single request.
    """
    part = Part()
    size = taken = 0
    last: Change | None = None
    for change, following in pairwise(chain(changes, (None,))):
        assert change is not None
        kind, entry = change[0], change[3]
        if _waits(change, ended) or (
            # A mark may be that of the request that comes next.
            kind is _MARKED and following is not None and _waits(following, ended, only_added=True)
        ):
            part.deferred.append(*change)
        else:
            if entry is not None:
                size += len(entry.payload or b"")
            is_full = taken >= most or size > most_bytes
            if is_full and last is not None and not _belong_together(last, change):
                break
            part.changes.append(*change)
            taken += 1
            last = change
        part.length += 1
    return part


def _waits(change: Change, ended: Mapping[bytes, bool], *, only_added: bool = False) -> bool:
    """Whether a change is for the last batch, where a request that is done leaves no row."""
    kind = change[0]
    if kind is _ADDED_UNIQUE or kind is _ADDED:
        return ended.get(change[1], False)
    return not only_added and (kind is _DONE or kind is _CLEARED)


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

    :param is_seen: fingerprints that are seen, after all changes, and not stored as such.
    :ivar stored: how many requests of each slot the batch leaves in the store.
    :ivar removed: how many rows of pending requests it removes in each slot.
    :ivar accepted: key -> bytes of payload, of the requests that it says were accepted.
    :ivar done: keys of the requests that it says are done.
    :ivar died: key -> bytes of payload, of those that it says are dead.
    :ivar forgotten: fingerprints that it says were forgotten.
    :ivar others: how many changes of other kinds it writes.
    :ivar part: what it covers of the list; ``None``: all, and what was deferred.
    :ivar length: how many changes of the list it covers.
    """

    def __init__(self, batch: Batch, run: int, is_seen: Container[bytes]) -> None:
        self.batch = batch
        self._run = run
        self._is_seen = is_seen
        #: Requests that become pending: their entries, and their slots.
        self._entries: dict[bytes, Entry] = {}
        self._slots: dict[bytes, Slot] = {}
        #: Fingerprint -> whether it is seen, of those of which that changes.
        self._seen: dict[bytes, bool] = {}
        self.stored: dict[Slot, int] = {}
        self.removed: dict[Slot, int] = {}
        self.accepted: dict[bytes, int] = {}
        self.done: list[bytes] = []
        self.died: dict[bytes, int] = {}
        self.forgotten: list[bytes] = []
        self.others = 0
        self.part: Part | None = None
        self.length = 0

    @property
    def is_last(self) -> bool:
        """Whether it says of all pages that are done that they are."""
        return self.part is None

    def write_part(self, part: Part) -> None:
        """Write what goes into an early batch."""
        self.part = part
        self.length = part.length
        self._fold(part.changes)
        self._render()

    def write_all(self, deferred: Changes, changes: Changes) -> None:
        """Write all that there is."""
        self.length = len(changes)
        self._fold(deferred)
        # Changes that came after these may have been written already.
        for fingerprint in [name for name in self._seen if name not in self._is_seen]:
            del self._seen[fingerprint]
        self._fold(changes)
        self._render()

    def _fold(self, changes: Iterable[Change]) -> None:
        batch, seen, accepted = self.batch, self._seen, self.accepted
        entries, slots = self._entries, self._slots
        for kind, key, slot, entry, detail in changes:
            if kind is _ADDED_UNIQUE or kind is _ADDED:
                assert entry is not None
                entries[key] = entry
                slots[key] = slot
                accepted[key] = len(entry.payload or b"")
                if kind is _ADDED_UNIQUE:
                    seen[entry.fingerprint] = True
                if detail is not None:
                    batch.started.append((detail, self._run))
            elif kind is _DONE:
                self.done.append(key)
                self._end(key, slot)
            elif kind is _DIED:
                assert entry is not None
                self.died[key] = len(entry.payload or b"")
                self._end(key, slot)
                row = DEAD.join(detail, encode_value(entry))
                batch.stored[DEAD].append((key, row))
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
                    batch.started.append((key, self._run))

    def _end(self, key: bytes, slot: Slot) -> None:
        """A request is not pending: it is not written as that, or removed."""
        if self._entries.pop(key, None) is None:
            self.stored[slot] = self.stored.get(slot, slot.stored) - 1
            self.removed[slot] = self.removed.get(slot, 0) + 1
            self.batch.removed[PENDING].append(key)

    def _render(self) -> None:
        """Put into the batch what is left of all that was folded."""
        batch, counters, stored, slots = self.batch, self.batch.counters, self.stored, self._slots
        pending = batch.stored[PENDING]
        for key, entry in self._entries.items():
            slot = slots[key]
            stored[slot] = stored.get(slot, slot.stored) + 1
            pending.append((key, encode_value(entry)))
        for fingerprint, is_seen in self._seen.items():
            (batch.seen if is_seen else batch.forgotten).append(fingerprint)
        counters.accepted += len(self.accepted)
        counters.dead += len(self.died)
        counters.done += len(self.done)
        counters.forgotten += len(self.forgotten)
        for slot, count in stored.items():
            batch.slots.append((slot.prefix, count, slot.name))
            if not count and slot.removed + self.removed.get(slot, 0) >= _RANGE_DELETE_FROM:
                batch.removed_slots.append(slot.prefix)
