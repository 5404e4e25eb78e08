"""What the disk frontier keeps over the death of its process, and of which it says so.

A copy of the job directory, taken while the frontier is open, is what a SIGKILL at that instant
would leave: all writes have gone to the operating system.  One test kills a real process.
"""

from __future__ import annotations

import math
import random
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scrapy_altsched.errors import JobdirLostError, StoreError, StoreStalledError
from scrapy_altsched.frontier import Lease, Options, Order, Verdict
from scrapy_altsched.frontier.contract import Waiting
from scrapy_altsched.frontier.entry import DeadLetter
from scrapy_altsched.frontier.events import Committed, Event, Refused, Unreadable
from scrapy_altsched.frontier.local import draft, uncommitted
from scrapy_altsched.frontier.local.frontier import LocalFrontier
from scrapy_altsched.frontier.local.persistence import Persistence
from scrapy_altsched.frontier.store.job_run import JobRun
from scrapy_altsched.frontier.store.journal import Journal
from scrapy_altsched.frontier.store.records import Batch
from scrapy_altsched.frontier.store.seen import digest_of
from scrapy_altsched.frontier.store.states import DEAD, decode_value
from scrapy_altsched.maintenance.opening import open_frontier

from ..frontiers import (
    OWNER,
    DiskKind,
    Downloads,
    journal_of,
    lease_from,
    name_of,
    names,
    page,
    problems_of,
    stored,
    take,
    take_all,
    work_off,
)

FIFO = Options(order=Order("slots", "fifo"))


def reopen_after_crash(disk: DiskKind, frontier: LocalFrontier) -> LocalFrontier:
    disk.crash(frontier)
    return disk.open(FIFO)


def dead(disk: DiskKind) -> dict[str, str]:
    """Name -> reason of the dead letters in a job that is closed."""
    journal = Journal(disk.path, OWNER)
    found = {decode_value(value).fingerprint.decode(): str(why) for _, why, value in journal.dead()}
    journal.close()
    return found


# Reopening after a clean close


def test_everything_is_there_again_after_a_close(disk: DiskKind) -> None:
    frontier = disk.open(FIFO)
    for name in "abcdef":
        frontier.add(page(name, priority=-ord(name)))
    first, second, third = take(frontier), take(frontier), take(frontier)
    frontier.finish(first)
    frontier.release(second)
    frontier.dead_letter(third, DeadLetter("why"))
    frontier.close()
    frontier = disk.open(FIFO)
    counts = frontier.counts()
    assert (counts.accepted, counts.pending, counts.done, counts.dead) == (6, 4, 1, 1)
    assert all(frontier.add(page(name)) is Verdict.SEEN for name in "abcdef")
    assert work_off(frontier) == ["b", "d", "e", "f"]


def test_a_close_commits_first(disk: DiskKind) -> None:
    frontier = disk.open()
    frontier.mark_seen(b"marked")
    frontier.add(page("a"))
    frontier.close()
    frontier = disk.open()
    assert frontier.mark_seen(b"marked")
    assert work_off(frontier) == ["a"]


def test_a_job_is_resumed_until_it_is_finished(disk: DiskKind) -> None:
    frontier = disk.open()
    assert not frontier.job.resumed
    frontier.add(page("a"))
    frontier.close()
    frontier = disk.open()
    assert frontier.job.resumed
    work_off(frontier)
    frontier.close(finished=True)
    frontier = disk.open()
    assert not frontier.job.resumed
    assert frontier.add(page("a")) is Verdict.SEEN


def test_a_job_that_died_after_it_was_opened_again_is_resumed(disk: DiskKind) -> None:
    frontier = disk.open()
    frontier.close(finished=True)
    frontier = disk.open(FIFO)
    assert reopen_after_crash(disk, frontier).job.resumed


def test_the_order_of_equal_priorities_goes_on_over_runs(disk: DiskKind) -> None:
    for pages in ("abc", "def", "ghi"):
        frontier = disk.open(FIFO)
        for name in pages:
            frontier.add(page(name))
        frontier.close()
    assert work_off(disk.open(FIFO)) == list("abcdefghi")


def test_commits_are_numbered_over_runs(disk: DiskKind) -> None:
    numbers = []
    for run in range(3):
        frontier = disk.open()
        numbers.append(frontier.run.commit_number)
        frontier.add(page(str(run)))
        frontier.commit()
        numbers.append(frontier.run.commit_number)
        frontier.close()
    assert numbers == sorted(set(numbers))


