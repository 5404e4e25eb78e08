"""Forgetting pages that were finished long ago."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from scrapy_altsched.errors import JobdirError
from scrapy_altsched.frontier import Options, Verdict
from scrapy_altsched.frontier.store.journal import Journal
from scrapy_altsched.maintenance import purge as purging
from scrapy_altsched.maintenance.purge import purge

from ..clocks import ManualClock
from ..crawls import altsched
from ..frontiers import KINDS, OWNER, STORED, DiskKind, page, take, work_off

DAY = 86_400.0


@pytest.fixture(params=STORED)
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> DiskKind:
    found = KINDS[request.param](tmp_path)
    assert isinstance(found, DiskKind)
    return found


def purge_in(disk: DiskKind, before: float) -> tuple[int, int]:
    journal = Journal(disk.path, OWNER)
    try:
        return purge(journal, before)
    finally:
        journal.close()


def test_what_is_old_is_forgotten_and_nothing_else(
    disk: DiskKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(purging, "CHUNK", 3)
    clock = ManualClock()
    options = Options(clock=clock, records_ages=True)
    frontier = disk.open(options)
    for number in range(10):
        frontier.add(page(f"old {number}"))
    work_off(frontier)
    clock.advance(2 * DAY)
    frontier.add(page("new"))
    frontier.finish(take(frontier))
    frontier.add(page("pending"))
    frontier.close()
    clock.advance(DAY)
    assert purge_in(disk, clock.wall() - 2 * DAY) == (10, 12)
    assert purge_in(disk, clock.wall() - 2 * DAY) == (0, 2)
    frontier = disk.open(options)
    assert frontier.add(page("new")) is Verdict.SEEN
    assert frontier.add(page("pending")) is Verdict.SEEN
    assert frontier.add(page("old 3")) is Verdict.ADDED
    assert sorted(work_off(frontier)) == ["old 3", "pending"]
    disk.verify()


def test_a_job_without_ages_is_refused(disk: DiskKind) -> None:
    disk.open().close()
    with pytest.raises(JobdirError, match="does not record when its pages are finished"):
        purge_in(disk, time.time())


def test_the_command(tmp_path: Path) -> None:
    disk = DiskKind(tmp_path)
    frontier = disk.open(Options(records_ages=True))
    frontier.add(page("a"))
    work_off(frontier)
    frontier.close(finished=True)
    kept = altsched("purge", disk.path, "--older-than", "1h")
    assert kept.returncode == 0, kept.stderr
    assert kept.stdout.startswith("0 of 1 seen pages were finished before ")
    for value in ("soon", "-1d", "day", ""):
        refused = altsched("purge", disk.path, "--older-than", value)
        assert refused.returncode == 2
        assert "Traceback" not in refused.stderr
    disk.verify()
