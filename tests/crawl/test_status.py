"""What a crawl tells of itself while it is open: to those who look in, in its stats, in its log."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from scrapy import Request

from scrapy_altsched.crawl.rates import Rates
from scrapy_altsched.frontier import Counts
from scrapy_altsched.frontier.store.status import NAME, JobStatus, read_status
from scrapy_altsched.signals import frontier_committing

from ..clocks import ManualClock
from ..engines import OURS, SLOTS, StandIn

GAUGES = ("pending", "in_flight", "delayed", "failed", "dead", "done")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    clock = ManualClock()
    monkeypatch.setattr("scrapy_altsched.crawl.setup.CrawlClock", lambda: clock)
    return clock


def page(number: int, host: str = "a", **values: object) -> Request:
    return Request(f"http://{host}.example/{number}", **values)


def opened(tmp_path: Path, **settings: object) -> StandIn:
    own = {"JOBDIR": str(tmp_path / "job"), "SCHEDULER_PRIORITY_QUEUE": SLOTS}
    return StandIn({**OURS, **own, **settings})


def status_in(tmp_path: Path) -> JobStatus:
    status = read_status(tmp_path / "job")
    assert status is not None
    return status


def gauges(stand_in: StandIn) -> dict[str, int]:
    return {name: stand_in.stat(f"altsched/{name}") for name in GAUGES}


def test_from_its_opening_to_its_end_each_commit_tells_how_a_job_stands(
    tmp_path: Path, clock: ManualClock
) -> None:
    began = clock.wall()
    stand_in = opened(tmp_path)
    status = status_in(tmp_path)
    assert (status.state, status.run, status.standing.began) == ("running", 1, began)
    clock.now += 7
    for number in range(5):
        stand_in.scheduler.enqueue_request(page(number, "a" if number < 3 else "b"))
    stand_in.scheduler.enqueue_request(page(0))
    stand_in.scheduler.enqueue_request(page(9, meta={"altsched_delay": 3_600}))
    request = stand_in.next()
    assert request is not None
    stand_in.next()
    stand_in.engine.end(request)
    stand_in.scheduler.defer_slot("b.example", 60)
    assert stand_in.scheduler.checkpoint()
    status = status_in(tmp_path)
    standing = status.standing
    assert standing.counts == Counts(accepted=6, pending=3, leased=1, done=1, delayed=1, seen=6)
    assert (standing.spider, standing.duplicates, standing.at) == ("spider", 1, clock.wall())
    assert standing.held == [("b.example", clock.wall() + 60)]
    assert standing.shared is None
    assert status.commit > 0
    stand_in.engine._slot.close()
    assert status_in(tmp_path).state == "closing"
    stand_in.scheduler.close("shutdown")
    status = status_in(tmp_path)
    assert status.state == "stopped"
    busiest = status.standing.busiest
    assert sorted(slot for slot, _ in busiest) == ["a.example", "b.example"]
    # One is done, and one is in flight.
    assert sum(count for _, count in busiest) == 3


def test_a_job_that_is_finished_says_so_and_a_further_run_says_that_it_runs(
    tmp_path: Path,
) -> None:
    for run in (1, 2):
        stand_in = opened(tmp_path)
        assert (status_in(tmp_path).state, status_in(tmp_path).run) == ("running", run)
        stand_in.scheduler.enqueue_request(page(run))
        request = stand_in.next()
        assert request is not None
        stand_in.engine.end(request)
        stand_in.scheduler.close("finished")
        status = status_in(tmp_path)
        assert (status.state, status.standing.counts.done) == ("finished", run)
        # What the last batch has changed, too.
        line = (tmp_path / "job" / "altsched.commit").read_text().split()
        assert status.commit == int(line[1])


def test_an_end_that_cannot_be_saved_is_none(tmp_path: Path) -> None:
    stand_in = opened(tmp_path)

    def fail() -> None:
        raise OSError("No space left on device")

    stand_in.scheduler.enqueue_request(page(1))
    stand_in.crawler.signals.connect(fail, frontier_committing)
    request = stand_in.next()
    assert request is not None
    stand_in.engine.end(request)
    stand_in.scheduler.close("finished")
    assert status_in(tmp_path).state == "unsaved"


def test_a_status_that_cannot_be_written_harms_nothing(tmp_path: Path) -> None:
    (tmp_path / "job" / f"{NAME}.partial").mkdir(parents=True)
    stand_in = opened(tmp_path)
    stand_in.scheduler.enqueue_request(page(1))
    assert stand_in.scheduler.checkpoint()
    stand_in.scheduler.close("shutdown")
    assert not stand_in.stat("altsched/commit/failed")
    assert read_status(tmp_path / "job") is None
    (tmp_path / "job" / f"{NAME}.partial").rmdir()
    stand_in = opened(tmp_path)
    assert status_in(tmp_path).standing.counts.pending == 1
    stand_in.scheduler.close("shutdown")


def test_the_gauges_are_fresh_at_each_commit(tmp_path: Path) -> None:
    stand_in = opened(tmp_path)
    for number in range(4):
        stand_in.scheduler.enqueue_request(page(number))
    stand_in.scheduler.enqueue_request(page(9, meta={"altsched_delay": 3_600}))
    first, second = stand_in.next(), stand_in.next()
    assert first is not None
    assert second is not None
    stand_in.engine.end(first)
    stand_in.scheduler.enqueue_request(page(4))
    assert stand_in.scheduler.checkpoint()
    # What is in flight is among those that are pending, as ever.
    expected = {"pending": 4, "in_flight": 1, "delayed": 1, "failed": 0, "dead": 0, "done": 1}
    assert gauges(stand_in) == expected
    stand_in.engine.end(second)
    stand_in.scheduler.close("shutdown")
    assert gauges(stand_in) == {**expected, "pending": 3, "in_flight": 0, "done": 2}
    stand_in = opened(tmp_path)
    assert gauges(stand_in) == {**expected, "pending": 3, "in_flight": 0, "done": 2}
    stand_in.scheduler.close("shutdown")


# Rates


def test_rates_are_those_of_the_last_minute() -> None:
    rates = Rates(Counts(accepted=100, pending=50, done=50), 0.0)
    assert (rates.found, rates.ended) == (None, None)
    rates.note(Counts(accepted=101, pending=51, done=50), 0.5)
    assert rates.found is None, "it is too early"
    for second in range(1, 121):
        done = min(second, 60)
        rates.note(Counts(accepted=100 + 3 * second, done=50 + done), float(second))
    assert rates.found == pytest.approx(3, rel=0.05)
    assert rates.ended == pytest.approx(0, abs=0.05)
    # As often as it is asked for, it keeps few samples.
    assert len(rates._samples) < 40


def test_what_is_over_is_done_or_failed_or_dead() -> None:
    rates = Rates(Counts(), 0.0)
    rates.note(Counts(accepted=20, done=1, failed=2, dead=3, pending=14), 2.0)
    assert (rates.found, rates.ended) == (10, 3)
    # Requeued ones do not count as negative.
    rates.note(Counts(accepted=20, pending=20), 4.0)
    assert (rates.found, rates.ended) == (5, 0)


# The log


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [text for text in caplog.messages if text.startswith("Progress:")]


@pytest.mark.parametrize("stored", [True, False])
def test_a_line_says_how_far_the_crawl_is_at_the_interval_of_scrapys_own(
    tmp_path: Path, clock: ManualClock, caplog: pytest.LogCaptureFixture, stored: bool
) -> None:
    caplog.set_level(logging.INFO)
    own = {"LOGSTATS_INTERVAL": 30.0, "ALTSCHED_COMMIT_INTERVAL": 1_000}
    stand_in = opened(tmp_path, **own, **({} if stored else {"JOBDIR": None}))
    for number in range(4):
        stand_in.scheduler.enqueue_request(page(number))
    stand_in.scheduler.enqueue_request(page(9, meta={"altsched_delay": 3_600}))
    request = stand_in.next()
    assert request is not None
    stand_in.next()
    stand_in.engine.end(request)
    stand_in.next()
    clock.advance(29)
    assert lines(caplog) == []
    clock.advance(2)
    expected = (
        "Progress: 1 of 5 requests done (20%), 1 pending, 2 in flight, 1 delayed; per minute,"
        " 2 done and 10 found"
    )
    assert lines(caplog) == [expected]
    clock.advance(30)
    assert lines(caplog)[1:] == [expected.replace("2 done and 10 found", "0 done and 0 found")]
    stand_in.scheduler.close("shutdown")
    clock.advance(300)
    assert len(lines(caplog)) == 2


@pytest.mark.parametrize("quiet", [{"ALTSCHED_LOG_PROGRESS": False}, {"LOGSTATS_INTERVAL": 0}])
def test_it_can_be_silenced(
    tmp_path: Path,
    clock: ManualClock,
    caplog: pytest.LogCaptureFixture,
    quiet: dict[str, object],
) -> None:
    caplog.set_level(logging.INFO)
    stand_in = opened(tmp_path, **{"LOGSTATS_INTERVAL": 30.0, **quiet})
    clock.advance(300)
    stand_in.scheduler.close("shutdown")
    assert lines(caplog) == []


def test_a_crawl_that_does_not_open_says_nothing(
    tmp_path: Path, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    holder = opened(tmp_path)
    with pytest.raises(Exception, match="is in use"):
        opened(tmp_path)
    holder.scheduler.close("shutdown")
    clock.advance(300)
    assert lines(caplog) == []