def test_notes_are_written_with_the_commit_and_only_when_they_change(disk: DiskKind) -> None:
    frontier = disk.open(FIFO)
    assert frontier.run.note("state") is None
    assert frontier.has_changes({"state": b"1"})
    frontier.commit({"state": b"1"})
    number = frontier.run.commit_number
    assert not frontier.has_changes({"state": b"1"})
    frontier.commit({"state": b"1"})
    assert frontier.run.commit_number == number
    frontier = reopen_after_crash(disk, frontier)
    assert frontier.run.note("state") == b"1"


# Reopening after a crash


def test_what_was_not_committed_never_was(disk: DiskKind) -> None:
    frontier = disk.open(FIFO)
    frontier.add(page("committed"))
    frontier.commit()
    frontier.add(page("lost"))
    frontier.mark_seen(b"marked")
    frontier = reopen_after_crash(disk, frontier)
    counts = frontier.counts()
    assert (counts.accepted, counts.pending) == (1, 1)
    assert not frontier.mark_seen(b"marked")
    assert frontier.add(page("lost")) is Verdict.ADDED
    assert frontier.add(page("committed")) is Verdict.SEEN
    assert work_off(frontier) == ["committed", "lost"]


def test_what_was_leased_is_pending_again(disk: DiskKind) -> None:
    frontier = disk.open(FIFO)
    for name in "abc":
        frontier.add(page(name))
    frontier.commit()
    assert names(take_all(frontier)) == ["a", "b", "c"]
    frontier.commit()
    frontier = reopen_after_crash(disk, frontier)
    assert frontier.counts().pending == 3
    assert work_off(frontier) == ["a", "b", "c"]


def test_what_was_finished_and_committed_stays_done(disk: DiskKind) -> None:
    frontier = disk.open(FIFO)
    for name in "ab":
        frontier.add(page(name))
    frontier.finish(take(frontier))
    frontier.commit()
    frontier.finish(take(frontier))
    frontier = reopen_after_crash(disk, frontier)
    counts = frontier.counts()
    assert (counts.done, counts.pending) == (1, 1)
    assert work_off(frontier) == ["b"]


def test_memory_only_requests_that_ended_with_the_process_are_counted_and_not_seen(
    disk: DiskKind,
) -> None:
    frontier = disk.open(FIFO)
    for name in "abc":
        frontier.add(page(name, stored=False))
    frontier.finish(take(frontier))
    take(frontier)
    frontier.commit()
    frontier = reopen_after_crash(disk, frontier)
    assert frontier.job.lost_in_memory == 2
    assert frontier.counts().memory_only == 0
    assert frontier.counts().accepted == 1
    assert frontier.add(page("a")) is Verdict.SEEN
    assert frontier.add(page("b")) is Verdict.ADDED
    assert frontier.add(page("c")) is Verdict.ADDED
    frontier.commit()
    frontier = reopen_after_crash(disk, frontier)
    assert frontier.job.lost_in_memory == 0


def test_memory_only_requests_end_with_a_clean_close_too(disk: DiskKind) -> None:
    frontier = disk.open()
    frontier.add(page("a", stored=False))
    frontier.close()
    frontier = disk.open()
    assert frontier.job.lost_in_memory == 1
    assert frontier.add(page("a")) is Verdict.ADDED


def test_a_forgotten_fingerprint_stays_forgotten(disk: DiskKind) -> None:
    frontier = disk.open(FIFO)
    frontier.add(page("a"))
    assert frontier.forget(b"a")
    assert frontier.commit()
    frontier = reopen_after_crash(disk, frontier)
    assert problems_of(frontier) == []
    assert frontier.add(page("a")) is Verdict.ADDED
    assert frontier.commit()
    frontier = reopen_after_crash(disk, frontier)
    assert frontier.add(page("a")) is Verdict.SEEN
    assert work_off(frontier) == ["a", "a"]


def test_forgetting_makes_nothing_else_durable(disk: DiskKind) -> None:
    """What is done may become durable only when others have written what they hold of it."""
    frontier = disk.open(FIFO)
    frontier.add(page("a"))
    frontier.commit()
    frontier.finish(take(frontier))
    assert frontier.forget(b"a")
    frontier = reopen_after_crash(disk, frontier)
    assert frontier.counts().done == 0
    assert frontier.add(page("a")) is Verdict.SEEN
    assert work_off(frontier) == ["a"]


