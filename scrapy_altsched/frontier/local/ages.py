"""When pages were finished, in a job that records it, and whether that is long enough ago."""

from __future__ import annotations

from collections.abc import Callable

from ...age import Age
from ..store.seen import encode_end, end_time_of, first_day_of


class Ages:
    """The ages of a job.

    :param since: from when on they are recorded; pages from before that count as finished then.
    :param pass_began: when the first run after a finished one began; both in epoch seconds.
    :param now: the job's time.
    """

    def __init__(self, since: float, pass_began: float, now: Callable[[], float]) -> None:
        self._since, self._pass_began, self._now = since, pass_began, now
        self._first_day = first_day_of(since)

    def is_due(self, value: bytes, age: Age) -> bool:
        """Whether a page with this seen row is old enough to be crawled again."""
        finished = self.finished_at(value)
        return finished is not None and finished < age.threshold(self._now(), self._pass_began)

    def finished_at(self, value: bytes) -> float | None:
        """When a page with this seen row was finished, in epoch seconds; ``None``: it is not."""
        return end_time_of(value, self._since)

    def end_value(self, at: float | None = None) -> bytes:
        """The seen row of a page that is finished now, or was *at* a time in epoch seconds."""
        return encode_end((self._now() if at is None else at) - self._first_day)
