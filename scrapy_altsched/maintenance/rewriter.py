"""Writing many requests into a store that is in use, all of them or none.

Rows are written in chunks under the ids of new slots.  Until the batch that names these slots, no
reader knows the rows; if that batch never comes, the next rewriter deletes them.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from ..frontier.store.records import Batch, Counters
from ..frontier.store.states import PENDING
from ..frontier.store.store import Store

#: Rows of one kind that are written at once.
CHUNK = 5_000
#: What a chunk may hold beside requests: lists of a batch.
_OTHER_ROWS = ("seen", "started", "forgotten", "suspects")


class Chunk:
    """Rows on their way into *store*, some thousands at once.

    :param counters: what each chunk says of the store.
    :ivar rows: what the next chunk writes.
    """

    def __init__(self, store: Store, counters: Counters) -> None:
        self._store = store
        self.rows = Batch(counters)

    def flush_if_full(self) -> bool:
        """Write a chunk if there are enough rows for one; whether that was done.

        :raises StoreError: the write failed.
        """
        is_full = max(map(len, self._lists())) >= CHUNK
        if is_full:
            self.flush()
        return is_full

    def flush(self) -> None:
        """Write all rows added until now; what is asked of the store then includes them.

        :raises StoreError: the write failed.
        """
        if any(self._lists()):
            self._store.write(self.rows, wait=True)
            self.rows = Batch(self.rows.counters)

    def _lists(self) -> list[list[Any]]:
        rows = self.rows
        return [*rows.stored.values(), *(getattr(rows, name) for name in _OTHER_ROWS)]


class Rewriter(Chunk):
    """Requests on their way into *store*, and the one batch that makes them all true.

    It deletes what an attempt that was cut short has left in the store.

    :param extends: whether requests join the slots that are there, instead of new slots of the same
        names.  Readers would know their rows at once: all of them go into the final batch.
    :ivar rows: only what is harmless without the final batch may be added to it.
    :ivar final: the batch that makes it all true.  Its counters are those of the store to begin
        with, and may be changed, but for ``next_slot``.
    :raises StoreError: a read or write failed.
    """

    def __init__(self, store: Store, *, extends: bool = False) -> None:
        # Counters of its own, which say nothing new until the end.
        super().__init__(store, store.counters())
        self._extends = extends
        self.final = Batch(store.counters())
        store.remove_orphans(self.final.counters.next_slot)
        #: Name -> id of each slot that requests are added to.
        self._ids: dict[str, int] = {}
        #: Name -> number of requests there, before and now.
        self._held: Counter[str] = Counter()
        if extends:
            for slot_id, count, name in store.slots():
                self._ids[name] = slot_id
                self._held[name] = count
        self._changed: set[str] = set()

    def key(self, name: str, order_key: bytes) -> bytes:
        """The key of a request in slot *name*, as stored: the slot's id and *order_key*."""
        slot_id = self._ids.get(name)
        if slot_id is None:
            counters = self.final.counters
            slot_id = self._ids[name] = counters.next_slot
            counters.next_slot += 1
        return slot_id.to_bytes(8, "big") + order_key

    def add(self, name: str, order_key: bytes, value: bytes) -> None:
        """Make a request pending in slot *name*.

        :param value: as :func:`~scrapy_altsched.frontier.store.states.encode_value` makes it.
        """
        self.rows.stored[PENDING].append((self.key(name, order_key), value))
        self._held[name] += 1
        self._changed.add(name)

    def flush(self) -> None:
        """See :meth:`Chunk.flush`."""
        assert not self._extends, "readers would know these rows"
        super().flush()

    def replace_queue(self) -> None:
        """Make the final batch remove all slots that the store has now, with their requests.

        :raises StoreError: the slots cannot be read.
        """
        assert not self._extends, "requests were added to these slots"
        for slot_id, _, _ in self._store.slots():
            prefix = slot_id.to_bytes(8, "big")
            self.final.removed_slots.append(prefix)
            self.final.slots.append((prefix, 0, ""))

    def finish(self) -> None:
        """Write the final batch, and with it the rows that are in no chunk.

        :raises StoreError: it was not written: the store is as it was.
        """
        for state, rows in self.rows.stored.items():
            self.final.stored[state] += rows
        for name in _OTHER_ROWS:
            getattr(self.final, name).extend(getattr(self.rows, name))
        for name in self._changed:
            slot_id = self._ids[name].to_bytes(8, "big")
            self.final.slots.append((slot_id, self._held[name], name))
        self._store.write(self.final, wait=True)
