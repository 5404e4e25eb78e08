"""Requests that wait for their time, in every frontier of one process."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scrapy_altsched.errors import StoreError
from scrapy_altsched.frontier import Entry, Event, Options, Order, Verdict
from scrapy_altsched.frontier.entry import DeadLetter, Delay
from scrapy_altsched.frontier.events import LeasesReady
from scrapy_altsched.frontier.local import delayed, queues, uncommitted
from scrapy_altsched.frontier.local.frontier import LocalFrontier
from scrapy_altsched.maintenance.opening import open_frontier

from ..clocks import ManualClock
from ..frontiers import (
    KINDS,
    LOCAL,
    OWNER,
    STORED,
    DiskKind,
    MemoryKind,
    commit,
    journal_of,
    lease_from,
    name_of,
    page,
    problems_of,
    take,
    work_off,
)


class Waits:
    """Frontiers of one kind, by a clock of the test's own."""

    def __init__(self, kind: MemoryKind, order: str) -> None:
        self.kind = kind
        self.clock = ManualClock()
        self.options = Options(order=Order.parse(order), clock=self.clock)

    def open(self) -> LocalFrontier:
        return self.kind.open(self.options)

    def crash(self, frontier: LocalFrontier) -> LocalFrontier:
        assert isinstance(self.kind, DiskKind)
        self.kind.crash(frontier)
        return self.open()


@pytest.fixture(params=LOCAL)
def local(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Waits]:
    waits = Waits(KINDS[request.param](tmp_path), "slots/fifo/none")
    yield waits
    waits.kind.verify()


@pytest.fixture(params=STORED)
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Waits]:
    waits = Waits(KINDS[request.param](tmp_path), "slots/fifo/none")
    yield waits
    waits.kind.verify()


def late(name: str, seconds: float = 0.0, until: float = 0.0, **others: Any) -> Entry:
    """The entry of a page that has to wait."""
    entry = page(name, **others)
    entry.delay = Delay(seconds, until)
    return entry


def test_a_delayed_request_is_leased_once_it_is_due_and_not_before(local: Waits) -> None:
    frontier = local.open()
    assert frontier.add(late("a", 10)) is Verdict.ADDED
    counts = frontier.counts()
    assert (counts.accepted, counts.pending, counts.delayed, counts.left) == (1, 0, 1, 1)
    assert (frontier.pending, frontier.delayed) == (0, 1)
    assert frontier.next_due() == pytest.approx(local.clock.wall() + 10, abs=0.002)
    local.clock.advance(9.99)
    assert lease_from(frontier) is None
    local.clock.advance(0.02)
    assert name_of(take(frontier)) == "a"
    assert frontier.next_due() is None
    assert frontier.delayed == 0


def test_the_later_one_of_two_times_counts(local: Waits) -> None:
    frontier, now = local.open(), local.clock.wall()
    frontier.add(late("a", 10, now + 5))
    frontier.add(late("b", 5, now + 20))
    local.clock.advance(10.01)
    assert work_off(frontier) == ["a"]
    local.clock.advance(10)
    assert work_off(frontier) == ["b"]


def test_what_was_due_already_is_pending_at_once(local: Waits) -> None:
    frontier = local.open()
    frontier.add(late("a", 0))
    frontier.add(late("b", until=local.clock.wall() - 5))
    assert frontier.counts().pending == 2
    assert work_off(frontier) == ["a", "b"]


def test_the_fingerprint_of_a_delayed_request_is_seen(local: Waits) -> None:
    frontier = local.open()
    frontier.add(late("a", 10))
    frontier.commit()
    assert frontier.add(page("a")) is Verdict.SEEN
    local.clock.advance(11)
    assert work_off(frontier) == ["a"]
    assert frontier.add(late("a", 1)) is Verdict.SEEN


@pytest.mark.parametrize("direction", ["fifo", "lifo"])
def test_to_become_due_is_to_be_added_then(direction: str, tmp_path: Path) -> None:
    waits = Waits(DiskKind(tmp_path), f"slots/{direction}/none")
    frontier = waits.open()
    frontier.add(late("first", 5))
    frontier.add(late("second", 6))
    frontier.add(page("before"))
    waits.clock.advance(10)
    frontier.release(take(frontier))
    frontier.add(page("after"))
    expected = ["before", "first", "second", "after"]
    assert work_off(frontier) == (expected if direction == "fifo" else expected[::-1])
    waits.kind.verify()


