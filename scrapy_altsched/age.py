"""When a page that was crawled may be crawled again.

That is one comparison: whether it was finished before a time, which an age and the time of day
make.  And at most once a pass, from one finished job to the next: a pass that takes longer than an
age would never end.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Literal, get_args

Period = Literal["run", "day", "week", "month"]

_DAY = 86_400
_PERIODS: dict[str, Period] = {name: name for name in get_args(Period)}
_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": _DAY, "w": 7 * _DAY}
_match = re.compile(r"(\d+(?:\.\d+)?)\s*([smhdw])").fullmatch
MUST_BE = "a number of seconds above 0, '12h', '7d', 'run', 'day', 'week' or 'month'"


@dataclass(frozen=True, slots=True)
class Age:
    """How old a page has to be: seconds; or from before this pass, day, week or month (UTC)."""

    seconds: float = 0.0
    period: Period | None = None

    @classmethod
    def parse(cls, value: object) -> Age:
        """The age that a setting, a rule or a meta key says; ValueError: it is none."""
        if isinstance(value, str):
            text = value.strip().lower()
            if (period := _PERIODS.get(text)) is not None:
                return cls(period=period)
            found = _match(text)
            value = float(found[1]) * _UNITS[found[2]] if found else float(text)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"{value!r} is no age")
        if not 0 < value < math.inf:
            raise ValueError(f"{value!r} is no age")
        return cls(seconds=float(value))

    @classmethod
    def parse_length(cls, value: object) -> float:
        """The seconds of an age that is so long whenever it is asked for; ValueError: of others."""
        age = cls.parse(value)
        if age.period is not None:
            raise ValueError(f"{value!r} is no length of time")
        return age.seconds

    def __str__(self) -> str:
        return self.period or f"{self.seconds:g} s"

    def threshold(self, now: float, pass_began: float) -> float:
        """Pages that were finished before this time may be crawled again; epoch seconds, all."""
        if self.period is None:
            return min(now - self.seconds, pass_began)
        if self.period == "run":
            return pass_began
        return min(_begin_of(self.period, now), pass_began)


def _begin_of(period: Period, now: float) -> float:
    today = datetime.fromtimestamp(now, timezone.utc).replace(
        hour=0, minute=0, second=0, microsecond=0
    )
    if period == "week":
        today -= timedelta(days=today.weekday())
    elif period == "month":
        today = today.replace(day=1)
    return today.timestamp()
