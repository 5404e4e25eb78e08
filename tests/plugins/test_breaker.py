"""When sites that do not answer are left alone, and for how long."""

from __future__ import annotations

from scrapy_altsched.plugins.breaker import Breaker

DAY = 86_400.0


class Told:
    """A breaker of three bad answers, and what it has had left alone."""

    def __init__(self, *, can: bool = True) -> None:
        self.now = 1_000.0
        self.deferred: list[tuple[str, float]] = []
        self._can = can
        self.breaker = Breaker(3, 60, self._defer, lambda: self.now)

    def _defer(self, slot: str, seconds: float) -> bool:
        self.deferred.append((slot, seconds))
        return self._can

    def bad(self, times: int = 1, slot: str = "a") -> list[bool]:
        return [self.breaker.note_bad(slot) for _ in range(times)]


def test_bad_answers_in_a_row_have_their_slot_left_alone() -> None:
    told = Told()
    assert told.bad(2) == [False, False]
    told.breaker.note_good("a")
    assert told.bad(2) == [False, False]
    assert told.bad(2, "b") == [False, False]
    assert told.bad() == [True]
    # Those that were in flight go back, too, and change nothing.
    assert told.bad(5) == [True] * 5
    assert told.deferred == [("a", 60)]


def test_it_is_left_alone_twice_as_long_each_time_and_a_day_at_the_most() -> None:
    told = Told()
    told.bad(3)
    for _ in range(14):
        told.now += told.deferred[-1][1] + 1
        # Of the request that is let through first, a try is counted.
        assert told.bad() == [False]
        assert told.bad() == [True]
    assert [seconds for _, seconds in told.deferred[:4]] == [60, 120, 240, 480]
    assert told.deferred[-1][1] == DAY


def test_half_an_hour_without_is_forgiven_and_less_is_not() -> None:
    told = Told()
    told.bad(3)
    told.now += 100
    told.breaker.note_good("a")
    assert told.bad(3) == [False, False, True]
    assert told.deferred[-1] == ("a", 120)
    told.now += 120 + 1_801
    told.breaker.note_good("a")
    told.bad(3)
    assert told.deferred[-1] == ("a", 60)


def test_where_no_slot_can_be_left_alone_nothing_goes_back() -> None:
    told = Told(can=False)
    assert told.bad(5) == [False] * 5


def test_one_bad_answer_can_be_enough() -> None:
    told = Told()
    told.breaker = Breaker(1, 60, told._defer, lambda: told.now)
    assert told.bad(3) == [True, True, True]
    told.now += 61
    assert told.bad() == [False]
    assert told.deferred == [("a", 60), ("a", 120)]


def test_sites_that_are_gone_for_good_take_no_more_and_more_memory() -> None:
    told = Told()
    for number in range(10_100):
        told.bad(slot=f"{number}.example")
    assert len(told.breaker._records) == 10_000
    # Of those that came last it is known.
    assert told.bad(2, "10099.example") == [False, True]
