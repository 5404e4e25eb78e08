"""Pages that are crawled again once they are old enough, with each store, and on a server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from scrapy_altsched.age import Age
from scrapy_altsched.frontier import Lease, Options, Order, Verdict
from scrapy_altsched.frontier.entry import DeadLetter, PageFailure, Reason
from scrapy_altsched.frontier.local import uncommitted
from scrapy_altsched.frontier.local.frontier import LocalFrontier
from scrapy_altsched.frontier.shared.operating import SharedCrawl
from scrapy_altsched.frontier.store.job_run import MemoryRun
from scrapy_altsched.maintenance.repair import repair

from ..clocks import ManualClock
from ..frontier.shared.model import Kept
from ..frontiers import (
    KINDS,
    OWNER,
    DiskKind,
    journal_of,
    lease_from,
    name_of,
    page,
    take,
    work_off,
)
from ..servers import RedisServer
from ..shared import ServerClock, SettledShared

STORED = [name for name, kind in KINDS.items() if kind.survives and kind.knows_downloads]
HOUR, DAY = 3_600.0, 86_400.0


class Job:
    """A job of one kind, by a clock that begins at midnight (UTC)."""

    def __init__(self, disk: DiskKind) -> None:
        self.disk, self.clock = disk, ManualClock()
        self.clock.set_by = DAY - (self.clock.wall() % DAY)
        self.options = Options(clock=self.clock, order=Order("one", "fifo"))

    def open(self, after: object = None) -> LocalFrontier:
        """Open it with pages crawled *after* that; ``None``: never again."""
        return self.disk.open(self.with_age(after))

    def with_age(self, after: object) -> Options:
        age = None if after is None else Age.parse(after)
        return replace(self.options, recrawl_after=age, records_ages=age is not None)

    def crash(self, frontier: LocalFrontier) -> None:
        self.disk.crash(frontier)

    def verify(self) -> None:
        self.disk.verify()

    def run(self, after: object, names: Sequence[str]) -> list[str]:
        """Crawl what of *names* is accepted to the end of the job."""
        frontier = self.open(after)
        for name in names:
            frontier.add(page(name))
        found = work_off(frontier)
        frontier.close(finished=True)
        return found


class Pass(SettledShared):
    """The only worker of a shared crawl; *is_last*: whether it has ended this pass."""

    is_last = False

    def close(self, *, finished: bool = False) -> None:
        self._frontier.close(finished=finished)
        self.is_last = finished


class SharedJob(Job):
    """The same of a shared crawl, which is restarted with what it has seen once it is finished.

    Its server's clock is an hour ahead of its worker's.
    """

    def __init__(self, server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
        self._server, self._crawl = server, SharedCrawl(server.client(), "test")
        self.clock = clock = ServerClock(server.client(), monkeypatch, ahead=HOUR)
        midnight = clock.wall() // DAY * DAY + DAY
        clock.set(midnight)
        self.options = Options(order=Order("one", "fifo"))
        self._record = Kept(MemoryRun())
        self._last: Pass | None = None

    def open(self, after: object = None) -> Any:
        if self._last is not None and self._last.is_last:
            self._crawl.restart(lambda _: True, keeps_seen=True)
            self._record = Kept(MemoryRun())
        self._last = Pass(
            self.with_age(after), self._server.client(), None, self._record, self.clock
        )
        return self._last

    def crash(self, frontier: Any) -> None:
        frontier.abandon()

    def verify(self) -> None:
        assert self._crawl.look().counts.unaccounted == 0


@pytest.fixture(params=STORED)
def stored_job(request: pytest.FixtureRequest, tmp_path: Path) -> Job:
    disk = KINDS[request.param](tmp_path)
    assert isinstance(disk, DiskKind)
    return Job(disk)


@pytest.fixture(params=[*STORED, "shared"])
def job(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    if request.param == "shared":
        return SharedJob(request.getfixturevalue("server"), monkeypatch)
    disk = KINDS[request.param](tmp_path)
    assert isinstance(disk, DiskKind)
    return Job(disk)


def commit(frontier: LocalFrontier) -> None:
    while not frontier.commit():
        pass


@pytest.mark.long
@pytest.mark.parametrize(
    ("after", "expected"),
    [
        # At 0, 12, 24, ... h, with one hour for the crawl.
        ("run", [1, 1, 1, 1, 1, 1]),
        ("day", [1, 0, 1, 0, 1, 0]),
        (20 * HOUR, [1, 0, 1, 0, 1, 0]),
        ("72h", [1, 0, 0, 0, 0, 0]),
        (11.5 * HOUR, [1, 0, 1, 0, 1, 0]),
        (10 * HOUR, [1, 1, 1, 1, 1, 1]),
        (None, [1, 0, 0, 0, 0, 0]),
    ],
)
def test_three_days(job: Job, after: object, expected: list[int]) -> None:
    found = []
    for _ in expected:
        frontier = job.open(after)
        frontier.add(page("a"))
        lease = lease_from(frontier)
        found.append(int(lease is not None))
        job.clock.advance(HOUR)
        if lease is not None:
            frontier.finish(lease)
        frontier.close(finished=True)
        job.clock.advance(11 * HOUR)
    assert found == expected
    job.verify()


def test_what_is_not_finished_is_a_duplicate_whatever_its_age(job: Job) -> None:
    frontier = job.open("run")
    for name in ("pending", "leased", "dead", "failed"):
        frontier.add(page(name))
    commit(frontier)
    taken = {name_of(lease): lease for lease in [take(frontier) for _ in range(4)]}
    frontier.release(taken["pending"])
    frontier.dead_letter(taken["dead"], DeadLetter("why"))
    taken["failed"].failure = PageFailure(Reason.DOWNLOAD, "why")
    frontier.finish(taken["failed"])
    commit(frontier)
    job.clock.advance(10 * DAY)
    job.crash(frontier)
    frontier = job.open("run")
    for name in ("pending", "leased", "dead", "failed"):
        assert frontier.add(page(name)) is Verdict.SEEN
    assert sorted(work_off(frontier)) == ["leased", "pending"]
    job.verify()


@pytest.mark.parametrize("batch", [1, uncommitted.BATCH])
def test_a_page_that_is_forgotten_right_after_its_end_is_found_anew(
    job: Job, monkeypatch: pytest.MonkeyPatch, batch: int
) -> None:
    monkeypatch.setattr(uncommitted, "BATCH", batch)
    frontier = job.open("1h")
    for name in "ab":
        frontier.add(page(name))
    commit(frontier)
    frontier.finish(take(frontier))
    assert frontier.forget(page("a").fingerprint)
    for name in "cd":
        frontier.add(page(name))
    commit(frontier)
    job.crash(frontier)
    frontier = job.open("1h")
    assert frontier.add(page("a")) is Verdict.ADDED
    assert sorted(work_off(frontier)) == ["a", "b", "c", "d"]
    job.verify()


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_how_many_pages_are_seen_is_right_after_each_death(
    stored_job: Job, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Each batch is small, so that deaths come between early and last ones of a commit."""
    monkeypatch.setattr(uncommitted, "BATCH", 3)
    rng, frontier = Random(seed), stored_job.open("run")
    seen: set[bytes] = set()
    for _ in range(6):
        for _ in range(60):
            one = page(rng.choice("abcdefghijklmnop"), stored=rng.random() < 0.9)
            chosen = rng.random()
            if chosen < 0.5:
                frontier.add(one)
                seen.add(one.fingerprint)
            elif chosen < 0.7:
                assert frontier.forget(one.fingerprint) == (one.fingerprint in seen)
                seen.discard(one.fingerprint)
            elif chosen < 0.9 and isinstance(lease := lease_from(frontier), Lease):
                frontier.finish(lease)
            elif chosen > 0.95:
                frontier.commit()
            assert frontier.counts().seen == len(seen)
        if rng.random() < 0.5:
            work_off(frontier)
            frontier.close(finished=True)
        else:
            frontier.commit()
            stored_job.crash(frontier)
        stored_job.clock.advance(HOUR)
        frontier = stored_job.open("run")
        rows = {key for key, _ in journal_of(frontier).seen()}
        assert frontier.counts().seen == len(rows)
        known = map(page, "abcdefghijklmnop")
        seen = {it.fingerprint for it in known if journal_of(frontier).has_seen(it.fingerprint)}
    frontier.close()
    stored_job.verify()


