"""A job that begins again, from nothing or with what it has seen: all of it, or it is as it was."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from scrapy_altsched.age import Age
from scrapy_altsched.errors import JobdirError, JobdirLockedError
from scrapy_altsched.frontier import Options
from scrapy_altsched.frontier.entry import Counts, DeadLetter, PageFailure, Reason
from scrapy_altsched.frontier.store import engines
from scrapy_altsched.frontier.store.view import View
from scrapy_altsched.maintenance import restart as module
from scrapy_altsched.maintenance.opening import open_frontier
from scrapy_altsched.maintenance.restart import restart

from ..crash.test_kill_points import died, kills
from ..crawls import altsched
from ..frontiers import OWNER, page, problems_of, take, work_off
from ..stores import BY_ENGINE

PAGES = [f"page {number}" for number in range(30)]


def make_job(path: Path, engine: engines.Choice, **options: object) -> None:
    """A job with requests in every state, some of which were leased when its process died."""
    options = Options(store=engine, slot_budget=20, **options)
    frontier = open_frontier(path, OWNER, options)
    frontier.add(page("start", unique=False, from_start=True))
    for name in PAGES[:20]:
        frontier.add(page(name, name[-1]))
    for _ in range(8):
        frontier.finish(take(frontier))
    frontier.dead_letter(take(frontier), DeadLetter("it is not wanted"))
    lease = take(frontier)
    lease.failure = PageFailure(Reason.STATUS, "HTTP status 503", 503)
    frontier.finish(lease)
    frontier.commit({"state": b"of others"})
    take(frontier)
    frontier.abandon()


def begin_again(path: Path, seen: int = 0) -> list[str]:
    """Yield all that there is, as the spider does; what is crawled.

    :param seen: how many pages are seen before that.
    """
    frontier = open_frontier(path, OWNER)
    assert frontier.counts() == Counts(seen=seen)
    assert not frontier.job.resumed
    assert frontier.run.note("state") is None
    frontier.add(page("start", unique=False, from_start=True))
    for name in PAGES:
        frontier.add(page(name, name[-1]))
    found = work_off(frontier)
    assert problems_of(frontier) == []
    frontier.close(finished=True)
    return sorted(found)


@BY_ENGINE
def test_a_job_begins_again_from_nothing(tmp_path: Path, engine: engines.Choice) -> None:
    make_job(tmp_path, engine)
    restart(tmp_path, OWNER, "", keeps_seen=False)
    with View(tmp_path / "frontier") as view:
        assert view.counters().run == 1
        assert list(view.seen()) == list(view.budgets()) == list(view.started()) == []
    assert begin_again(tmp_path) == sorted([*PAGES, "start"])
    # The commits are counted on: nothing looks as if it were lost.
    frontier = open_frontier(tmp_path, OWNER)
    assert (frontier.job.rolled_back, frontier.job.damage) == (0, None)
    frontier.close()


@BY_ENGINE
def test_a_job_begins_again_with_what_it_has_seen(tmp_path: Path, engine: engines.Choice) -> None:
    make_job(tmp_path, engine)
    for _ in range(2):
        restart(tmp_path, OWNER, "", keeps_seen=True)
    assert begin_again(tmp_path, seen=20) == sorted([*PAGES[20:], "start"])


@BY_ENGINE
def test_pages_are_crawled_again_that_are_old_enough(
    tmp_path: Path, engine: engines.Choice
) -> None:
    ages = {"records_ages": True, "recrawl_after": Age(0.0)}
    make_job(tmp_path, engine, **ages)
    restart(tmp_path, OWNER, "", keeps_seen=True)
    frontier = open_frontier(tmp_path, OWNER, Options(store=engine, **ages))
    for name in PAGES[:20]:
        frontier.add(page(name))
    # Of those that were not done, the restart was the end.
    assert len(work_off(frontier)) == 20
    frontier.close(finished=True)


@BY_ENGINE
def test_a_job_that_runs_is_not_restarted(tmp_path: Path, engine: engines.Choice) -> None:
    make_job(tmp_path, engine)
    frontier = open_frontier(tmp_path, OWNER)
    with pytest.raises(JobdirLockedError):
        restart(tmp_path, OWNER, "", keeps_seen=False)
    assert frontier.counts().pending > 0
    frontier.close()


@BY_ENGINE
def test_a_disk_that_is_full_leaves_the_job_as_it_was(
    tmp_path: Path, engine: engines.Choice, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_job(tmp_path, engine)

    def fill_disk(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(module, "follow", fill_disk)
        with pytest.raises(JobdirError, match="Nothing was changed; check that the disk has space"):
            restart(tmp_path, OWNER, "", keeps_seen=True)
    assert not list(tmp_path.glob("frontier.*"))
    frontier = open_frontier(tmp_path, OWNER)
    assert frontier.counts().accepted == 21
    frontier.close()


@pytest.mark.timeout(1200)
@BY_ENGINE
def test_a_kill_at_any_step_leaves_the_job_as_it_was_or_restarted(
    tmp_path: Path, engine: engines.Choice
) -> None:
    image = died(tmp_path, engine)
    with View(image / "frontier") as view:
        seen, before = list(view.seen()), view.counts()
    into = tmp_path / "killed"
    into.mkdir()
    found = set()
    reached = kills("begin_again", engine, image, into, "restart")
    for kill in reached:
        frontier = open_frontier(kill.path, OWNER)
        assert frontier.counts() in (before, Counts(seen=len(seen)))
        found.add(frontier.counts() == before)
        assert (frontier.job.rolled_back, frontier.job.damage) == (0, None)
        frontier.close()
        assert not list(kill.path.glob("frontier.*"))
        with View(kill.path / "frontier") as view:
            assert list(view.seen()) == seen
        shutil.rmtree(kill.path)
    assert found == {True, False}
    assert len(reached) > 10


def test_the_command_asks_before_requests_are_dropped(tmp_path: Path) -> None:
    make_job(tmp_path, "auto")
    done = altsched("restart", tmp_path)
    assert done.returncode == 2
    assert "11 requests are still to be crawled." in done.stdout
    assert "there is no terminal to ask on, so nothing was changed; --yes does it" in done.stderr
    done = altsched("restart", tmp_path, "--yes")
    assert done.returncode == 0, done.stderr
    assert "starts again from nothing, with its next run." in done.stdout
    # There is nothing to go on with, and yet it is not finished.
    done = altsched("check", tmp_path, "--finished")
    assert done.returncode == 4
    assert "not finished, 1 run" in done.stdout
    open_frontier(tmp_path, OWNER).close(finished=True)
    assert altsched("check", tmp_path, "--finished").returncode == 0
    assert altsched("restart", tmp_path, "--keep-seen").returncode == 0
    done = altsched("restart", tmp_path, "--shared", "key")
    assert done.returncode == 2