def test_priorities_hold_among_what_is_due(local: Waits) -> None:
    frontier = local.open()
    frontier.add(late("low", 1, priority=-(2**20_000)))
    frontier.add(late("high", 3, priority=2**20_000))
    frontier.add(late("none", 2))
    frontier.commit()
    local.clock.advance(4)
    assert work_off(frontier) == ["high", "none", "low"]


def test_slots_go_and_come_while_their_requests_wait(local: Waits) -> None:
    frontier = local.open()
    frontier.add(page("a", "host"))
    frontier.add(late("b", 5, slot="host"))
    assert work_off(frontier) == ["a"]
    commit(frontier)
    frontier.add(page("c", "other"))
    frontier.add(page("d", "host"))
    assert sorted(work_off(frontier)) == ["c", "d"]
    commit(frontier)
    local.clock.advance(6)
    assert work_off(frontier) == ["b"]


def test_an_alarm_rings_when_the_first_one_is_due(tmp_path: Path) -> None:
    clock, events = ManualClock(), list[Event]()
    options = Options(clock=clock)
    frontier = open_frontier(tmp_path / "job", OWNER, options, on_event=events.append)
    assert isinstance(frontier, LocalFrontier)
    frontier.add(late("a", 10))
    frontier.add(late("b", 30))
    assert lease_from(frontier) is None
    assert clock.next_call_at == pytest.approx(clock.now + 10, abs=0.01)
    # One that is due before is not overslept.
    frontier.add(late("c", 5))
    assert lease_from(frontier) is None
    assert clock.next_call_at == pytest.approx(clock.now + 5, abs=0.01)
    for expected in ("c", "a", "b"):
        events.clear()
        while not any(isinstance(event, LeasesReady) for event in events):
            assert lease_from(frontier) is None
            clock.advance(1)
        assert work_off(frontier) == [expected]
    assert clock.next_call_at == float("inf")
    frontier.close()


def test_many_become_due_a_portion_at_a_time(local: Waits, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delayed, "_AT_ONCE", 10)
    frontier = local.open()
    for number in range(35):
        frontier.add(late(f"{number:02}", 1))
    frontier.commit()
    local.clock.advance(2)
    lease = take(frontier)
    assert frontier.counts().delayed == 25
    frontier.finish(lease)
    assert sorted(work_off(frontier)) == [f"{number:02}" for number in range(1, 35)]


def test_a_request_that_waits_keeps_no_object(local: Waits) -> None:
    frontier = local.open()
    for name in "stored", "in memory only":
        entry = late(name, 1)
        entry.request = f"request of {name}"
        if name != "stored":
            entry.payload = None
        frontier.add(entry)
    local.clock.advance(2)
    found = {name_of(lease): lease.entry.request for lease in (take(frontier), take(frontier))}
    assert found == {"stored": None, "in memory only": "request of in memory only"}


# With a store


@pytest.mark.parametrize("is_of_store", [False, True])
def test_while_commits_fail_what_is_due_waits_for_what_is_pending(
    disk: Waits, monkeypatch: pytest.MonkeyPatch, is_of_store: bool
) -> None:
    monkeypatch.setattr(delayed, "_AT_ONCE", 10)
    frontier = disk.open()
    if is_of_store:
        frontier.pressure.enough = 50
    else:
        monkeypatch.setattr(queues, "_MANY_CHANGES", 50)
    for number in range(200):
        frontier.add(late(f"{number:03}", 1))
    commit(frontier)
    disk.clock.advance(2)
    taken = [take(frontier) for _ in range(50)]
    assert frontier.counts().delayed == 150
    taken.append(take(frontier))  # nothing else is pending
    assert frontier.counts().delayed == 140
    commit(frontier)
    taken.append(take(frontier))
    assert frontier.counts().delayed == 130
    for lease in taken:
        frontier.finish(lease)
    assert len({name_of(lease) for lease in taken} | {*work_off(frontier)}) == 200


def test_what_is_due_waits_without_asking_all_the_time_and_is_not_forgotten(
    disk: Waits, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delayed, "_AT_ONCE", 10)
    monkeypatch.setattr(queues, "_MANY_CHANGES", 50)
    frontier = disk.open()
    for number in range(60):
        frontier.add(late(f"{number:02}", 1, slot="left alone"))
    frontier.add(late("other", 1, slot="other"))
    commit(frontier)
    disk.clock.advance(2)
    leases = [take(frontier) for _ in range(5)]
    frontier.defer("left alone", 3600)
    assert lease_from(frontier) is None
    assert disk.clock.next_call_at == disk.clock.now + 1
    commit(frontier)
    disk.clock.advance(1)
    assert lease_from(frontier) is None  # those before it first
    leases.append(take(frontier))
    assert name_of(leases[-1]) == "other"
    for lease in leases:
        frontier.finish(lease)


