"""How many requests of each download slot were accepted, where only so many are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable


class Budget:
    """Counts unique requests by download slot.

    :param limit: how many of each are accepted.
    :param known: name and count, as earlier runs have left them.
    :ivar changed: names of slots whose count the store does not have.
    """

    def __init__(self, limit: int, known: Iterable[tuple[str, int]] = ()) -> None:
        self._limit = limit
        self._counts = Counter(dict(known))
        self.changed: set[str] = set()

    def take(self, slot: str) -> bool:
        """Count one more, if that may be accepted; whether it may."""
        if self._counts[slot] >= self._limit:
            return False
        self._counts[slot] += 1
        self.changed.add(slot)
        return True

    def give_back(self, slot: str) -> None:
        """Count one less, as it is not to be crawled."""
        if self._counts[slot]:
            self._counts[slot] -= 1
            self.changed.add(slot)

    def take_changed(self) -> list[tuple[str, int]]:
        """Name and count of those that have changed since the last call."""
        found = [(slot, self._counts[slot]) for slot in sorted(self.changed)]
        self.changed.clear()
        return found
