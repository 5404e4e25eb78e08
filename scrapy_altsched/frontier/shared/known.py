"""Seen keys that the server is known to have: most duplicates need not be asked for."""

from __future__ import annotations


class Known:
    """A bounded set, which forgets those that were asked for longest ago first.

    :param most: how many are kept at least; at most twice as many.  Half a million take 38 MB.
    """

    def __init__(self, most: int = 250_000) -> None:
        self._most = most
        self._recent: set[bytes] = set()
        self._older: set[bytes] = set()

    def __contains__(self, seen_key: bytes) -> bool:
        if seen_key in self._recent:
            return True
        if seen_key in self._older:
            self.add(seen_key)
            return True
        return False

    def add(self, seen_key: bytes) -> None:
        """Remember a seen key."""
        self._recent.add(seen_key)
        if len(self._recent) >= self._most:
            self._older, self._recent = self._recent, set()

    def discard(self, seen_key: bytes) -> None:
        """Forget a seen key."""
        self._recent.discard(seen_key)
        self._older.discard(seen_key)

    def clear(self) -> None:
        """Forget all."""
        self._recent.clear()
        self._older.clear()
