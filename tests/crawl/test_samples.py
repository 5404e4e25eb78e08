"""The samples of a job, which belong to it: over its runs, and whatever is done to it between."""

from __future__ import annotations

from pathlib import Path

import pytest
from scrapy import Request

from scrapy_altsched.frontier.store.jobdir import read_identity
from scrapy_altsched.frontier.store.samples import NAME, Sample, read_samples
from scrapy_altsched.frontier.store.status import read_status
from scrapy_altsched.maintenance.convert import convert
from scrapy_altsched.maintenance.repair import repair
from scrapy_altsched.requests.codec import is_whole

from ..clocks import ManualClock
from ..engines import OURS, StandIn
from ..stores import BY_ENGINE, INSTALLED


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    clock = ManualClock()
    monkeypatch.setattr("scrapy_altsched.crawl.setup.CrawlClock", lambda: clock)
    return clock


def opened(jobdir: Path, engine: str = "auto") -> StandIn:
    return StandIn({**OURS, "JOBDIR": str(jobdir), "ALTSCHED_STORE": engine})


def samples_in(jobdir: Path) -> list[Sample]:
    identity = read_identity(jobdir)
    assert identity is not None
    return read_samples(jobdir, identity.store_id)


def add(stand_in: StandIn, number: int) -> None:
    stand_in.scheduler.enqueue_request(Request(f"http://a.example/{number}"))
    assert stand_in.scheduler.checkpoint()


def states(jobdir: Path) -> list[tuple[int, str]]:
    return [(sample.run, sample.state) for sample in samples_in(jobdir)]


@BY_ENGINE
def test_each_run_tells_of_its_beginning_its_commits_and_its_end(
    tmp_path: Path, clock: ManualClock, engine: str
) -> None:
    jobdir = tmp_path / "job"
    began = clock.wall()
    stand_in = opened(jobdir, engine)
    clock.now += 5
    add(stand_in, 1)
    add(stand_in, 2)  # within the same second
    clock.now += 5
    add(stand_in, 3)
    stand_in.scheduler.close("shutdown")
    assert states(jobdir) == [(1, "running")] * 3 + [(1, "stopped")]
    assert [it.at - began for it in samples_in(jobdir)] == [0, 5, 10, 10]
    assert [it.counts.accepted for it in samples_in(jobdir)] == [0, 1, 3, 3]
    clock.now += 100
    stand_in = opened(jobdir, engine)
    clock.now += 5
    stand_in.scheduler.enqueue_request(Request("http://a.example/1"))
    add(stand_in, 4)
    assert states(jobdir)[4:] == [(2, "running")] * 2
    assert samples_in(jobdir)[-1].duplicates == 1
    stand_in.scheduler.close("shutdown")


@BY_ENGINE
def test_they_survive_a_repair_a_conversion_and_a_move(
    tmp_path: Path, clock: ManualClock, engine: str
) -> None:
    jobdir = tmp_path / "job"
    stand_in = opened(jobdir, engine)
    add(stand_in, 1)
    clock.now += 1
    stand_in.scheduler.close("shutdown")
    jobdir = jobdir.rename(tmp_path / "moved")
    before = samples_in(jobdir)
    assert before
    repair(jobdir, "spider", is_whole)
    assert samples_in(jobdir) == before
    for other in INSTALLED:
        convert(jobdir, "spider", other)
    assert samples_in(jobdir) == before
    stand_in = opened(jobdir)
    stand_in.scheduler.close("shutdown")
    assert samples_in(jobdir)[: len(before)] == before
    assert states(jobdir)[-1] == (2, "stopped")


def test_samples_that_cannot_be_written_harm_nothing(tmp_path: Path) -> None:
    jobdir = tmp_path / "job"
    (jobdir / NAME).mkdir(parents=True)
    stand_in = opened(jobdir)
    add(stand_in, 1)
    stand_in.scheduler.close("shutdown")
    assert not stand_in.stat("altsched/commit/failed")
    status = read_status(jobdir)
    assert status is not None
    assert (status.state, status.standing.counts.pending) == ("stopped", 1)