def test_what_is_forgotten_and_added_again_while_writes_fail_is_seen_once(disk: DiskKind) -> None:
    frontier = disk.open(FIFO)
    frontier.add(page("a"))
    directory = disk.path.rename(disk.directory / "away")
    with pytest.raises(JobdirLostError):
        frontier.commit()
    assert frontier.forget(b"a")
    assert frontier.add(page("a")) is Verdict.ADDED
    directory.rename(disk.path)
    assert not frontier.commit(), "what failed goes first"
    assert frontier.add(page("a")) is Verdict.SEEN
    assert frontier.commit()
    frontier = reopen_after_crash(disk, frontier)
    assert frontier.add(page("a")) is Verdict.SEEN
    assert work_off(frontier) == ["a", "a"]


def test_slots_that_are_empty_leave_nothing_behind(disk: DiskKind) -> None:
    frontier = disk.open(FIFO)
    for number in range(50):
        frontier.add(page(str(number), f"slot {number}"))
    frontier.commit()
    work_off(frontier)
    frontier.commit()
    assert not frontier._queues.slots._by_name
    frontier.close()
    journal = Journal(disk.path, OWNER)
    assert list(journal.slots()) == []
    assert list(journal.pending()) == []
    assert list(journal.suspects()) == []
    assert not JobRun(journal).evidence.in_flight
    journal.close()


def test_what_is_committed_leaves_the_list_of_changes(disk: DiskKind) -> None:
    frontier = disk.open(FIFO)
    for name in "abc":
        frontier.add(page(name, from_start=True))
    frontier.add(page("in memory", stored=False))
    frontier.mark_seen(b"marked")
    frontier.finish(take(frontier))
    frontier.release(take(frontier))
    frontier.commit()
    assert isinstance(frontier._kept, Persistence)
    left = frontier._kept
    assert left.seen == {digest_of(b"in memory")}
    assert [*left._list, *left._deferred, *left.claims, *left.unwritten, *left.ended] == []


def test_a_slot_that_was_emptied_by_thousands_can_be_used_again(disk: DiskKind) -> None:
    frontier = disk.open(FIFO)
    count = draft._RANGE_DELETE_FROM + 1
    for number in range(count):
        frontier.add(page(str(number), "slot"))
    frontier.commit()
    leases = list(take_all(frontier))
    for lease in leases[:-1]:
        frontier.finish(lease)
    frontier.commit()
    # Now the whole range is deleted, while the next request of the slot is not written yet.
    frontier.finish(leases[-1])
    frontier.commit()
    frontier.add(page("again", "slot"))
    frontier.commit()
    frontier = reopen_after_crash(disk, frontier)
    assert work_off(frontier) == ["again"]


def test_a_request_that_comes_while_its_slot_is_emptied_is_kept(disk: DiskKind) -> None:
    frontier = disk.open(FIFO)
    for number in range(draft._RANGE_DELETE_FROM + 1):
        frontier.add(page(str(number), "slot"))
    frontier.commit()
    leases = list(take_all(frontier))
    for lease in leases[:-1]:
        frontier.finish(lease)
    frontier.commit()
    frontier.add(page("child", "slot"))
    frontier.finish(leases[-1])
    frontier.commit()
    frontier = reopen_after_crash(disk, frontier)
    assert work_off(frontier) == ["child"]


