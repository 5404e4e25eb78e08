"""Download slots that may not be asked for a while, in every frontier of one process."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from scrapy_altsched.frontier import Event, Options, Order, Waiting
from scrapy_altsched.frontier.events import LeasesReady
from scrapy_altsched.frontier.local.frontier import LocalFrontier
from scrapy_altsched.maintenance.opening import open_frontier

from ..clocks import ManualClock
from ..frontiers import (
    KINDS,
    Downloads,
    MemoryKind,
    lease_from,
    name_of,
    page,
    take,
    work_off,
)

LOCAL = [name for name, kind in KINDS.items() if kind.knows_downloads]


class Parking:
    """A frontier of one kind, by a clock of the test's own."""

    def __init__(self, kind: MemoryKind, policy: str = "slots") -> None:
        self.kind, self.clock = kind, ManualClock()
        order = Order.parse(f"{policy}/fifo/none")
        self.frontier = kind.open(Options(order=order, clock=self.clock))

    def add(self, *names: str) -> None:
        """Pages of the slots that their names begin with."""
        for name in names:
            self.frontier.add(page(name, name[0]))

    def commit(self) -> None:
        while not self.frontier.commit():
            pass


@pytest.fixture(params=LOCAL)
def parking(request: pytest.FixtureRequest, tmp_path: Path) -> Parking:
    return Parking(KINDS[request.param](tmp_path))


def test_a_slot_that_is_deferred_is_asked_for_one_page_then_and_for_the_others_after_it(
    parking: Parking,
) -> None:
    frontier = parking.frontier
    parking.add("a1", "a2", "a3", "b1")
    assert frontier.defer("a", 10)
    assert work_off(frontier) == ["b1"]
    assert frontier.lease(Downloads({})) is Waiting.PARKED
    assert frontier.pending == 3
    parking.clock.advance(9.9)
    assert lease_from(frontier) is None
    parking.clock.advance(0.2)
    trial = take(frontier)
    assert name_of(trial) == "a1"
    assert frontier.lease(Downloads({})) is Waiting.PARKED
    frontier.finish(trial)
    assert work_off(frontier) == ["a2", "a3"]
    parking.kind.verify()


@pytest.mark.parametrize("policy", ["slots", "one"])
def test_all_slots_are_asked_for_one_page_then_and_for_the_others_after_it(
    tmp_path: Path, policy: str
) -> None:
    parking = Parking(KINDS["memory"](tmp_path), policy)
    frontier = parking.frontier
    parking.add("a1", "b1", "c1")
    assert frontier.defer(None, 10)
    assert frontier.lease(Downloads({})) is Waiting.PARKED
    parking.clock.advance(10)
    trial = lease_from(frontier)
    assert frontier.lease(Downloads({})) is Waiting.PARKED
    assert frontier.defer(None, 5)
    frontier.release(trial)
    assert frontier.lease(Downloads({})) is Waiting.PARKED
    parking.clock.advance(5)
    assert len(work_off(frontier)) == 3


def test_a_slot_that_is_deferred_again_during_its_trial_stays_parked(parking: Parking) -> None:
    frontier = parking.frontier
    parking.add("a1", "a2")
    frontier.defer("a", 10)
    parking.clock.advance(11)
    trial = take(frontier)
    frontier.defer("a", 20)
    frontier.finish(trial)
    assert lease_from(frontier) is None
    parking.clock.advance(21)
    assert work_off(frontier) == ["a2"]
    parking.kind.verify()


def test_a_shorter_deferral_changes_nothing(parking: Parking) -> None:
    parking.add("a1")
    parking.frontier.defer("a", 10)
    parking.frontier.defer("a", 1)
    parking.clock.advance(2)
    assert lease_from(parking.frontier) is None
    parking.clock.advance(9)
    assert work_off(parking.frontier) == ["a1"]


def test_a_deferral_outlasts_its_slot(parking: Parking) -> None:
    frontier = parking.frontier
    parking.add("a1")
    lease = take(frontier)
    frontier.defer("a", 10)
    frontier.finish(lease)
    parking.commit()
    parking.add("a2")
    assert lease_from(frontier) is None
    parking.clock.advance(11)
    assert work_off(frontier) == ["a2"]
    parking.kind.verify()


def test_a_trial_that_is_given_back_lets_the_others_in(parking: Parking) -> None:
    frontier = parking.frontier
    parking.add("a1", "a2")
    frontier.defer("a", 1)
    parking.clock.advance(2)
    frontier.release(take(frontier))
    assert work_off(frontier) == ["a1", "a2"]


def test_one_queue_for_all_has_no_slots(tmp_path: Path) -> None:
    parking = Parking(MemoryKind(tmp_path), "one")
    parking.add("a1")
    assert not parking.frontier.defer("a", 10)
    assert work_off(parking.frontier) == ["a1"]


def test_an_alarm_rings_when_a_slot_may_be_asked_again() -> None:
    clock, events = ManualClock(), list[Event]()
    frontier = open_frontier(None, "spider", Options(clock=clock), on_event=events.append)
    assert isinstance(frontier, LocalFrontier)
    frontier.add(page("a1", "a"))
    frontier.defer("a", 10)
    assert lease_from(frontier) is None
    assert clock.next_call_at == clock.now + 10
    clock.advance(10)
    assert any(isinstance(event, LeasesReady) for event in events)
    assert name_of(take(frontier)) == "a1"
    frontier.close()


def test_what_may_be_asked_is_asked_and_nothing_else(parking: Parking) -> None:
    """At random: some slots are deferred, and time passes; each page is leased in the end."""
    seed = 1_728
    random, frontier, clock = Random(seed), parking.frontier, parking.clock
    until: dict[str, float] = {}
    wanted: set[str] = set()
    found: list[str] = []
    for number in range(600):
        action = random.random()
        slot = random.choice("abcdefgh")
        if action < 0.4:
            parking.add(f"{slot}{number}")
            wanted.add(f"{slot}{number}")
        elif action < 0.5:
            seconds = random.choice([0.5, 1.0, 3.0])
            frontier.defer(slot, seconds)
            until[slot] = max(until.get(slot, 0.0), clock.now + seconds)
        elif action < 0.6:
            clock.advance(random.choice([0.2, 0.7]))
        elif action < 0.65:
            parking.commit()
        else:
            lease = lease_from(frontier)
            free = {it for it in wanted - set(found) if until.get(it[0], 0.0) <= clock.now}
            assert (lease is None) == (not free), seed
            if lease is not None:
                assert name_of(lease) in free, seed
                found.append(name_of(lease))
                frontier.finish(lease)
    clock.advance(10)
    found += work_off(frontier)
    assert sorted(found) == sorted(wanted)
    parking.kind.verify()
