"""Pages that end without having been crawled, in jobs that record when pages are finished."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scrapy_altsched.age import Age
from scrapy_altsched.frontier import Entry, Options, Order, Verdict
from scrapy_altsched.frontier.entry import Delay, PageFailure, Reason
from scrapy_altsched.frontier.local.frontier import LocalFrontier
from scrapy_altsched.frontier.store.seen import UNFINISHED
from scrapy_altsched.maintenance.requeue import FailedRequest, failed_requests
from scrapy_altsched.maintenance.restart import restart

from ..clocks import ManualClock
from ..frontiers import (
    OWNER,
    DiskKind,
    commit,
    journal_of,
    lease_from,
    name_of,
    page,
    take,
    work_off,
)

HOUR = 3_600.0
DOWN = PageFailure(Reason.STATUS, "HTTP status 503", 503)


class Job:
    """A job whose pages are crawled again after two hours, and that keeps two failed ones."""

    def __init__(self, disk: DiskKind) -> None:
        self.disk, self.clock = disk, ManualClock()
        self.options = Options(
            clock=self.clock,
            order=Order("one", "fifo"),
            recrawl_after=Age.parse("2h"),
            records_ages=True,
            keep_failed=2,
        )

    def open(self) -> LocalFrontier:
        return self.disk.open(self.options)

    def in_next_pass(self, frontier: LocalFrontier) -> LocalFrontier:
        """After a pass in which all was crawled that was left: pages are crawled once in each."""
        work_off(frontier)
        frontier.close(finished=True)
        return self.open()

    def after_death(self, frontier: LocalFrontier) -> LocalFrontier:
        commit(frontier)
        self.disk.crash(frontier)
        return self.open()


@pytest.fixture
def job(disk: DiskKind) -> Job:
    return Job(disk)


def fail(frontier: LocalFrontier, *names: str) -> None:
    for name in names:
        assert frontier.add(page(name)) is Verdict.ADDED
        lease = take(frontier)
        assert name_of(lease) == name
        lease.failure = DOWN
        frontier.finish(lease)


def failed_in(frontier: LocalFrontier) -> list[FailedRequest]:
    return list(failed_requests(journal_of(frontier).failed()))


def requeue(frontier: LocalFrontier, name: str) -> None:
    (found,) = (it for it in failed_in(frontier) if it.fingerprint == name.encode())
    assert frontier.requeue("failed", found.key, lambda _: ("", False)) == DOWN


@pytest.mark.parametrize("commits", [1, 3])
def test_failed_pages_that_are_no_longer_kept_are_finished_since_they_have_failed(
    job: Job, commits: int
) -> None:
    frontier = job.open()
    for name in "abc":
        fail(frontier, name)
        job.clock.advance(HOUR / 3)
        if commits == 3:
            commit(frontier)
    frontier = job.after_death(frontier)
    assert [it.fingerprint for it in failed_in(frontier)] == [b"b", b"c"]
    frontier = job.in_next_pass(frontier)
    job.clock.advance(HOUR - 1)
    assert [frontier.add(page(name)) for name in "abc"] == [Verdict.SEEN] * 3
    # Two hours after it has failed.
    job.clock.advance(2)
    assert [frontier.add(page(name)) for name in "abc"] == [
        Verdict.ADDED,
        Verdict.SEEN,
        Verdict.SEEN,
    ]
    job.clock.advance(100 * HOUR)
    assert frontier.add(page("b")) is Verdict.SEEN
    assert work_off(frontier) == ["a"]
    job.disk.verify()


def test_a_failed_page_that_is_pending_again_in_the_same_commit_is_not_finished(job: Job) -> None:
    frontier = job.open()
    fail(frontier, "a", "b")
    commit(frontier)
    fail(frontier, "c", "d")
    requeue(frontier, "a")
    frontier = job.after_death(frontier)
    counts = frontier.counts()
    assert (counts.pending, counts.failed, counts.done, counts.unaccounted) == (1, 2, 1, 0)
    assert [it.fingerprint for it in failed_in(frontier)] == [b"c", b"d"]
    job.clock.advance(3 * HOUR)
    assert frontier.add(page("a")) is Verdict.SEEN
    frontier = job.in_next_pass(frontier)
    assert frontier.add(page("a")) is Verdict.SEEN
    assert frontier.add(page("b")) is Verdict.ADDED
    assert frontier.add(page("c")) is Verdict.SEEN
    job.disk.verify()


def test_a_failed_page_that_was_forgotten_stays_what_it_has_become_since(job: Job) -> None:
    frontier = job.open()
    fail(frontier, "a", "b")
    commit(frontier)
    for name in "ab":
        assert frontier.forget(name.encode())
    job.clock.advance(3 * HOUR)
    frontier.add(page("b"))
    assert work_off(frontier) == ["b"]
    commit(frontier)
    # Now the two that have failed first go.
    fail(frontier, "c", "d")
    frontier = job.in_next_pass(job.after_death(frontier))
    assert frontier.add(page("a")) is Verdict.ADDED
    assert frontier.add(page("b")) is Verdict.SEEN
    assert frontier.counts().seen == 4
    job.disk.verify()


@pytest.mark.parametrize("is_stored", [True, False])
@pytest.mark.parametrize("delay", [None, Delay(HOUR)])
def test_discarded_pages_are_finished_when_they_are_discarded(
    job: Job, is_stored: bool, delay: Delay | None
) -> None:
    frontier = job.open()
    entry: Entry = replace(page("a"), delay=delay)
    frontier.add(entry)
    if is_stored:
        commit(frontier)
    job.clock.advance(HOUR / 2)
    assert sum(frontier.discard(lambda *_: True)) == 1
    frontier = job.after_death(frontier)
    assert frontier.counts().accepted == 0
    job.clock.advance(1)
    frontier = job.in_next_pass(frontier)
    job.clock.advance(2 * HOUR - 2)
    assert frontier.add(page("a")) is Verdict.SEEN
    job.clock.advance(2)
    assert frontier.add(page("a")) is Verdict.ADDED
    assert work_off(frontier) == ["a"]
    job.disk.verify()


def test_a_discarded_request_that_is_not_filtered_ends_no_page(job: Job) -> None:
    frontier = job.open()
    frontier.add(page("a"))
    lease = take(frontier)
    frontier.add(page("a", unique=False))
    commit(frontier)
    assert sum(frontier.discard(lambda *_: True)) == 1
    commit(frontier)
    assert journal_of(frontier).seen_value(journal_of(frontier).seen_key(b"a")) == UNFINISHED
    frontier.finish(lease)
    assert lease_from(frontier) is None
    job.disk.verify()


def test_what_a_restart_drops_is_finished_then(job: Job) -> None:
    frontier = job.open()
    frontier.add(page("a"))
    commit(frontier)
    frontier.close()
    restart(job.disk.path, OWNER, "", keeps_seen=True)
    # By the clock on the wall, which is ahead of that of the test.
    frontier = job.open()
    assert frontier.add(page("a")) is Verdict.SEEN
    job.clock.set_by = 10 * 365 * 24 * HOUR
    frontier = job.in_next_pass(frontier)
    assert frontier.add(page("a")) is Verdict.ADDED
    job.disk.verify()
