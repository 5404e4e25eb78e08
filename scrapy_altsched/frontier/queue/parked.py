"""Slots that may not be asked now, and from when on they may be.

A slot is parked by its name, since the slot itself goes when it is empty, and another one of the
same name comes.  Nothing is asked again and again: the times are a heap.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from heapq import heappop, heappush

#: In place of a slot's name: while it is parked, nothing is chosen.
EVERY_SLOT = "\0every slot"
#: Until the request that was let through is over.
_ON_TRIAL = math.inf


class Parked:
    """When each parked slot may be asked again.

    :ivar until: name -> when, in monotonic seconds; infinity: when a request of it is over.
    :ivar trials: slots of which one request is let through before the others.
    """

    def __init__(self) -> None:
        self.until: dict[str, float] = {}
        self.trials: set[str] = set()
        #: The times in *until*, and some that have been put off since.
        self._times: list[tuple[float, str]] = []

    def park(self, name: str, until: float, *, trial: bool = False) -> None:
        """Park a slot, for as long as this or an earlier call has said.

        :param trial: whether one request of it is let through first then, and the others when that
            one is over.
        """
        if trial:
            self.trials.add(name)
        known = self.until.get(name, 0.0)
        if known == _ON_TRIAL or until > known:
            self.until[name] = until
            heappush(self._times, (until, name))

    def forget(self, name: str) -> bool:
        """Let a slot be asked again, and all of it at once; whether it was parked."""
        self.trials.discard(name)
        return self.until.pop(name, None) is not None

    def take_due(self, now: float) -> Iterator[str]:
        """Take out those whose time has come."""
        times = self._times
        while times and times[0][0] <= now:
            until, name = heappop(times)
            if self.until.get(name) == until:
                del self.until[name]
                yield name

    def first(self) -> float | None:
        """When the next one may be asked again; ``None``: none is parked until a time."""
        times = self._times
        while times and self.until.get(times[0][1]) != times[0][0]:
            heappop(times)
        return times[0][0] if times else None

    def begin_trial(self, name: str) -> None:
        """Park a slot that is on trial: a request of it is let through."""
        self.until[name] = _ON_TRIAL

    def end_trial(self, name: str) -> bool:
        """A request of a slot is over: whether the slot was parked for it, and is not any more."""
        if self.until.get(name) != _ON_TRIAL:
            return False
        self.trials.discard(name)
        del self.until[name]
        return True
