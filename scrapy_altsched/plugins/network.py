"""When no site can be reached any more, which is no fault of theirs."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

#: How many slots that have answered are remembered: those that did last.
_KEPT = 10_000


class Network:
    """Notices that downloads fail which did not before, whatever the site.

    Only slots count that have answered in this run: lists of sites that are gone for good are no
    sign of it.  A single slot is the breaker's.

    :param limit: downloads in a row that must have failed.
    :param delay: seconds until one request is tried again.
    :param defer: has all slots left alone for some seconds; whether that is possible.
    :param now: monotonic seconds.
    :ivar is_down: whether nothing can be reached.
    """

    def __init__(
        self,
        limit: int,
        delay: float,
        defer: Callable[[float], bool],
        now: Callable[[], float],
    ) -> None:
        self._limit, self._delay = limit, delay
        self._defer, self._now = defer, now
        self._known: OrderedDict[str, None] = OrderedDict()
        self._until = 0.0
        self._failed = 0
        self._failed_slots: set[str] = set()
        self.is_down = False

    def note_answer(self, slot: str) -> None:
        """A download was answered, whatever with."""
        self._known[slot] = None
        self._known.move_to_end(slot)
        if len(self._known) > _KEPT:
            self._known.popitem(last=False)
        self.is_down, self._failed = False, 0
        self._failed_slots.clear()

    def note_failure(self, slot: str) -> bool:
        """A download failed; whether that is the network's fault, and all is left alone."""
        if slot not in self._known:
            return False
        if self._now() < self._until:
            return True
        self._failed += 1
        self._failed_slots.add(slot)
        has_begun = self._failed >= self._limit and len(self._failed_slots) > 1
        if not (has_begun or self.is_down) or not self._defer(self._delay):
            return False
        self._until = self._now() + self._delay
        self.is_down = True
        return True
