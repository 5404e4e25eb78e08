"""Requests that have failed: kept, told, counted, and pending again when they are asked for."""

from __future__ import annotations

from pathlib import Path

import pytest
from scrapy import Request, Spider

from scrapy_altsched.errors import StoreError
from scrapy_altsched.frontier import Entry, Event, Options, Order, Verdict
from scrapy_altsched.frontier.entry import Delay, PageFailure, Reason
from scrapy_altsched.frontier.events import FailuresDropped
from scrapy_altsched.frontier.local.frontier import LocalFrontier
from scrapy_altsched.frontier.store.journal import Journal
from scrapy_altsched.maintenance import requeue as requeuing
from scrapy_altsched.maintenance.opening import open_frontier, visit
from scrapy_altsched.maintenance.requeue import FailedRequest, failed_requests, requeue
from scrapy_altsched.requests.codec import encode_request, locate

from ..clocks import ManualClock
from ..frontiers import (
    KINDS,
    LOCAL,
    OWNER,
    DiskKind,
    MemoryKind,
    commit,
    journal_of,
    lease_from,
    name_of,
    problems_of,
    take,
    work_off,
)

DOWN = PageFailure(Reason.STATUS, "HTTP status 503", 503, 3)
SPIDER = Spider(OWNER)


def page(name: str, host: str = "host.example", **values: int) -> Entry:
    payload = encode_request(Request(f"http://{host}/{name}", **values), SPIDER)
    return Entry(name.encode(), host, payload=payload, **values)


def fail(frontier: LocalFrontier, name: str, why: PageFailure = DOWN) -> None:
    lease = take(frontier)
    assert name_of(lease) == name
    lease.failure = why
    frontier.finish(lease)


def failed_in(path: Path) -> list[FailedRequest]:
    journal = Journal(path, OWNER)
    try:
        return list(failed_requests(journal.failed()))
    finally:
        journal.close()


def requeue_in(path: Path) -> int:
    frontier = visit(path, OWNER, Options())
    try:
        return requeue(frontier, failed_requests(frontier.run.journal.failed()), locate)
    finally:
        frontier.close()


@pytest.fixture(params=LOCAL)
def local(request: pytest.FixtureRequest, tmp_path: Path) -> MemoryKind:
    return KINDS[request.param](tmp_path)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest, tmp_path: Path) -> MemoryKind:
    return KINDS[request.param](tmp_path)


def test_a_failed_request_is_neither_done_nor_left(kind: MemoryKind) -> None:
    frontier = kind.open()
    frontier.add(page("a"))
    fail(frontier, "a")
    assert frontier.add(page("a")) is Verdict.SEEN
    counts = frontier.counts()
    assert (counts.accepted, counts.failed, counts.done, counts.left) == (1, 1, 0, 0)
    assert counts.unaccounted == 0
    assert lease_from(frontier) is None
    kind.verify()


def test_what_has_happened_survives_a_death(disk: DiskKind) -> None:
    clock = ManualClock()
    frontier = disk.open(Options(clock=clock))
    odd = PageFailure(Reason.DOWNLOAD, "Lone: \udc80 ü", 0, 1)
    for name, why in (("a", DOWN), ("b", odd)):
        frontier.add(page(name))
        commit(frontier)
        fail(frontier, name, why)
        clock.advance(5)
    commit(frontier)
    assert problems_of(frontier) == []
    disk.crash(frontier)
    first, second = failed_in(disk.path)
    assert (first.fingerprint, first.why) == (b"a", DOWN)
    assert (second.fingerprint, second.why.reason) == (b"b", Reason.DOWNLOAD)
    assert second.why.text == "Lone: \\udc80 ü"
    assert second.at - first.at == pytest.approx(5, abs=0.01)
    disk.verify()


def test_without_its_commit_it_is_pending_again(disk: DiskKind) -> None:
    frontier = disk.open()
    frontier.add(page("a"))
    commit(frontier)
    fail(frontier, "a")
    disk.crash(frontier)
    frontier = disk.open()
    assert frontier.counts().failed == 0
    assert work_off(frontier) == ["a"]
    disk.verify()


def test_a_failure_that_comes_with_its_request_in_one_commit_is_kept(disk: DiskKind) -> None:
    frontier = disk.open()
    frontier.add(page("a"))
    fail(frontier, "a")
    frontier.close(finished=True)
    assert [request.fingerprint for request in failed_in(disk.path)] == [b"a"]
    disk.verify()


