"""A store that is written: one atomic batch takes it from one consistent state to the next."""

from __future__ import annotations

import struct
from contextlib import closing, suppress
from itertools import repeat
from pathlib import Path

from ...errors import StoreError
from .database import RowBatch, after
from .jobdir import Identity
from .records import Batch, encode_slot, noted_key
from .rows import BUDGET, Rows
from .seen import DIGESTS, KEYS
from .states import DELAYED, PENDING, STATES

#: Past every key of a family whose keys are a fingerprint, or begin with one.
_PAST_FINGERPRINTS = b"\xff" * 300
#: Past every key that begins with the id of a slot.
_PAST_SLOTS = b"\xff" * 9


class Store(Rows):
    """A store that is open to be written; what writes raises StoreError if it fails."""

    def __init__(self, path: Path, engine: str | None = None) -> None:
        super().__init__(path, engine)
        self.commit_number = 0
        self._first_noted: int | None = None

    def create(
        self, identity: Identity, place: Path | None = None, *, keys: bytes = DIGESTS
    ) -> None:
        """Make the store, where there is nothing, or in another *place*, and open it.

        :param keys: what those of seen rows are: see :mod:`.seen`.
        """
        database = self.database
        try:
            database.open(place or self.path, create=True)
            rows = RowBatch()
            meta = [(b"identity", identity.encode())]
            if keys:
                meta.append((b"note:" + KEYS.encode(), keys))
            rows.put("meta", meta)
            database.write(rows, wait=True)
            self.read_key_form()
        except BaseException:
            with suppress(StoreError):  # what came first is what the user must hear of
                database.close()
            raise

    def close(self) -> None:
        with closing(self.database) as database:
            if database.is_open:
                self.sync()

    def sync(self) -> None:
        self.database.sync()

    def write(self, batch: Batch, *, wait: bool = False) -> None:
        """Apply *batch*, wholly or not at all: see :meth:`Database.write`."""
        number = self.commit_number + 1
        if self._first_noted is None:
            self._first_noted = self.first_noted(self.commit_number) or number
        self.database.write(self._encode(batch, number, self._first_noted), wait=wait)
        self.commit_number = number

    def _encode(self, batch: Batch, number: int, first_noted: int) -> RowBatch:
        rows = RowBatch()
        rows.delete("seen", batch.forgotten)
        # In the order of keys: the place of each is then found near that of the last one.
        rows.put("seen", zip(sorted(batch.seen), repeat(batch.seen_value)))
        rows.put("seen", sorted(batch.seen_rows))
        for state in STATES:
            rows.delete(state.family, sorted(batch.removed[state]))
            rows.put(state.family, sorted(batch.stored[state]))
        removed = (PENDING, batch.removed_slots), (DELAYED, batch.removed_queues)
        for state, prefixes in removed:
            for prefix in prefixes:
                rows.delete_range(state.family, prefix, after(prefix) or _PAST_SLOTS)
        held = [
            (slot_id, encode_slot(count, name)) for slot_id, count, name in batch.slots if count
        ]
        rows.delete("slots", [slot_id for slot_id, count, _ in batch.slots if not count])
        rows.put("slots", held)
        rows.delete("started", batch.unclaimed)
        rows.put("started", [(key, run.to_bytes(4, "big")) for key, run in batch.started])
        if batch.clear_started:
            rows.delete_range("started", b"", _PAST_FINGERPRINTS)
        known = [(key, found.encode()) for key, found in batch.suspects if found is not None]
        rows.delete("suspects", [key for key, found in batch.suspects if found is None])
        rows.put("suspects", known)
        meta = [(b"note:" + name.encode(), note) for name, note in batch.notes.items()]
        meta += [
            (BUDGET + name.encode("utf-8", "surrogatepass"), count.to_bytes(8, "big"))
            for name, count in batch.budgets
        ]
        if batch.identity is not None:
            meta.append((b"identity", batch.identity))
        meta += (
            (b"counters", batch.counters.encode()),
            (b"commit", number.to_bytes(8, "big")),
            (noted_key(number), struct.pack(">QQ", number, first_noted)),
        )
        rows.put("meta", meta)
        return rows

    def remove_orphans(self, next_slot: int) -> None:
        """Delete rows of slots that no commit ever named: a re-encoding was cut short."""
        first = next_slot.to_bytes(8, "big")
        for state in (PENDING, DELAYED):
            if next(self.database.iterate(state.family, start=first), None) is not None:
                rows = RowBatch()
                rows.delete_range(state.family, first, _PAST_SLOTS)
                self.database.write(rows, wait=True)
