"""Who is next: priorities, LIFO and FIFO in one sortable key, and the choice between slots.

The order is that of Scrapy's own ``ScrapyPriorityQueue`` and ``DownloaderAwarePriorityQueue``
(scrapy/pqueues.py): inside a slot the highest priority first, then other requests before start
requests, then LIFO or FIFO; between slots the one with the fewest downloads in flight, ties
round-robin by name.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, islice
from typing import Literal

from sortedcontainers import SortedList

from ..contract import Gate

Direction = Literal["lifo", "fifo"]
Policy = Literal["slots", "one"]

_SEQUENCE_MAX = (1 << 64) - 1
_NORMAL, _START = 0, 1
#: Longest priority, in bytes, whose length fits the first byte of its encoding.
_SHORT = 0x7E

#: How many names to look ahead in the round: a search for each would take longer than all else.
_AHEAD = 32
#: How many idle names to keep in the round, beside one for four others: more would cost memory, of
#: which a slot that has requests pending may take 300 bytes, and time to pass them; to make the
#: round anew for fewer cost a tenth of a pop with a hundred thousand slots.
_MOST_IDLE = 32


@dataclass(frozen=True, slots=True)
class Order:
    """The order a crawl wants.

    :ivar policy: ``slots``: between download slots, the least busy one; ``one``: one queue.
    :ivar normal: direction among requests of equal priority.
    :ivar start: the same for start requests, or ``None`` if they are as all others.
    """

    policy: Policy = "slots"
    normal: Direction = "lifo"
    start: Direction | None = "fifo"

    def slot_of(self, name: str) -> str:
        """The name of the queue that requests of download slot *name* wait in."""
        return name if self.policy == "slots" else ""

    def encode(self, priority: int, start: bool, sequence: int) -> bytes:
        """The key under which a request waits in its slot; smaller is sooner."""
        prefix, inverted = _level(self.normal, self.start, priority, start)
        return prefix + (_SEQUENCE_MAX - sequence if inverted else sequence).to_bytes(8, "big")

    def decode(self, key: bytes) -> tuple[int, bool, int]:
        """Priority, whether in the start requests' own queue, and sequence of a key."""
        queue = key[-9]
        sequence = int.from_bytes(key[-8:], "big")
        direction = self.start if queue == _START else self.normal
        if direction == "lifo":
            sequence = _SEQUENCE_MAX - sequence
        return -decode_int(key[:-9]), queue == _START, sequence

    def __str__(self) -> str:
        return f"{self.policy}/{self.normal}/{self.start or 'none'}"

    @classmethod
    def parse(cls, text: str) -> Order:
        """The inverse of ``str(order)``."""
        policy, normal, start = text.split("/")
        return cls(policy, normal, None if start == "none" else start)  # type: ignore[arg-type]


DEFAULT_ORDER = Order()


@lru_cache(maxsize=4096)
def _level(
    normal: Direction, start: Direction | None, priority: int, is_start: bool
) -> tuple[bytes, bool]:
    """The beginning of the keys of a priority in a queue, and whether its sequence is inverted."""
    own = is_start and start is not None
    direction = start if own else normal
    return encode_int(-priority) + bytes((_START if own else _NORMAL,)), direction == "lifo"


def encode_int(number: int) -> bytes:
    """Any int as bytes that compare as the ints do, none of them a prefix of another's."""
    if number < 0:
        return bytes(255 - byte for byte in encode_int(-1 - number))
    length = (number.bit_length() + 7) // 8
    body = number.to_bytes(length, "big")
    if length < _SHORT:
        return bytes((0x80 + length,)) + body
    return b"\xff" + length.to_bytes(8, "big") + body


def decode_int(data: bytes) -> int:
    """The inverse of :func:`encode_int`."""
    if data[0] < 0x80:
        return -1 - decode_int(bytes(255 - byte for byte in data))
    return int.from_bytes(data[9:] if data[0] == 0xFF else data[1:], "big")


class Slot:
    """The requests of one download slot.

    :ivar prefix: its id, 8 bytes; the beginning of its requests' keys.
    :ivar first: key (prefix and order key) of the first of those in memory; ``None``: none is.
    :ivar rest: keys of the others in memory, a :mod:`heapq`; ``None``: there are none.
    :ivar bound: everything stored below this key is in memory or leased, everything from it on is
        only in the store; empty: everything is; ``None``: nothing is only in the store.
    :ivar count: requests pending, in memory or not.
    :ivar leased: requests leased.
    :ivar stored: requests in the store, as of the last commit: pending or leased ones.
    :ivar removed: requests that were deleted from the store under this id.
    """

    __slots__ = (
        "bound",
        "count",
        "first",
        "leased",
        "name",
        "prefix",
        "removed",
        "rest",
        "stored",
    )

    def __init__(self, slot_id: int, name: str) -> None:
        self.name = name
        self.prefix = slot_id.to_bytes(8, "big")
        # Many slots have one request: a list for its key would be one object more to keep, to look
        # into in each garbage collection, and to fetch from afar when it is the slot's turn.
        self.first: bytes | None = None
        self.rest: list[bytes] | None = None
        self.bound: bytes | None = None
        self.count = 0
        self.leased = 0
        self.stored = 0
        self.removed = 0

    @property
    def in_memory(self) -> int:
        """How many of the requests are in memory."""
        return (self.first is not None) + len(self.rest or ())

    @property
    def keys(self) -> list[bytes]:
        """Keys of the requests in memory, that of the first one first."""
        return [] if self.first is None else [self.first, *(self.rest or ())]


