"""How often to commit: as often as is cheap."""

from __future__ import annotations

from collections import deque

#: Share of the time that commits may take.
_SHARE = 0.02
#: Seconds from the end of a commit to the next one, at least.  A kill repeats half of that on
#: average; with 0.1 s, commits are 4 to 6 % of the scheduler's work for the recorded links.
_EARLIEST = 0.2
#: Commits that are looked back on.
_LOOK_BACK = 5


class CommitPace:
    """How long to wait after a commit, by what the last ones have cost.

    The higher of two costs decides: the average processor time, since a commit that does more now
    and then has to be paid for; and the shortest time until one was over (a handler that waits for
    a disk, a sync in a thread, an answer of the server), since any may have waited for a processor.

    :param interval: seconds between two commits, at most; always, if *fixed*.
    """

    def __init__(self, interval: float, *, fixed: bool = False) -> None:
        self._interval, self._is_fixed = interval, fixed
        costs = (deque[float](maxlen=_LOOK_BACK) for _ in range(3))
        self._processor, self._passed, self._elsewhere = costs

    def note_commit(self, processor: float, passed: float) -> None:
        """A commit took so many seconds of processor time, and *passed* seconds in all."""
        self._processor.append(processor)
        self._passed.append(passed)

    def note_elsewhere(self, seconds: float) -> None:
        """What was committed was synced, or has reached the server, after *seconds*."""
        self._elsewhere.append(seconds)

    @property
    def pause(self) -> float:
        """Seconds from the end of the last commit until the next one."""
        if self._is_fixed or not self._processor:
            return self._interval
        cost = max(
            sum(self._processor) / len(self._processor),
            min(self._passed),
            min(self._elsewhere, default=0.0),
        )
        return min(max(cost / _SHARE, _EARLIEST), self._interval)
