"""A clock that a test owns."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from scrapy_altsched.frontier.clock import Clock


class _Planned:
    def __init__(self, when: float, call: Callable[[], object]) -> None:
        self.when = when
        self.call = call
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class ManualClock:
    """Time passes when a test says so, and calls that are due are made then.

    :ivar now: seconds, monotonic; may be set where nothing waits for it.
    :ivar set_by: by how many seconds the wall clock was set.
    """

    def __init__(self) -> None:
        self.now = 1_000.0
        self.set_by = 0.0
        self._planned: list[_Planned] = []

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return 1.7e9 + self.now + self.set_by

    def since_boot(self) -> float:
        return self.now

    def call_at(self, when: float, call: Callable[[], object]) -> _Planned:
        planned = _Planned(when, call)
        self._planned.append(planned)
        return planned

    @property
    def next_call_at(self) -> float:
        """When the next call is due, or infinity."""
        waiting = (planned.when for planned in self._planned if not planned.is_cancelled)
        return min(waiting, default=float("inf"))

    def advance(self, seconds: float) -> None:
        """Have time pass, and each call made at its moment, also one that another one plans."""
        until = self.now + seconds
        while due := [planned for planned in self._planned if planned.when <= until]:
            planned = min(due, key=lambda planned: planned.when)
            self._planned.remove(planned)
            if not planned.is_cancelled:
                self.now = max(self.now, planned.when)
                planned.call()
        self.now = until


if TYPE_CHECKING:
    _conforms: type[Clock] = ManualClock
