"""What time it is, and what happens at a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol


class Call(Protocol):
    """A call that is to come; to cancel one that was made is harmless."""

    def cancel(self) -> object: ...


class Clock(Protocol):
    """The only source of time of a frontier, and of a crawl: tests can own it."""

    def monotonic(self) -> float:
        """Seconds since some moment of this process; for timeouts."""

    def wall(self) -> float:
        """Seconds since the epoch; for what has to survive a restart."""

    def call_at(self, when: float, call: Callable[[], object]) -> Call:
        """Have *call* called once, on the crawl's thread; *when*: as :meth:`monotonic` counts."""


class SystemClock:
    """A :class:`Clock` whose :meth:`call_at` needs a running event loop of asyncio."""

    monotonic = staticmethod(time.monotonic)
    wall = staticmethod(time.time)

    def call_at(self, when: float, call: Callable[[], object]) -> Call:
        return asyncio.get_running_loop().call_later(max(0.0, when - self.monotonic()), call)
