"""Requests that cannot be encoded: they stay on this worker."""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass

from ..entry import Entry, Lease


@dataclass(slots=True)
class MemoryOnly:
    """Pending ones in order of their priority, and how many were what.

    :ivar pending: beginning of the order key, place, and the request, the next one first.
    """

    pending: list[tuple[bytes, int, Entry]]
    accepted: int = 0
    leased: int = 0
    done: int = 0
    dead: int = 0
    _next: int = 0

    def add(self, level: bytes, inverted: bool, entry: Entry) -> None:
        """Have a request wait."""
        self._next += 1
        insort(self.pending, (level, -self._next if inverted else self._next, entry))

    def lease(self) -> Lease:
        """Take out the first one; there is one."""
        self.leased += 1
        return Lease(b"", self.pending.pop(0)[2], None)

    @property
    def left(self) -> int:
        """How many are not over."""
        return len(self.pending) + self.leased
