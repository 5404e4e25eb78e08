"""What a resumed job finds in its feed files, and what it makes of it."""

from __future__ import annotations

import csv
import json
import logging
import os
import resource
import shutil
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from scrapy import Request
from scrapy.extensions.feedexport import ItemFilter
from scrapy.signals import item_scraped
from twisted.internet.defer import Deferred

from scrapy_altsched.feeds import JobFeeds
from scrapy_altsched.frontier.store.engines import Choice

from ..stores import BY_ENGINE
from .test_feed_file import full
from .test_feeds import CSV, LINES, Run, messages, stop_in_the_middle


class OnlyWholeItems(ItemFilter):
    """Takes no item that has a field ``draft``."""

    def accepts(self, item: Any) -> bool:
        return "draft" not in item


def table(path: Path) -> list[list[str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.reader(file))


def scrape(run: Run, item: Any) -> None:
    """Have all that listen to items get one, as in a crawl."""
    run.stand_in.crawler.signals.send_catch_log(item_scraped, item=item, spider=run.spider)


# Rows that were there before


def test_rows_of_an_earlier_crawl_are_never_cut(tmp_path: Path) -> None:
    path = tmp_path / "items.csv"
    # One row of an earlier crawl has an odd number of quotes.
    earlier = b"a\r\n" + b'5" pipe\r\n' + b"row\r\n" * 366
    path.write_bytes(earlier)
    run = Run(tmp_path, CSV).items({"a": 1})
    run.commit()
    run.die()
    assert path.read_bytes() == earlier + b"a\r\n1\r\n"
    with path.open("ab") as file:
        file.write(b'"to\r\nrn')
    stop_in_the_middle(tmp_path, CSV, {"a": 2})
    assert path.read_bytes() == earlier + b"a\r\n1\r\n2\r\n"


def test_a_torn_row_is_cut_though_the_resumed_job_does_not_open_its_file(tmp_path: Path) -> None:
    run = Run(tmp_path, LINES).items({"a": 1})
    run.commit()
    run.die()
    path = tmp_path / "items.jsonl"
    with path.open("ab") as file:
        file.write(b'{"a": 2}\n{"a": "to')
    Run(tmp_path, LINES).end()
    assert path.read_bytes() == b'{"a": 1}\n{"a": 2}\n'


def test_a_file_of_others_is_not_cut(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    stop_in_the_middle(tmp_path, LINES, {"a": 1})
    path = tmp_path / "items.csv"
    path.write_bytes(b'a\r\n5" pipe\r\n' + b"row\r\n" * 50 + b"no end")
    before = path.read_bytes()
    stop_in_the_middle(tmp_path, {**LINES, **CSV}, {"a": 2})
    assert path.read_bytes() == before + b"\r\n2\r\n"
    (message,) = messages(caplog)
    assert f"{path} does not end with a line feed; a new line is started" in message


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("items.jsonl", '{"a": 0}', '{"a": 0}\n{"a": 1}\n'),
        ("items.csv", "b\r\nx", "b\r\nx\r\na\r\n1\r\n"),
    ],
)
def test_a_first_append_begins_a_line(tmp_path: Path, name: str, before: str, after: str) -> None:
    (tmp_path / name).write_bytes(before.encode())
    stop_in_the_middle(tmp_path, {**CSV, **LINES}, {"a": 1})
    assert (tmp_path / name).read_bytes() == after.encode()


