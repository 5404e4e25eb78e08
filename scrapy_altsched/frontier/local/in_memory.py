# ruff: noqa: ARG002  (a null object has no use for what it is given)
"""The null object for :mod:`.persistence`: a frontier that ends with its process."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping

from ..contract import JobInfo, Pressure
from ..dead_letter import DeadLetter
from ..entry import Entry
from ..queue.slots import Slot
from ..store.records import Counters, Suspicion
from .batches import Draft


class _All:
    """Contains everything."""

    def __contains__(self, _: object) -> bool:
        return True


class NoPersistence:
    """Keeps nothing but what was seen: see :class:`~.persistence.Persistence`."""

    memory_requests = sys.maxsize
    unwritten = _All()
    ended: frozenset[bytes] = frozenset()

    def __init__(self) -> None:
        self.live = Counters()
        self.pressure = Pressure()
        self._seen: set[bytes] = set()

    def find_suspects(self) -> dict[bytes, Suspicion]:
        return {}

    def begin(self, suspects: Mapping[bytes, Suspicion]) -> JobInfo:
        return JobInfo()

    def slots(self) -> Iterator[tuple[Slot, int]]:
        return iter(())

    def has_seen(self, fingerprint: bytes) -> bool:
        return fingerprint in self._seen

    def claim(self, entry: Entry) -> tuple[bytes | None, bool]:
        return None, False

    def read_pending(
        self, prefix: bytes, start: bytes, limit: int, most_bytes: int
    ) -> list[tuple[bytes, bytes]]:
        return []

    def dead(self) -> Iterator[tuple[bytes, DeadLetter, bytes]]:
        return iter(())

    def take_claim(self, fingerprint: bytes, claim: bytes) -> None:
        pass

    def add(self, key: bytes, slot: Slot, entry: Entry, claim: bytes | None) -> None:
        if entry.unique:
            self._seen.add(entry.fingerprint)

    def end(self, key: bytes, slot: Slot, entry: Entry, why: DeadLetter | None) -> None:
        pass

    def mark(self, fingerprint: bytes) -> None:
        self._seen.add(fingerprint)

    def forget(self, fingerprint: bytes) -> None:
        self._seen.discard(fingerprint)

    def clear(self, fingerprint: bytes) -> None:
        pass

    def has_changes(self, notes: Mapping[str, bytes]) -> bool:
        return False

    def commit(self, notes: Mapping[str, bytes], *, wait: bool) -> Draft | None:
        return None

    def finish(self, suspects: Iterable[bytes], *, finished: bool) -> None:
        pass
