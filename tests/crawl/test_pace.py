"""How soon after a commit the next one comes, and a crawl whose store is busy."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from scrapy_altsched.crawl.pace import CommitPace
from scrapy_altsched.errors import StoreError
from scrapy_altsched.frontier.local import queues
from scrapy_altsched.frontier.store.database import Database
from scrapy_altsched.frontier.store.journal import Journal
from scrapy_altsched.frontier.store.sqlite.database import SqliteDatabase
from scrapy_altsched.signals import frontier_committing

from ..clocks import ManualClock
from ..disks import stalled
from ..frontiers import journal_of
from ..stores import BY_ENGINE
from .test_scheduler import OURS, StandIn, page


def pause_after(*commits: tuple[float, float], elsewhere: float = 0.0) -> float:
    pace = CommitPace(1.0)
    for processor, passed in commits:
        pace.note_commit(processor, passed)
    if elsewhere:
        pace.note_elsewhere(elsewhere)
    return pace.pause


@pytest.mark.parametrize(
    ("commits", "expected"),
    [
        ([], 1.0),
        ([(0.0, 0.0)], 0.2),
        ([(0.001, 0.001)], 0.2),
        ([(0.008, 0.008)], 0.4),
        ([(0.05, 0.05)], 1.0),
        # One that takes longer now and then is paid for by several.
        ([(0.002, 0.002)] * 4 + [(0.032, 0.032)], 0.4),
        # Commits that only waited for a processor, and handlers that always wait for something.
        ([(0.001, 0.001), (0.001, 0.3)], 0.2),
        ([(0.001, 0.01), (0.001, 0.3)], 0.5),
        # What was long ago is forgotten.
        ([(1.0, 1.0)] * 9 + [(0.002, 0.002)] * 5, 0.2),
    ],
)
def test_commits_take_two_percent_of_the_time(
    commits: list[tuple[float, float]], expected: float
) -> None:
    assert pause_after(*commits) == pytest.approx(expected)


def test_a_sync_or_an_answer_of_the_server_counts_as_the_commit_itself() -> None:
    assert pause_after((0.001, 0.001), elsewhere=0.008) == pytest.approx(0.4)
    assert pause_after((0.010, 0.001), elsewhere=0.008) == pytest.approx(0.5)
    assert pause_after((0.001, 0.001), elsewhere=8) == 1.0


@pytest.mark.parametrize("interval", [0.01, 0.2, 1.0, 60.0])
def test_an_interval_that_was_set_is_kept_to(interval: float) -> None:
    pace = CommitPace(interval, fixed=True)
    assert pace.pause == interval
    for cost in (0.0, 5.0):
        pace.note_commit(cost, cost)
        pace.note_elsewhere(cost)
        assert pace.pause == interval


# In a crawl


SECONDS = 10


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    clock = ManualClock()
    monkeypatch.setattr("scrapy_altsched.crawl.setup.CrawlClock", lambda: clock)
    return clock


def crawl(
    clock: ManualClock,
    tmp_path: Path,
    *,
    handler: float = 0.0,
    called: bool = True,
    **settings: object,
) -> int:
    """How many commits a crawl of 100 pages a second does in 10 s.

    :param handler: seconds that a handler of ``frontier_committing`` takes.
    :param called: whether the scheduler is asked for requests all the time; a full engine does not.
    """
    stand_in = StandIn({**OURS, "JOBDIR": str(tmp_path / "job"), **settings})

    def committing() -> None:
        clock.now += handler

    stand_in.crawler.signals.connect(committing, frontier_committing)
    number = 0
    stand_in.scheduler.enqueue_request(page(number))
    request = stand_in.next()
    assert request is not None
    before = stand_in.stat("altsched/commit/count")
    until = clock.now + SECONDS
    while clock.now < until:
        number += 1
        # What a page in flight leads to waits for the next commit.
        stand_in.scheduler._session.frontier.mark_seen(str(number).encode())
        clock.advance(0.01)
        if called:
            stand_in.next()
    commits: int = stand_in.stat("altsched/commit/count") - before
    stand_in.engine.end(request)
    stand_in.scheduler.close("finished")
    return commits


@pytest.mark.parametrize("called", [True, False])
def test_cheap_commits_come_often_also_while_the_scheduler_is_not_called(
    clock: ManualClock, tmp_path: Path, called: bool
) -> None:
    assert crawl(clock, tmp_path, called=called) > 4 * SECONDS


def test_commits_with_a_handler_that_takes_long_come_once_a_second(
    clock: ManualClock, tmp_path: Path
) -> None:
    assert crawl(clock, tmp_path, handler=0.05) <= SECONDS


def test_commits_come_once_a_second_if_that_is_asked_for(
    clock: ManualClock, tmp_path: Path
) -> None:
    assert crawl(clock, tmp_path, ALTSCHED_COMMIT_INTERVAL=1) in (SECONDS - 1, SECONDS)


def test_while_nothing_changes_nothing_is_committed_and_timers_are_called_once_a_second(
    clock: ManualClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in = StandIn({**OURS, "JOBDIR": str(tmp_path / "job")})
    stand_in.scheduler.enqueue_request(page(1))
    assert stand_in.next() is not None
    clock.advance(2)
    commits = stand_in.stat("altsched/commit/count")
    planned: list[float] = []
    call_at = clock.call_at

    def noted(when: float, call: object) -> object:
        planned.append(when)
        return call_at(when, call)  # type: ignore[arg-type]

    monkeypatch.setattr(clock, "call_at", noted)
    clock.advance(SECONDS)
    assert stand_in.stat("altsched/commit/count") == commits
    # One commits, and one looks whether an operator asks for something.
    assert len(planned) == 2 * SECONDS
    stand_in.scheduler.close("shutdown")


# With a store that is busy


@pytest.fixture(params=["any store", "a store of smaller batches"])
def busy(
    request: pytest.FixtureRequest,
    engine: str,
    clock: ManualClock,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> StandIn:
    """A crawl of 60 stored requests, of which 20 may end while its store is busy."""
    if request.param == "any store":
        monkeypatch.setattr(queues, "_MANY_DONE", 20)
    else:
        for database in (Database, SqliteDatabase):
            monkeypatch.setattr(database, "BATCH", 10)
    stand_in = StandIn({**OURS, "JOBDIR": str(tmp_path / "job"), "ALTSCHED_STORE": engine})
    for number in range(60):
        stand_in.scheduler.enqueue_request(page(number))
    assert stand_in.scheduler.checkpoint()
    return stand_in


def crawl_what_is_ready(clock: ManualClock, stand_in: StandIn) -> int:
    """How many pages could be crawled."""
    pages = 0
    while (request := stand_in.next()) is not None:
        stand_in.engine.end(request)
        clock.advance(0.01)
        pages += 1
    return pages


@BY_ENGINE
def test_a_crawl_waits_while_its_store_is_busy_and_many_pages_have_ended(
    clock: ManualClock, busy: StandIn
) -> None:
    frontier = busy.scheduler._session.frontier
    with stalled(journal_of(frontier)):
        before = crawl_what_is_ready(clock, busy)
        assert 20 <= before < 40
        assert busy.scheduler.has_pending_requests()
        clock.advance(1.01)
        assert busy.next() is None
    # No callback has to end for the engine to ask again.
    asked = busy.engine._slot.nextcall.scheduled
    clock.advance(1.01)
    assert busy.engine._slot.nextcall.scheduled > asked
    assert before + crawl_what_is_ready(clock, busy) == 60
    assert frontier.pressure.stalled_since is None
    assert not busy.stat("altsched/commit/failed")
    busy.scheduler.close("finished")


@BY_ENGINE
def test_a_store_that_is_busy_for_a_minute_is_told_of_once_a_minute(
    clock: ManualClock, busy: StandIn, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with stalled(journal_of(busy.scheduler._session.frontier)):
        crawl_what_is_ready(clock, busy)
        for seconds, lines in ((50, 0), (20, 1), (40, 1), (30, 2)):
            clock.advance(seconds)
            assert busy.next() is None
            assert caplog.text.count("changes wait for the store, and so does") == lines
    clock.advance(1.01)
    assert caplog.text.count("its store was busy for 14") == 1
    assert busy.stat("altsched/commit/stalled") > 2
    assert not busy.stat("altsched/commit/failed")
    busy.scheduler.close("shutdown")


@BY_ENGINE
@pytest.mark.parametrize("by_handler", [False, True])
def test_a_crawl_goes_on_while_commits_fail_also_if_the_store_was_busy_before(
    clock: ManualClock,
    busy: StandIn,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    by_handler: bool,
) -> None:
    with stalled(journal_of(busy.scheduler._session.frontier)):
        before = crawl_what_is_ready(clock, busy)
        clock.advance(61)
    assert "changes wait for the store" in caplog.text

    def fail(*_: object, **__: object) -> None:
        raise StoreError("No space left on device")

    if by_handler:
        busy.crawler.signals.connect(fail, frontier_committing)
    else:
        monkeypatch.setattr(Journal, "write", fail)
    clock.advance(1.01)
    assert before + crawl_what_is_ready(clock, busy) == 60
    assert caplog.text.count("No space left on device") == 1
    assert busy.stat("altsched/commit/failed")
    busy.crawler.signals.disconnect(fail, frontier_committing)
    monkeypatch.undo()
    busy.scheduler.close("finished")