def test_a_file_that_lost_its_end_is_reported_and_not_cut(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stop_in_the_middle(tmp_path, LINES, {"a": 1}, {"a": 2})
    path = tmp_path / "items.jsonl"
    path.write_bytes(b'{"a": 1}\n')
    stop_in_the_middle(tmp_path, LINES, {"a": 3})
    assert path.read_bytes() == b'{"a": 1}\n{"a": 3}\n'
    (message,) = messages(caplog)
    assert f"The feed {path} has 9 bytes, but had 18 at the last commit" in message


def test_a_file_that_is_gone_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    stop_in_the_middle(tmp_path, LINES, {"a": 1})
    path = tmp_path / "items.jsonl"
    path.unlink()
    stop_in_the_middle(tmp_path, LINES, {"a": 2})
    assert path.read_bytes() == b'{"a": 2}\n'
    (message,) = messages(caplog)
    assert (
        f"The feed {path} has 0 bytes (the file is gone), but had 9 at the last commit" in message
    )


def test_a_file_is_known_by_its_absolute_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    monkeypatch.chdir(tmp_path)
    feeds = {"FEEDS": {"items.jsonl": {"format": "jsonlines"}}}
    run = Run(tmp_path, {}, **feeds)
    monkeypatch.chdir(other)  # as a spider may
    run.items({"a": 1}).commit()
    monkeypatch.chdir(tmp_path)
    run.commit()
    run.die()
    with (other / "items.jsonl").open("ab") as file:
        file.write(b'{"a": "to')
    Run(tmp_path, {}, **feeds).end()
    assert (other / "items.jsonl").read_bytes() == b'{"a": 1}\n'
    # It was there to be locked, and the run that died did not delete it.
    assert (tmp_path / "items.jsonl").read_bytes() == b""


def test_a_job_of_an_older_version_has_its_torn_row_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(JobFeeds, "notes", lambda feeds, **_: {})
        run = Run(tmp_path, CSV).items({"a": 1})
        run.commit()
        run.die()
    path = tmp_path / "items.csv"
    with path.open("ab") as file:
        file.write(b'"to\r\n')
    stop_in_the_middle(tmp_path, CSV, {"a": 2})
    assert path.read_bytes() == b"a\r\n1\r\n2\r\n"


# Columns


@pytest.mark.parametrize(
    ("fields", "row", "told"),
    [
        (["a", "b"], ["1", "2"], None),
        (["b", "a"], ["1", "2"], "with the order of the fields not changed"),
        (["c", "a", "b"], ["1", "2"], "with 'c' left out"),
        (["b"], ["", "2"], "with 'a' left empty"),
        (["c", "b"], ["", "2"], "with 'c' left out and 'a' left empty"),
        ({"c": "a", "b": "b"}, ["3", "2"], None),
        ({"a": "A", "b": "b"}, ["", "2"], "with 'A' left out and 'a' left empty"),
        (None, ["1", "2"], "without 'c' of the items"),
    ],
    ids=str,
)
def test_values_stay_below_their_headings_and_what_is_dropped_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, fields: Any, row: list[str], told: str | None
) -> None:
    item = {"c": 3, "b": 2, "a": 1}
    first = {"items.csv": {"format": "csv", "fields": ["a", "b"]}}
    stop_in_the_middle(tmp_path, first, item)
    feeds = {"items.csv": {"format": "csv", "fields": fields}}
    run = Run(tmp_path, feeds)
    for _ in range(3):
        scrape(run, item)
    run.end()
    path = tmp_path / "items.csv"
    assert table(path) == [["a", "b"], ["1", "2"], row, row, row]
    text = f"{path} keeps the columns of its header line, {told}. To have other columns,"
    assert messages(caplog) == ([f"{text} let the next job write to a new file."] if told else [])


