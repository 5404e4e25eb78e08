"""Slots, and which of them has its turn.

The choice is that of Scrapy's own ``DownloaderAwarePriorityQueue`` (scrapy/pqueues.py): the slot
with the fewest downloads in flight, ties round-robin by name.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from time import monotonic
from typing import TypeVar

from sortedcontainers import SortedList

from ..contract import Gate
from .busiest import Busiest
from .parked import EVERY_SLOT, Parked

_Item = TypeVar("_Item")
#: How many names to look ahead in the round: a search for each would take longer than all else.
_AHEAD = 32
#: How many idle names to keep in the round, besides one for four others: more would cost memory,
#: and time to pass them; fewer, a tenth of a pop with a hundred thousand slots.
_MOST_IDLE = 32


@dataclass(slots=True, eq=False)
class Slot:
    """The requests of one download slot; each of these fields is written in one place.

    :ivar prefix: its id, 8 bytes; the beginning of its requests' keys.
    :ivar count: requests pending, in memory or not.  This and *leased*: by :class:`Slots`.
    :ivar first: key (prefix and order key) of the first of those in memory; ``None``: none is.
    :ivar rest: keys of the others in memory, a :mod:`heapq`; ``None``: there are none.
    :ivar bound: everything stored below this key is in memory or leased, everything from it on is
        only in the store; ``None``: nothing is.  These three: by :class:`~.window.Window`.
    :ivar stored: requests in the store, as of the last commit: pending or leased ones.
    :ivar removed: requests that were deleted from the store under this id.  These two: by commits.
    """

    prefix: bytes
    name: str
    # Many slots have one request: a list for its key would be one object more to keep, to look
    # into in each garbage collection, and to fetch from afar when it is the slot's turn.
    first: bytes | None = None
    rest: list[bytes] | None = None
    bound: bytes | None = None
    count: int = 0
    leased: int = 0
    stored: int = 0
    removed: int = 0

    @property
    def in_memory(self) -> int:
        return (self.first is not None) + len(self.rest or ())

    @property
    def keys(self) -> list[bytes]:
        """Keys of the requests in memory, that of the first one first."""
        return [] if self.first is None else [self.first, *(self.rest or ())]


class Slots:
    """All slots that have something pending, leased or stored, and whose turn it is.

    :ivar parked: names of those that may not be asked now, with or without anything pending.
    :ivar busiest: which of them have the most pending.
    """

    def __init__(self, next_id: int = 1, now: Callable[[], float] = monotonic) -> None:
        #: Slots that are out of the round for some time, with or without anything pending.
        self._parked = parked = Parked()
        # Names of this object are found faster.
        self.parked, self._trials = parked.until, parked.trials
        self._by_name: dict[str, Slot] = {}
        self.busiest = Busiest(self._by_name.values, now)
        #: Names of slots in the order of their turns, those of idle ones among them.
        self._round: SortedList[str] = SortedList()
        #: Names in the round of which nothing is pending any more, or that are parked: to take out
        #: each would cost more than to pass it, and many are soon back.
        self._idle: set[str] = set()
        #: Slots in the round that something is pending of.
        self._pending = 0
        self._last: str | None = None
        #: Names that come next in the round, for most turns to need no search; those that are no
        #: longer pending are among them.
        self._next: deque[str] = deque()
        self.next_id = next_id

    def get(self, name: str) -> Slot:
        slot = self._by_name.get(name)
        if slot is None:
            slot = self._by_name[name] = Slot(self.next_id.to_bytes(8, "big"), name)
            self.next_id += 1
        return slot

    def load(self, slot: Slot, count: int) -> None:
        self._by_name[slot.name] = slot
        slot.count = count
        if count and slot.name not in self.parked:
            self._join(slot)

    def increase(self, slot: Slot) -> None:
        slot.count += 1
        if slot.count == 1 and slot.name not in self.parked:
            self._join(slot)

    def decrease(self, slot: Slot, by: int = 1) -> None:
        slot.count -= by
        if not slot.count and slot.name not in self.parked:
            self._leave(slot)

    def park(self, name: str, until: float, *, trial: bool = False) -> None:
        """Choose nothing from a slot before a time: see :meth:`.parked.Parked.park`."""
        slot = self._by_name.get(name)
        if slot is not None and slot.count and name not in self.parked:
            self._leave(slot)
        self._parked.park(name, until, trial=trial)

    def unpark(self, name: str) -> None:
        """Let a slot be asked again that may be parked."""
        if self._parked.forget(name):
            self._come_back(name)

    def by_prefix(self) -> dict[bytes, Slot]:
        """All slots that are known, by their ids."""
        return {slot.prefix: slot for slot in self._by_name.values()}

    def let_in(self, now: float, more: Callable[[str], float] = lambda _: 0.0) -> None:
        """Bring back those whose time has come; O(log n) for each of them.

        :param more: for how many more seconds one is to wait.
        """
        for name in self._parked.take_due(now):
            seconds = more(name)
            if seconds > 0:
                self._parked.park(name, now + seconds)
            else:
                self._come_back(name)

    @property
    def next_at(self) -> float | None:
        """When the next parked slot may be asked again, if one is parked until a time."""
        return self._parked.first()

    def _leave(self, slot: Slot) -> None:
        self._pending -= 1
        idle = self._idle
        idle.add(slot.name)
        if len(idle) > _MOST_IDLE + len(self._round) // 5:
            self._round = SortedList(name for name in self._round if name not in idle)
            idle.clear()

    def _come_back(self, name: str) -> None:
        slot = self._by_name.get(name)
        if slot is not None and slot.count:
            self._join(slot)

    def drop_if_empty(self, slot: Slot) -> bool:
        """Forget *slot* if nothing of it is pending, leased or stored; whether that was so."""
        # Another one may have its name by now: the last rows of a forgotten one go later.
        if slot.count or slot.leased or slot.stored or self._by_name.get(slot.name) is not slot:
            return False
        del self._by_name[slot.name]
        return True

    def choose(self, gate: Gate) -> Slot | None:
        """The slot whose turn it is, if anything is pending.

        O(log slots + busy slots), and once in a round what is idle in one place, at most a fifth.
        """
        if not self._pending:
            return None
        slot = self._peek()
        if self._pending == 1 or not (fewest := gate.active(slot.name)):
            return slot
        best = slot.name
        for name in self._rotation():
            active = gate.active(name)
            if not active:
                return self._by_name[name]
            if active < fewest:
                best, fewest = name, active
        return self._by_name[best]

    def in_order(self, name: str | None = None) -> Iterator[Slot]:
        """Slots that something is pending of, in the order of their turns, and then parked ones.

        :param name: only the one with this name, if it is one of them.
        """
        names = chain(self._rotation(), list(self.parked)) if name is None else (name,)
        for each in names:
            slot = self._by_name.get(each)
            if slot is not None and slot.count:
                yield slot

    def lease(self, slot: Slot) -> None:
        self.decrease(slot)
        slot.leased += 1
        if self._trials:
            self._begin_trials(slot)
        self._last = slot.name
        following = self._next
        if following and following[0] == slot.name:
            following.popleft()
        else:
            following.clear()

    def end_lease(self, slot: Slot) -> None:
        slot.leased -= 1
        if self._trials:
            for name in (slot.name, EVERY_SLOT):
                if self._parked.end_trial(name):
                    self._come_back(name)

    def _begin_trials(self, slot: Slot) -> None:
        for name in (slot.name, EVERY_SLOT):
            if name in self._trials:
                self._parked.begin_trial(name)
                if name == slot.name and slot.count:
                    self._leave(slot)

    def _peek(self) -> Slot:
        """The slot that comes next in the round; something must be pending."""
        following = self._next
        if not following and len(self._round) == 1:
            return self._by_name[self._round[0]]
        while True:
            if not following:
                following.extend(islice(self._rotation(), _AHEAD))
            slot = self._by_name.get(following[0])
            if slot is not None and slot.count and slot.name not in self.parked:
                return slot
            following.popleft()

    def _join(self, slot: Slot) -> None:
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


def take_turns(queues: Iterable[Iterator[_Item]]) -> Iterator[_Item]:
    """One of each in turns, until all are at their ends."""
    rest: deque[Iterator[_Item]] = deque()
    for queue in queues:
        for item in queue:
            yield item
            rest.append(queue)
            break
    while rest:
        queue = rest.popleft()
        for item in queue:
            yield item
            rest.append(queue)
            break
