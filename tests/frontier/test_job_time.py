"""The clock of a job, when the machine's clock is set."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_altsched.frontier.job_time import JobTime

from ..clocks import ManualClock


def test_it_is_wall_clock_time() -> None:
    clock = ManualClock()
    time = JobTime(clock)
    for _ in range(3):
        assert time.now() == clock.wall()
        clock.advance(10)
    assert time.behind == 0


def test_it_stands_still_for_what_the_clock_was_set_back_by_a_little() -> None:
    clock = ManualClock()
    time = JobTime(clock)
    before = time.now()
    clock.set_by = -59
    clock.advance(30)
    assert time.now() == before
    clock.advance(40)
    assert time.now() == clock.wall() == pytest.approx(before + 11)


def test_it_goes_on_if_the_clock_was_set_back_by_much() -> None:
    clock = ManualClock()
    time = JobTime(clock)
    before = time.now()
    clock.set_by = -86_400
    for seconds in range(1, 100):
        clock.advance(1)
        assert time.now() == pytest.approx(before + seconds)
    clock.set_by = 0
    assert time.now() == clock.wall()


def test_it_goes_on_from_where_it_was_stored() -> None:
    clock = ManualClock()
    earlier = clock.wall() + 7_200
    time = JobTime(clock, earlier)
    assert time.behind == pytest.approx(7_200)
    assert time.now() == earlier
    clock.advance(5)
    assert time.now() == pytest.approx(earlier + 5)


def test_a_minute_is_not_told() -> None:
    clock = ManualClock()
    assert JobTime(clock, clock.wall() + 59).behind == 0


@given(st.lists(st.tuples(st.floats(0, 1e5), st.floats(-1e6, 1e6)), max_size=20))
def test_it_never_runs_back_nor_ahead_of_time_that_passed(steps: list[tuple[float, float]]) -> None:
    clock = ManualClock()
    time = JobTime(clock)
    last = time.now()
    for seconds, set_by in steps:
        clock.advance(seconds)
        clock.set_by += set_by
        now = time.now()
        assert now >= last
        # What passes at most is what really passed, unless the clock was set forward.
        assert now <= max(last + seconds + 1e-3, clock.wall())
        last = now