@pytest.mark.parametrize("ends", ["crash", "close"])
def test_delayed_requests_are_there_again(disk: Waits, ends: str) -> None:
    frontier = disk.open()
    for number in range(40):
        frontier.add(late(f"{number:02}", 10 + number, slot=f"host {number % 3}"))
    commit(frontier)
    if ends == "crash":
        frontier = disk.crash(frontier)
    else:
        frontier.close()
        frontier = disk.open()
    assert frontier.counts().delayed == 40
    assert problems_of(frontier) == []
    done = []
    for number in range(40):
        disk.clock.advance(9.99 if not number else 0.98)
        assert work_off(frontier) == []
        disk.clock.advance(0.02)
        done += work_off(frontier)
        if number == 20:
            frontier.commit()
            frontier = disk.crash(frontier)
    assert done == [f"{number:02}" for number in range(40)]


def test_one_that_has_become_due_since_the_last_commit_is_delayed_after_a_death(
    disk: Waits,
) -> None:
    frontier = disk.open()
    frontier.add(late("a", 1))
    frontier.commit()
    disk.clock.advance(2)
    lease = take(frontier)
    frontier.finish(lease)
    frontier = disk.crash(frontier)
    assert frontier.counts().delayed == 1
    assert work_off(frontier) == ["a"]
    frontier.commit()
    frontier = disk.crash(frontier)
    assert work_off(frontier) == []
    assert frontier.counts().done == 1


def after_each_batch(disk: Waits, frontier: LocalFrontier) -> Iterator[tuple[bool, list[str]]]:
    """Whether a commit is complete, and what is crawled after a death, of each of its batches."""
    kind, complete = disk.kind, False
    assert isinstance(kind, DiskKind)
    while not complete:
        complete = frontier.commit()
        path, kind.path = kind.path, kind.image()
        after = disk.open()
        assert problems_of(after) == []
        disk.clock.advance(5)
        yield complete, work_off(after)
        after.abandon()
        shutil.rmtree(kind.path)
        kind.path = path
    frontier.abandon()


def test_a_death_after_each_batch_loses_nothing(
    disk: Waits, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uncommitted, "BATCH", 3)
    frontier = disk.open()
    for number in range(12):
        frontier.add(late(f"old {number}", 1))
    commit(frontier)
    disk.clock.advance(2)
    # Old ones have become due: some are done, and have led to others, some are in flight.
    leases = [take(frontier) for _ in range(8)]
    for number, lease in enumerate(leases[:5]):
        frontier.add(late(f"new {number}", 1, priority=number))
        frontier.add(page(f"now {number}"))
        frontier.finish(lease)
    ended = {name_of(lease) for lease in leases[:5]}
    others = {f"{word} {number}" for word in ("new", "now") for number in range(5)}
    everything = {f"old {number}" for number in range(12)} | others
    for complete, found in after_each_batch(disk, frontier):
        assert len(found) == len(set(found))
        # What is not found again was done, and all that it has led to is there.
        assert everything - set(found) <= ended | (others if not complete else set())
        missing = everything - set(found)
        if missing & ended:
            assert others <= set(found)


def test_a_write_that_fails_moves_nothing_twice(
    disk: Waits, monkeypatch: pytest.MonkeyPatch
) -> None:
    frontier = disk.open()
    for number in range(6):
        frontier.add(late(f"{number}", 1))
    frontier.commit()
    disk.clock.advance(2)
    first = take(frontier)
    journal = journal_of(frontier)

    def fail(*_: object, **__: object) -> None:
        raise StoreError("the disk is full")

    write = journal.write
    monkeypatch.setattr(journal, "write", fail)
    with pytest.raises(StoreError):
        frontier.commit()
    frontier.finish(first)
    frontier.add(late("more", 1))
    second = take(frontier)
    frontier.finish(second)
    monkeypatch.setattr(journal, "write", write)
    disk.clock.advance(2)
    names = [name_of(first), name_of(second), *work_off(frontier)]
    assert sorted(names) == ["0", "1", "2", "3", "4", "5", "more"]
    assert problems_of(frontier) == []
    frontier = disk.crash(frontier)
    assert work_off(frontier) == []


