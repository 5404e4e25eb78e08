"""The store's rows, as they are read.  The table of them is in docs/architecture.rst."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path

from ..entry import Counts, DeadLetter, PageFailure
from .database import Database
from .engines import database_at, engine_of
from .records import (
    FINISHED_IN,
    NOTED,
    SHARED_CLAIMS,
    Counters,
    Suspicion,
    decode_slot,
    encode_claim,
    noted_key,
)
from .seen import FINGERPRINTS, KEY_MAKERS, KEYS, digest_of_claim
from .states import DEAD, FAILED, PENDING, State

_NOTE = b"note:"
#: Before the name of a download slot, in ``meta``.
BUDGET = b"budget:"


def decode_budget(key: bytes, value: bytes) -> tuple[str, int]:
    """Name of a download slot, and how many requests of it were accepted."""
    return key[len(BUDGET) :].decode("utf-8", "surrogatepass"), int.from_bytes(value, "big")


def find_last_commit(database: Database) -> int:
    """The number of the last commit in an open database."""
    return int.from_bytes(database.get("meta", b"commit") or b"", "big")


def find_lost_commits(database: Database) -> list[int]:
    """Numbers of commits that are missing before the last one, as far as that is known.

    RocksDB begins a new log while it still writes a table of what is in the one before.  If the
    machine dies then, the disk may have the new one, and the old one up to some whole record.
    """
    last = find_last_commit(database)
    first = _first_noted(database, last)
    # An earlier version wrote none.
    earlier = range(max(first, last - NOTED + 1), last) if first is not None else ()
    return [number for number in earlier if _first_noted(database, number) is None]


def _first_noted(database: Database, number: int) -> int | None:
    row = database.get("meta", noted_key(number))
    noted, first = struct.unpack(">QQ", row) if row is not None else (0, 0)
    return first if noted == number else None


class Rows:
    """What a store says as of its last commit; StoreError: it cannot be read.

    :param engine: of a store that is to be made.
    :ivar database: where the rows are; the maker of an object of this class opens it.
    """

    def __init__(self, path: Path, engine: str | None = None) -> None:
        self.path = path
        self.engine = engine or engine_of(path)
        self.database = database_at(path, engine)
        #: Fingerprint -> key of its seen row.
        self.seen_key: Callable[[bytes], bytes] = bytes

    def read_key_form(self) -> None:
        """Find out what the keys of seen rows are, once the store is open."""
        self.seen_key = KEY_MAKERS[self.note(KEYS) or FINGERPRINTS]

    def identity(self) -> bytes | None:
        """Whose the store is, as JSON; ``None``: it was cut short before it could say so."""
        return self.database.get("meta", b"identity")

    def stored_commit(self) -> int:
        return find_last_commit(self.database)

    def first_noted(self, number: int) -> int | None:
        """The first commit from which on each is noted; ``None``: commit *number* is not."""
        return _first_noted(self.database, number)

    def describe_lost_commits(self) -> str | None:
        """What is missing before the last commit; ``None``: nothing that is known."""
        lost = find_lost_commits(self.database)
        if not lost:
            return None
        numbers = f"{lost[0]} to {lost[-1]}"
        return f"lacks commits {numbers}, though it has later ones: a power cut took them."

    def counters(self) -> Counters:
        return Counters.parse(self.database.get("meta", b"counters") or b"{}")

    def is_finished(self) -> bool:
        """Whether a run has finished the job.

        One that was restarted is stored as finished, for the next run to begin anew, and is not.
        """
        counters = self.counters()
        return counters.finished and (counters.accepted > 0 or self.note(FINISHED_IN) is not None)

    def counts(self) -> Counts:
        return self.counters().as_counts(sum(count for _, count, _ in self.slots()))

    def notes(self, prefix: str = "") -> dict[str, bytes]:
        """All notes, of a family that must be whole; or those whose names begin with *prefix*."""
        rows = self.database.iterate("meta", _NOTE + prefix.encode() if prefix else b"")
        return {key[len(_NOTE) :].decode(): value for key, value in rows if key.startswith(_NOTE)}

    def note(self, name: str) -> bytes | None:
        return self.database.get("meta", _NOTE + name.encode())

    def budgets(self) -> Iterator[tuple[str, int]]:
        """Name of each download slot with a budget, and how many requests of it were accepted."""
        for key, value in self.database.iterate("meta", BUDGET):
            yield decode_budget(key, value)

    def has_seen(self, fingerprint: bytes) -> bool:
        return self.has_seen_key(self.seen_key(fingerprint))

    def has_seen_key(self, key: bytes) -> bool:
        with self.database.reading:
            return self.database.has("seen", key)

    def seen_value(self, key: bytes) -> bytes | None:
        """The row of a seen key, if it is seen: see :mod:`.seen`."""
        return self.database.get("seen", key)

    def claimed(self, fingerprint: bytes, occurrence: int) -> int | None:
        """The run that claimed this occurrence of a start request, if one did."""
        claim = encode_claim(fingerprint, occurrence)
        value = self.database.get("started", claim)
        if value is None and self.has_seen_key(digest_of_claim(claim)):
            value = self.database.get("started", SHARED_CLAIMS)
        return None if value is None else int.from_bytes(value, "big")

    def seen(self) -> Iterator[tuple[bytes, bytes]]:
        """Key and value of everything that was seen: see :mod:`.seen`."""
        return self.database.iterate("seen")

    def started(self) -> Iterator[tuple[bytes, bytes]]:
        return self.database.iterate("started")

    def slots(self) -> Iterator[tuple[int, int, str]]:
        for key, value in self.database.iterate("slots"):
            yield int.from_bytes(key, "big"), *decode_slot(value)

    def suspects(self) -> Iterator[tuple[bytes, Suspicion]]:
        for key, value in self.database.iterate("suspects"):
            yield key, Suspicion.parse(value)

    def requests(self, state: State, prefix: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        return self.database.iterate(state.family, prefix)

    def pending(self) -> Iterator[tuple[bytes, bytes]]:
        return self.requests(PENDING)

    def dead(self) -> Iterator[tuple[bytes, DeadLetter, bytes]]:
        for key, row in self.requests(DEAD):
            yield key, *DEAD.split(row)

    def failed(self) -> Iterator[tuple[bytes, PageFailure, bytes]]:
        """Key, how it has failed, and stored form of each failed request; the oldest first."""
        for key, row in self.requests(FAILED):
            yield key, *FAILED.split(row)
