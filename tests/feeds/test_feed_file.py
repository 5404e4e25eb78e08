"""A feed's file on a disk that fills up."""

from __future__ import annotations

import csv
import io
import os
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
