"""The time of a job: wall-clock time that never runs back.

Nothing may be early because a user or a time server has set the clock: a delay is a promise to a
site.  If the clock was set back by more than a minute, the job's time goes on at the pace of the
monotonic clock, from where it was, until the wall clock is past it again; if by less, it stands
still for as long.  Each commit stores the job's time: the next run goes on from there.

A clock that was set forward cannot be told from a machine that slept, or a job that rested: what is
due by it is due.
"""

from __future__ import annotations

from .clock import Clock

#: Seconds that the wall clock may be behind for the job to wait for it.
_STANDS_STILL = 60.0


class JobTime:
    """What time it is for a job.

    :param earlier: its time when it was last stored, in seconds since the epoch; 0: never.
    :ivar behind: by how many seconds the wall clock was set back while the job did not run; 0: it
        was not, or by a minute at most.
    """

    def __init__(self, clock: Clock, earlier: float = 0.0) -> None:
        self._clock = clock
        self._time = earlier
        self._read_at = clock.monotonic()
        behind = earlier - clock.wall()
        self.behind = behind if behind > _STANDS_STILL else 0.0

    def now(self) -> float:
        """Seconds since the epoch; never less than before."""
        read_at, wall = self._clock.monotonic(), self._clock.wall()
        if wall >= self._time:
            self._time = wall
        elif self._time - wall > _STANDS_STILL:
            self._time += read_at - self._read_at
        self._read_at = read_at
        return self._time
