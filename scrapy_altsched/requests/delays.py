"""How long a request asks to wait, in its meta, and what is wrong with what it asks."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from datetime import datetime
from random import uniform
from typing import Any

from ..frontier.entry import Delay
from . import DELAY, NOT_BEFORE, REVISIT

#: Seconds; a longer delay is most likely a mistake, such as milliseconds.
_LONGEST = 10 * 366 * 86_400.0

DELAY_MUST_BE = (
    "it must be a number of seconds, 0 or more and less than ten years, or a pair of the least and"
    " the most"
)
NOT_BEFORE_MUST_BE = (
    "it must be a datetime with a time zone, or a number of seconds since 1970, less than ten years"
    " from now"
)


def take_delay(
    meta: dict[str, Any], complain: Callable[[str, object, str], object]
) -> Delay | None:
    """Take both keys out of *meta*, so that no retry or redirect waits again; what they ask for.

    :param complain: called with key and value of what is invalid, which counts as if it were not
        there, and what it must be.
    """
    parts = {}
    for key, read, must_be in _KEYS:
        if key not in meta:
            continue
        value = meta.pop(key)
        if value is None:
            continue
        try:
            parts[key] = read(value)
        except (ValueError, TypeError, OverflowError, OSError):
            complain(key, value, must_be)
    return Delay(parts.get(DELAY, 0.0), parts.get(NOT_BEFORE, 0.0)) if parts else None


def read_revisit(
    meta: dict[str, Any], complain: Callable[[str, object, str], object]
) -> float | None:
    """After how many seconds a request comes back, if it does; *complain*: as for the others."""
    value = meta.get(REVISIT)
    if value is None:
        return None
    try:
        return _read_delay(value)
    except (ValueError, TypeError, OverflowError):
        complain(REVISIT, value, DELAY_MUST_BE)
        return None


def _read_delay(value: Any) -> float:
    if isinstance(value, list | tuple):
        low, high = map(_seconds, value)
        if low > high:
            raise ValueError
        return uniform(low, high)
    return _seconds(value)


def _read_not_before(value: Any) -> float:
    if isinstance(value, datetime):
        if value.utcoffset() is None:
            raise ValueError
        return _until(value.timestamp())
    return _until(_number(value))


def _until(when: float) -> float:
    if when > time.time() + _LONGEST:
        raise ValueError
    return when


def _seconds(value: Any) -> float:
    number = _number(value)
    if not 0 <= number < _LONGEST:
        raise ValueError
    return number


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError
    return float(value)


_KEYS: list[tuple[str, Callable[[Any], float], str]] = [
    (DELAY, _read_delay, DELAY_MUST_BE),
    (NOT_BEFORE, _read_not_before, NOT_BEFORE_MUST_BE),
]
