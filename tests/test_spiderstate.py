"""``spider.state``, between our commits and the file of Scrapy's extension."""

from __future__ import annotations

import json
import logging
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from scrapy import Spider
from scrapy.extensions.spiderstate import SpiderState

from scrapy_altsched.errors import JobdirError
from scrapy_altsched.spiderstate import FILE, STATE, SpiderStateCheckpoint


class Run:
    """One run of a spider over a job directory, as Scrapy's extension and we see it."""

    def __init__(self, jobdir: Path, notes: dict[str, bytes] | None = None) -> None:
        self.spider = Spider("spider")
        self.extension = SpiderState(str(jobdir))
        self.checkpoint = SpiderStateCheckpoint(str(jobdir), self.spider)
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
    status = state_file(tmp_path).stat()
    assert json.loads(notes[FILE]) == [status.st_mtime_ns, status.st_size]
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
