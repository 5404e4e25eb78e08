"""What time it is, and what happens at a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

#: Those of Linux stand still while the machine is suspended, but for this one.
_BOOT = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))
#: Seconds by which a time may differ each time that it is computed.
_ABOUT = 0.001


class Call(Protocol):
    """A call that is to come; to cancel one that was made is harmless."""

    def cancel(self) -> object: ...


class Clock(Protocol):
    """The only source of time of a frontier, and of a crawl: tests can own it."""

    def monotonic(self) -> float:
        """Seconds since some moment of this process; for timeouts."""

    def wall(self) -> float:
        """Seconds since the epoch; for what has to survive a restart."""

    def since_boot(self) -> float:
        """Seconds that go on while the machine is suspended, where the system can count them."""

    def call_at(self, when: float, call: Callable[[], object]) -> Call:
        """Have *call* called once, on the crawl's thread; *when*: as :meth:`monotonic` counts."""


class Alarm:
    """Rings once, on the crawl's thread, at the earliest of the times that it was set for."""

    def __init__(self, clock: Clock, ring: Callable[[], object]) -> None:
        self._clock, self._ring = clock, ring
        self._call: Call | None = None
        self._at = 0.0

    def set(self, when: float) -> None:
        """*when*: as :meth:`Clock.monotonic` counts; nothing, if it rings about then or before."""
        if self._call is not None:
            if self._at <= when + _ABOUT:
                return
            self._call.cancel()
        self._at = when
        self._call = self._clock.call_at(when, self._on_time)

    def _on_time(self) -> None:
        self._call = None
        self._ring()

    def cancel(self) -> None:
        if self._call is not None:
            self._call.cancel()
            self._call = None


class SystemClock:
    """A :class:`Clock` whose :meth:`call_at` needs a running event loop of asyncio."""

    monotonic = staticmethod(time.monotonic)
    wall = staticmethod(time.time)

    def since_boot(self) -> float:
        return time.monotonic() if _BOOT is None else time.clock_gettime(_BOOT)

    def call_at(self, when: float, call: Callable[[], object]) -> Call:
        return asyncio.get_running_loop().call_later(max(0.0, when - self.monotonic()), call)