def test_a_crawl_that_takes_longer_than_an_age_ends(job: Job) -> None:
    frontier = job.open(10)
    frontier.add(page("a"))
    for _ in range(20):
        lease = lease_from(frontier)
        if lease is None:
            break
        job.clock.advance(60)
        frontier.add(page("b"))
        frontier.add(page("a"))
        frontier.finish(lease)
        commit(frontier)
    assert frontier.counts().done == 2
    # Nor does a death begin another pass.
    job.crash(frontier)
    frontier = job.open(10)
    assert frontier.add(page("a")) is Verdict.SEEN
    frontier.close(finished=True)
    frontier = job.open(10)
    assert frontier.add(page("a")) is Verdict.ADDED
    work_off(frontier)
    job.verify()


def test_once_on_it_goes_on_being_recorded(job: Job) -> None:
    assert job.run(None, ["old"]) == ["old"]
    frontier = job.open()
    frontier.add(page("pending"))
    frontier.close()
    job.clock.advance(DAY)
    # What was crawled before that counts as crawled then.
    frontier = job.open("2d")
    assert frontier.add(page("old")) is Verdict.SEEN
    assert frontier.add(page("pending")) is Verdict.SEEN
    assert work_off(frontier) == ["pending"]
    frontier.close(finished=True)
    job.clock.advance(DAY)
    assert job.run(None, ["old", "off"]) == ["off"]
    job.clock.advance(1.5 * DAY)
    assert job.run("2d", ["old", "pending", "off"]) == ["old", "pending"]
    job.clock.advance(DAY)
    assert job.run("2d", ["old", "pending", "off"]) == ["off"]
    job.verify()


