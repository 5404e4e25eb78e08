"""Which download slots have the most pending requests, found out by a few at a time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from operator import attrgetter
from typing import Protocol

#: Slots that are looked at for one question; slots that are named in the answer.
_AT_ONCE, _NAMED = 1_000, 20
#: Seconds from the end of one round to the next.
_EVERY = 5.0

_count = attrgetter("count")


class Counted(Protocol):
    """A slot: its name, and how many of its requests are pending."""

    name: str
    count: int


class Busiest:
    """Goes round all slots, some of them for each question: nothing is done for a request.

    :param slots: all of them, as they are now.
    :param now: seconds, monotonic.
    """

    def __init__(self, slots: Callable[[], Collection[Counted]], now: Callable[[], float]) -> None:
        self._slots, self._now = slots, now
        #: Those that this round is still to look at, of which the last is the next; what it has
        #: found; and what the last round has.
        self._left: list[Counted] = []
        self._found: list[Counted] = []
        self._last: list[tuple[str, int]] = []
        self._next_at = 0.0

    def find(self, *, all_at_once: bool = False) -> Sequence[tuple[str, int]]:
        """Their names and counts, as the last round has found them."""
        if all_at_once:
            self._left, self._found = list(self._slots()), []
        elif not self._left:
            if self._now() < self._next_at:
                return self._last
            self._left = list(self._slots())
        at = 0 if all_at_once else max(0, len(self._left) - _AT_ONCE)
        # To sort is faster than a heap: nothing of it is Python's own code.
        self._found = sorted((*self._found, *self._left[at:]), key=_count, reverse=True)[:_NAMED]
        del self._left[at:]
        if not self._left:
            self._last = [(slot.name, slot.count) for slot in self._found if slot.count]
            self._found, self._next_at = [], self._now() + _EVERY
        return self._last
