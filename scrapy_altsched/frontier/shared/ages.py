"""How old pages have to be to be crawled again, by the server's clock; see ``batch/ages.lua``."""

from __future__ import annotations

import math

from ..entry import Entry
from ..options import Options
from .batches import Reply

#: Seconds: periods begin at any time, and requests may have ages of their own.
_OFTEN = 900.0


class WorkerAges:
    """The ages of one worker's requests, in a crawl that records when pages are finished.

    :ivar are_recorded: whether this is one, as far as this worker has heard.
    """

    def __init__(self, options: Options) -> None:
        self._now, self._recrawl_after = options.clock.monotonic, options.recrawl_after
        self.are_recorded = False
        #: What time it was on the server, in seconds since the epoch, less this machine's.
        self._ahead = 0.0
        #: For how many seconds what is known of pages is to hold, and until when.
        self._holds = _OFTEN
        self._holds_until = self._now() + _OFTEN

    def take_reply(self, reply: Reply) -> None:
        self.are_recorded = reply.time >= 0
        self._ahead = reply.time / 1000 - self._now()

    def threshold_of(self, entry: Entry) -> float | None:
        """Before when its page must have been finished, in ms; ``None``: it is crawled once.

        The server sees to it that no page is crawled twice in a pass.
        """
        age = entry.find_age() or self._recrawl_after
        if age is None:
            return None
        now = self._now()
        self._holds = min(self._holds, age.seconds / 4 or _OFTEN)
        self._holds_until = min(self._holds_until, now + self._holds)
        return age.threshold(now + self._ahead, math.inf) * 1000

    def take_outdated(self) -> bool:
        """Whether pages that were seen may have become old enough, since this was last so."""
        now = self._now()
        if not self.are_recorded or now < self._holds_until:
            return False
        self._holds_until = now + self._holds
        return True
