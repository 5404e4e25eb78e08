"""Requests of one process that wait: pending ones in queues, and delayed ones; whose turn it is."""

from __future__ import annotations

from collections.abc import Container, Iterator
from contextlib import suppress
from functools import partial
from random import uniform

from ...errors import StoreError
from ..contract import PacedGate
from ..entry import Entry, Lease
from ..options import Options
from ..queue.parked import EVERY_SLOT
from ..queue.slots import Slot, Slots, take_turns
from ..queue.window import Window
from ..store.states import DELAYED, PENDING, decode_value, encode_value
from ..suspects import Suspects
from .delayed import DelayedQueue
from .draft import Draft
from .persistence import NoPersistence, Persistence

#: How many times its delay a slot is parked for at the most.  The downloader draws the delay anew,
#: from half of it to one and a half: what comes too early waits there, in the place of others.  Of
#: 40 hosts of 30 s, 12 others and 16 requests at once, in a simulation: 1.0 leaves the others 24
#: pages a second and up to 16 s without one; 1.25 leaves them 45 to 55, and 0.7 s in the median of
#: 24 runs (3.8 s at worst), and the 40 have 6 % less.
_SPREAD = 1.25
#: With so many changes that wait for a commit, as while a disk is full, delayed requests stay where
#: they are as long as others are pending: each that becomes pending is one more, and in memory.
#: With fewer where a commit is due with fewer; the same holds for the next number.
_MANY_CHANGES = 2_500
#: With so many requests that are done while the store is busy, none is leased: all ends are in one
#: batch, in some 5 to 15 ms.
_MANY_DONE = 1_000
#: Seconds after which it is asked again whether they still are too many, if no slot may be asked.
_ASK_AGAIN = 1.0


class Queues:
    """The queues of a frontier.

    :param out: keys of those that may be stored as pending, and are in no queue.
    :ivar pending: how many requests are pending; of those that were taken, the frontier says so.
    :ivar parked: names of the slots that may not be asked now.
    """

    def __init__(
        self,
        kept: Persistence | NoPersistence,
        options: Options,
        out: tuple[Container[bytes], Container[bytes], Container[bytes], Container[bytes]],
        suspects: Suspects,
    ) -> None:
        self._suspects = suspects
        self._kept, self._live, self.order = kept, kept.live, options.order
        self._now = options.clock.monotonic
        self._is_polite = options.polite and options.order.policy == "slots"
        self.out, self.pending = out, 0
        self.window = Window(
            partial(kept.read, PENDING),
            kept.memory_requests,
            unwritten=kept.unwritten,
            out=out,
            encode=encode_value,
            decode=decode_value,
        )
        self.delayed = DelayedQueue(kept, options.clock)
        self.slots = Slots(kept.live.next_slot, self._now)
        self.parked = self.slots.parked
        for slot, count in kept.slots():
            self.slots.load(slot, count)
            self.pending += count

    def accept(self, entry: Entry) -> tuple[Slot | None, bytes]:
        """Count a request as accepted: its slot, unless it is delayed, and its key."""
        entry.encode()
        live, order = self._live, self.order
        sequence = live.next_sequence
        order_key = order.encode(entry.priority, entry.start, sequence)
        due = None if entry.delay is None else self.delayed.due_at(entry.delay)
        # Nothing fails from here on.
        live.next_sequence += 1
        live.accepted += 1
        if self._suspects.matters:
            self._suspects.note_add()
        if entry.payload is None:
            live.memory_only += 1
        if due is not None:
            return None, self.delayed.key(due, sequence)
        slot = self.slots.get(order.slot_of(entry.slot))
        return slot, slot.prefix + order_key

    def put(self, slot: Slot | None, key: bytes, entry: Entry) -> None:
        """Have a request wait for its turn; no *slot*: it is delayed."""
        if slot is None:
            self.delayed.push(key, entry)
            return
        self.slots.increase(slot)
        self.pending += 1
        self.window.push(slot, key, entry)

    def new_place(self, name: str, priority: int, *, is_start: bool) -> tuple[Slot, bytes]:
        """Slot and key of a request that is pending from now on, of a download slot."""
        slot = self.slots.get(self.order.slot_of(name))
        key = slot.prefix + self.order.encode(priority, is_start, self._live.next_sequence)
        self._live.next_sequence += 1
        return slot, key

    def take_due(self) -> None:
        """Make delayed requests pending whose time has come, or some of them if they are many."""
        if self._holds_due_back():
            return
        for old, entry in self.delayed.take_due():
            slot, key = self.new_place(entry.slot, entry.priority, is_start=entry.start)
            self._kept.move(old, key, slot, entry)
            self.put(slot, key, entry)

    def _holds_due_back(self) -> bool:
        pressure = self._kept.pressure
        return self.pending > 0 and pressure.changes >= min(_MANY_CHANGES, pressure.enough)

    def holds_all_back(self) -> bool:
        """Whether nothing is to be leased before more is committed."""
        pressure = self._kept.pressure
        many = min(_MANY_DONE, pressure.enough)
        return pressure.stalled_since is not None and pressure.done >= many

    def let_in(self, gate: PacedGate) -> None:
        """Let slots be asked again whose time has come, unless requests of theirs still wait."""
        if not self._is_polite:
            self.slots.let_in(self._now())
            return
        self.slots.let_in(self._now(), lambda name: gate.delay(name) if gate.waiting(name) else 0.0)

    def take_next(self, gate: PacedGate) -> Lease | None:
        """Take the next request out of its slot's queue; it counts as pending all the same."""
        if self.parked and EVERY_SLOT in self.parked:
            return None
        while (slot := self.slots.choose(gate)) is not None:
            popped = self.window.pop(slot)
            if popped is not None:
                self.slots.lease(slot)
                if self._is_polite and (delay := gate.delay(slot.name)) > 0:
                    self.slots.park(slot.name, self._now() + delay * uniform(1.0, _SPREAD))
                key, entry = popped
                return Lease(key, entry, slot)
            # The store holds fewer requests of the slot than it says: the rest is unaccounted for.
            self.pending -= slot.count
            self.slots.decrease(slot, slot.count)
        return None

    def defer(self, name: str | None, seconds: float) -> bool:
        """Leave a slot alone, or all of them; whether that can be done."""
        if name is None:
            name = EVERY_SLOT
        elif self.order.policy == "one":
            return False
        self.slots.park(name, self._now() + seconds, trial=True)
        return True

    def next_at(self) -> float | None:
        """When there may be something to lease, if that is known."""
        times = [self.slots.next_at]
        if self._live.delayed and self._holds_due_back():
            times.append(self._now() + _ASK_AGAIN)
        elif self._live.delayed:
            with suppress(StoreError):  # reading it is tried again, and told, by the next call
                times.append(self.delayed.first_at())
        return min((when for when in times if when is not None), default=None)

    def walk(self, name: str | None = None) -> Iterator[Entry]:
        """Pending requests in their order; *name*: only those of a slot."""
        turns = take_turns(self.window.walk(slot) for slot in self.slots.in_order(name))
        return (entry for _, entry in turns)

    def note_state(self) -> None:
        """Let the counters say what a commit has to store of the queues."""
        self._live.next_slot = self.slots.next_id
        self._live.time = self.delayed.time.now()

    def note_commit(self, written: Draft) -> None:
        for slot, count in written.stored.items():
            if not count:
                self.slots.drop_if_empty(slot)
        self.window.note_commit(written.batch.stored[PENDING])
        self.delayed.note_commit(written.batch.stored[DELAYED])