CRAWLER = """
import os, signal, sys
from pathlib import Path
from scrapy_altsched.frontier import Options, Order
from tests.frontiers import DiskKind, page, take, take_all

frontier = DiskKind(Path(sys.argv[1])).open(Options(order=Order("slots", "fifo")))
for name in "abcde":
    frontier.add(page(name))
frontier.commit()
frontier.finish(take(frontier))
frontier.commit()
frontier.finish(take(frontier))
take(frontier)
frontier.add(page("uncommitted"))
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_process_leaves_what_it_had_committed(disk: DiskKind) -> None:
    died = subprocess.run([sys.executable, "-c", CRAWLER, disk.directory], check=False)
    assert died.returncode == -signal.SIGKILL
    frontier = disk.open(FIFO)
    assert frontier.job.resumed
    counts = frontier.counts()
    assert (counts.accepted, counts.done, counts.pending) == (5, 1, 4)
    assert names(take_all(frontier)) == ["b", "c", "d", "e"]


# Batches of bounded size


def test_a_commit_writes_at_most_one_batch(disk: DiskKind, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uncommitted, "BATCH", 3)
    frontier = disk.open(FIFO)
    for name in "abcd":
        frontier.add(page(name, from_start=True, unique=False))
    frontier.close()
    frontier = disk.open(FIFO)
    for name in "abcd":
        assert frontier.add(page(name, from_start=True)) is Verdict.STARTED
    leases = list(take_all(frontier))
    for lease in leases[:2]:
        frontier.finish(lease)
    for lease in leases[2:]:
        frontier.release(lease)
    for number in range(7):
        frontier.mark_seen(str(number).encode())
        frontier.add(page(f"added {number}"))
    for lease in take_all(frontier):
        frontier.dead_letter(lease, DeadLetter("why"))
    early = 4 + 2 + 7 + 7
    assert frontier.pressure.changes == early + 2
    notes = {"state": b"only with the last batch"}
    commits = 0
    is_last = False
    while not is_last:
        before = frontier.pressure.changes
        is_last = frontier.commit(notes)
        commits += 1
        # The pages that are done are not parted, however many they are.
        assert 0 < before - frontier.pressure.changes <= 3 + 2 * is_last
        assert (frontier.run.note("state") is not None) == is_last
    # One that was added and became a dead letter is written as both.
    assert math.ceil(early / 3) <= commits <= math.ceil((early + 7) / 3)
    assert frontier.pressure.changes == 0


def open_with_page_done(disk: DiskKind, others: int) -> LocalFrontier:
    """A frontier that has yet to write the end of a page, and so many others that were added."""
    frontier = disk.open(FIFO)
    frontier.add(page("parent"))
    frontier.finish(take(frontier))
    for number in range(others):
        frontier.add(page(str(number)))
    return frontier


def test_what_is_added_meanwhile_never_puts_off_the_pages_that_are_done(
    disk: DiskKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uncommitted, "BATCH", 3)
    frontier = open_with_page_done(disk, others=7)
    commits = 0
    while not frontier.commit({"state": b"done"}):
        commits += 1
        for number in range(10):
            frontier.add(page(f"{commits} {number}"))
    assert commits == 8
    assert frontier.run.note("state") == b"done"


def test_what_came_while_a_write_failed_goes_into_small_batches_too(
    disk: DiskKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uncommitted, "BATCH", 3)
    frontier = open_with_page_done(disk, others=4)

    def fail(*_: object, **__: object) -> None:
        raise StoreStalledError("The store writes back its log.")

    with monkeypatch.context() as patch:
        patch.setattr(journal_of(frontier), "write", fail)
        with pytest.raises(StoreStalledError):
            frontier.commit()
        for number in range(30):
            frontier.add(page(f"meanwhile {number}"))
    is_last = False
    while not is_last:
        before = frontier.pressure.changes
        is_last = frontier.commit()
        assert 0 < before - frontier.pressure.changes <= 3 + is_last


def test_a_batch_has_few_large_requests(disk: DiskKind) -> None:
    """What a batch costs, and what waits for it in memory, hangs on its bytes as well."""
    size = uncommitted.BATCH_BYTES // 4
    frontier = disk.open(FIFO)
    frontier.add(page("parent"))
    frontier.commit()
    parent = take(frontier)
    assert not frontier.pressure.urgent
    for number in range(10):
        entry = page(str(number))
        # The last one is more than a batch may have, and goes by itself.
        entry.payload = bytes(size if number < 9 else 5 * size)
        frontier.add(entry)
        assert frontier.pressure.urgent == (number >= 4)
    frontier.finish(parent)
    left = []
    while not frontier.commit():
        left.append(frontier.pressure.changes)
    # Nothing but adds goes into a batch before the last one of them.
    assert left == [7, 3, 2]
    assert not frontier.pressure.urgent
    frontier = reopen_after_crash(disk, frontier)
    assert work_off(frontier) == [str(number) for number in range(10)]


def test_what_ended_before_it_was_written_makes_no_batch_small(disk: DiskKind) -> None:
    frontier = disk.open(FIFO)
    frontier.add(page("parent"))
    parent = take(frontier)
    for number in range(100):
        entry = page(str(number))
        entry.payload = bytes(uncommitted.BATCH_BYTES // 10)
        frontier.add(entry)
        frontier.finish(take(frontier))
        assert not frontier.pressure.urgent
    frontier.finish(parent)
    assert frontier.commit()


GRAPH = {
    "root": ["a", "b", "c", "d", "e"],
    "a": ["a1", "a2", "a3", "b"],
    "b": ["b1", "b2", "root"],
    "c": ["a1", "c1"],
    "a1": ["deep1", "deep2", "deep3", "deep4"],
    "b1": ["deep4", "deep5"],
    "deep5": ["deepest"],
}
ALL = {"root"} | {child for children in GRAPH.values() for child in children}


def crawl_one(frontier: LocalFrontier, lease: Lease, visited: set[str]) -> None:
    name = name_of(lease)
    for child in GRAPH.get(name, ()):
        frontier.add(page(child, slot=child[0]))
    visited.add(name)
    frontier.finish(lease)


def crawl(frontier: LocalFrontier, visited: set[str]) -> None:
    while (lease := lease_from(frontier)) is not None:
        crawl_one(frontier, lease, visited)


@pytest.mark.long
@pytest.mark.parametrize("limit", [("BATCH", 1), ("BATCH", 3), ("BATCH_BYTES", 30)])
@pytest.mark.parametrize("seed", range(3))
def test_a_death_between_any_two_partial_commits_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: tuple[str, int], seed: int
) -> None:
    monkeypatch.setattr(uncommitted, *limit)
    rng = random.Random(seed)
    disk = DiskKind(tmp_path)
    frontier = disk.open(FIFO)
    frontier.add(page("root", "r"))
    assert frontier.commit()
    visited: set[str] = set()
    images: list[tuple[Path, set[str]]] = []
    leases: list[Lease] = []
    while frontier.pending or leases:
        # Some pages are under way while others, their children among them, are done.
        while (lease := lease_from(frontier)) is not None and len(leases) < 3:
            leases.append(lease)
        if lease is not None:
            frontier.release(lease)
        rng.shuffle(leases)
        crawl_one(frontier, leases.pop(), visited)
        if rng.random() < 0.3:
            for _ in range(rng.randrange(1, 4)):
                frontier.commit()
                images.append((disk.image(), set(visited)))
    complete = False
    while not complete:
        complete = frontier.commit()
        images.append((disk.image(), set(visited)))
    frontier.close()
    assert visited == ALL
    for image, before in images:
        disk.path = image
        resumed = disk.open(FIFO)
        assert problems_of(resumed) == []
        crawl(resumed, before)
        assert before == ALL, f"{image} lost pages"
        assert problems_of(resumed) == []
        assert resumed.counts().pending == 0
        resumed.close()


def test_a_dead_request_is_not_lost_between_its_parents_commit_and_its_own(
    disk: DiskKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    frontier = disk.open(FIFO)
    frontier.add(page("parent"))
    frontier.commit()
    parent = take(frontier)
    for name in "abc":
        frontier.add(page(name))
    frontier.finish(parent)
    frontier.finish(take(frontier))
    frontier.finish(take(frontier))
    frontier.dead_letter(take(frontier), DeadLetter("why"))
    monkeypatch.setattr(uncommitted, "BATCH", 1)
    done = False
    while not done:
        done = frontier.commit()
        image = DiskKind(disk.directory / f"after {frontier.run.commit_number}")
        shutil.copytree(disk.image(), image.path)
        resumed = image.open(FIFO)
        assert resumed.counts().dead or resumed.counts().pending
        image.verify()


# Dead letters


def test_a_memory_only_request_that_is_buried_is_listed(disk: DiskKind) -> None:
    frontier = disk.open(FIFO)
    frontier.add(page("a", stored=False))
    frontier.dead_letter(take(frontier), DeadLetter("it never works"))
    frontier.close()
    assert dead(disk) == {"a": "it never works"}


def test_any_reason_can_be_stored(disk: DiskKind) -> None:
    frontier = disk.open(FIFO)
    frontier.add(page("a"))
    frontier.dead_letter(take(frontier), DeadLetter("it cannot be restored: \ud800 in a URL"))
    frontier.close()
    assert dead(disk) == {"a": "it cannot be restored: \\ud800 in a URL"}


# Start requests


def start(frontier: LocalFrontier, *pages: str, unique: bool = True) -> list[Verdict]:
    return [frontier.add(page(name, from_start=True, unique=unique)) for name in pages]


ADDED, SEEN, STARTED = Verdict.ADDED, Verdict.SEEN, Verdict.STARTED


@pytest.mark.parametrize("unique", [True, False])
@pytest.mark.parametrize("clean", [True, False])
def test_a_resumed_unfinished_job_skips_start_requests_that_were_accepted(
    disk: DiskKind, unique: bool, clean: bool
) -> None:
    frontier = disk.open(FIFO)
    assert start(frontier, "a", "b", unique=unique) == [ADDED, ADDED]
    frontier.finish(take(frontier))
    frontier.commit()
    if clean:
        frontier.close()
    else:
        disk.crash(frontier)
    frontier = disk.open(FIFO)
    assert start(frontier, "a", "b", "c", unique=unique) == [STARTED, STARTED, ADDED]
    assert work_off(frontier) == ["b", "c"]
    frontier.close()
    frontier = disk.open(FIFO)
    assert start(frontier, "a", "b", "c", unique=unique) == [STARTED] * 3


def test_a_start_request_whose_acceptance_was_not_committed_is_accepted(disk: DiskKind) -> None:
    frontier = disk.open(FIFO)
    assert start(frontier, "a", unique=False) == [ADDED]
    frontier.commit()
    assert start(frontier, "b", unique=False) == [ADDED]
    frontier = reopen_after_crash(disk, frontier)
    assert start(frontier, "a", "b", unique=False) == [STARTED, ADDED]


def test_equal_start_requests_of_one_run_all_pass(disk: DiskKind) -> None:
    frontier = disk.open(FIFO)
    assert start(frontier, "a", "a", unique=False) == [ADDED, ADDED]
    frontier.commit()
    assert start(frontier, "a", unique=False) == [ADDED]
    frontier.close()
    frontier = disk.open(FIFO)
    assert start(frontier, *"aaaa", unique=False) == [STARTED, STARTED, STARTED, ADDED]
    frontier.close()
    frontier = disk.open(FIFO)
    assert start(frontier, *"aaaaa", unique=False) == [STARTED] * 4 + [ADDED]


def test_a_start_request_that_was_refused_was_not_accepted(disk: DiskKind) -> None:
    frontier = disk.open(FIFO)
    frontier.add(page("a"))
    assert start(frontier, "a") == [SEEN]
    frontier.close()
    frontier = disk.open(FIFO)
    assert start(frontier, "a") == [SEEN]
    assert start(frontier, "a", unique=False) == [ADDED]


def test_a_run_that_died_before_it_started_changes_nothing(disk: DiskKind) -> None:
    frontier = disk.open(FIFO)
    start(frontier, "a", unique=False)
    frontier.commit()
    for _ in range(3):
        frontier = reopen_after_crash(disk, frontier)
    assert start(frontier, "a", unique=False) == [STARTED]
    frontier = reopen_after_crash(disk, frontier)
    assert start(frontier, "a", unique=False) == [STARTED]


def test_a_finished_job_accepts_its_start_requests_again(disk: DiskKind) -> None:
    frontier = disk.open(FIFO)
    assert start(frontier, "a", unique=False) == [ADDED]
    assert start(frontier, "b") == [ADDED]
    work_off(frontier)
    frontier.close(finished=True)
    frontier = disk.open(FIFO)
    assert start(frontier, "a", unique=False) == [ADDED]
    assert start(frontier, "b") == [SEEN]


def test_one_option_accepts_start_requests_again(disk: DiskKind) -> None:
    frontier = disk.open(FIFO)
    start(frontier, "a", unique=False)
    start(frontier, "b")
    frontier.close()
    frontier = disk.open(Options(order=FIFO.order, skip_started=False))
    assert start(frontier, "a", unique=False) == [ADDED]
    assert start(frontier, "b") == [SEEN]
    frontier.close()
    frontier = disk.open(FIFO)
    assert start(frontier, "a", unique=False) == [STARTED]


def test_requests_that_start_did_not_yield_are_never_skipped(disk: DiskKind) -> None:
    frontier = disk.open(FIFO)
    start(frontier, "a", unique=False)
    frontier.close()
    frontier = disk.open(FIFO)
    assert frontier.add(page("a", start=True, unique=False)) is ADDED


def test_a_memory_only_start_request_that_ended_with_the_process_comes_again(
    disk: DiskKind,
) -> None:
    def start_in_memory(*pages: str) -> list[Verdict]:
        return [frontier.add(page(name, from_start=True, stored=False)) for name in pages]

    frontier = disk.open(FIFO)
    assert start_in_memory("a", "b") == [ADDED, ADDED]
    frontier.finish(take(frontier))
    frontier.commit()
    frontier = reopen_after_crash(disk, frontier)
    assert start_in_memory("a", "b") == [STARTED, ADDED]


# Failures of the store


def test_what_could_not_be_read_is_decided_as_soon_as_it_can_be(disk: DiskKind) -> None:
    frontier = disk.open(FIFO)
    for name in ("y", "z"):
        frontier.add(page(name))
    frontier.close()
    events: list[Event] = []
    frontier = open_frontier(disk.path, OWNER, FIFO, on_event=events.append)
    journal_of(frontier).database.close()
    undecided = [page("a"), page("a", from_start=True, unique=False), page("z"), page("b")]
    for entry in undecided:
        assert frontier.add(entry) is Verdict.UNDECIDED
    with pytest.raises(StoreError):
        frontier.mark_seen(b"c")
    assert frontier.lease(Downloads({})) == Waiting.UNREACHABLE
    assert [type(event) for event in events] == [Unreadable] * 5
    counts = frontier.counts()
    assert (counts.accepted, counts.pending, counts.leased, counts.undecided) == (2, 2, 0, 4)
    assert frontier.pending == 6
    assert frontier.has_changes()
    with pytest.raises(StoreError):
        frontier.commit()
    events.clear()
    frontier.run.recover()
    assert frontier.commit()
    assert events == [Refused(undecided[2], Verdict.SEEN), Committed(frontier.run.commit_number)]
    assert not frontier.mark_seen(b"c")
    frontier.commit()
    frontier = reopen_after_crash(disk, frontier)
    # One occurrence was accepted, however often it was asked for.
    assert start(frontier, "a", "a", unique=False) == [STARTED, ADDED]
    assert work_off(frontier) == ["y", "z", "a", "a", "b", "a"]


@contextmanager
def files_no_larger_than(size: int) -> Iterator[None]:
    """Have the operating system refuse all writes past *size* bytes of a file."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_failed_commit_keeps_all_changes_and_can_be_made_up_for(disk: DiskKind) -> None:
    frontier = disk.open(FIFO)
    added = 0
    with files_no_larger_than(50_000):
        failure = None
        while failure is None:
            for _ in range(50):
                frontier.add(page(f"{added:04}", from_start=True))
                added += 1
            try:
                frontier.commit({"state": str(added).encode()})
            except StoreError as error:
                failure = error
        assert str(disk.path) in str(failure)
        committed = frontier.run.commit_number
        # The crawl goes on in memory.
        lease = take(frontier)
        assert name_of(lease) == "0000"
        frontier.finish(lease)
        frontier.release(take(frontier))
        assert take(frontier).entry.fingerprint == b"0001"
        assert frontier.add(page("0000")) is SEEN
    if disk.engine == "rocksdb":  # which goes on refusing
        with pytest.raises(StoreError):
            frontier.commit()
    frontier.run.recover()
    assert frontier.run.commit_number == committed
    # First what had failed, then what came since.
    assert not frontier.commit({"state": b"the last"})
    assert frontier.commit({"state": b"the last"})
    assert frontier.pressure.changes == 0
    frontier = reopen_after_crash(disk, frontier)
    assert frontier.run.note("state") == b"the last"
    assert frontier.counts().done == 1
    assert work_off(frontier) == [f"{number:04}" for number in range(1, added)]


