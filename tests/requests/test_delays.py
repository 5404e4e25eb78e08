"""What requests may say of when they are to be handed out."""

from __future__ import annotations

import math
import time
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from scrapy_altsched.frontier.entry import Delay
from scrapy_altsched.requests.delays import take_delay

YEAR = 366 * 86_400


def take(meta: dict[str, Any]) -> tuple[Delay | None, list[tuple[str, object]]]:
    complaints: list[tuple[str, object]] = []
    found = take_delay(meta, lambda key, value, _: complaints.append((key, value)))
    assert meta.keys() <= {"other"}
    return found, complaints


@pytest.mark.parametrize("value", [0, 5, 2.5, 9 * YEAR])
def test_seconds(value: float) -> None:
    meta = {"altsched_delay": value, "other": 1}
    assert take(meta) == (Delay(seconds=value), [])
    assert meta == {"other": 1}


@pytest.mark.parametrize("pair", [(1, 3), [1.0, 3]])
def test_a_pair_is_drawn_from(pair: Any) -> None:
    drawn = set()
    for _ in range(200):
        found, complaints = take({"altsched_delay": pair})
        assert found is not None
        assert complaints == []
        assert 1 <= found.seconds <= 3
        drawn.add(found.seconds)
    assert min(drawn) < 1.5
    assert max(drawn) > 2.5


def test_a_time() -> None:
    then = datetime.now(timezone(timedelta(hours=-7))) + timedelta(hours=1)
    assert take({"altsched_not_before": then}) == (Delay(until=then.timestamp()), [])
    assert take({"altsched_not_before": 1_000}) == (Delay(until=1_000.0), [])


def test_both() -> None:
    now = time.time()
    meta = {"altsched_not_before": now, "altsched_delay": 3}
    assert take(meta) == (Delay(seconds=3.0, until=now), [])


def test_nothing() -> None:
    assert take({"altsched_delay": None, "altsched_not_before": None}) == (None, [])


BAD = [
    ("altsched_delay", value)
    for value in (
        *(-1, -0.001, math.inf, -math.inf, 10 * YEAR, 1e300, "5", b"5", True, object()),
        *((3, 1), (1,), (1, 2, 3), (-1, 2), (1, "2"), {"low": 1}, timedelta(seconds=1)),
    )
] + [
    ("altsched_not_before", value)
    for value in (
        *(datetime.now(), datetime.max.replace(tzinfo=timezone.utc), "2030-01-01", True),
        *(5e9, 1.8e12, math.inf, (1, 2)),
    )
]


@pytest.mark.parametrize(("key", "value"), BAD)
def test_what_cannot_be_used_is_told_and_ignored(key: str, value: object) -> None:
    assert take({key: value}) == (None, [(key, value)])
    other = {"altsched_delay": 1, "altsched_not_before": 2, key: value}
    found, complaints = take(other)
    assert complaints == [(key, value)]
    assert found in (Delay(seconds=1), Delay(until=2))


def test_nan_is_told_and_ignored() -> None:
    found, complaints = take({"altsched_delay": math.nan})
    assert found is None
    assert len(complaints) == 1
