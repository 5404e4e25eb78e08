"""From the list of changes to batches for a store: folded, and in parts if there is much.

What may be written early goes in as many batches as it takes to keep each one small.  None of it
says that a page is done, so that each of these batches leaves a state in which nothing is lost.
One last batch says so of all pages that are, and carries the notes (see :mod:`..changes`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, zip_longest

from ..changes import Added, Change, Cleared, Died, Done, Forgotten, Marked
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


@dataclass(slots=True)
class Deferred:
    """What early batches have left for the last one, beside what is still in the list.

    :ivar ends: changes that wait for it by their nature.
    :ivar added: requests that are done: with their ends they leave no rows.
    :ivar marks: fingerprints marked for such requests.
    """

    ends: list[Change] = field(default_factory=list)
    added: list[Added] = field(default_factory=list)
    marks: list[bytes] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.ends or self.added or self.marks)


@dataclass(slots=True)
class Part:
    """What of the list goes into one early batch.

    :ivar length: how many changes of the list it covers.
    :ivar changes: those of them that it writes.
    :ivar deferred: what it leaves for the last batch.
    """

    length: int = 0
    changes: list[Change] = field(default_factory=list)
    deferred: Deferred = field(default_factory=Deferred)


def choose_part(
    changes: Sequence[Change],
    ended: Mapping[bytes, bool],
    most: int,
    most_bytes: int,
) -> Part:
    """The beginning of *changes* that goes into an early batch.

    :param ended: key of each request that has ended -> whether it is done.
    :param most: how many changes it writes, about.
    :param most_bytes: of payload, but for that of a single request.
    """
    part = Part()
    taken, left = part.changes, part.deferred
    size = 0
    for change, following in zip_longest(changes, islice(changes, 1, None)):
        if isinstance(change, Done | Cleared):
            left.ends.append(change)
        elif isinstance(change, Added) and ended.get(change.key):
            left.added.append(change)
        elif (
            isinstance(change, Marked) and isinstance(following, Added) and ended.get(following.key)
        ):
            left.marks.append(change.fingerprint)
        else:
            if isinstance(change, Added | Died):
                size += len(change.entry.payload or b"")
            is_full = len(taken) >= most or size > most_bytes
            if taken and is_full and not _belong_together(taken[-1], change):
                break
            taken.append(change)
        part.length += 1
    return part


def _belong_together(first: Change, second: Change) -> bool:
    """Whether *first* must not be durable without *second*, which comes next."""
    if isinstance(first, Marked):
        return isinstance(second, Added)  # it may be that request's mark
    # What lives in memory only is in the list once it has ended.
    return isinstance(first, Added) and first.entry.payload is None


class Draft:
    """A batch in the making, and the changes that it writes.

    :param is_seen: whether a fingerprint is seen after all changes, and was not forgotten before.
    :ivar stored: how many requests of each slot the batch leaves in the store.
    :ivar removed: how many rows of pending requests it removes in each slot.
    :ivar accepted: the requests that it says were accepted.
    :ivar ends: the ends that it writes.
    :ivar forgotten: fingerprints that it says were forgotten.
    :ivar others: how many changes of other kinds it writes.
    :ivar part: what it covers of the list; ``None``: all, and what was deferred.
    :ivar length: how many changes of the list it covers.
    """

    def __init__(self, batch: Batch, run: int, is_seen: Callable[[bytes], bool]) -> None:
        self.batch = batch
        self._run = run
        self._is_seen = is_seen
        self._removed = batch.removed[PENDING]
        self._added: dict[bytes, Added] = {}
        #: Fingerprint -> whether it is seen, of those of which that changes.
        self._seen: dict[bytes, bool] = {}
        self.stored: dict[Slot, int] = {}
        self.removed: dict[Slot, int] = {}
        self.accepted: list[Added] = []
        self.ends: list[Done | Died] = []
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

    def write_all(self, deferred: Deferred, changes: Collection[Change]) -> None:
        """Write all that there is."""
        self.length = len(changes)
        for fingerprint in deferred.marks:
            if self._is_seen(fingerprint):
                self._seen[fingerprint] = True
        self.others = len(deferred.marks)
        self._accept_late(deferred.added)
        self._fold(deferred.ends)
        self._fold(changes)
        self._render()

    def _accept_late(self, requests: Iterable[Added]) -> None:
        """Accept requests after changes that came later than they did."""
        for added in requests:
            self._accept(added)
            if not self._is_seen(added.entry.fingerprint):
                self._seen.pop(added.entry.fingerprint, None)

    def _accept(self, added: Added) -> None:
        self._added[added.key] = added
        self.accepted.append(added)
        if added.marks:
            self._seen[added.entry.fingerprint] = True
        if added.claim is not None:
            self.batch.started.append((added.claim, self._run))

    def _fold(self, changes: Iterable[Change]) -> None:
        seen, batch = self._seen, self.batch
        for change in changes:
            if isinstance(change, Added):
                self._accept(change)
            elif isinstance(change, (Done, Died)):
                self._end(change)
            elif isinstance(change, Cleared):
                batch.suspects.append((change.fingerprint, None))
            elif isinstance(change, Marked):
                seen[change.fingerprint] = True
                self.others += 1
            elif isinstance(change, Forgotten):
                seen[change.fingerprint] = False
                self.forgotten.append(change.fingerprint)
            else:
                batch.started.append((change.claim, self._run))
                self.others += 1

    def _end(self, change: Done | Died) -> None:
        self.ends.append(change)
        if self._added.pop(change.key, None) is None:
            slot: Slot = change.home
            self.stored[slot] = self.stored.get(slot, slot.stored) - 1
            self.removed[slot] = self.removed.get(slot, 0) + 1
            self._removed.append(change.key)

    def _render(self) -> None:
        """Put into the batch what is left of all that was folded."""
        batch, counters, stored = self.batch, self.batch.counters, self.stored
        pending = batch.stored[PENDING]
        for key, slot, entry, *_ in self._added.values():
            stored[slot] = stored.get(slot, slot.stored) + 1
            pending.append((key, encode_value(entry)))
        for fingerprint, is_seen in self._seen.items():
            (batch.seen if is_seen else batch.forgotten).append(fingerprint)
        dead = [change for change in self.ends if isinstance(change, Died)]
        for change in dead:
            row = DEAD.join(change.reason, encode_value(change.entry))
            batch.stored[DEAD].append((change.key, row))
        counters.accepted += len(self.accepted)
        counters.dead += len(dead)
        counters.done += len(self.ends) - len(dead)
        counters.forgotten += len(self.forgotten)
        for slot, count in stored.items():
            batch.slots.append((slot.prefix, count, slot.name))
            if not count and slot.removed + self.removed.get(slot, 0) >= _RANGE_DELETE_FROM:
                batch.removed_slots.append(slot.prefix)
