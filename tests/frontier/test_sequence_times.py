"""When requests were accepted, by samples of sequence numbers."""

from __future__ import annotations

import pytest

from scrapy_altsched.frontier import Options, Order
from scrapy_altsched.frontier.store.sequence_times import NOTE, SequenceTimes
from scrapy_altsched.frontier.store.view import View
from scrapy_altsched.maintenance.looking import find_oldest

from ..clocks import ManualClock
from ..frontiers import DiskKind, page, take

START = 1_700_000_000.0


def test_a_number_was_given_between_two_samples() -> None:
    times = SequenceTimes()
    assert times.between(5) == (None, None)
    assert times.note(1, START)
    assert not times.note(50, START + 59)
    assert times.note(100, START + 60)
    assert times.note(200, START + 120)
    times = SequenceTimes(times.encode())
    assert times.between(0) == (None, START)
    assert times.between(1) == times.between(99) == (START, START + 60)
    assert times.between(100) == (START + 60, START + 120)
    assert times.between(200) == (START + 120, None)


def test_while_none_is_given_the_last_sample_moves_on() -> None:
    times = SequenceTimes()
    times.note(1, START)
    times.note(10, START + 100)
    assert times.note(10, START + 5_000)
    times.note(20, START + 5_100)
    assert times.between(10) == (START + 5_000, START + 5_100)
    assert times.between(9) == (START, START + 5_000)


def test_there_are_few_and_they_cover_the_whole_time() -> None:
    times = SequenceTimes()
    for minute in range(50_000):
        times.note(minute * 10, START + minute * 60)
    assert len(times.encode()) < 5_000
    for minute in (0, 7, 20_000, 49_000):
        after, before = times.between(minute * 10)
        assert after is not None
        assert before is not None
        assert after <= START + minute * 60 <= before
        assert before - after <= 3 * 50_000 * 60 / 128


@pytest.mark.parametrize("order", ["slots/lifo/fifo", "slots/fifo/none", "one/fifo/lifo"])
def test_the_oldest_that_is_pending_is_found_and_when_it_was_accepted(
    disk: DiskKind, order: str
) -> None:
    clock = ManualClock()
    options = Options(order=Order.parse(order), clock=clock)
    frontier = disk.open(options)
    began = clock.wall()
    for number in range(60):
        frontier.add(page(f"{number}", "ab"[number % 2], number % 3, start=number % 5 == 0))
        clock.advance(10)
        frontier.commit()
    first, last = frontier.locate(b"0", "a"), frontier.counts().pending
    assert (first.state, last) == ("pending", 60)
    with View(disk.path / "frontier") as view:
        times = SequenceTimes(view.note(NOTE))
        oldest = find_oldest(view)
        assert oldest is not None
        assert times.between(oldest) == (began, began + 60)
        # What is in flight does not count.
        in_flight = {f"{number}".encode() for number in range(30)}
        after, before = times.between(find_oldest(view, in_flight) or 0)
        assert after is not None
        assert before is not None
        assert after <= began + 300 <= before
        assert before - after < 130
    frontier.close()
    # A later run goes on with the samples.
    clock.advance(86_400)
    frontier = disk.open(options)
    frontier.add(page("new", "a"))
    clock.advance(100)
    frontier.close()
    with View(disk.path / "frontier") as view:
        times, oldest = SequenceTimes(view.note(NOTE)), find_oldest(view)
        assert oldest is not None
        assert times.between(oldest) == (began, began + 60)
        after, before = times.between(60 + oldest)
        assert after is not None
        assert after >= began + 86_400


def test_with_nothing_pending_there_is_no_oldest(disk: DiskKind) -> None:
    frontier = disk.open()
    frontier.add(page("only"))
    frontier.finish(take(frontier))
    frontier.close()
    with View(disk.path / "frontier") as view:
        assert find_oldest(view) is None
