"""Forgetting which URLs were found lately, where their pages may have become old enough since."""

from __future__ import annotations

from .setup import Setup

#: Seconds: periods begin at any time, and requests may have ages of their own.
_OFTEN = 900.0


class Recent:
    """Clears what a crawl remembers of URLs, at a quarter of the shortest age.

    What is remembered is refused before the frontier is asked.
    """

    def __init__(self, setup: Setup) -> None:
        self._identity, self._clock = setup.identity, setup.clock
        self._every = min(_OFTEN, *(age.seconds / 4 or _OFTEN for age in setup.ages))
        self._plan()

    def _plan(self) -> None:
        self._call = self._clock.call_at(self._clock.monotonic() + self._every, self._clear)

    def _clear(self) -> None:
        self._identity.forget_recent()
        self._plan()

    def close(self) -> None:
        self._call.cancel()