def test_a_change_of_order_holds_for_delayed_requests(tmp_path: Path) -> None:
    waits = Waits(DiskKind(tmp_path), "slots/fifo/none")
    frontier = waits.open()
    for name, seconds in (("a", 1), ("b", 2), ("c", 3)):
        frontier.add(late(name, seconds, slot=f"host of {name}"))
    frontier.add(page("d", "host of d"))
    frontier.close()
    waits.options = Options(order=Order.parse("one/lifo/none"), clock=waits.clock)
    frontier = waits.open()
    waits.clock.advance(5)
    assert work_off(frontier) == ["c", "b", "a", "d"]
    waits.kind.verify()


@pytest.mark.parametrize("by", [-86_400.0, 86_400.0])
@pytest.mark.parametrize("running", [True, False])
def test_a_clock_that_is_set_makes_nothing_early_and_loses_nothing(
    disk: Waits, by: float, running: bool
) -> None:
    frontier, clock = disk.open(), disk.clock
    for number in range(10):
        frontier.add(late(f"{number}", 100 + number))
    frontier.commit()
    if running:
        clock.set_by += by
    else:
        frontier.close()
        clock.set_by += by
        frontier = disk.open()
        assert frontier.job.clock_behind == pytest.approx(86_400 if by < 0 else 0, abs=1)
    if by > 0:
        assert sorted(work_off(frontier)) == [f"{number}" for number in range(10)]
        return
    clock.advance(99.9)
    assert work_off(frontier) == []
    frontier.add(late("new", 1))
    clock.advance(1.2)
    assert sorted(work_off(frontier)) == ["0", "1", "new"]
    clock.advance(20)
    assert work_off(frontier) == [f"{number}" for number in range(2, 10)]


def test_requests_in_memory_only_wait_too_and_end_with_the_process(disk: Waits) -> None:
    frontier = disk.open()
    frontier.add(late("kept", 1))
    frontier.add(late("lost", 1, stored=False))
    frontier.add(late("done", 1, stored=False))
    frontier.commit()
    assert frontier.counts().memory_only == 2
    disk.clock.advance(2)
    leases = {name_of(lease): lease for lease in iter(lambda: lease_from(frontier), None)}
    assert sorted(leases) == ["done", "kept", "lost"]
    frontier.finish(leases["done"])
    frontier.commit()
    frontier = disk.crash(frontier)
    assert frontier.job.lost_in_memory == 1
    assert work_off(frontier) == ["kept"]


# What follows a request


def test_what_follows_a_request_is_accepted_with_its_end(local: Waits) -> None:
    frontier = local.open()
    frontier.add(page("a"))
    frontier.finish(take(frontier), page("a", priority=-1, unique=False))
    counts = frontier.counts()
    assert (counts.accepted, counts.done, counts.pending) == (2, 1, 1)
    frontier.finish(take(frontier), late("a", 5, unique=False))
    assert work_off(frontier) == []
    local.clock.advance(6)
    lease = take(frontier)
    assert lease.entry.unique
    frontier.finish(lease)
    assert frontier.counts().done == 3
    assert frontier.add(page("a")) is Verdict.SEEN


def test_what_follows_the_last_request_of_a_slot_is_in_that_slot(local: Waits) -> None:
    frontier = local.open()
    for _ in range(3):
        frontier.add(page("a", "host", unique=False))
        frontier.commit()
        frontier.finish(take(frontier), page("b", "host"))
        frontier.commit()
        frontier.finish(take(frontier))
        frontier.commit()
    assert frontier.counts().done == 6


def test_a_death_after_each_batch_leaves_a_page_or_what_follows_it(
    disk: Waits, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uncommitted, "BATCH", 2)
    frontier = disk.open()
    for number in range(8):
        frontier.add(page(f"{number}"))
    commit(frontier)
    for number in range(8):
        lease = take(frontier)
        frontier.add(page(f"child of {number}", "z"))
        follower = late(name_of(lease), 1 if number % 2 else 0)
        frontier.finish(lease, follower)
    disk.clock.advance(2)
    # Some that follow are dead before the end that brings them is stored, some are done.
    over = set()
    for number in range(8):
        lease = take(frontier)
        over.add(name_of(lease))
        if number % 2:
            frontier.dead_letter(lease, DeadLetter("it is broken"))
        else:
            frontier.finish(lease)
    for complete, found in after_each_batch(disk, frontier):
        left = [name for name in found if name.isdigit()]
        # Each page is there once: itself, or, from the last batch on, what follows it.
        ended = over if complete else set()
        assert sorted(left) == sorted({f"{number}" for number in range(8)} - ended)