def test_items_that_a_feed_does_not_take_drop_no_columns(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    feeds = {"items.csv": {"format": "csv", "item_filter": OnlyWholeItems}}
    stop_in_the_middle(tmp_path, feeds, {"a": 1})
    run = Run(tmp_path, feeds)
    for item in ({"a": 2}, {"a": 3, "draft": True}):
        scrape(run, item)
    run.end()
    assert table(tmp_path / "items.csv") == [["a"], ["1"], ["2"]]
    assert messages(caplog) == []


# Feeds that a resume does not have


def test_a_resume_with_fewer_feeds_is_told_once_which_are_missing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    remote = {"ftp://me:secret@127.0.0.1/items-%(time)s.csv": {"format": "csv"}}
    Run(tmp_path, LINES, FEEDS={**remote, **here(tmp_path, {**CSV, **LINES})}).end()
    caplog.clear()
    for _ in range(2):
        Run(tmp_path, LINES).end()
        (message,) = messages(caplog)
        missing = f"{tmp_path / 'items.csv'}, ftp://me:***@127.0.0.1/items-%(time)s.csv. The"
        assert missing in message
        assert "run the same command as before, with -o" in message
        caplog.clear()
    stored = b"".join(path.read_bytes() for path in (tmp_path / "job").rglob("*.*"))
    assert b"me:***@" in stored
    assert b"secret" not in stored
    # Given as a URI they are the same feeds.
    as_uris = {(tmp_path / name).as_uri(): feed for name, feed in {**CSV, **LINES}.items()}
    Run(tmp_path, {}, FEEDS={**remote, **as_uris}).end()
    assert [text for text in messages(caplog) if "does not have" in text] == []
    assert "me:secret" not in caplog.text


def here(directory: Path, feeds: dict[str, Any]) -> dict[str, Any]:
    return {str(directory / name): feed for name, feed in feeds.items()}


@pytest.mark.parametrize("move", [Path.rename, shutil.copytree])
def test_a_job_that_is_moved_with_its_feeds_has_them_and_its_torn_row_is_cut(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, move: Callable[[Path, Path], object]
) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    before.mkdir()
    run = Run(before, {**LINES, **CSV}).items({"a": 1})
    run.commit()
    run.die()
    with (before / "items.jsonl").open("ab") as file:
        file.write(b'{"a": 2}\n{"a": "to')
    move(before, after)
    Run(after, {**LINES, **CSV}).end()
    assert messages(caplog) == []
    assert (after / "items.jsonl").read_bytes() == b'{"a": 1}\n{"a": 2}\n'


def test_a_job_that_is_moved_without_its_feeds_finds_them_where_they_were(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stop_in_the_middle(tmp_path, LINES, {"a": 1})
    (tmp_path / "elsewhere").mkdir()
    moved = tmp_path / "elsewhere" / "job"
    (tmp_path / "job").rename(moved)
    run = Run(tmp_path, LINES, JOBDIR=str(moved)).items({"a": 2})
    run.commit()
    run.die()
    with (tmp_path / "items.jsonl").open("ab") as file:
        file.write(b'{"a": "to')
    Run(tmp_path, LINES, JOBDIR=str(moved)).end()
    assert messages(caplog) == []
    assert (tmp_path / "items.jsonl").read_bytes() == b'{"a": 1}\n{"a": 2}\n'


def test_the_feeds_of_a_finished_job_are_not_missed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Run(tmp_path, {**CSV, **LINES}).end("finished")
    for _ in range(2):
        Run(tmp_path, LINES).end()
    assert messages(caplog) == []


# Files that cannot be written


def filled_batch(tmp_path: Path) -> tuple[Run, Any, Any]:
    """A run, its first file, and the slot that the file is in."""
    run = Run(tmp_path, LINES).items({"a": 1})
    (slot,) = run.exporter.slots
    return run, slot.file, slot


def test_a_full_batch_is_stored_when_its_disk_takes_it(tmp_path: Path) -> None:
    run, file, slot = filled_batch(tmp_path)
    run.exporter.slots.clear()
    stored: list[Any] = []
    with full(file):
        slot.finish_exporting()
        waiting = slot.storage.store(file)
        assert isinstance(waiting, Deferred)
        waiting.addCallback(stored.append)
        del slot
        assert not run.stand_in.scheduler.checkpoint()
        assert not file.closed
        assert stored == []
    assert run.stand_in.scheduler.checkpoint()
    assert file.closed
    assert stored == [None]
    assert (tmp_path / "items.jsonl").read_bytes() == b'{"a": 1}\n'
    run.end()


def test_what_cannot_be_written_at_the_end_is_reported_and_is_no_success(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run, file, slot = filled_batch(tmp_path)
    failures: list[Any] = []
    with Path("/dev/full").open("wb") as device:
        os.dup2(device.fileno(), file.fileno())
    slot.storage.store(file).addErrback(failures.append)
    run.exporter.slots.clear()
    run.end("finished")
    assert file.closed
    assert [failure.type for failure in failures] == [OSError]
    (message,) = messages(caplog, logging.CRITICAL)
    assert "The last 9 bytes of the feed" in message
    assert "No space left on device" in message
    assert "to crawl these pages again" in message
    assert "The final commit of this crawl failed" in caplog.text
    again = Run(tmp_path, LINES)
    assert again.stand_in.scheduler.resumed
    again.end()


def test_a_file_that_cannot_be_opened_postpones_commits_and_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "items.jsonl"
    path.mkdir()
    run = Run(tmp_path, LINES).items({"a": 1}, {"a": 2})
    assert not run.stand_in.scheduler.checkpoint()
    path.rmdir()
    assert run.stand_in.scheduler.checkpoint()
    assert path.read_bytes() == b'{"a": 1}\n{"a": 2}\n'
    run.end()


def test_an_empty_file_is_stored_after_the_scheduler_was_closed(tmp_path: Path) -> None:
    run = Run(tmp_path, LINES)
    (slot,) = run.exporter.slots
    run.end()
    slot.start_exporting()
    slot.finish_exporting()
    assert slot.file is not None
    assert slot.storage.store(slot.file) is None
    assert (tmp_path / "items.jsonl").read_bytes() == b""


@contextmanager
def file_size_limit(size: int) -> Any:
    """Have the operating system take no byte of a file past *size*."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_no_row_is_in_a_file_before_the_job_has_noted_it(tmp_path: Path) -> None:
    path = tmp_path / "items.jsonl"
    # More than is kept in memory of a file that is noted.
    run = Run(tmp_path, LINES).items({"a": "x" * 100_000})
    assert path.read_bytes() == b""
    run.commit()
    run.items({"a": "x" * 100_000})
    assert path.stat().st_size > 200_000
    run.end()


def test_no_row_is_missed_if_the_process_dies_between_that_note_and_the_first_row(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run(tmp_path, LINES).items({"a": 1})
    (slot,) = run.exporter.slots
    file: Any = slot.file
    with full(file):
        assert run.stand_in.scheduler.enqueue_request(Request("http://example.com"))
        assert not run.stand_in.scheduler.checkpoint()
    run.die()
    caplog.clear()
    Run(tmp_path, LINES).end()
    assert messages(caplog) == []


@BY_ENGINE
@pytest.mark.parametrize(("is_full", "ends"), [(False, False), (True, False), (False, True)])
def test_a_job_that_cannot_note_a_file_writes_no_row_to_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, engine: Choice, is_full: bool, ends: bool
) -> None:
    path = tmp_path / "items.jsonl"
    run = Run(tmp_path, LINES, ALTSCHED_STORE=engine).items({"a": 1})
    (slot,) = run.exporter.slots
    scheduler = run.stand_in.scheduler
    store = tmp_path / "job" / "frontier"
    logs = [file for end in (".log", "-wal") for file in store.glob(f"*{end}")]
    stored: list[Any] = []
    with file_size_limit(max(file.stat().st_size for file in logs)):
        assert scheduler.enqueue_request(Request("http://example.com"))
        if is_full:
            slot.finish_exporting()
            slot.storage.store(slot.file).addCallback(stored.append)
        assert not scheduler.checkpoint()
        assert not scheduler.checkpoint()
        assert path.read_bytes() == b""
        assert stored == []
    assert f"Writing to the store {store} failed" in caplog.text
    assert "frontier_committing" not in caplog.text
    if not ends:
        assert scheduler.checkpoint()
        assert path.read_bytes() == b'{"a": 1}\n'
    if is_full:
        assert stored == [None]
        run.exporter.slots.clear()
    run.end()
    assert path.read_bytes() == b'{"a": 1}\n'
    assert "The final commit of this crawl failed" not in caplog.text


def test_a_full_disk_leaves_no_part_of_a_row(tmp_path: Path) -> None:
    run, file, _ = filled_batch(tmp_path)
    run.commit()
    run.items(*({"a": number} for number in range(2, 100)))
    with file_size_limit(200):
        file.flush()
        assert (tmp_path / "items.jsonl").read_bytes() == b'{"a": 1}\n'
    run.commit()
    rows = (tmp_path / "items.jsonl").read_text().splitlines()
    assert [json.loads(row)["a"] for row in rows] == list(range(1, 100))
    run.end()
