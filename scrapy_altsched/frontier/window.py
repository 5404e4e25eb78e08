"""How much of the queue is in memory.

A stored queue is read from its head: per slot, everything below the slot's *bound* is in memory
(or leased), everything from the bound on is only in the store.  Reading goes on from the bound, and
so never walks over what was deleted before it.  What is not written yet stays in memory wherever it
belongs; it becomes droppable with the commit.

The cap is on all requests together, not on each slot's: a hundred thousand slots must fit.
(Flink's RocksDBCachingPriorityQueueSet keeps heads of queues in memory in a like way.)
"""

from __future__ import annotations

from collections.abc import Container
from heapq import heapify, heappop, heappush

from .contract import Entry
from .journal import Journal
from .order import Slot
from .records import decode_value

#: Most requests that are read at once.
_READ = 256


class Window:
    """The part of every slot's queue that is in memory.

    :param journal: where the rest is; ``None``: there is no rest.
    :param cap: how many requests of stored queues to keep in memory, in all.
    :param unwritten: keys of requests that are not stored yet.
    :param out: containers of keys that are stored but in no queue: leased, set aside, or done since
        the last commit.
    """

    def __init__(
        self,
        journal: Journal | None,
        cap: int,
        unwritten: Container[bytes],
        out: tuple[Container[bytes], ...],
    ) -> None:
        self._journal = journal
        self._cap = cap
        self._unwritten = unwritten
        self._out = out
        self._warm: set[Slot] = set()
        self._size = 0
        self._shrink_at = cap

    def __len__(self) -> int:
        return self._size

    def push(self, slot: Slot, order_key: bytes, entry: Entry) -> None:
        """Put a request that is pending into memory."""
        heap = slot.heap
        if heap is None:
            heap = slot.heap = []
            self._warm.add(slot)
        heappush(heap, (order_key, entry))
        self._size += 1
        if self._size > self._shrink_at and self._journal is not None:
            self._shrink()

    def front(self, slot: Slot) -> tuple[bytes, Entry] | None:
        """The next request of *slot*; ``None``: there is none, in memory or in the store.

        :raises StoreError: the store could not be read.
        """
        heap = slot.heap
        if slot.bound is not None and (not heap or heap[0][0] >= slot.bound):
            self._refill(slot)
            if self._size > self._shrink_at:
                self._shrink(slot)
            heap = slot.heap
        return heap[0] if heap else None

    def pop(self, slot: Slot) -> None:
        """Take away what :meth:`front` answered."""
        heap = slot.heap
        assert heap is not None, "nothing is at the front"
        heappop(heap)
        self._size -= 1
        if not heap:
            self._replace(slot, heap)

    def note_commit(self) -> None:
        """What was not written before is now, and may be dropped from memory."""
        self._shrink_at = self._cap
        if self._size > self._cap:
            self._shrink()

    def _refill(self, slot: Slot) -> None:
        assert self._journal is not None
        while slot.bound is not None and (not slot.heap or slot.heap[0][0] >= slot.bound):
            limit = max(1, min(_READ, self._cap // max(8, len(self._warm) + 1)))
            start = slot.prefix + slot.bound
            rows = self._journal.read_pending(slot.prefix, start, limit)
            # All in the heap is past the bound: what is stored is among the rows, or comes later.
            heap = [item for item in slot.heap or () if self._must_stay(slot, *item)]
            leased, set_aside, ended = self._out
            for key, value in rows:
                if key not in leased and key not in set_aside and key not in ended:
                    heap.append((key[8:], decode_value(value)))
            heapify(heap)
            slot.bound = rows[-1][0][8:] + b"\0" if len(rows) == limit else None
            self._replace(slot, heap)

    def _must_stay(self, slot: Slot, order_key: bytes, entry: Entry) -> bool:
        """Whether a request is in memory only, for good or until the next commit."""
        return entry.payload is None or slot.prefix + order_key in self._unwritten

    def _replace(self, slot: Slot, heap: list[tuple[bytes, Entry]]) -> None:
        self._size += len(heap) - len(slot.heap or ())
        # A hundred thousand slots must not have an empty list each.
        slot.heap = heap or None
        if heap:
            self._warm.add(slot)
        else:
            self._warm.discard(slot)

    def _shrink(self, wanted: Slot | None = None) -> None:
        """Drop far ends of queues that can be read again, longest first, to 3/4 of the cap.

        :param wanted: a slot whose first request is asked for right now.
        """
        target = self._cap * 3 // 4
        share = self._fair_share(target)
        for slot in list(self._warm):
            if self._size <= target:
                break
            keep = max(share, 1) if slot is wanted else share
            if len(slot.heap or ()) > keep:
                self._trim(slot, keep)
        # If little could be dropped, do not try again at the next request.
        self._shrink_at = max(self._cap, self._size + self._cap // 4)

    def _fair_share(self, target: int) -> int:
        """The length such that all slots, cut to it, come to at most *target* requests."""
        lengths = sorted(len(slot.heap or ()) for slot in self._warm)
        left = target
        for position, length in enumerate(lengths):
            slots = len(lengths) - position
            if length * slots > left:
                return left // slots
            left -= length
        return target

    def _trim(self, slot: Slot, keep: int) -> None:
        heap = sorted(slot.heap or (), key=_order_key)
        stay = heap[:keep]
        dropped: bytes | None = None
        for order_key, entry in heap[keep:]:
            if self._must_stay(slot, order_key, entry):
                stay.append((order_key, entry))
            elif dropped is None:
                dropped = order_key
        if dropped is not None and (slot.bound is None or dropped < slot.bound):
            slot.bound = dropped
        self._replace(slot, stay)


def _order_key(item: tuple[bytes, Entry]) -> bytes:
    return item[0]
