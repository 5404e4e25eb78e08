"""``spider.state``, between our commits and the file of Scrapy's extension."""

from __future__ import annotations

import json
import logging
import os
import pickle
import shutil
import signal
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest
from scrapy import Request, Spider
from scrapy.extensions.spiderstate import SpiderState

from scrapy_altsched.crawl.setup import CrawlClock
from scrapy_altsched.errors import JobdirError
from scrapy_altsched.frontier.clock import Clock
from scrapy_altsched.frontier.options import SYSTEM_CLOCK
from scrapy_altsched.frontier.store.journal import Journal
from scrapy_altsched.resume.spider_state import FILE, STATE, SpiderStateCheckpoint

from ..clocks import ManualClock
from ..crawls import ONE_BY_ONE, PROJECT, STOCK, Crawl
from ..engines import OURS, StandIn
from ..sites import Gates, Site, random_graph, wait_for_pages


class Run:
    """One run of a spider over a job directory, as Scrapy's extension and we see it."""

    def __init__(
        self,
        jobdir: Path,
        notes: dict[str, bytes] | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.spider = Spider("spider")
        self.extension = SpiderState(str(jobdir))
        self.checkpoint = SpiderStateCheckpoint(str(jobdir), self.spider, clock.monotonic)
        notes = notes or {}
        self.checkpoint.restore(notes.get(STATE), notes.get(FILE))
        self.extension.spider_opened(self.spider)

    @property
    def state(self) -> Any:
        return self.spider.state  # type: ignore[attr-defined]

    @state.setter
    def state(self, value: Any) -> None:
        self.spider.state = value  # type: ignore[attr-defined]

    def commit(self) -> dict[str, bytes]:
        return self.checkpoint.notes()

    def close(self) -> None:
        self.extension.spider_closed(self.spider)


def state_file(jobdir: Path) -> Path:
    return jobdir / "spider.state"


def test_a_crash_before_the_file_is_ever_written_is_made_good(tmp_path: Path) -> None:
    first = Run(tmp_path)
    first.state["pages"] = 3
    notes = first.commit()
    assert not state_file(tmp_path).exists()
    assert Run(tmp_path, notes).state == {"pages": 3}


def test_a_crash_after_earlier_runs_is_made_good(tmp_path: Path) -> None:
    first = Run(tmp_path)
    first.state["pages"] = 3
    first.close()
    second = Run(tmp_path, first.commit())
    second.state["pages"] = 4
    notes = second.commit()
    assert Run(tmp_path, notes).state == {"pages": 4}


def test_crashes_in_a_row_are_made_good(tmp_path: Path) -> None:
    notes: dict[str, bytes] = {}
    for pages in range(4):
        run = Run(tmp_path, notes)
        assert run.state.get("pages", 0) == pages
        run.state["pages"] = pages + 1
        notes = run.commit()


@pytest.mark.parametrize("time", [0, 2**62])
def test_a_copy_with_other_times_is_not_taken_for_newer(tmp_path: Path, time: int) -> None:
    first = Run(tmp_path)
    first.state["pages"] = 3
    first.close()
    second = Run(tmp_path, first.commit())
    second.state["pages"] = 4
    notes = second.commit()
    os.utime(state_file(tmp_path), ns=(time, time))
    assert Run(tmp_path, notes).state == {"pages": 4}


def test_a_job_of_a_version_that_noted_the_files_time_goes_on(tmp_path: Path) -> None:
    first = Run(tmp_path)
    first.state["pages"] = 3
    first.close()
    status = state_file(tmp_path).stat()
    notes = {
        STATE: pickle.dumps({"pages": 4}, 4),
        FILE: json.dumps([status.st_mtime_ns, status.st_size]).encode(),
    }
    assert Run(tmp_path, notes).state == {"pages": 4}
    first.state["pages"] = 5
    first.close()
    os.utime(state_file(tmp_path), ns=(0, 0))
    assert Run(tmp_path, notes).state == {"pages": 5}


def test_a_killed_crawl_copied_without_times_goes_on_with_its_state(tmp_path: Path) -> None:
    gates = Gates(random_graph(60, 2, 1), 10, 40)
    with Site(gates) as site:
        crawl = Crawl(tmp_path, "pages", f"{site.url}/0")
        process = crawl.start(CONCURRENT_REQUESTS=2)
        wait_for_pages(site, 11, process)
        process.send_signal(signal.SIGINT)
        crawl.wait_for_log(process, "shutting down gracefully")
        gates.open()
        process.communicate(timeout=60)
        # A page is asked for when all that those before it led to is committed.
        process = crawl.start(ALTSCHED_COMMIT_EVERY=1, **ONE_BY_ONE)
        wait_for_pages(site, 41, process)
        crawl.kill(process)
        gates.open()
        copy = tmp_path / "copy"
        shutil.copytree(crawl.jobdir, copy, copy_function=shutil.copy)
        crawl.jobdir = copy
        assert crawl.run() == 0
        assert pickle.loads(state_file(copy).read_bytes())["pages"] >= 60


def test_a_file_that_was_written_after_the_commit_is_left_alone(tmp_path: Path) -> None:
    first = Run(tmp_path)
    first.state["pages"] = 3
    notes = first.commit()
    first.state["pages"] = 5
    first.close()
    before = state_file(tmp_path).stat()
    assert Run(tmp_path, notes).state == {"pages": 5}
    assert state_file(tmp_path).stat() == before


def test_a_newer_file_of_the_same_size_is_left_alone(tmp_path: Path) -> None:
    first = Run(tmp_path)
    first.state["pages"] = 1
    first.close()
    notes = first.commit()
    path = state_file(tmp_path)
    size = path.stat().st_size
    path.write_bytes(pickle.dumps({"pages": 2}, 4))
    os.utime(path, ns=(0, 0))
    assert path.stat().st_size == size
    assert Run(tmp_path, notes).state == {"pages": 2}


def test_a_newer_file_of_the_same_time_is_left_alone(tmp_path: Path) -> None:
    first = Run(tmp_path)
    first.state["pages"] = 1
    first.close()
    notes = first.commit()
    path = state_file(tmp_path)
    time = path.stat().st_mtime_ns
    path.write_bytes(pickle.dumps({"pages": 2, "more": 1}, 4))
    os.utime(path, ns=(time, time))
    assert Run(tmp_path, notes).state == {"pages": 2, "more": 1}


@pytest.mark.parametrize(
    "content",
    [b"", b"\x80", pickle.dumps({"pages": 9}, 4)[:-1], b"cno.such\nThing\n.", b"\xff" * 20],
)
def test_a_file_that_cannot_be_read_is_replaced(tmp_path: Path, content: bytes) -> None:
    first = Run(tmp_path)
    first.state["pages"] = 3
    notes = first.commit()
    state_file(tmp_path).write_bytes(content)
    assert Run(tmp_path, notes).state == {"pages": 3}


def test_a_file_that_is_gone_is_replaced(tmp_path: Path) -> None:
    first = Run(tmp_path)
    first.state["pages"] = 3
    first.close()
    notes = first.commit()
    state_file(tmp_path).unlink()
    assert Run(tmp_path, notes).state == {"pages": 3}


def test_without_a_committed_state_nothing_is_touched(tmp_path: Path) -> None:
    assert Run(tmp_path).state == {}
    assert list(tmp_path.iterdir()) == []
    state_file(tmp_path).write_bytes(b"damaged")
    SpiderStateCheckpoint(str(tmp_path), Spider("spider")).restore(None, None)
    assert state_file(tmp_path).read_bytes() == b"damaged"


def test_a_committed_state_without_the_files_description_replaces_no_readable_file(
    tmp_path: Path,
) -> None:
    first = Run(tmp_path)
    first.state["pages"] = 3
    first.close()
    old = pickle.dumps({"pages": 1}, 4)
    assert Run(tmp_path, {STATE: old}).state == {"pages": 3}


def test_notes_are_the_state_and_what_the_file_looked_like(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.state["pages"] = 3
    notes = run.commit()
    assert set(notes) == {STATE, FILE}
    assert pickle.loads(notes[STATE]) == {"pages": 3}
    assert json.loads(notes[FILE]) is None
    run.close()
    notes = run.commit()
    content = state_file(tmp_path).read_bytes()
    assert notes[FILE] == blake2b(content, digest_size=16).hexdigest().encode()
    assert notes[STATE] == state_file(tmp_path).read_bytes()


def test_notes_do_not_change_with_what_happens_to_the_state_later(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.state["pages"] = [1]
    notes = run.commit()
    run.state["pages"].append(2)
    assert pickle.loads(notes[STATE]) == {"pages": [1]}
    assert run.commit() != notes


def test_there_are_no_notes_before_the_spider_has_a_state(tmp_path: Path) -> None:
    assert SpiderStateCheckpoint(str(tmp_path), Spider("spider")).notes() == {}


class Unpicklable:
    def __init__(self, error: type[Exception]) -> None:
        self.error = error

    def __reduce__(self) -> Any:
        raise self.error("not this one")


@pytest.mark.parametrize("error", [TypeError, pickle.PicklingError, RecursionError, KeyError])
def test_a_state_that_cannot_be_pickled_warns_once_and_keeps_the_last_good_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, error: type[Exception]
) -> None:
    run = Run(tmp_path)
    run.state["pages"] = 3
    good = run.commit()
    run.state["bad"] = Unpicklable(error)
    for pages in (4, 5):
        run.state["pages"] = pages
        assert run.commit() == good
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "spider.state cannot be pickled" in record.getMessage()
    assert "not this one" in record.getMessage()
    assert record.spider is run.spider  # type: ignore[attr-defined]
    del run.state["bad"]
    assert pickle.loads(run.commit()[STATE]) == {"pages": 5}
    assert Run(tmp_path, good).state == {"pages": 3}


def test_a_state_that_never_could_be_pickled_leaves_no_notes(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.state["bad"] = lambda: None
    assert run.commit() == {}


def test_nothing_but_the_whole_file_is_left(tmp_path: Path) -> None:
    state = pickle.dumps({"pages": 3}, 4)
    state_file(tmp_path).write_bytes(b"damaged and longer than what comes after it" * 9)
    # What a death in the middle of an earlier attempt left.
    (tmp_path / "spider.state.partial").write_bytes(b"half")
    SpiderStateCheckpoint(str(tmp_path), Spider("spider")).restore(state, b"null")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"spider.state": state}


def test_the_old_file_stays_whole_until_the_new_one_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Run(tmp_path)
    first.state["pages"] = 3
    first.close()
    old = state_file(tmp_path).read_bytes()
    first.state["pages"] = 4
    notes = first.commit()

    def die(_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", die)
    with pytest.raises(KeyboardInterrupt):
        Run(tmp_path, notes)
    assert state_file(tmp_path).read_bytes() == old


def test_a_directory_that_cannot_be_written_to_is_an_error_that_names_it(tmp_path: Path) -> None:
    jobdir = tmp_path / "gone"
    checkpoint = SpiderStateCheckpoint(str(jobdir), Spider("spider"))
    with pytest.raises(JobdirError, match=r"gone/spider\.state cannot be written .*No such file"):
        checkpoint.restore(pickle.dumps({}), b"null")


# A state that takes long to save


class Large:
    """Takes *seconds* by a test's clock, and so many bytes, to pickle."""

    def __init__(self, clock: ManualClock, seconds: float, size: int = 200_000) -> None:
        self.clock = clock
        self.seconds = seconds
        self.size = size

    def __reduce__(self) -> Any:
        self.clock.now += self.seconds
        return str, ("x" * self.size,)


def test_saving_a_large_state_takes_no_more_than_its_share_of_the_time(tmp_path: Path) -> None:
    clock = ManualClock()
    run = Run(tmp_path, clock=clock)
    run.state["large"] = Large(clock, 0.3)
    began, saving, saves = clock.now, 0.0, set()
    for commit in range(300):
        run.state["commit"] = commit
        before = clock.now
        state = run.commit()[STATE]
        if state not in saves:
            clock.now += 0.2  # to write it
        run.checkpoint.note_commit()
        saving += clock.now - before
        saves.add(state)
        clock.now += 1
    # The first one is paid for after it was made.
    assert saving / (clock.now - began + 0.5 / 0.02) <= 0.02
    assert len(saves) == 12


def test_a_small_state_is_saved_with_each_commit(tmp_path: Path, caplog: Any) -> None:
    clock = ManualClock()
    run = Run(tmp_path, clock=clock)
    run.state["large"] = Large(clock, 0.5, size=90_000)
    for commit in range(10):
        run.state["commit"] = commit
        assert pickle.loads(run.commit()[STATE])["commit"] == commit
        run.checkpoint.note_commit()
    assert caplog.records == []


def test_the_size_of_a_large_state_is_warned_of_once(tmp_path: Path, caplog: Any) -> None:
    clock = ManualClock()
    run = Run(tmp_path, clock=clock)
    run.state["large"] = Large(clock, 0.5)
    run.state["text"] = "x" * 1_800_000
    for commit in range(3):
        run.state["commit"] = commit
        run.commit()
        clock.now += 0.5
        run.checkpoint.note_commit()
        clock.now += 1_000
    (record,) = caplog.records
    assert "spider.state has 2.0 MB and takes 1.00 s to save" in record.getMessage()
    assert "saved every 50 s and when the crawl ends" in record.getMessage()


def test_an_orderly_close_saves_a_large_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    monkeypatch.setattr(CrawlClock, "monotonic", clock.monotonic)
    crawl = StandIn({**OURS, "JOBDIR": str(tmp_path)})
    scheduler = crawl.scheduler
    crawl.spider.state = {"large": Large(clock, 0.5), "pages": 1}  # type: ignore[attr-defined]
    assert scheduler.checkpoint()
    crawl.spider.state["pages"] = 2  # type: ignore[attr-defined]
    assert scheduler.enqueue_request(Request("http://site.test/"))
    assert scheduler.checkpoint()
    assert pickle.loads(scheduler._session.frontier.run.note(STATE))["pages"] == 1
    scheduler.close("shutdown")
    assert Run(tmp_path, committed(tmp_path)).state["pages"] == 2


def committed(jobdir: Path) -> dict[str, bytes]:
    journal = Journal(jobdir, "spider")
    notes = journal.notes()
    journal.close()
    return notes


# The working directory


@pytest.mark.parametrize("addon", [True, False])
def test_a_spider_may_change_the_working_directory(tmp_path: Path, addon: bool) -> None:
    graph = random_graph(40, 2, 1)
    (tmp_path / "elsewhere").mkdir()
    by_hand = {} if addon else {**STOCK, **OURS}
    with Site(graph) as site:
        crawl = Crawl(tmp_path, "wandering", f"{site.url}/0", to=tmp_path / "elsewhere")
        relative = os.path.relpath(crawl.jobdir, PROJECT)
        settings = {**by_hand, "JOBDIR": relative, **ONE_BY_ONE, "ALTSCHED_COMMIT_EVERY": 1}
        assert crawl.run(**settings, KILL_AT=15, KILL_ON="item") == -signal.SIGKILL
        assert crawl.run(**settings, CLOSESPIDER_PAGECOUNT=10) == 0
        assert crawl.run(**settings) == 0
        assert set(site.hits) == set(graph)
        assert "ERROR" not in crawl.log
    state = pickle.loads(state_file(crawl.jobdir).read_bytes())
    # The page that was in hand at the kill comes again.
    assert len(graph) - 1 <= state["pages"] <= len(graph) + 1
    assert list((tmp_path / "elsewhere").iterdir()) == []
