"""How fast a crawl finds requests, and is done with them, over the last minute or so."""

from __future__ import annotations

from collections import deque

from ..frontier import Counts

#: Seconds that rates are about; fewest between two samples; and after which there is a rate.
_OVER, _EVERY, _AT_LEAST = 60.0, 2.0, 1.0


class Rates:
    """Samples of the counts; at most some thirty are kept.

    :ivar found: requests accepted in a second; *ended*: those that are done, failed or dead since;
        ``None``: it is too early to tell.
    """

    def __init__(self, counts: Counts, now: float) -> None:
        self.found: float | None = None
        self.ended: float | None = None
        #: When, and how many requests were accepted, and were over.
        self._samples = deque([(now, counts.accepted, _over(counts))])

    def note(self, counts: Counts, now: float) -> None:
        """Note how many there are now: at any time, as often as one likes."""
        samples, accepted, over = self._samples, counts.accepted, _over(counts)
        while len(samples) > 1 and samples[1][0] <= now - _OVER:
            samples.popleft()
        began, accepted_then, over_then = samples[0]
        seconds = now - began
        if seconds >= _AT_LEAST:
            self.found = (accepted - accepted_then) / seconds
            # Dead letters and failed requests may be pending again.
            self.ended = max(0, over - over_then) / seconds
        if now - samples[-1][0] >= _EVERY:
            samples.append((now, accepted, over))


def _over(counts: Counts) -> int:
    return counts.done + counts.failed + counts.dead
