"""Requests that wait for their time.

They are a queue of their own, in the order of the times at which they are due, of which the first
ones are in memory: see :mod:`..queue.window`.  To become due is to be added at that moment: under
its old sequence number, LIFO would bury a request, and FIFO would put it before all that came
meanwhile.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator
from functools import partial

from ..clock import Clock
from ..entry import Delay, Entry
from ..job_time import JobTime
from ..queue.slots import Slot
from ..queue.window import Window
from ..store.database import Row
from ..store.states import (
    DELAYED,
    decode_delayed,
    decode_delayed_key,
    encode_delayed,
    encode_delayed_key,
)
from .persistence import NoPersistence, Persistence

#: Most requests that become due in one call: a million may be due in the same second.
_AT_ONCE = 100
#: One request in memory for so many pending ones: these are not leased next.
_SHARE = 10
_NONE: frozenset[bytes] = frozenset()


class DelayedQueue:
    """The delayed requests of a frontier; their number is with the other counters.

    :ivar time: of the job; *window*: the part of them that is in memory.
    """

    def __init__(self, kept: Persistence | NoPersistence, clock: Clock) -> None:
        self._live = live = kept.live
        self._clock = clock
        self.time = JobTime(clock, live.time)
        self.window = Window(
            partial(kept.read, DELAYED),
            max(1, kept.memory_requests // _SHARE),
            unwritten=kept.unwritten,
            # What has become due is before all that waits, and so before all that is read again.
            out=(kept.ended, _NONE, _NONE, _NONE),
            encode=encode_delayed,
            decode=decode_delayed,
            most_live=0,  # they are not taken soon
        )
        prefix = live.delayed_queue.to_bytes(8, "big")
        self._queue = Slot(prefix, "", bound=b"" if live.delayed else None)

    def due_at(self, delay: Delay) -> int | None:
        """When a request is due, in milliseconds since the epoch; ``None``: at once."""
        now = self.time.now()
        due = max(now + delay.seconds, delay.until)
        return math.ceil(due * 1000) if due > now else None

    def key(self, due: int, sequence: int) -> bytes:
        return encode_delayed_key(self._queue.prefix, due, sequence)

    def push(self, key: bytes, entry: Entry) -> None:
        """Have a request wait; that it is not stored yet must be known by now."""
        self.window.push(self._queue, key, entry)
        self._live.delayed += 1

    def remove(self, keys: Collection[bytes]) -> None:
        """Take requests out, of which each is there."""
        self.window.remove(self._queue, keys)
        self._live.delayed -= len(keys)

    def first_key(self) -> bytes | None:
        """The key of the first one, if there are any; StoreError: it cannot be read."""
        return self.window.peek(self._queue) if self._live.delayed else None

    def take_due(self) -> Iterator[tuple[bytes, Entry]]:
        """Take out some of those that are due, in their order: key and request of each.

        :raises StoreError: the next one cannot be read; it stays where it is.
        """
        queue, window = self._queue, self.window
        # Only when there are some does it matter what time it is.
        for _ in range(_AT_ONCE):
            first = self.first()
            if first is None or first > self.time.now() * 1000:
                return
            popped = window.pop(queue)
            assert popped is not None
            self._live.delayed -= 1
            yield popped

    def first(self) -> int | None:
        """When the first one is due, in milliseconds since the epoch, if there are any.

        :raises StoreError: it cannot be read.
        """
        if not self._live.delayed:
            return None
        key = self.window.peek(self._queue)
        if key is None:
            # The store holds fewer of them than it says: the rest is unaccounted for.
            self._live.delayed = 0
            return None
        return decode_delayed_key(key)[0]

    def first_at(self) -> float | None:
        """The same, as the clock's monotonic seconds."""
        first = self.first()
        if first is None:
            return None
        return self._clock.monotonic() + max(0.0, first / 1000 - self.time.now())

    def walk(self) -> Iterator[tuple[float, Entry]]:
        """When each request is due, in seconds since the epoch, in that order; none is taken."""
        for key, entry in self.window.walk(self._queue):
            yield decode_delayed_key(key)[0] / 1000, entry

    def note_commit(self, written: Iterable[Row]) -> None:
        self.window.note_commit(written)
