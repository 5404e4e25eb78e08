"""How much of the queue is in memory.

A stored queue is read from its head: per slot, everything below the slot's *bound* is in memory
(or leased), everything from the bound on is only in the store.  Reading goes on from the bound, and
so never walks over what was deleted before it.  What is not written yet stays in memory wherever it
belongs; it becomes droppable with the commit.  The cap is on all requests together: a hundred
thousand slots must fit.  (Flink's RocksDBCachingPriorityQueueSet works in a similar way.)

What was read from the store stays bytes, and what was pushed becomes so once it is written and no
longer new: a garbage collection does not look into a dict that has never held anything else
(https://docs.python.org/3/library/gc.html#gc.is_tracked).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Container, Iterable, Iterator
from heapq import heapify, heappop, heappush, merge
from itertools import chain
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
#: How many of the newest requests keep their object, to be handed out as it is, where they may be
#: taken soon: 2 KB, and ten things to look at in each garbage collection; a stored form takes 0.4
#: KB and none.  More than a commit comes after, or most would not be written yet when they are old.
_LIVE = 3_000
#: Payloads past this size are not kept twice: as bytes and as an object.
_LIVE_BYTES = 8_192


class Window:
    """The part of every slot's queue that is in memory.

    :param read: reads the rest: see :meth:`~..store.database.Database.read`.
    :param cap: how many requests of stored queues to keep in memory, in all.
    :param unwritten: keys of requests that are not stored, for good or yet.
    :param out: containers of keys that may be stored but are in no queue: leased, held, withheld,
        or over since the last commit.
    :param encode: entry -> stored form; *decode*: the inverse.
    :param most_live: how many of the newest requests keep the object they were added with.
    """

    def __init__(
        self,
        read: Callable[[bytes, bytes, int, int], list[tuple[bytes, bytes]]],
        cap: int,
        unwritten: Container[bytes],
        out: tuple[Container[bytes], Container[bytes], Container[bytes], Container[bytes]],
        encode: Callable[[Entry], bytes],
        decode: Callable[[bytes], Entry],
        most_live: int = _LIVE,
    ) -> None:
        self._read = read
        self._cap = self._shrink_at = cap
        self._shrink_at_bytes = _MOST_BYTES
        self._unwritten = unwritten
        self._out = out
        self._encode, self._decode = encode, decode
        self._warm: set[Slot] = set()
        #: Key -> request; those that are new, not written yet, or in memory only.
        self._entries: dict[bytes, Entry] = {}
        #: Key -> stored form of a request; all others.  Nothing but bytes may ever be in here.
        self._values: dict[bytes, bytes] = {}
        #: Bytes of payload, roughly.
        self.size = 0
        #: Keys of the requests that were pushed last.
        self._live: deque[bytes] = deque()
        self._most_live = most_live

    @property
    def count(self) -> int:
        return len(self._entries) + len(self._values)

    def push(self, slot: Slot, key: bytes, entry: Entry) -> None:
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
            if len(live) > self._most_live:
                self._age(live.popleft())
        # Not by _is_past(): see "Cheap requests" in docs/architecture.rst.
        count = len(self._entries) + len(self._values)
        if count > self._shrink_at or self.size > self._shrink_at_bytes:
            self._shrink()

    def pop(self, slot: Slot) -> tuple[bytes, Entry] | None:
        """Take the next request of *slot*, and its key; ``None``: none is in memory or stored."""
        key = slot.first if slot.bound is None else self.peek(slot)
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

    def remove(self, slot: Slot, keys: Collection[bytes]) -> None:
        """Take requests of a slot out; of those that are not in memory, nothing has to be known."""
        before = self.count
        for key in keys:
            if (value := self._values.pop(key, None)) is not None:
                self.size -= len(value)
            elif (entry := self._entries.pop(key, None)) is not None:
                self.size -= len(entry.payload or b"")
        if self.count == before:
            return
        left = [key for key in slot.keys if key not in keys]
        heapify(left)
        self._replace(slot, left)

    def cut(self, limit: int) -> bool:
        """Drop stored requests of a slot that has more than *limit* in memory; whether any was.

        Finding those that come last would mean looking at all of them.  Without its last elements
        the array of a heap is still a heap, whichever requests these are.
        """
        slot = next((slot for slot in self._warm if slot.in_memory > limit), None)
        if slot is None or slot.rest is None:
            return False
        rest, stay = slot.rest, []
        before = left = min(_DROP, slot.in_memory - limit)
        while rest and left:
            if self._drop_end(slot, key := rest.pop()):
                left -= 1
            else:
                stay.append(key)
        for key in stay:
            heappush(rest, key)
        slot.rest = rest or None
        return left < before

    def unwritten(self) -> list[bytes]:
        """Keys of the requests that are not stored, for good or yet."""
        return [
            key
            for key, entry in self._entries.items()
            if entry.payload is None or key in self._unwritten
        ]

    def has(self, key: bytes) -> bool:
        """Whether a request is in memory, as it was added."""
        return key in self._entries

    def entry(self, key: bytes) -> Entry:
        """One that :meth:`has` knows."""
        return self._entries[key]

    def note_commit(self, written: Iterable[tuple[bytes, bytes]]) -> None:
        """Note that requests are stored from now on: key and stored form of each."""
        entries = self._entries
        for key, value in written if entries else ():
            entry = entries.get(key)
            if entry is not None and entry.request is None:
                self._keep_stored_form(key, entry, value)
        self._shrink_at = self._cap
        self._shrink_at_bytes = _MOST_BYTES
        if self._is_past(self._cap, _MOST_BYTES):
            self._shrink()

    def _is_past(self, number: int, size: int) -> bool:
        return self.size > size or len(self._entries) + len(self._values) > number

    def _age(self, key: bytes) -> None:
        entry = self._entries.get(key)
        if entry is None:
            return
        entry.request = None
        if key not in self._unwritten:
            encode = self._encode
            self._keep_stored_form(key, entry, encode(entry))

    def _keep_stored_form(self, key: bytes, entry: Entry, value: bytes) -> None:
        self.size += len(value) - len(entry.payload or b"")
        del self._entries[key]
        self._values[key] = value

    def peek(self, slot: Slot) -> bytes | None:
        """The key of the next request of *slot*; ``None``: none is in memory or stored."""
        if slot.bound is not None and (slot.first is None or slot.first >= slot.bound):
            self._refill(slot)
            if self._is_past(self._shrink_at, self._shrink_at_bytes):
                self._shrink(slot)
        return slot.first

    def walk(self, slot: Slot) -> Iterator[tuple[bytes, Entry]]:
        """Key and request of each that is pending in *slot*, in order; none of them is taken.

        What is read for that is not kept.  Nothing may change before the caller has done with it.
        """
        # Some of those in memory are past the bound.
        in_memory = ((key, None) for key in sorted(slot.keys))
        for key, value in merge(in_memory, self._walk_stored(slot)):
            entry = self._entries.get(key)
            yield key, entry or self._decode(self._values[key] if value is None else value)

    def find(self, fingerprint: bytes, stored: Iterable[tuple[bytes, bytes]]) -> Entry | None:
        """A request of any slot with this fingerprint.

        :param stored: key and stored form of all that is in the store.
        """
        for entry in chain(self._entries.values(), map(self._decode, self._values.values())):
            if entry.fingerprint == fingerprint:
                return entry
        for key, value in stored:
            if fingerprint in value and not self._is_out(key):
                entry = self._decode(value)
                if entry.fingerprint == fingerprint:
                    return entry
        return None

    def _is_out(self, key: bytes) -> bool:
        return any(key in container for container in self._out)

    def _walk_stored(self, slot: Slot) -> Iterator[tuple[bytes, bytes]]:
        """Key and stored form of all that is only in the store."""
        start = slot.bound
        while start is not None:
            rows = self._read(slot.prefix, start or slot.prefix, _READ, _MOST_BYTES)
            for key, value in rows:
                is_in_memory = key in self._entries or key in self._values
                if not is_in_memory and not self._is_out(key):
                    yield key, value
            start = rows[-1][0] + b"\0" if rows else None

    def _refill(self, slot: Slot) -> None:
        entries, values = self._entries, self._values
        while slot.bound is not None and (slot.first is None or slot.first >= slot.bound):
            parts = max(8, len(self._warm) + 1)
            limit = max(1, min(_READ, self._cap // parts))
            most_bytes = max(1, _MOST_BYTES // parts)
            start = slot.bound or slot.prefix
            rows = self._read(slot.prefix, start, limit, most_bytes)
            # All in memory is past the bound: what is stored is among the rows, or comes later.
            keys = [key for key in slot.keys if not self._drop_stored(key)]
            leased, held, withheld, ended = self._out
            size = 0
            for key, value in rows:
                size += len(value)
                is_out = key in leased or key in held or key in withheld or key in ended
                if not is_out and key not in entries:  # as it is after a write that failed
                    keys.append(key)
                    values[key] = value
                    self.size += len(value)
            heapify(keys)
            is_cut = len(rows) == limit or size >= most_bytes
            slot.bound = rows[-1][0] + b"\0" if is_cut else None
            self._replace(slot, keys)

    def _drop_stored(self, key: bytes) -> bool:
        """Drop a request, unless it is in memory only; whether that was done."""
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
        slot.first = heappop(keys) if keys else None
        slot.rest = keys or None
        (self._warm.discard if slot.first is None else self._warm.add)(slot)

    def _shrink(self, wanted: Slot | None = None) -> None:
        """Drop far ends of the longer queues, but never what is *wanted* first, now.

        A quarter of what fits goes, or :data:`_DROP` requests if that is less.  If too many bytes
        are left then, as far ends are smaller than others, it goes on to half of that, and so on.
        """
        fitting = self._cap
        if self.size > _MOST_BYTES:
            fitting = min(fitting, self.count * _MOST_BYTES // self.size)
        target = max(fitting * 3 // 4, fitting - _DROP)
        self._cut(target, wanted)
        target = min(target, self.count)
        while target and self.size > _MOST_BYTES:
            target //= 2
            self._cut(target, wanted)
        # If little could be dropped, do not try again at the next request.
        self._shrink_at = max(self._cap, self.count + min(-(-self._cap // 4), _DROP))
        self._shrink_at_bytes = max(_MOST_BYTES, self.size + _MOST_BYTES // 4)

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
        stay, far = _split(slot.keys, keep)
        for key in far:
            if not self._drop_end(slot, key):
                heappush(stay, key)
        self._replace(slot, stay)

    def _drop_end(self, slot: Slot, key: bytes) -> bool:
        """Drop a request that is not in its slot any more, if it is stored; whether it was."""
        is_dropped = self._drop_stored(key)
        if is_dropped and (slot.bound is None or key < slot.bound):
            slot.bound = key
        return is_dropped


def _split(keys: list[bytes], position: int) -> tuple[list[bytes], list[bytes]]:
    """About *position* of *keys* that come first, as a heap, with the first of all; and others."""
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
