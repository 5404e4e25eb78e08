"""How much of the queue is in memory.

A stored queue is read from its head: per slot, everything below the slot's *bound* is in memory
(or leased), everything from the bound on is only in the store.  Reading goes on from the bound, and
so never walks over what was deleted before it.  What is not written yet stays in memory wherever it
belongs; it becomes droppable with the commit.

The cap is on all requests together, not on each slot's: a hundred thousand slots must fit.
(Flink's RocksDBCachingPriorityQueueSet keeps heads of queues in memory in a like way.)

What was read from the store stays as it is stored, in two strings of bytes, and what was pushed
becomes so once it is written and no longer new: a garbage collection does not look into a dict that
has never held anything else (https://docs.python.org/3/library/gc.html#gc.is_tracked).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container
from heapq import heapify, heappop, heappush
from random import Random

from ..entry import Entry
from .slots import Slot

#: Most requests that are read at once.
_READ = 256
#: Most bytes of payload to keep in memory: a hundred thousand requests of 0.3 KB.
_MOST_BYTES = 32 * 1024 * 1024
#: About how many requests to drop at once at the most: some 10 ms in many slots, 30 in a long one.
_DROP = 5_000
#: Most requests of a slot to sort when it is cut; of more, as many tell where about to cut.
_SAMPLE = 1_000
#: How many of the newest requests keep the object they were added with, which may be handed out as
#: it is.  A few rounds over a thousand slots take what was added in them.  An object takes 2 KB
#: and ten things to look at in each garbage collection, a stored form 0.4 KB and none.  More than
#: a commit comes after, or most would not be written yet when they are no longer new.
_LIVE = 3_000
#: Payloads past this size are not kept twice: as bytes and as an object.
_LIVE_BYTES = 8_192


#: Reads stored requests: at most so many whose keys start with a prefix, from a key on, and none
#: after the one with which the values come to so many bytes; raises StoreError.
Read = Callable[[bytes, bytes, int, int], list[tuple[bytes, bytes]]]


class Window:
    """The part of every slot's queue that is in memory.

    :param read: reads the rest, by prefix, first key, most requests and most bytes.
    :param encode: the stored form of a request; *decode* is the inverse.
    :param cap: how many requests of stored queues to keep in memory, in all.
    :param unwritten: keys of requests that are not stored, for good or yet.
    :param out: containers of keys that may be stored but are in no queue: leased, held, withheld,
        or over since the last commit.
    :param most_bytes: how many bytes of payload to keep in memory.
    """

    def __init__(
        self,
        read: Read,
        encode: Callable[[Entry], bytes],
        decode: Callable[[bytes], Entry],
        cap: int,
        unwritten: Container[bytes],
        out: tuple[Container[bytes], Container[bytes], Container[bytes], Container[bytes]],
        most_bytes: int = _MOST_BYTES,
    ) -> None:
        self._read = read
        self._encode = encode
        self._decode = decode
        self._cap = self._shrink_at = cap
        self._most_bytes = self._shrink_at_bytes = most_bytes
        self._unwritten = unwritten
        self._out = out
        self._warm: set[Slot] = set()
        #: Key -> request; those that are new, not written yet, or in memory only.
        self._entries: dict[bytes, Entry] = {}
        #: Key -> stored form of a request; all others.  Nothing but bytes may ever be in here.
        self._values: dict[bytes, bytes] = {}
        #: Bytes of payload, roughly.
        self.size = 0
        #: Keys of the requests that were pushed last.
        self._live: deque[bytes] = deque()

    @property
    def count(self) -> int:
        """How many requests are in memory."""
        return len(self._entries) + len(self._values)

    def load(self, slot: Slot) -> None:
        """Read the requests of a stored slot when it is their turn."""
        slot.bound = b""

    def push(self, slot: Slot, key: bytes, entry: Entry) -> None:
        """Put a request that is pending into memory."""
        first = slot.first
        if first is None:
            slot.first = key
            self._warm.add(slot)
        else:
            behind = key
            if key < first:
                slot.first, behind = key, first
            if slot.rest is None:
                slot.rest = [behind]
            else:
                heappush(slot.rest, behind)
        self._entries[key] = entry
        payload = entry.payload
        if payload is not None:
            self.size += len(payload)
            if len(payload) > _LIVE_BYTES:
                entry.request = None
            live = self._live
            live.append(key)
            if len(live) > _LIVE:
                self._age(live.popleft())
        if self._is_past(self._shrink_at, self._shrink_at_bytes):
            self._shrink()

    def pop(self, slot: Slot) -> tuple[bytes, Entry] | None:
        """Take away the request that comes next in *slot*, and answer its key and itself.

        :return: ``None``: none is in memory or in the store.
        :raises StoreError: the store could not be read.
        """
        key = self._load_front(slot)
        if key is None:
            return None
        entry = self._entries.pop(key, None)
        if entry is None:
            value = self._values[key]
            entry = self._decode(value)
            del self._values[key]
            self.size -= len(value)
        else:
            self.size -= len(entry.payload or b"")
        rest = slot.rest
        if rest is None:
            slot.first = None
            self._warm.discard(slot)
        else:
            slot.first = heappop(rest)
            if not rest:
                slot.rest = None
        return key, entry

    def note_commit(self) -> None:
        """What was not written before is now, and may be dropped from memory."""
        self._shrink_at = self._cap
        self._shrink_at_bytes = self._most_bytes
        if self._is_past(self._cap, self._most_bytes):
            self._shrink()

    def _is_past(self, number: int, size: int) -> bool:
        """Whether more than *number* requests are in memory, or more than *size* bytes."""
        return self.size > size or len(self._entries) + len(self._values) > number

    def _age(self, key: bytes) -> None:
        """Keep less of a request that is no longer new."""
        entry = self._entries.get(key)
        if entry is None:
            return
        entry.request = None
        if key not in self._unwritten:
            value = self._encode(entry)
            self.size += len(value) - len(entry.payload or b"")
            del self._entries[key]
            self._values[key] = value

    def _load_front(self, slot: Slot) -> bytes | None:
        """Load the request that comes next in *slot*, if there is one; its key."""
        if slot.bound is not None and (slot.first is None or slot.first >= slot.bound):
            self._refill(slot)
            if self._is_past(self._shrink_at, self._shrink_at_bytes):
                self._shrink(slot)
        return slot.first

    def _refill(self, slot: Slot) -> None:
        entries, values = self._entries, self._values
        while slot.bound is not None and (slot.first is None or slot.first >= slot.bound):
            parts = max(8, len(self._warm) + 1)
            limit = max(1, min(_READ, self._cap // parts))
            most_bytes = max(1, self._most_bytes // parts)
            start = slot.bound or slot.prefix
            rows = self._read(slot.prefix, start, limit, most_bytes)
            # All in memory is past the bound: what is stored is among the rows, or comes later.
            keys = [key for key in slot.keys if not self._drop_stored(key)]
            leased, held, withheld, ended = self._out
            size = 0
            for key, value in rows:
                size += len(value)
                # A write that failed may have stored what counts as unwritten.
                if key in leased or key in held or key in withheld or key in ended:
                    continue
                if key in entries:
                    continue
                keys.append(key)
                values[key] = value
                self.size += len(value)
            heapify(keys)
            is_cut = len(rows) == limit or size >= most_bytes
            slot.bound = rows[-1][0] + b"\0" if is_cut else None
            self._replace(slot, keys)

    def _drop_stored(self, key: bytes) -> bool:
        """Drop a request, unless it is in memory only, for good or until the next commit."""
        value = self._values.pop(key, None)
        if value is not None:
            self.size -= len(value)
            return True
        payload = self._entries[key].payload
        if payload is None or key in self._unwritten:
            return False
        del self._entries[key]
        self.size -= len(payload)
        return True

    def _replace(self, slot: Slot, keys: list[bytes]) -> None:
        """Make *keys*, a heap, those of *slot* that are in memory."""
        if keys:
            slot.first = heappop(keys)
            self._warm.add(slot)
        else:
            slot.first = None
            self._warm.discard(slot)
        slot.rest = keys or None

    def _shrink(self, wanted: Slot | None = None) -> None:
        """Drop far ends of the longer queues, as far as they can be read again.

        A quarter of what fits goes, or :data:`_DROP` requests if that is less.  If too many bytes
        are left then, as far ends are smaller than others, it goes on to half of that, and so on.

        :param wanted: a slot whose first request is asked for right now.
        """
        fitting = self._cap
        if self.size > self._most_bytes:
            fitting = min(fitting, self.count * self._most_bytes // self.size)
        target = max(fitting * 3 // 4, fitting - _DROP)
        self._cut(target, wanted)
        target = min(target, self.count)
        while target and self.size > self._most_bytes:
            target //= 2
            self._cut(target, wanted)
        # If little could be dropped, do not try again at the next request.
        self._shrink_at = max(self._cap, self.count + min(-(-self._cap // 4), _DROP))
        self._shrink_at_bytes = max(self._most_bytes, self.size + self._most_bytes // 4)

    def _cut(self, target: int, wanted: Slot | None) -> None:
        share = self._fair_share(target)
        for slot in list(self._warm):
            excess = self.count - target
            if excess <= 0:
                break
            length = slot.in_memory
            if length > share:
                # All keys of a slot are looked at: half of some slots costs less than a bit of all.
                keep = max(min(share, length // 2), length - excess)
                self._trim(slot, max(keep, 1) if slot is wanted else keep)

    def _fair_share(self, target: int) -> int:
        """The length such that all slots, cut to it, come to at most *target* requests."""
        lengths = sorted(slot.in_memory for slot in self._warm)
        left = target
        for position, length in enumerate(lengths):
            slots = len(lengths) - position
            if length * slots > left:
                return left // slots
            left -= length
        return target

    def _trim(self, slot: Slot, keep: int) -> None:
        """Drop all but about the first *keep* requests of *slot*."""
        stay, far = _split(slot.keys, keep)
        dropped: bytes | None = None
        for key in far:
            if not self._drop_stored(key):
                heappush(stay, key)
            elif dropped is None or key < dropped:
                dropped = key
        if dropped is not None and (slot.bound is None or dropped < slot.bound):
            slot.bound = dropped
        self._replace(slot, stay)


def _split(keys: list[bytes], position: int) -> tuple[list[bytes], list[bytes]]:
    """About *position* of *keys* that come first, as a heap, and the others.

    The first of all, which is the first of *keys*, is among those, unless *position* is 0.
    """
    if not position:
        return [], keys
    if len(keys) <= _SAMPLE:
        in_order = sorted(keys)
        return in_order[:position], in_order[position:]
    # To sort a hundred thousand keys of random priorities would take 50 ms.  A regular sample would
    # be a wrong one: where a key is in a heap says how small it is.
    sample = sorted((keys[0], *Random(0).sample(keys[1:], _SAMPLE)))
    end = sample[max(1, position * len(sample) // len(keys))]
    near = [key for key in keys if key < end]
    heapify(near)
    return near, [key for key in keys if key >= end]