def test_one_that_was_forgotten_while_leased_does_not_come_back(job: Job) -> None:
    frontier = job.open("run")
    frontier.add(page("a"))
    commit(frontier)
    lease = take(frontier)
    frontier.forget(b"a")
    commit(frontier)
    frontier.finish(lease)
    commit(frontier)
    assert frontier.add(page("a")) is Verdict.ADDED
    assert work_off(frontier) == ["a"]
    job.verify()


def test_what_follows_a_page_is_what_finishes_it(job: Job) -> None:
    frontier = job.open("run")
    frontier.add(page("a"))
    frontier.finish(take(frontier), page("a"))
    commit(frontier)
    again = take(frontier)
    job.crash(frontier)
    frontier = job.open("run")
    assert frontier.add(page("a")) is Verdict.SEEN
    assert name_of(again) == "a"
    assert work_off(frontier) == ["a"]
    frontier.close(finished=True)
    job.clock.advance(1)
    assert job.run("run", ["a"]) == ["a"]


def test_a_repair_loses_no_age(stored_job: Job) -> None:
    assert stored_job.run("2d", ["a"]) == ["a"]
    frontier = stored_job.open("2d")
    frontier.add(page("b"))
    frontier.close()
    repair(stored_job.disk.path, OWNER, lambda _: True)
    stored_job.clock.advance(DAY)
    frontier = stored_job.open("2d")
    assert frontier.add(page("a")) is Verdict.SEEN
    assert frontier.add(page("b")) is Verdict.SEEN
    assert work_off(frontier) == ["b"]
    frontier.close(finished=True)
    stored_job.clock.advance(1.5 * DAY)
    assert stored_job.run("2d", ["a", "b"]) == ["a"]


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), "", "soon", "1y", True, None])
def test_what_is_no_age(value: object) -> None:
    with pytest.raises((ValueError, TypeError)):
        Age.parse(value)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [(1, 1), (0.5, 0.5), ("90", 90), ("12h", 12 * HOUR), ("1.5 d", 1.5 * DAY), ("2W", 14 * DAY)],
)
def test_ages_in_seconds(value: object, seconds: float) -> None:
    assert Age.parse(value) == Age(seconds)


def test_periods_begin_at_midnight_utc() -> None:
    thursday = 1_732_752_000.0 + 5 * HOUR  # 2024-11-28
    for period, begin in (("day", 0), ("week", -3), ("month", -27)):
        age = Age.parse(period)
        assert age.threshold(thursday, thursday) == 1_732_752_000.0 + begin * DAY
