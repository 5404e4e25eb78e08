"""The clock of a crawl, and what is called by it again and again."""

from __future__ import annotations

import logging
from collections.abc import Callable

from ..engine.event_loop import call_later
from ..frontier.clock import Call, Clock, SystemClock

logger = logging.getLogger(__name__)


class CrawlClock(SystemClock):
    """The machine's clock, and the event loop or reactor that Scrapy runs on.

    Without either, as in a script that asks a scheduler itself, nothing is ever called.
    """

    def call_at(self, when: float, call: Callable[[], object]) -> Call:
        planned: Call = call_later(max(0.0, when - self.monotonic()), call)
        return planned


class Timer:
    """Calls a function every so often.

    :param interval: seconds from one call to the next, unless that is hastened.
    """

    def __init__(self, clock: Clock, interval: float, call: Callable[[], object]) -> None:
        self._clock = clock
        self._interval = interval
        self._call = call
        self._next: Call | None = None

    def start(self) -> None:
        self._plan(self._interval)

    def flush_soon(self, seconds: float) -> None:
        """Have the next call come after *seconds*, unless the timer is stopped."""
        if self._next is not None:
            self._next.cancel()
            self._plan(seconds)

    def stop(self) -> None:
        """Stop; may be called at any time."""
        pending, self._next = self._next, None
        if pending is not None:
            pending.cancel()

    def _plan(self, seconds: float) -> None:
        self._next = self._clock.call_at(self._clock.monotonic() + seconds, self._fire)

    def _fire(self) -> None:
        fired = self._next
        if fired is None:
            return
        try:
            self._call()
        except Exception:  # without the next call, nothing would be committed in time any more
            logger.exception("Error in a timed call of scrapy_altsched")
        if self._next is fired:
            self.start()
