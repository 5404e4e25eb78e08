"""Notices a worker that has something to do and does not come forward."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from ..clock import Call, Clock
from ..events import OnEvent, Stalled

#: Seconds without progress after which it is said, and between two looks.
_STALLED_AFTER = 60.0
_LOOK_EVERY = 10.0


class Stall:
    """Looks every so often whether anything has changed, and says so if nothing has for long.

    :param progress: what is different after any progress.
    :param reason: why there may be none, as a sentence; empty: there is nothing to do now, or it is
        being done.
    """

    def __init__(
        self,
        clock: Clock,
        progress: Callable[[], Hashable],
        reason: Callable[[], str],
        on_event: OnEvent,
    ) -> None:
        self._clock = clock
        self._progress = progress
        self._reason = reason
        self._on_event = on_event
        self._last: Hashable = None
        self._since = 0.0
        self._is_stalled = False
        self._call: Call | None = None

    def start(self) -> None:
        self._since = self._clock.monotonic()
        self._plan()

    def stop(self) -> None:
        if self._call is not None:
            self._call.cancel()

    def _plan(self) -> None:
        self._call = self._clock.call_at(self._clock.monotonic() + _LOOK_EVERY, self._look)

    def _look(self) -> None:
        self._plan()
        now, progress, why = self._clock.monotonic(), self._progress(), self._reason()
        seconds = now - self._since
        if progress != self._last or not why:
            self._last, self._since = progress, now
            if self._is_stalled:
                self._is_stalled = False
                self._on_event(Stalled(seconds, ""))
        elif seconds >= _STALLED_AFTER and not self._is_stalled:
            self._is_stalled = True
            self._on_event(Stalled(seconds, why))
