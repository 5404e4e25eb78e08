"""Start requests that were skipped, and a ``start()`` that may wait for the page of one of them.

A resumed run skips the start requests that earlier runs accepted.  A ``start()`` that goes on only
when its first page is there would wait for ever then, and the crawl with it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scrapy import Request

#: How many of the last ones are crawled again.
_MOST = 100
#: Seconds for which nothing but a waiting ``start()`` is left before they are.  The engine, which
#: then asks for a request every 5 seconds, has this looked at.
_PATIENCE = 1.0


class SkippedStarts:
    """The start requests that this run has skipped.

    :param now: the time in seconds, monotonic.
    :ivar count: how many.
    :ivar last: the last ones that may be crawled again.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.count = 0
        self.last: deque[Request] = deque(maxlen=_MOST)
        self._stuck_since: float | None = None
        #: Whether the user was told that there are none to crawl again.
        self._is_told = False

    def note(self, request: Request) -> None:
        """One was skipped."""
        self.count += 1
        self.last.append(request)
        self._stuck_since = None

    def is_awaited(self, *, is_stuck: bool) -> bool:
        """Whether ``start()`` seems to wait for a page that was refused.

        It is true once for each wait as long as there are any to crawl again, and once more.

        :param is_stuck: whether ``start()`` waits, and nothing else is left to do.
        """
        if not is_stuck or (self._is_told and not self.last):
            self._stuck_since = None
        elif self._stuck_since is None:
            self._stuck_since = self._now()
        elif self._now() - self._stuck_since >= _PATIENCE:
            self._stuck_since = math.inf
            return True
        return False

    def take(self) -> list[Request]:
        """Take out those that are to be crawled again, if there are any."""
        taken = list(self.last)
        self.last.clear()
        self._is_told = not taken
        return taken