@pytest.mark.parametrize("then", ["again", "reopen", "reopen, note and die"])
def test_a_batch_that_was_applied_though_its_write_failed_is_written_again(
    disk: DiskKind, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    frontier = disk.open(FIFO)
    journal = journal_of(frontier)
    assert journal is not None
    for name in "ab":
        frontier.add(page(name, slot="1"))
    frontier.commit()
    frontier.finish(take(frontier))
    for name in "cde":
        frontier.add(page(name, slot="2"))
    frontier.release(take(frontier))
    write = journal.write

    def apply_and_fail(*args: Any, **kwargs: Any) -> None:
        write(*args, **kwargs)
        journal.commit_number -= 1
        raise StoreError("it was written, and the disk failed then")

    with monkeypatch.context() as patched:
        patched.setattr(journal, "write", apply_and_fail)
        with pytest.raises(StoreError):
            frontier.commit()
        # What that batch has added is done before anybody knows that it is stored.
        for _ in range(3):
            frontier.finish(take(frontier))
        frontier.dead_letter(take(frontier), DeadLetter("why"))
        frontier.add(page("f", slot="2"))
        with pytest.raises(StoreError):
            frontier.commit()
    if "reopen" in then:
        frontier.run.recover()
    if "die" in then:
        frontier.run.write_notes({"note": b"stored alone"})
        frontier = reopen_after_crash(disk, frontier)
        assert frontier.counts().unaccounted == 0
        assert problems_of(frontier) == []
        return
    while not frontier.commit():
        pass
    assert problems_of(frontier) == []
    frontier = reopen_after_crash(disk, frontier)
    counts = frontier.counts()
    assert (counts.done, counts.dead, counts.unaccounted) == (4, 1, 0)
    assert work_off(frontier) == ["f"]


def test_a_store_that_came_back_older_is_refused_however_often_it_is_tried(disk: DiskKind) -> None:
    frontier = disk.open(FIFO)
    frontier.add(page("a"))
    frontier.commit()
    old = disk.image() / "frontier"
    frontier.add(page("b"))
    frontier.commit()
    journal_of(frontier).database.close()
    for file in journal_of(frontier).path.iterdir():
        file.unlink()
    shutil.copytree(old, journal_of(frontier).path, dirs_exist_ok=True)
    frontier.add(page("c", unique=False))
    for _ in range(2):
        with pytest.raises(StoreError, match="came back at commit"):
            frontier.run.recover()
        with pytest.raises(StoreError):
            frontier.commit()
    with pytest.raises(StoreError):
        frontier.close()
    # The next run goes on from there, and can have the directory.
    frontier = disk.open(FIFO)
    assert work_off(frontier) == ["a"]


# The self-check


def test_the_check_finds_each_kind_of_disagreement(disk: DiskKind, tmp_path: Path) -> None:
    def problems(number: int, batch: Batch) -> list[str]:
        copy = DiskKind(tmp_path / f"copy {number}")
        copy.directory.mkdir()
        shutil.copytree(disk.path, copy.path)
        journal = Journal(copy.path, OWNER)
        journal.write(batch)
        journal.close()
        frontier = copy.open(FIFO)
        try:
            return problems_of(frontier)
        finally:
            frontier.close()

    frontier = disk.open(FIFO)
    for name in "abcd":
        frontier.add(page(name, slot="s"))
    frontier.finish(take(frontier))
    frontier.dead_letter(take(frontier), DeadLetter("why"))
    frontier.close()
    journal = Journal(disk.path, OWNER)
    counters = journal.counters()
    [(slot_id, count, name)] = journal.slots()
    (key, value), _ = journal.pending()
    journal.close()
    prefix = slot_id.to_bytes(8, "big")
    assert problems(0, Batch(counters)) == []
    damage = [
        Batch(counters, forgotten=[digest_of(decode_value(value).fingerprint)]),
        stored(counters, removed=[key]),
        stored(counters, (key + b"2", value)),
        Batch(counters, slots=[(prefix, count + 1, name)]),
        Batch(counters, slots=[(prefix, 0, name)]),
        stored(counters, (key, b"\x01")),
        Batch(replace(counters, accepted=5)),
        Batch(replace(counters, done=0)),
        Batch(replace(counters, dead=2)),
        stored(counters, (b"another", b"\0\0\0\0"), state=DEAD),
    ]
    for number, batch in enumerate(damage, 1):
        found = problems(number, batch)
        assert found, batch
        assert all(sentence.endswith(".") for sentence in found)


def test_requests_that_the_store_lost_are_unaccounted_for(tmp_path: Path) -> None:
    disk = DiskKind(tmp_path)
    frontier = disk.open(FIFO)
    for name in "abc":
        frontier.add(page(name))
    frontier.close()
    journal = Journal(disk.path, OWNER)
    key, _ = next(journal.pending())
    journal.write(stored(journal.counters(), removed=[key]))
    journal.close()
    frontier = disk.open(FIFO)
    assert work_off(frontier) == ["b", "c"]
    counts = frontier.counts()
    assert (counts.pending, counts.unaccounted) == (0, 1)
    assert problems_of(frontier) != []
    frontier.close()
