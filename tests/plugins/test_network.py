"""When no site can be reached any more."""

from __future__ import annotations

from scrapy_altsched.plugins.network import Network


class Told:
    """Three failures are too many, and one request is tried every 60 s."""

    def __init__(self, *, can: bool = True) -> None:
        self.now = 1_000.0
        self.deferred: list[float] = []
        self._can = can
        self.network = Network(3, 60, self._defer, lambda: self.now)
        for slot in "ab":
            self.network.note_answer(slot)

    def _defer(self, seconds: float) -> bool:
        self.deferred.append(seconds)
        return self._can

    def fail(self, slots: str) -> list[bool]:
        return [self.network.note_failure(slot) for slot in slots]


def test_sites_that_fail_one_after_the_other_are_left_alone_together() -> None:
    told = Told()
    assert told.fail("ab") == [False, False]
    told.network.note_answer("a")
    assert told.fail("ab") == [False, False]
    assert not told.network.is_down
    assert told.fail("a") == [True]
    assert told.network.is_down
    # What was in flight changes nothing.
    assert told.fail("abab") == [True] * 4
    assert told.deferred == [60]


def test_one_request_is_tried_every_minute_until_one_is_answered() -> None:
    told = Told()
    told.fail("aab")
    for _ in range(3):
        told.now += 60
        assert told.fail("a") == [True]
    assert told.deferred == [60] * 4
    told.now += 60
    told.network.note_answer("b")
    assert not told.network.is_down
    assert told.fail("ab") == [False, False]


def test_a_single_site_and_sites_that_never_answered_are_no_sign_of_it() -> None:
    told = Told()
    assert told.fail("aaaaa") == [False] * 5
    told = Told()
    assert told.fail("acdefgh") == [False] * 7
    assert told.deferred == []


def test_where_nothing_can_be_deferred_pages_fail_as_before() -> None:
    assert Told(can=False).fail("abab") == [False] * 4
