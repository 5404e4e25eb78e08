"""Download slots that are deferred: told to the frontier, logged, and kept for the next run."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from heapq import nlargest
from operator import itemgetter

from ..errors import ConfigError
from ..frontier import Frontier
from . import messages
from .setup import Setup

NOTE = "deferred"
#: How many are kept for the next run: those that end last.
_KEPT = 10_000
#: Seconds: longer ones are cut to this.
LONGEST = 365 * 86_400.0


def _name(slot: str | None) -> str:
    return "The slots" if slot is None else f"The slot {slot!r}"


class Deferrals:
    """Which download slots are deferred, and until when."""

    def __init__(self, setup: Setup, frontier: Frontier) -> None:
        self._reports, self._tally, self._frontier = setup.reports, setup.tally, frontier
        self._wall = setup.clock.wall
        #: Slot -> until when, by the wall clock, and seconds for which it was deferred.
        self._until: dict[str, tuple[float, float]] = {}
        self._all_until = 0.0
        self._has_refused = False

    def defer(self, slot: str | None, seconds: float) -> bool:
        """See :meth:`..scheduler.Scheduler.defer_slot`."""
        is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
        if not is_number or not 0 <= seconds < math.inf:
            raise ConfigError(
                f"{_name(slot)} cannot be deferred for {seconds!r}: that must be a number of"
                " seconds, 0 or more."
            )
        seconds = min(seconds, LONGEST)
        if not self._frontier.defer(slot, seconds):
            if not self._has_refused:
                self._has_refused = True
                self._reports.log(messages.NOT_DEFERRED, slots=_name(slot))
            return False
        if slot is None:
            self._all_until = max(self._all_until, self._wall() + seconds)
            return True
        until = self._wall() + seconds
        if until > self._until.get(slot, (0.0, 0.0))[0]:
            self._until[slot] = until, seconds
            self._tally["altsched/deferred"] += 1
            self._reports.log(messages.DEFERRED, slot=slot, seconds=seconds)
            if len(self._until) > 2 * _KEPT:  # without JOBDIR nothing is captured
                self._prune()
        return True

    def undefer(self, slot: str) -> bool:
        """Let a slot be asked again at once; whether it was deferred."""
        if not self._frontier.undefer(slot):
            return False
        until, _ = self._until.pop(slot, (0.0, 0.0))
        return until > self._wall()

    def held(self, limit: int) -> list[tuple[str | None, float]]:
        """Slots that are deferred now, and until when; those that end last, if there are many.

        ``None`` as a name: all slots are.
        """
        now = self._wall()
        found = [(slot, until) for slot, (until, _) in self._until.items() if until > now]
        found = nlargest(limit, found, key=itemgetter(1))
        whole: list[tuple[str | None, float]] = []
        if self._all_until > now:
            whole.append((None, self._all_until))
        return [*whole, *found]

    def capture(self) -> dict[str, bytes]:
        self._prune()
        return {NOTE: json.dumps(self._until).encode()}

    def _prune(self) -> None:
        now = self._wall()
        left = {slot: row for slot, row in self._until.items() if row[0] > now}
        if len(left) > _KEPT:
            left = dict(sorted(left.items(), key=lambda item: item[1][0])[-_KEPT:])
        self._until = left

    def restore(self, note: Callable[[str], bytes | None]) -> None:
        now = self._wall()
        for slot, (until, seconds) in json.loads(note(NOTE) or b"{}").items():
            # If the clock was set back meanwhile, it is not deferred for longer than it was.
            left = min(until - now, seconds)
            if left > 0 and self._frontier.defer(slot, left):
                self._until[slot] = now + left, seconds
