"""Writing many requests into a store that is in use, all of them or none.

Rows are written in chunks under the ids of new slots.  Until the batch that names these slots, no
reader knows the rows; if that batch never comes, the next rewriter deletes them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from ..frontier.queue.order import Order
from ..frontier.store.records import Batch
from ..frontier.store.rows import Rows
from ..frontier.store.states import DELAYED, PENDING
from ..frontier.store.store import Store

#: Rows of one kind that are written at once.
CHUNK = 5_000


class Rewriter:
    """Requests on their way into *store*; every method raises StoreError.

    :ivar rows: what the next chunk writes: only what is harmless without the final batch.
    :ivar final: the batch that makes it all true.  Its counters are those of the store to begin
        with, and may be changed, but for ``next_slot``.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        # Counters of their own, of which those of chunks say nothing new.
        self.rows, self.final = Batch(store.counters()), Batch(store.counters())
        store.remove_orphans(self.final.counters.next_slot)
        # By the names of slots that requests are added to.
        self._ids: dict[str, int] = {}
        self._added: Counter[str] = Counter()

    def pending(self) -> Iterator[tuple[bytes, str, bytes]]:
        """Key, slot's name and value of each pending request that readers know."""
        names = {slot_id: name for slot_id, _, name in self._store.slots()}
        for key, value in self._store.pending():
            name = names.get(int.from_bytes(key[:8], "big"))
            if name is not None:
                yield key, name, value

    def key(self, name: str, order_key: bytes) -> bytes:
        """The key of a request in slot *name*, as stored: the slot's id and *order_key*."""
        if name not in self._ids:
            self._ids[name] = self.final.counters.next_slot
            self.final.counters.next_slot += 1
        return self._ids[name].to_bytes(8, "big") + order_key

    def add(self, name: str, order_key: bytes, value: bytes) -> None:
        """Make a request pending in slot *name*, whose stored form is *value*."""
        self.rows.stored[PENDING].append((self.key(name, order_key), value))
        self._added[name] += 1

    def flush_if_full(self) -> None:
        if max(map(len, _lists(self.rows))) >= CHUNK:
            self.flush()

    def flush(self) -> None:
        """Write all rows added until now; what is asked of the store then includes them."""
        if any(_lists(self.rows)):
            self._note_seen(self.rows)
            self._store.write(self.rows, wait=True)
            self.rows = Batch(self.rows.counters)

    def _note_seen(self, batch: Batch) -> None:
        """Leave it to the next run to count what was seen, if *batch* changes that."""
        if batch.seen or batch.seen_rows or batch.forgotten:
            self.rows.counters.seen = self.final.counters.seen = None

    def replace_queue(self, requests: Iterable[tuple[str, bytes, bytes]]) -> None:
        """Add *requests*, as for :meth:`add`; the final batch removes all slots there are now."""
        for request in requests:
            self.add(*request)
            self.flush_if_full()
        for slot_id, _, _ in self._store.slots():
            prefix = slot_id.to_bytes(8, "big")
            self.final.removed_slots.append(prefix)
            self.final.slots.append((prefix, 0, ""))

    def replace_delayed(self, requests: Iterable[tuple[bytes, bytes]]) -> None:
        """Have these be the delayed requests: keys without the id of their queue, and rows."""
        counters = self.final.counters
        self.final.removed_queues.append(counters.delayed_queue.to_bytes(8, "big"))
        counters.delayed_queue, counters.delayed = counters.next_slot, 0
        counters.next_slot += 1
        prefix = counters.delayed_queue.to_bytes(8, "big")
        for key, row in requests:
            self.rows.stored[DELAYED].append((prefix + key, row))
            counters.delayed += 1
            self.flush_if_full()

    def finish(self) -> None:
        """Write the final batch, and with it the rows that are in no chunk; or nothing."""
        for final, rest in zip(_lists(self.final), _lists(self.rows), strict=True):
            final += rest
        for name, count in self._added.items():
            self.final.slots.append((self._ids[name].to_bytes(8, "big"), count, name))
        self._note_seen(self.final)
        self._store.write(self.final, wait=True)


def _lists(batch: Batch) -> list[list[Any]]:
    """All that a chunk may hold."""
    seen = batch.seen, batch.seen_rows, batch.forgotten
    return [*batch.stored.values(), *seen, batch.started, batch.suspects]


def order_of(rows: Rows) -> Order | None:
    """The order that the pending requests are in; ``None``: there never were any."""
    stored = rows.note("order")
    return None if stored is None else Order.parse(stored.decode())
