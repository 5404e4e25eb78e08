"""A store that is written: one atomic batch takes it from one consistent state to the next."""

from __future__ import annotations

import struct
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import StoreError
from .database import after
from .jobdir import Identity
from .records import Batch, encode_slot, noted_key
from .rows import Rows
from .states import PENDING, STATES

if TYPE_CHECKING:
    from rocksdict import WriteBatch

#: Past every key of a family whose keys are a fingerprint, or begin with one.
_PAST_FINGERPRINTS = b"\xff" * 300
#: Past every key that begins with the id of a slot.
_PAST_SLOTS = b"\xff" * 9


class Store(Rows):
    """A store that is open to be written; what writes raises StoreError if it fails."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.commit_number = 0
        self._first_noted: int | None = None

    def create(self, identity: Identity, place: Path | None = None) -> None:
        """Make the store, where there is nothing, or in another *place*, and open it."""
        database = self.database
        try:
            database.open(place or self.path, create=True)
            rows = database.new_batch()
            rows.put(b"identity", identity.encode(), database.handles["meta"])
            database.write(rows, wait=True)
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

    def _encode(self, batch: Batch, number: int, first_noted: int) -> WriteBatch:
        rows = self.database.new_batch()
        put: Callable[..., None] = rows.put
        delete: Callable[..., None] = rows.delete
        handles = self.database.handles
        handle = handles["seen"]
        seen_value = batch.seen_value
        for fingerprint in batch.forgotten:
            delete(fingerprint, handle)
        # In the order of keys: RocksDB then finds the place of each beside that of the last one.
        for fingerprint in sorted(batch.seen):
            put(fingerprint, seen_value, handle)
        for state in STATES:
            handle = handles[state.family]
            for key in sorted(batch.removed[state]):
                delete(key, handle)
            for key, value in sorted(batch.stored[state]):
                put(key, value, handle)
        handle = handles[PENDING.family]
        for prefix in batch.removed_slots:
            rows.delete_range(prefix, after(prefix) or _PAST_SLOTS, handle)
        handle = handles["slots"]
        for slot_id, count, name in batch.slots:
            if count:
                put(slot_id, encode_slot(count, name), handle)
            else:
                delete(slot_id, handle)
        handle = handles["started"]
        for key in batch.unclaimed:
            delete(key, handle)
        for key, run in batch.started:
            put(key, run.to_bytes(4, "big"), handle)
        if batch.clear_started:
            rows.delete_range(b"", _PAST_FINGERPRINTS, handle)
        handle = handles["suspects"]
        for fingerprint, suspicion in batch.suspects:
            if suspicion is None:
                delete(fingerprint, handle)
            else:
                put(fingerprint, suspicion.encode(), handle)
        handle = handles["meta"]
        if batch.identity is not None:
            put(b"identity", batch.identity, handle)
        for name, note in batch.notes.items():
            put(b"note:" + name.encode(), note, handle)
        put(b"counters", batch.counters.encode(), handle)
        put(b"commit", number.to_bytes(8, "big"), handle)
        put(noted_key(number), struct.pack(">QQ", number, first_noted), handle)
        return rows

    def remove_orphans(self, next_slot: int) -> None:
        """Delete rows of slots that no commit ever named: a re-encoding was cut short."""
        first = next_slot.to_bytes(8, "big")
        if next(self.database.iterate("pending", start=first), None) is not None:
            rows = self.database.new_batch()
            rows.delete_range(first, _PAST_SLOTS, self.database.handles["pending"])
            self.database.write(rows, wait=True)