class Slots:
    """All slots that have something pending, leased or stored, and whose turn it is."""

    def __init__(self) -> None:
        self._by_name: dict[str, Slot] = {}
        #: Names of slots in the order of their turns, those of idle ones among them.
        self._round: SortedList[str] = SortedList()
        #: Names in the round of which nothing is pending any more: to take out each would cost
        #: more than to pass it, and many are soon back.
        self._idle: set[str] = set()
        #: Slots that something is pending of.
        self._pending = 0
        self._last: str | None = None
        #: Names that come next in the round, for most turns to need no search; those that are no
        #: longer pending are among them.
        self._next: deque[str] = deque()
        self.next_id = 1

    def __len__(self) -> int:
        return len(self._by_name)

    def __iter__(self) -> Iterator[Slot]:
        return iter(self._by_name.values())

    def get(self, name: str) -> Slot:
        """The slot of that name, made if it is not there."""
        slot = self._by_name.get(name)
        if slot is None:
            slot = Slot(self.next_id, name)
            self.next_id += 1
            self._by_name[name] = slot
        return slot

    def load(self, slot: Slot) -> None:
        """Load a stored slot."""
        self._by_name[slot.name] = slot
        if slot.count:
            self._join(slot)

    def increase(self, slot: Slot) -> None:
        """One more request of *slot* is pending."""
        slot.count += 1
        if slot.count == 1:
            self._join(slot)

    def decrease(self, slot: Slot, by: int = 1) -> None:
        """*by* requests of *slot* are no longer pending."""
        slot.count -= by
        if not slot.count:
            self._pending -= 1
            idle = self._idle
            idle.add(slot.name)
            if len(idle) > _MOST_IDLE + len(self._round) // 5:
                self._round = SortedList(name for name in self._round if name not in idle)
                idle.clear()

    def drop_if_empty(self, slot: Slot) -> bool:
        """Forget *slot* if nothing of it is pending, leased or stored; whether it was."""
        if slot.count or slot.leased or slot.stored:
            return False
        self._by_name.pop(slot.name, None)
        return True

    def choose(self, gate: Gate) -> Slot | None:
        """The slot whose turn it is; ``None`` if nothing is pending.

        Walks names from the last one taken, past busy and idle ones: O(log slots + busy slots),
        and once in a round what is idle in one place, at most a fifth of all.
        """
        if not self._pending:
            return None
        slot = self._peek()
        if self._pending == 1 or not gate.active(slot.name):
            return slot
        best: str | None = None
        fewest = 0
        for name in self._rotation():
            active = gate.active(name)
            if not active:
                return self._by_name[name]
            if best is None or active < fewest:
                best, fewest = name, active
        assert best is not None
        return self._by_name[best]

    def take(self, slot: Slot) -> None:
        """A request of *slot* was leased: the next slot in the round has its turn."""
        self._last = slot.name
        following = self._next
        if following and following[0] == slot.name:
            following.popleft()
        else:
            following.clear()

    def _peek(self) -> Slot:
        """The slot that comes next in the round; something must be pending."""
        following = self._next
        if not following and len(self._round) == 1:
            return self._by_name[self._round[0]]
        while True:
            if not following:
                following.extend(islice(self._rotation(), _AHEAD))
            slot = self._by_name.get(following[0])
            if slot is not None and slot.count:
                return slot
            following.popleft()

    def _join(self, slot: Slot) -> None:
        """Something of *slot* is pending, and nothing was before."""
        name = slot.name
        self._pending += 1
        if name in self._idle:
            self._idle.remove(name)
        else:
            self._round.add(name)
        if self._next and self._comes_before(name, self._next[-1]):
            self._next.clear()

    def _comes_before(self, name: str, other: str) -> bool:
        """Whether the turn of *name* comes before that of *other*."""
        last = self._last
        if last is None:
            return name < other
        return (name <= last, name) < (other <= last, other)

    def _rotation(self) -> Iterator[str]:
        """Names of slots that something is pending of, from the one whose turn it is."""
        last, idle = self._last, self._idle
        if last is None:
            names: Iterator[str] = iter(self._round)
        else:
            names = chain(
                self._round.irange(minimum=last, inclusive=(False, True)),
                self._round.irange(maximum=last),
            )
        return (name for name in names if name not in idle)
