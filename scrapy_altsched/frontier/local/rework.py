"""What an operator changes in the queues of an open frontier, some requests at a time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Set
from contextlib import suppress
from itertools import islice
from typing import TypeAlias

from ...errors import CodecError
from ..contract import IsMeant, Locate
from ..entry import DeadLetter, Entry, PageFailure
from ..queue.slots import Slot
from ..queue.window import Window
from ..store.states import (
    DELAYED,
    FAILED,
    PENDING,
    State,
    decode_delayed,
    decode_failed_key,
    decode_value,
    fingerprint_of,
    mark_again,
)
from ..suspects import Suspects
from .persistence import NoPersistence, Persistence
from .queues import Queues

#: Requests that are looked at in one go: some 20 ms, with their commit; and if that is all, 5 ms.
PORTION, _READ_PORTION = 300, 3_000
#: How many requests of a slot may be in memory meanwhile: to take a portion out, all are looked at.
_IN_MEMORY = 10_000
#: Requests with their keys.
_Portion: TypeAlias = Iterable[tuple[bytes, Entry]]


class Rework:
    """Drops requests of a frontier, or makes them pending again."""

    def __init__(
        self, kept: Persistence | NoPersistence, queues: Queues, suspects: Suspects
    ) -> None:
        self._kept, self._live, self._suspects = kept, kept.live, suspects
        self._queues, self._delayed = queues, queues.delayed
        self._by_prefix: dict[bytes, Slot] = {}

    def discard(self, is_meant: IsMeant, locate: Locate | None = None) -> Iterator[int]:
        """Drop pending and delayed ones that are meant: how many went with each portion.

        What is accepted between portions may be passed over, and so are requests that live in
        memory only: the pages that have led to them wait for their end.

        :raises StoreError: what comes next cannot be read; all before it is as it was said.
        """
        for window in self._queues.window, self._delayed.window:
            while window.cut(_IN_MEMORY):
                yield 0
        for some in self._walk_pending(PORTION):
            yield self._discard_pending(_stored_ones(some), is_meant, locate)
        for some in self._walk_delayed(PORTION):
            yield self._discard_delayed(_stored_ones(some), is_meant)

    def find(self, wanted: Set[bytes]) -> Iterator[set[bytes]]:
        """Which fingerprints are those of pending or delayed requests, in portions, as above."""
        # A request that becomes due meanwhile was among the delayed ones.
        delayed, first = self._delayed, self._delayed.first_key
        yield from self._find(wanted, delayed.window, DELAYED, first)
        yield from self._find(wanted, self._queues.window, PENDING, lambda: b"")

    def _find(
        self, wanted: Set[bytes], window: Window, state: State, first: Callable[[], bytes | None]
    ) -> Iterator[set[bytes]]:
        for some in _unsaved(window, _READ_PORTION):
            yield {entry.fingerprint for _, entry in some} & wanted
        split = state.split
        for rows in self._stored(state, first, _READ_PORTION):
            # To decode them all takes twice as long.
            found = ((key, fingerprint_of(split(row)[1])) for key, row in rows)
            yield {it for key, it in found if it in wanted and not self._is_out(key)}

    def _walk_pending(self, size: int) -> Iterator[_Portion]:
        yield from _unsaved(self._queues.window, size)
        for rows in self._stored(PENDING, lambda: b"", size):
            yield ((key, decode_value(value)) for key, value in rows if not self._is_out(key))

    def _walk_delayed(self, size: int) -> Iterator[_Portion]:
        yield from _unsaved(self._delayed.window, size)
        # What has become due is before the first one that waits.
        for rows in self._stored(DELAYED, self._delayed.first_key, size):
            yield ((key, decode_delayed(row)) for key, row in rows if not self._is_out(key))

    def _stored(
        self, state: State, first: Callable[[], bytes | None], size: int
    ) -> Iterator[list[tuple[bytes, bytes]]]:
        """All rows of a state, read anew for each portion, from the *first* key that matters."""
        if not isinstance(self._kept, Persistence):
            return
        database, start = self._kept.journal.database, b""
        while (beginning := first()) is not None:
            # No iterator may be left open meanwhile: the store could not be opened again.
            portion = list(
                islice(database.iterate(state.family, start=max(start, beginning)), size)
            )
            if not portion:
                return
            yield portion
            start = portion[-1][0] + b"\0"

    def _is_out(self, key: bytes) -> bool:
        return key in self._kept.unwritten or any(key in keys for keys in self._queues.out)

    def _discard_pending(self, requests: _Portion, is_meant: IsMeant, locate: Locate | None) -> int:
        found: dict[Slot, dict[bytes, Entry]] = defaultdict(dict)
        queues = self._queues
        by_slot = queues.order.policy == "slots"
        for key, entry in requests:
            slot = self._slot_of(key)
            if slot is not None and is_meant(slot.name if by_slot else "", entry):
                found[slot][key] = entry
        for slot, entries in found.items():
            for key, entry in entries.items():
                self._note_discarded(key, slot, entry)
                self._give_back(slot if by_slot else None, entry, locate)
            queues.window.remove(slot, entries)
            queues.slots.decrease(slot, len(entries))
            queues.slots.drop_if_empty(slot)
        count = sum(map(len, found.values()))
        queues.pending -= count
        return count

    def _discard_delayed(self, requests: _Portion, is_meant: IsMeant) -> int:
        found = {key: entry for key, entry in requests if is_meant(entry.slot, entry)}
        for key, entry in found.items():
            self._note_discarded(key, None, entry)
            self._give_back(None, entry)
        self._delayed.remove(found)
        return len(found)

    def _note_discarded(self, key: bytes, slot: Slot | None, entry: Entry) -> None:
        self._kept.discard(key, slot, entry)
        if self._kept.ages is not None and entry.unique:
            # It comes back once it is old enough, as if it had been crawled now.
            self._kept.end_page(self._kept.seen_key_of(entry.fingerprint))
        if self._suspects.drop(entry.fingerprint):
            self._kept.clear(entry.fingerprint)
        self._live.accepted -= 1

    def _give_back(self, slot: Slot | None, entry: Entry, locate: Locate | None = None) -> None:
        """Let the budget of a download slot have room for another request.

        :param slot: it, if there is a queue for each.
        """
        budget = self._kept.budget
        if budget is None or not entry.unique:
            return
        if slot is not None:
            budget.give_back(slot.name)
        elif entry.slot:
            budget.give_back(entry.slot)
        elif locate is not None:
            # It is stored in one queue for all, and without its slot.
            with suppress(CodecError):
                budget.give_back(locate(entry.payload or b"")[0])

    def _slot_of(self, key: bytes) -> Slot | None:
        prefix = key[:8]
        if prefix not in self._by_prefix:
            self._by_prefix = self._queues.slots.by_prefix()
        return self._by_prefix.get(prefix)

    def requeue(self, state: State, old: bytes, locate: Locate) -> DeadLetter | PageFailure | None:
        """Make a request of another state pending: why it was in that.

        :param old: its key in that state, if it is still there.
        """
        assert isinstance(self._kept, Persistence)
        row = self._kept.journal.database.get(state.family, old)
        if row is None or old in self._kept.requeued:
            return None
        why: DeadLetter | PageFailure
        (why, value), pending_key = state.split(row), old
        if state is FAILED:
            # All its tries are to come again.
            value, pending_key = mark_again(value), decode_failed_key(old)[1]
        entry, queues, live = decode_value(value), self._queues, self._live
        priority, _, _ = queues.order.decode(pending_key[8:])
        name, is_start = locate(entry.payload or b"")
        slot, key = queues.new_place(name, priority, is_start=is_start)
        counter = state.counter or ""
        setattr(live, counter, getattr(live, counter) - 1)
        self._kept.requeue(state, old, key, slot, entry)
        queues.put(slot, key, entry)
        return why


def _unsaved(window: Window, size: int) -> Iterator[_Portion]:
    """Those that are not stored yet, or never will be."""
    keys = window.unwritten()
    # To find them in a full window takes as long as a portion.
    yield ()
    for at in range(0, len(keys), size):
        yield ((it, window.entry(it)) for it in keys[at : at + size] if window.has(it))


def _stored_ones(requests: _Portion) -> _Portion:
    """Those that do not live in memory only."""
    return (pair for pair in requests if pair[1].payload is not None)
