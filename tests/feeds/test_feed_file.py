"""A feed's file on a disk that fills up."""

from __future__ import annotations

import csv
import errno
import io
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from scrapy.exporters import CsvItemExporter, JsonLinesItemExporter

from scrapy_altsched.feeds.feed_file import FeedFile


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "feed"


def opened(path: Path) -> FeedFile:
    file = FeedFile(path, lambda: path.open("ab", buffering=0))
    file.open()
    return file


@contextmanager
def full(file: FeedFile) -> Iterator[None]:
    """Have the file's descriptor refuse every byte."""
    saved = os.dup(file.fileno())
    with Path("/dev/full").open("wb") as device:
        os.dup2(device.fileno(), file.fileno())
    yield
    os.dup2(saved, file.fileno())
    os.close(saved)


def test_what_is_written_is_in_the_file_after_a_flush(path: Path) -> None:
    file = opened(path)
    assert file.write(b"abc") == 3
    assert path.read_bytes() == b""
    file.flush()
    assert path.read_bytes() == b"abc"
    file.write(b"def")
    file.close()
    file.close()
    assert path.read_bytes() == b"abcdef"
    assert file.closed
    with pytest.raises(ValueError, match="closed"):
        file.write(b"ghi")


def test_much_is_written_before_it_is_flushed(path: Path) -> None:
    file = opened(path)
    file.write(b"x" * 1_000_000)
    assert path.stat().st_size == 1_000_000
    file.close()


def test_what_a_full_disk_did_not_take_is_written_when_there_is_space(path: Path) -> None:
    file = opened(path)
    file.write(b"before ")
    expected = b"before "
    with full(file):
        for number in range(50):
            part = str(number).encode() * 5_000
            assert file.write(part) == len(part)
            expected += part
        for _ in range(3):
            file.flush()
            with pytest.raises(OSError, match="No space left"):
                file.write_out()
        assert file.tell() == len(expected)
    file.flush()
    assert path.read_bytes() == expected
    file.close()


def test_a_file_that_is_closed_on_a_full_disk_says_so_and_is_closed(path: Path) -> None:
    file = opened(path)
    file.write(b"abc")
    raw = file.open()
    with Path("/dev/full").open("wb") as device:
        os.dup2(device.fileno(), file.fileno())
    with pytest.raises(OSError, match="No space left"):
        file.close()
    assert file.closed
    assert raw.closed
    file.close()


def test_no_item_of_an_exporter_is_lost(path: Path) -> None:
    for exporter_class in (JsonLinesItemExporter, CsvItemExporter):
        path.unlink(missing_ok=True)
        file = opened(path)
        exporter = exporter_class(file)  # type: ignore[no-untyped-call]
        exporter.start_exporting()
        with full(file):
            for number in range(3_000):
                exporter.export_item({"number": number, "padding": "é" * 50})
        exporter.finish_exporting()
        file.close()
        text = path.read_text(encoding="utf-8")
        if exporter_class is CsvItemExporter:
            rows = list(csv.DictReader(io.StringIO(text)))
            assert [int(row["number"]) for row in rows] == list(range(3_000))
        else:
            assert len(text.splitlines()) == 3_000


@contextmanager
def failing_once(monkeypatch: pytest.MonkeyPatch, path: Path, safe: int) -> Iterator[None]:
    """Have the next sync of *path* fail, and what came after *safe* bytes be forgotten."""
    fsync, failed = os.fsync, False

    def forget(descriptor: int) -> None:
        nonlocal failed
        if not failed and os.fstat(descriptor).st_ino == path.stat().st_ino:
            failed = True
            with path.open("r+b") as file:
                file.seek(safe)
                file.write(bytes(path.stat().st_size - safe))
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        fsync(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", forget)
        yield
    assert failed


def test_what_could_not_be_forced_to_the_disk_is_written_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = opened(path)
    file.keeps_unforced = True
    file.write(b"safe ")
    file.write_out(sync=True)
    file.write(b"written ")
    file.flush()
    file.write(b"and forced")
    with failing_once(monkeypatch, path, safe=5):
        with pytest.raises(OSError, match="Input/output error"):
            file.write_out(sync=True)
        assert file.tell() == 23
        file.write_out(sync=True)
    assert path.read_bytes() == b"safe written and forced"
    file.close()


def test_what_was_not_kept_is_never_believed_to_be_on_the_disk(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = opened(path)
    file.write(b"written")
    with failing_once(monkeypatch, path, safe=0):
        for _ in range(3):
            with pytest.raises(OSError, match="Input/output error"):
                file.write_out(sync=True)
    assert file.lost is not None
    file.close()


def test_a_directory_that_could_not_be_forced_to_the_disk_is_not_believed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = opened(path)
    file.keeps_unforced = True
    fsync = os.fsync

    def fail(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        fsync(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(OSError, match="Input/output error"):
            file.write_out(sync=True)
    with pytest.raises(OSError, match="Input/output error"):
        file.write_out(sync=True)
    file.close()


def test_a_pipe_needs_no_disk() -> None:
    reading, writing = os.pipe()
    file = FeedFile(Path("/dev/stdout"), lambda: os.fdopen(writing, "wb", buffering=0))
    file.write(b"row")
    file.close(sync=True)
    assert os.read(reading, 10) == b"row"
    os.close(reading)