def test_a_write_that_fails_doubles_nothing(
    disk: DiskKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    frontier = disk.open(Options(keep_failed=2))
    for name in "abc":
        frontier.add(page(name))
        fail(frontier, name)
    database = journal_of(frontier).database
    with monkeypatch.context() as patch:

        def refuse(*_: object, **__: object) -> None:
            raise StoreError("no space", "make some")

        patch.setattr(database, "write", refuse)
        with pytest.raises(StoreError):
            frontier.commit()
    frontier.add(page("d"))
    fail(frontier, "d")
    commit(frontier)
    counts = frontier.counts()
    assert (counts.failed, counts.done, counts.unaccounted) == (2, 2, 0)
    assert problems_of(frontier) == []
    frontier.close()
    assert [request.fingerprint for request in failed_in(disk.path)] == [b"c", b"d"]
    disk.verify()


def test_of_too_many_the_oldest_count_as_done(tmp_path: Path) -> None:
    events: list[Event] = []
    clock = ManualClock()
    options = Options(keep_failed=20, order=Order("one", "fifo"), clock=clock)
    frontier = open_frontier(tmp_path / "job", OWNER, options, on_event=events.append)
    assert isinstance(frontier, LocalFrontier)
    for number in range(35):
        frontier.add(page(str(number)))
        fail(frontier, str(number))
        clock.advance(1)
        if number % 10 == 9:
            commit(frontier)
    frontier.close()
    counts = frontier.counts()
    # At 30 and at 35: what is too much, and a tenth more.
    assert (counts.failed, counts.done, counts.unaccounted) == (18, 17, 0)
    assert [event.count for event in events if isinstance(event, FailuresDropped)] == [12, 17]
    kept = [int(request.fingerprint) for request in failed_in(tmp_path / "job")]
    assert kept == list(range(17, 35))


def test_with_none_to_keep_they_are_done(local: MemoryKind) -> None:
    frontier = local.open(Options(keep_failed=0))
    frontier.add(page("a"))
    fail(frontier, "a")
    assert (frontier.counts().failed, frontier.counts().done) == (0, 1)
    local.verify()


def test_what_follows_a_request_matters_more_than_that_it_failed(local: MemoryKind) -> None:
    frontier = local.open()
    frontier.add(page("a"))
    lease = take(frontier)
    lease.failure = DOWN
    then = page("a")
    then.delay = Delay(0)
    frontier.finish(lease, then)
    assert (frontier.counts().failed, frontier.counts().done) == (0, 1)
    assert work_off(frontier) == ["a"]
    local.verify()


# Pending again


def test_requeued_ones_are_pending_with_all_their_tries(disk: DiskKind) -> None:
    frontier = disk.open()
    frontier.add(page("low", priority=-1))
    frontier.add(page("high", priority=5))
    fail(frontier, "high")
    fail(frontier, "low")
    frontier.close(finished=True)
    assert requeue_in(disk.path) == 2
    frontier = disk.open()
    assert frontier.job.resumed
    counts = frontier.counts()
    assert (counts.pending, counts.failed, counts.unaccounted) == (2, 0, 0)
    leases = [take(frontier), take(frontier)]
    assert [name_of(lease) for lease in leases] == ["high", "low"]
    assert all(lease.entry.again for lease in leases)
    # Once more, and requeued once more.
    for lease in leases:
        lease.failure = DOWN
        frontier.finish(lease)
    frontier.close(finished=True)
    assert requeue_in(disk.path) == 2
    frontier = disk.open()
    assert work_off(frontier) == ["high", "low"]
    disk.verify()


def test_many_are_requeued_in_portions(disk: DiskKind, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requeuing, "PORTION", 3)
    names = [str(number) for number in range(10)]
    frontier = disk.open()
    for name in names:
        frontier.add(page(name))
        fail(frontier, name)
    frontier.close(finished=True)
    assert requeue_in(disk.path) == len(names)
    assert failed_in(disk.path) == []
    frontier = disk.open()
    assert sorted(work_off(frontier)) == names
    disk.verify()


def test_they_are_placed_by_the_order_of_the_job_then(tmp_path: Path) -> None:
    disk = DiskKind(tmp_path)
    frontier = disk.open(Options(order=Order("slots", "lifo")))
    frontier.add(page("a", "a.example"))
    fail(frontier, "a")
    frontier.close()
    disk.open(Options(order=Order("one", "fifo"))).close()
    requeue_in(disk.path)
    frontier = disk.open(Options(order=Order("one", "fifo")))
    assert work_off(frontier) == ["a"]
    disk.verify()


def test_the_next_run_can_begin_with_them(disk: DiskKind) -> None:
    frontier = disk.open()
    for name in "ab":
        frontier.add(page(name))
        fail(frontier, name)
    frontier.close(finished=True)
    again = Options(retry_failed=True)
    frontier = open_frontier(disk.path, OWNER, again, locate=locate)
    assert frontier.job.retried == 2
    assert isinstance(frontier, LocalFrontier)
    assert sorted(work_off(frontier)) == ["a", "b"]
    frontier.close(finished=True)
    frontier = open_frontier(disk.path, OWNER, again, locate=locate)
    assert frontier.job.retried == 0
    frontier.close()


def test_one_that_cannot_be_restored_stays_where_it_is(disk: DiskKind) -> None:
    frontier = disk.open()
    frontier.add(Entry(b"damaged", "host", payload=b"no request"))
    fail(frontier, "damaged")
    frontier.add(page("a"))
    fail(frontier, "a")
    frontier.close(finished=True)
    frontier = open_frontier(disk.path, OWNER, Options(retry_failed=True), locate=locate)
    assert frontier.job.retried == 1
    assert frontier.counts().failed == 1
    frontier.close()
    disk.verify()
