"""When a site that does not answer is to be left alone, and for how long."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

#: Seconds for which a slot is left alone at the most, and after which it is forgiven.
_MOST, _FORGIVEN_AFTER = 86_400.0, 1_800.0
#: How many slots are known: those that were bad first are forgotten, as some are bad for ever.
_KEPT = 10_000


@dataclass(slots=True)
class _Record:
    #: Bad answers in a row; how often in a row it was left alone for them; and until when.
    bad: int = 0
    times: int = 0
    until: float = 0.0
    #: Whether the next answer is that to the request that was let through first.
    is_on_trial: bool = False


class Breaker:
    """Counts bad answers of download slots: a circuit breaker for each of them.

    After so many in a row a slot is left alone, for twice as long each time; a day at the most, and
    as short as at first once it was good for half an hour.  What was asked before that, and comes
    in meanwhile, changes nothing.  The pattern: Nygard, Release It! (2007).

    :param limit: bad answers in a row after which a slot is left alone.
    :param delay: seconds, the first time.
    :param defer: has a slot left alone for some seconds; whether that is possible.
    :param now: monotonic seconds.
    """

    def __init__(
        self,
        limit: int,
        delay: float,
        defer: Callable[[str, float], bool],
        now: Callable[[], float],
    ) -> None:
        self._limit, self._delay = limit, delay
        self._defer, self._now = defer, now
        self._records: dict[str, _Record] = {}

    def note_good(self, slot: str) -> None:
        record = self._records.get(slot)
        if record is None:
            return
        record.bad, record.is_on_trial = 0, False
        if self._now() - record.until >= _FORGIVEN_AFTER:
            del self._records[slot]

    def note_bad(self, slot: str) -> bool:
        """Count a bad answer; whether the slot is left alone, and its request is not to blame.

        The request that is let through first afterwards is, or nothing would ever end.
        """
        records, now = self._records, self._now()
        record = records.setdefault(slot, _Record())
        if len(records) > _KEPT:
            del records[next(iter(records))]
        if now < record.until:
            return True
        is_trial = record.is_on_trial
        record.bad += 1
        # One is enough then.
        if record.bad < self._limit and not is_trial:
            return False
        if now - record.until >= _FORGIVEN_AFTER:
            record.times = 0
        seconds = min(self._delay * 2.0 ** min(record.times, 60), _MOST)
        record.bad = 0
        if not self._defer(slot, seconds):
            return False
        record.is_on_trial = True
        record.times += 1
        record.until = now + seconds
        return not is_trial
