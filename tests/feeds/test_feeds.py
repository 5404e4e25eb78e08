"""Feed files: as Scrapy writes them, and whole after whatever happened."""

from __future__ import annotations

import csv
import io
import json
import logging
import os
import re
import tempfile
import textwrap
import time
from encodings.aliases import aliases
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scrapy import Request, Spider
from scrapy.exporters import CsvItemExporter, JsonLinesItemExporter
from scrapy.extensions.feedexport import BlockingFeedStorage, FeedExporter
from scrapy.settings import Settings

from scrapy_altsched.errors import ConfigError
from scrapy_altsched.feeds import FileStorage, warn_of_unsafe_feeds
from scrapy_altsched.feeds import rows as rows_module
from scrapy_altsched.feeds.rows import Rows, cut_torn_row
from scrapy_altsched.frontier.store.store import Store
from scrapy_altsched.signals import frontier_committing

from ..crawls import run_scrapy
from ..engines import OURS, StandIn

ROOT = Path(__file__).parents[2]
ADDONS = '{"scrapy_altsched.Addon": 500}'
STORAGES = {
    "": "scrapy_altsched.feeds.FileStorage",
    "file": "scrapy_altsched.feeds.FileStorage",
}


class UploadStorage(BlockingFeedStorage):
    """Stores at a distance, at the end, as those for S3 and FTP do."""

    def __init__(self, uri: str, *, feed_options: dict[str, Any] | None = None) -> None:
        self.stored: list[bytes] = []

    def _store_in_thread(self, file: Any) -> None: ...


class OwnFileStorage(FileStorage):
    """A project's own, on top of ours."""


class OwnCsvExporter(CsvItemExporter):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "delimiter": ";"})


class OwnJsonLinesExporter(JsonLinesItemExporter):
    pass


def make_upload(*args: Any, **kwargs: Any) -> UploadStorage:
    return UploadStorage(*args, **kwargs)


# Cutting a torn row

# No NUL: before Python 3.11 csv cannot write it.
CHARACTERS = st.sampled_from("ab\",;\t'\n\r é\u2028") | st.characters(exclude_characters="\0")
CELL = st.text(CHARACTERS, max_size=6)
ROWS = st.lists(st.lists(CELL, max_size=4), max_size=8)
CHUNKS = st.sampled_from([1, 2, 3, 7, 64, rows_module._CHUNK])
#: The position of the cut, as a part of all.
PART = st.floats(0, 1)


def csv_row(cells: list[str], **dialect: Any) -> str:
    file = io.StringIO()
    csv.writer(file, **dialect).writerow(cells)
    return file.getvalue()


def assert_whole_rows_remain(rows: list[bytes], part: float, chunk: int, *, quoted: bool) -> None:
    position = round(part * sum(map(len, rows)))
    whole = b""
    for row in rows:
        if len(whole + row) > position:
            break
        whole += row
    with pytest.MonkeyPatch.context() as monkeypatch, tempfile.TemporaryDirectory() as directory:
        monkeypatch.setattr(rows_module, "_CHUNK", chunk)
        path = Path(directory, "rows")
        path.write_bytes(b"".join(rows)[:position])
        kind: Rows = "csv" if quoted else "lines"
        cut = cut_torn_row(path, kind, Spider("test"))
        assert path.read_bytes() == whole
        assert cut == position - len(whole)
        assert cut_torn_row(path, kind, Spider("test")) == 0


@given(
    ROWS,
    PART,
    CHUNKS,
    st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC]),
    st.sampled_from([",", ";", "\t"]),
    st.sampled_from(["\r\n", "\n"]),
)
@settings(max_examples=120, deadline=None)
def test_of_csv_exactly_the_whole_rows_remain(
    rows: list[list[str]], part: float, chunk: int, quoting: int, delimiter: str, end: str
) -> None:
    dialect = {"quoting": quoting, "delimiter": delimiter, "lineterminator": end}
    encoded = [csv_row(row, **dialect).encode("utf-8", "surrogatepass") for row in rows]
    assert rows_module._has_even_quotes({"item_export_kwargs": dialect})
    assert_whole_rows_remain(encoded, part, chunk, quoted=True)


@given(ROWS, PART, CHUNKS, st.booleans())
@settings(max_examples=60, deadline=None)
def test_of_json_lines_exactly_the_whole_rows_remain(
    rows: list[list[str]], part: float, chunk: int, ascii_only: bool
) -> None:
    encoded = [
        json.dumps(row, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass") + b"\n"
        for row in rows
    ]
    assert_whole_rows_remain(encoded, part, chunk, quoted=False)


def test_in_every_encoding_that_is_taken_no_other_character_has_the_bytes_of_these() -> None:
    others = "".join(map(chr, {*range(0x30000)} - {*range(0xD800, 0xE000), ord('"'), ord("\n")}))
    taken = set()
    for encoding in sorted(set(aliases.values())):
        if rows_module._is_like_ascii(encoding):
            taken.add(encoding)
            encoded = others.encode(encoding, "ignore")
            assert b'"' not in encoded, encoding
            assert b"\n" not in encoded, encoding
    assert {"utf_8", "latin_1", "cp1252", "gb18030", "shift_jis", "big5", "euc_jp"} <= taken


@pytest.mark.parametrize(
    ("content", "remains"),
    [
        ('a,b\r\n1,"x', "a,b\r\n"),
        ('a,b\r\n1,"x\r\ny', "a,b\r\n"),
        ('a,b\r\n1,"x\r\n', "a,b\r\n"),
        ('a,b\r\n1,"x""', "a,b\r\n"),
        ('a,b\r\n1,"x""\r\n"', "a,b\r\n"),
        ('a,b\r\n1,"x""y"\r', "a,b\r\n"),
        ('a,b\r\n"\nx', "a,b\r\n"),
        ('"a\n', ""),
        ("a", ""),
        ("", ""),
        ("\n", "\n"),
        ("a\n", "a\n"),
    ],
)
def test_a_torn_csv_row_is_cut_where_it_begins(tmp_path: Path, content: str, remains: str) -> None:
    path = tmp_path / "rows"
    path.write_bytes(content.encode())
    assert cut_torn_row(path, "csv", Spider("test")) == len(content) - len(remains)
    assert path.read_bytes() == remains.encode()


def test_what_is_whole_is_not_written_to(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    path.write_bytes(b'{"a": "\\""}\n')
    os.utime(path, ns=(0, 0))
    assert cut_torn_row(path, "lines", Spider("test")) == 0
    assert path.stat().st_mtime_ns == 0


# A run in this process: Scrapy's exporter, our scheduler, a stand-in for the engine


class Run:
    """A crawl whose items and commits a test makes."""

    def __init__(self, directory: Path, feeds: dict[str, Any], **values: Any) -> None:
        self.stand_in = StandIn(
            {
                **OURS,
                "FEED_STORAGES": STORAGES,
                "JOBDIR": str(directory / "job"),
                "FEEDS": {str(directory / name): feed for name, feed in feeds.items()},
                **values,
            }
        )
        self.spider = self.stand_in.spider
        engine: Any = self.stand_in.engine
        engine._slot.scheduler = self.stand_in.scheduler
        (self.exporter,) = (
            item
            for item in self.stand_in.crawler.extensions.middlewares
            if isinstance(item, FeedExporter)
        )
        self.exporter.open_spider(self.spider)

    def items(self, *items: dict[str, Any]) -> Run:
        for item in items:
            self.exporter.item_scraped(item, self.spider)
        return self

    def commit(self) -> None:
        self.stand_in.crawler.signals.send_catch_log(frontier_committing, spider=self.spider)

    def end(self, reason: str = "shutdown") -> None:
        """As the engine ends a crawl: the scheduler is closed before the feeds are."""
        self.stand_in.scheduler.close(reason)
        for slot in self.exporter.slots:
            if slot.itemcount:
                slot.finish_exporting()
                file: Any = slot.file
                if hasattr(file, "head_plugin"):
                    file.close()
                    file = file.file
                slot.storage.store(file)

    def die(self) -> None:
        """As a kill ends it: what is in memory is lost."""
        for slot in self.exporter.slots:
            file: Any = slot.file
            if file is not None:
                file.unwritten.clear()
        self.stand_in.scheduler._session.frontier.abandon()
        self.stand_in.scheduler.feeds.locks._close_all()


def stop_in_the_middle(directory: Path, feeds: dict[str, Any], *items: Any, **values: Any) -> None:
    Run(directory, feeds, **values).items(*items).end()


def messages(caplog: pytest.LogCaptureFixture, level: int = logging.WARNING) -> list[str]:
    return [
        item.getMessage()
        for item in caplog.records
        if item.name.startswith("scrapy_altsched.feeds") and item.levelno >= level
    ]


CSV = {"items.csv": {"format": "csv"}}
LINES = {"items.jsonl": {"format": "jsonlines"}}


def test_before_a_commit_items_are_in_the_file(tmp_path: Path) -> None:
    run = Run(tmp_path, {**CSV, **LINES})
    run.items({"a": 1}, {"a": 2})
    assert (tmp_path / "items.csv").read_bytes() == b""
    assert (tmp_path / "items.jsonl").read_bytes() == b""
    run.commit()
    assert (tmp_path / "items.csv").read_bytes() == b"a\r\n1\r\n2\r\n"
    assert (tmp_path / "items.jsonl").read_bytes() == b'{"a": 1}\n{"a": 2}\n'
    run.items({"a": 3})
    run.commit()
    assert (tmp_path / "items.jsonl").read_bytes().endswith(b'{"a": 3}\n')
    run.end()


def test_the_schedulers_own_commit_writes_items_out_first(tmp_path: Path) -> None:
    run = Run(tmp_path, LINES)
    run.items({"a": 1})
    run.stand_in.scheduler.enqueue_request(Request("http://example.com"))
    assert run.stand_in.scheduler.checkpoint()
    assert (tmp_path / "items.jsonl").read_bytes() == b'{"a": 1}\n'
    run.end()


@pytest.mark.parametrize("sync", [False, True])
def test_files_are_forced_to_the_disk_at_the_end_and_if_asked_for_with_each_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sync: bool
) -> None:
    forced: list[int | str] = []
    fsync, sync_store = os.fsync, Store.sync
    path = tmp_path / "items.jsonl"

    def count(descriptor: int) -> None:
        if path.exists() and os.path.sameopenfile(descriptor, watch.fileno()):
            # Only what left Python's buffer can be forced.
            forced.append(path.stat().st_size)
        fsync(descriptor)

    def note_store(store: Store) -> None:
        forced.append("store")
        sync_store(store)

    run = Run(tmp_path, LINES, ALTSCHED_SYNC=sync)
    run.items({"a": 1})
    with path.open("rb") as watch:
        monkeypatch.setattr(os, "fsync", count)
        run.commit()
        monkeypatch.setattr(Store, "sync", note_store)
        run.items({"a": 2})
        run.end()
    assert forced[: 3 if sync else 2] == ([9, 18, "store"] if sync else [18, "store"])


def test_a_file_that_is_closed_before_the_end_is_forced_to_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forced: list[str] = []
    fsync = os.fsync

    def note(descriptor: int) -> None:
        forced.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        fsync(descriptor)

    run = Run(tmp_path, LINES).items({"a": 1})
    monkeypatch.setattr(os, "fsync", note)
    (slot,) = run.exporter.slots
    slot.storage.store(slot.file)
    assert forced[:2] == ["items.jsonl", tmp_path.name]
    run.stand_in.scheduler.close("shutdown")


def test_after_the_end_a_commit_finds_no_file(tmp_path: Path) -> None:
    run = Run(tmp_path, LINES).items({"a": 1})
    run.end()
    results = run.stand_in.crawler.signals.send_catch_log(frontier_committing, spider=run.spider)
    assert not [receiver for receiver, _ in results if "FileStorage" in repr(receiver)]


def test_a_disk_that_is_full_postpones_the_commit(tmp_path: Path) -> None:
    run = Run(tmp_path, LINES).items({"a": 1})
    (slot,) = run.exporter.slots
    file: Any = slot.file
    with Path("/dev/full").open("wb") as full:
        saved = os.dup(file.fileno())
        os.dup2(full.fileno(), file.fileno())
        assert run.stand_in.scheduler.enqueue_request(Request("http://example.com"))
        assert not run.stand_in.scheduler.checkpoint()
        assert run.stand_in.scheduler._session.frontier.run.counters.accepted == 0
        os.dup2(saved, file.fileno())
        os.close(saved)
    assert run.stand_in.scheduler.checkpoint()
    assert (tmp_path / "items.jsonl").read_bytes() == b'{"a": 1}\n'
    run.end()


@pytest.mark.parametrize("torn", ["", '9,"t', '9,"torn\r\n', "9"])
def test_a_resumed_job_goes_on_in_its_csv_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, torn: str
) -> None:
    caplog.set_level(logging.INFO, "scrapy_altsched.feeds")
    stop_in_the_middle(tmp_path, CSV, {"a": 1, "b": "x\ny"})
    path = tmp_path / "items.csv"
    with path.open("ab") as file:
        file.write(torn.encode())
    stop_in_the_middle(tmp_path, CSV, {"a": 2, "b": "z"})
    assert path.read_bytes() == b'a,b\r\n1,"x\ny"\r\n2,z\r\n'
    cuts = [text for text in messages(caplog, logging.INFO) if "torn last row" in text]
    assert len(cuts) == bool(torn)
    if torn:
        assert cuts[0].startswith("1 byte of a" if len(torn) == 1 else f"{len(torn)} bytes of a")


def test_a_resumed_job_goes_on_in_its_json_lines_file(tmp_path: Path) -> None:
    stop_in_the_middle(tmp_path, LINES, {"a": 1})
    path = tmp_path / "items.jsonl"
    with path.open("ab") as file:
        file.write(b'{"a": "to')
    stop_in_the_middle(tmp_path, LINES, {"a": 2})
    assert path.read_bytes() == b'{"a": 1}\n{"a": 2}\n'


def test_if_even_the_header_was_torn_a_resumed_job_writes_it(tmp_path: Path) -> None:
    Run(tmp_path, CSV).items({"a": 1, "b": 2}).die()
    assert (tmp_path / "items.csv").read_bytes() == b""
    (tmp_path / "items.csv").write_bytes(b"a,")
    stop_in_the_middle(tmp_path, CSV, {"a": 1, "b": 2})
    assert (tmp_path / "items.csv").read_bytes() == b"a,b\r\n1,2\r\n"


def test_rows_of_a_resumed_job_keep_to_the_columns_of_the_header(tmp_path: Path) -> None:
    stop_in_the_middle(tmp_path, CSV, {"name": "first", "price, gross": 1})
    stop_in_the_middle(
        tmp_path,
        CSV,
        {"price, gross": 2, "extra": "dropped, as in an uninterrupted crawl", "name": "second"},
        {"name": "third"},
    )
    with (tmp_path / "items.csv").open(newline="") as file:
        assert list(csv.DictReader(file)) == [
            {"name": "first", "price, gross": "1"},
            {"name": "second", "price, gross": "2"},
            {"name": "third", "price, gross": ""},
        ]


def test_an_empty_first_line_is_no_header(tmp_path: Path) -> None:
    stop_in_the_middle(tmp_path, CSV)
    (tmp_path / "items.csv").write_bytes(b"\r\n")
    stop_in_the_middle(tmp_path, CSV, {"a": 1, "b": 2})
    assert (tmp_path / "items.csv").read_bytes() == b"\r\na,b\r\n1,2\r\n"


@pytest.mark.parametrize(
    "options",
    [
        {"fields": ["b", "a"]},
        {"fields": {"b": "Bee", "a": "Ay"}},
        {"item_export_kwargs": {"delimiter": ";", "quoting": csv.QUOTE_ALL}},
        {"item_export_kwargs": {"dialect": "excel-tab", "join_multivalued": "|"}},
        {"item_export_kwargs": {"lineterminator": "\n"}},
        {"item_export_kwargs": {"include_headers_line": False}},
        {"encoding": "utf-8-sig"},
        {"encoding": "gb18030"},
    ],
    ids=str,
)
def test_a_resumed_csv_file_is_as_one_of_a_single_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, options: dict[str, Any]
) -> None:
    feed = {"items.csv": {"format": "csv", **options}}
    items = [{"a": "ä,\n", "b": ["x", "y"]}, {"a": 2, "b": "z"}]
    for name in ("once", "twice"):
        (tmp_path / name).mkdir()
    stop_in_the_middle(tmp_path / "once", feed, *items)
    stop_in_the_middle(tmp_path / "twice", feed, items[0])
    stop_in_the_middle(tmp_path / "twice", feed, items[1])
    once, twice = ((tmp_path / name / "items.csv").read_bytes() for name in ("once", "twice"))
    assert twice == once
    assert messages(caplog) == []


def test_a_header_that_the_project_asks_for_by_hand_is_written_each_time(tmp_path: Path) -> None:
    feed = {"items.csv": {"format": "csv", "item_export_kwargs": {"include_headers_line": True}}}
    stop_in_the_middle(tmp_path, feed, {"a": 1})
    stop_in_the_middle(tmp_path, feed, {"a": 2})
    assert (tmp_path / "items.csv").read_bytes() == b"a\r\n1\r\na\r\n2\r\n"


def test_rows_that_cannot_be_told_apart_are_not_cut(tmp_path: Path) -> None:
    # A lone quote would make all that comes after it look like one torn row.
    kwargs = {"quoting": csv.QUOTE_NONE, "escapechar": "\\", "quotechar": None}
    feed = {"items.csv": {"format": "csv", "item_export_kwargs": kwargs}}
    stop_in_the_middle(tmp_path, feed, {"a": '"'}, {"a": 2}, {"a": 3})
    before = (tmp_path / "items.csv").read_bytes()
    assert before.count(b'"') == 1
    stop_in_the_middle(tmp_path, feed, {"a": 4})
    assert (tmp_path / "items.csv").read_bytes() == before + b"a\r\n4\r\n"


def test_rows_of_an_exporter_of_the_projects_own_are_as_scrapy_has_it(tmp_path: Path) -> None:
    values = {"FEED_EXPORTERS": {"csv": "tests.feeds.test_feeds.OwnCsvExporter"}}
    stop_in_the_middle(tmp_path, CSV, {"a": 1, "b": 2}, **values)
    stop_in_the_middle(tmp_path, CSV, {"a": 3, "b": 4}, **values)
    assert (tmp_path / "items.csv").read_bytes() == b"a;b\r\n1;2\r\na;b\r\n3;4\r\n"


def test_overwriting_becomes_appending_in_a_resumed_job_and_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    feeds = {name: {**options, "overwrite": True} for name, options in {**CSV, **LINES}.items()}
    for name in feeds:
        (tmp_path / name).write_text("of an earlier job\n")
    stop_in_the_middle(tmp_path, feeds, {"a": 1})
    assert messages(caplog) == []
    stop_in_the_middle(tmp_path, feeds, {"a": 2})
    assert (tmp_path / "items.csv").read_bytes() == b"a\r\n1\r\n2\r\n"
    assert (tmp_path / "items.jsonl").read_bytes() == b'{"a": 1}\n{"a": 2}\n'
    found = messages(caplog)
    assert len(found) == 2
    assert all("is appended to, not overwritten" in text for text in found)


def test_a_file_that_is_new_or_empty_is_as_scrapy_makes_it_in_a_resumed_job(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stop_in_the_middle(tmp_path, LINES, {"a": 1})
    (tmp_path / "items.csv").touch()
    feeds = {
        **LINES,
        "items.csv": {"format": "csv", "overwrite": True},
        "new.csv": {"format": "csv"},
    }
    stop_in_the_middle(tmp_path, feeds, {"a": 2})
    assert (tmp_path / "items.csv").read_bytes() == b"a\r\n2\r\n"
    assert (tmp_path / "new.csv").read_bytes() == b"a\r\n2\r\n"
    assert messages(caplog) == []


def test_after_a_finished_job_files_are_as_scrapy_has_it(tmp_path: Path) -> None:
    feeds = {**CSV, "over.csv": {"format": "csv", "overwrite": True}}
    Run(tmp_path, feeds).items({"a": 1}).end("finished")
    Run(tmp_path, feeds).items({"a": 2}).end("finished")
    assert (tmp_path / "items.csv").read_bytes() == b"a\r\n1\r\na\r\n2\r\n"
    assert (tmp_path / "over.csv").read_bytes() == b"a\r\n2\r\n"


def test_without_a_jobdir_files_are_as_scrapy_has_it(tmp_path: Path) -> None:
    feeds = {**CSV, "over.csv": {"format": "csv", "overwrite": True}}
    stop_in_the_middle(tmp_path, feeds, {"a": 1}, JOBDIR=None)
    stop_in_the_middle(tmp_path, feeds, {"a": 2}, JOBDIR=None)
    assert (tmp_path / "items.csv").read_bytes() == b"a\r\n1\r\na\r\n2\r\n"
    assert (tmp_path / "over.csv").read_bytes() == b"a\r\n2\r\n"


def test_a_file_uri_is_a_path(tmp_path: Path) -> None:
    feeds = {"items.csv": {"format": "csv"}}
    uri = (tmp_path / "items.csv").as_uri()
    stop_in_the_middle(tmp_path, {}, {"a": 1}, FEEDS={uri: feeds["items.csv"]})
    stop_in_the_middle(tmp_path, {}, {"a": 2}, FEEDS={uri: feeds["items.csv"]})
    assert (tmp_path / "items.csv").read_bytes() == b"a\r\n1\r\n2\r\n"


def test_the_storage_works_by_itself(tmp_path: Path) -> None:
    storage = FileStorage(str(tmp_path / "made" / "items.csv"))
    file = storage.open(Spider("spider"))
    file.write(b"a\n")
    storage.store(file)
    assert file.closed
    assert (tmp_path / "made" / "items.csv").read_bytes() == b"a\n"


# Warnings


def warnings_of(
    caplog: pytest.LogCaptureFixture, uri: str, options: dict[str, Any] | None, **values: Any
) -> list[str]:
    caplog.clear()
    feeds = {} if options is None else {"FEEDS": {uri: options}}
    all_values = Settings({"FEED_STORAGES": STORAGES, **feeds, **values})
    warn_of_unsafe_feeds(all_values, Spider("spider"))
    found = messages(caplog)
    assert all(text.startswith(f"The feed {uri} may lose items") for text in found)
    return found


SAFE: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("items.jsonl", {"format": "jsonlines"}, {}),
    ("items.jl", {"format": "jl"}, {}),
    ("items.jsonl", {"format": "jsonl"}, {}),
    ("items.csv", {"format": "csv"}, {}),
    ("/a/%(name)s-%(batch_id)d.csv", {"format": "csv", "batch_item_count": 9}, {}),
    ("file:///a/items.csv", {"format": "csv", "overwrite": True}, {}),
    ("items.jsonl", {}, {}),
    ("items.csv", {"format": "csv", "postprocessing": []}, {}),
    ("items.csv", {"format": "csv"}, {"FEED_EXPORT_ENCODING": "utf-8-sig"}),
    ("items.csv", {"format": "csv"}, {"FEED_STORAGES": {"": OwnFileStorage}}),
    ("items.csv", {"format": "csv", "item_export_kwargs": {"quoting": csv.QUOTE_ALL}}, {}),
    ("items.x", {"format": "x"}, {"FEED_EXPORTERS": {"x": OwnJsonLinesExporter}}),
]
UNSAFE: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    ("items.json", {"format": "json"}, {}, "in the format json cannot"),
    ("items.json", {}, {}, "in the format json cannot"),
    ("items.xml", {"format": "xml"}, {}, "in the format xml cannot"),
    ("items.pickle", {"format": "pickle"}, {}, "in the format pickle cannot"),
    ("items.what", {"format": "what"}, {}, "in the format what cannot"),
    (
        "items.csv.gz",
        {"format": "csv", "postprocessing": ["scrapy.extensions.postprocessing.GzipPlugin"]},
        {},
        "post-processing buffers items",
    ),
    ("stdout:", {"format": "jsonlines"}, {}, "standard output cannot be read again"),
    ("ftp://host/items.csv", {"format": "csv"}, {}, "stored at ftp only when the crawl ends"),
    ("s3://bucket/items.csv", {"format": "csv"}, {}, "stored at s3 only when"),
    ("up://a", {"format": "csv"}, {"FEED_STORAGES": {"up": UploadStorage}}, "stored at up only"),
    ("up://a", {"format": "csv"}, {"FEED_STORAGES": {"up": make_upload}}, "stored at up only"),
    ("items.csv", {"format": "csv"}, {"FEED_STORAGES": {}}, "its file is not flushed"),
    ("file:///a.csv", {"format": "csv"}, {"FEED_STORAGES": {}}, "set ADDONS"),
    ("items.csv", {"format": "csv", "encoding": "utf-16"}, {}, "does not show where a row ends"),
    ("items.jl", {"format": "jl"}, {"FEED_EXPORT_ENCODING": "utf-32"}, "where a row ends"),
    ("items.csv", {"format": "csv", "encoding": "iso2022_jp"}, {}, "where a row ends"),
    ("items.csv", {"format": "csv", "encoding": "hz"}, {}, "where a row ends"),
    ("items.csv", {"format": "csv", "encoding": "cp037"}, {}, "where a row ends"),
    ("items.csv", {"format": "csv", "encoding": "no-such"}, {}, "where a row ends"),
    *(
        ("items.csv", {"format": "csv", "item_export_kwargs": kwargs}, {}, "where a row ends")
        for kwargs in (
            {"quoting": csv.QUOTE_NONE, "escapechar": "\\"},
            {"quotechar": "'"},
            {"doublequote": False, "escapechar": "\\"},
            {"lineterminator": "|"},
            {"dialect": "no-such"},
            {"delimiter": "too long"},
        )
    ),
    (
        "items.csv",
        {"format": "csv"},
        {"FEED_EXPORTERS": {"csv": OwnCsvExporter}},
        "in the format csv cannot",
    ),
]


@pytest.mark.parametrize(("uri", "options", "values"), SAFE)
def test_a_feed_that_can_be_resumed_is_not_warned_of(
    caplog: pytest.LogCaptureFixture, uri: str, options: dict[str, Any], values: dict[str, Any]
) -> None:
    assert warnings_of(caplog, uri, options, **values) == []


@pytest.mark.parametrize(("uri", "options", "values", "reason"), UNSAFE)
def test_a_feed_that_cannot_be_resumed_is_warned_of_with_the_reason(
    caplog: pytest.LogCaptureFixture,
    uri: str,
    options: dict[str, Any],
    values: dict[str, Any],
    reason: str,
) -> None:
    (message,) = warnings_of(caplog, uri, options, **values)
    assert reason in message


STOPPED = "A clean stop is not safe either: the resume "


@pytest.mark.parametrize(
    ("uri", "options", "harm"),
    [
        ("items.json", {"format": "json"}, "appends a second document"),
        ("items.xml", {"format": "xml"}, "appends a second document"),
        ("a.csv", {"format": "csv", "encoding": "utf-16"}, "appends a second header line"),
        ("s3://bucket/items.jsonl", {"format": "jsonlines"}, "stores its own items in place"),
        ("ftp://host/items-%(batch_id)d.csv", {"format": "csv"}, "stores its own items in place"),
        ("s3://bucket/items-%(time)s.jsonl", {"format": "jsonlines"}, None),
        ("items-%(batch_time)s.json", {"format": "json"}, None),
        ("stdout:", {"format": "jsonlines"}, None),
    ],
)
def test_what_an_orderly_resume_does_to_a_feed_is_said_with_what_to_do(
    caplog: pytest.LogCaptureFixture, uri: str, options: dict[str, Any], harm: str | None
) -> None:
    (message,) = warnings_of(caplog, uri, options)
    assert (STOPPED in message) == (harm is not None)
    assert "write to a local .jsonl or .csv file, and convert or upload it when" in message
    assert ("it is enough to put %(time)s into the URI" in message) == (harm is not None)
    if harm:
        assert STOPPED + harm in message


def test_a_password_is_not_in_the_warning(caplog: pytest.LogCaptureFixture) -> None:
    for uri in ("ftp://me:secret@host/a.csv", "s3://key:se/cret@bucket/a.csv?token=secret"):
        caplog.clear()
        values = Settings({"FEED_STORAGES": STORAGES, "FEEDS": {uri: {"format": "csv"}}})
        warn_of_unsafe_feeds(values, Spider("spider"))
        (message,) = messages(caplog)
        assert "cret" not in message
        assert ":***@" in message


def test_a_feed_of_the_old_settings_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    for form in (str, Path):
        values = {"FEED_URI": form("items.json"), "FEED_FORMAT": "json"}
        assert len(warnings_of(caplog, "items.json", None, **values)) == 1
    assert warnings_of(caplog, "items.jl", None, FEED_URI="items.jl") == []
    feeds = {"items.json": {"format": "jsonlines"}}
    assert warnings_of(caplog, "items.json", None, FEED_URI="items.json", FEEDS=feeds) == []


def test_a_feed_given_as_json_or_as_a_path_is_understood(caplog: pytest.LogCaptureFixture) -> None:
    feeds = '{"items.xml": {"format": "xml"}}'
    assert len(warnings_of(caplog, "items.xml", None, FEEDS=feeds)) == 1
    assert len(warnings_of(caplog, "a.xml", None, FEEDS={Path("a.xml"): {"format": "xml"}})) == 1


def test_a_storage_that_cannot_be_loaded_is_an_error_that_names_the_setting() -> None:
    for value in ("no.such.Storage", 5):
        values = Settings({"FEEDS": {"a.csv": {"format": "csv"}}, "FEED_STORAGES": {"": value}})
        with pytest.raises(ConfigError, match=r"FEED_STORAGES: .* for a\.csv cannot be loaded"):
            warn_of_unsafe_feeds(values, Spider("spider"))


def test_the_warning_comes_when_a_job_is_opened_and_without_jobdir_not_at_all(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    json_feed = {"items.json": {"format": "json"}}
    Run(tmp_path, {**CSV, **LINES}).end()
    assert messages(caplog) == []
    Run(tmp_path, json_feed, JOBDIR=None).end()
    assert messages(caplog) == []
    Run(tmp_path, {**json_feed, **CSV, **LINES}).end()
    (message,) = messages(caplog)
    assert "items.json may lose items" in message


# Real crawls

SPIDER = """
import scrapy

class NumbersSpider(scrapy.Spider):
    name = "numbers"

    async def start(self):
        yield scrapy.Request("data:text/plain,0", dont_filter=True)

    def parse(self, response):
        number = int(response.text)
        yield {"number": number, "text": f'a "quoted"\\nline, no. {number}'}
        if number < 7:
            yield scrapy.Request(f"data:text/plain,{number + 1}")
"""
NUMBERS = [str(number) for number in range(8)]


def crawl(directory: Path, *arguments: str, **values: Any) -> str:
    """The log of ``scrapy runspider``; *values* are settings."""
    (directory / "numbers_spider.py").write_text(SPIDER)
    common = {"ADDONS": ADDONS, "JOBDIR": "job", "CONCURRENT_REQUESTS": 1, "LOG_LEVEL": "INFO"}
    options = [f"-s{name}={value}" for name, value in {**common, **values}.items()]
    done = run_scrapy("runspider", "numbers_spider.py", *options, *arguments, cwd=directory)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return done.stderr


def csv_numbers(path: Path) -> list[str]:
    with path.open(newline="") as file:
        reader = csv.reader(file)
        assert next(reader) == ["number", "text"]
        return [row[0] for row in reader]


def line_numbers(path: Path) -> list[str]:
    return [str(json.loads(line)["number"]) for line in path.read_text().splitlines()]


def test_files_of_a_fresh_run_are_byte_for_byte_those_of_scrapys_own(tmp_path: Path) -> None:
    formats = ["jsonlines", "csv", "json", "xml"]
    feeds = json.dumps({f"items.{name}": {"format": name} for name in formats})
    for name, addons in (("ours", ADDONS), ("stock", "{}")):
        (tmp_path / name).mkdir()
        crawl(tmp_path / name, FEEDS=feeds, ADDONS=addons)
    for name in formats:
        ours, stock = ((tmp_path / who / f"items.{name}").read_bytes() for who in ("ours", "stock"))
        assert ours == stock
        assert ours.count(b"quoted") == 8


def test_a_job_that_is_stopped_and_resumed_has_one_csv_file_with_one_header(
    tmp_path: Path,
) -> None:
    assert "is not finished" in crawl(tmp_path, "-o", "items.csv", CLOSESPIDER_ITEMCOUNT=3)
    before = csv_numbers(tmp_path / "items.csv")
    assert 3 <= len(before) < 8
    resumed = crawl(tmp_path, "-o", "items.csv")
    assert "is finished" in resumed
    assert csv_numbers(tmp_path / "items.csv") == NUMBERS
    # The name that Scrapy's own storage has there.
    assert "'feedexport/success_count/FileFeedStorage': 1" in resumed
    # The job is finished: this crawls the start page and what is new, and overwrites as Scrapy.
    log = crawl(tmp_path, "-O", "items.csv")
    assert csv_numbers(tmp_path / "items.csv") == ["0"]
    assert "WARNING" not in log


def test_overwritten_files_and_batches_are_whole_when_a_stopped_job_is_resumed(
    tmp_path: Path,
) -> None:
    batches = {f"batch-%(batch_id)d.{name}": {"format": name} for name in ("csv", "jl")}
    feeds = {name: {**options, "batch_item_count": 2} for name, options in batches.items()}
    arguments = ("-O", "items.jsonl", "-O", "items.csv", f"-sFEEDS={json.dumps(feeds)}")
    assert "is not finished" in crawl(tmp_path, *arguments, CLOSESPIDER_ITEMCOUNT=2)
    before = csv_numbers(tmp_path / "batch-1.csv")
    assert before == NUMBERS[:2]
    assert not (tmp_path / "batch-3.csv").exists()
    log = crawl(tmp_path, *arguments)
    assert log.count("is appended to, not overwritten") == 2
    for name, read in (("csv", csv_numbers), ("jl", line_numbers)):
        rows = [read(path) for path in sorted(tmp_path.glob(f"batch-*.{name}"))]
        assert len(rows) >= 3
        assert sorted(number for batch in rows for number in batch) == NUMBERS
        # The second run counts its batches from one again, and goes on in the first one's file.
        assert rows[0][:2] == before
        assert len(rows[0]) == 4
    assert line_numbers(tmp_path / "items.jsonl") == NUMBERS
    assert csv_numbers(tmp_path / "items.csv") == NUMBERS


def json_numbers(path: Path) -> list[str]:
    return [str(item["number"]) for item in json.loads(path.read_text())]


def test_a_file_a_run_is_whole_after_an_orderly_stop(tmp_path: Path) -> None:
    feed = ("-o", "items-%(time)s.json")
    crawl(tmp_path, *feed, CLOSESPIDER_ITEMCOUNT=3)
    (first,) = tmp_path.glob("items-*.json")
    # Two runs in the same second would have one name.
    while int(first.stat().st_ctime) == int(time.time()):
        time.sleep(0.05)
    assert "is finished" in crawl(tmp_path, *feed)
    files = sorted(tmp_path.glob("items-*.json"))
    assert [number for path in files for number in json_numbers(path)] == NUMBERS


def test_lines_of_a_finished_job_become_a_json_file_as_the_guide_says(tmp_path: Path) -> None:
    for stop in ({"CLOSESPIDER_ITEMCOUNT": 3}, {}):
        crawl(tmp_path, "-o", "items.jsonl", **stop)
    (code,) = re.findall(
        r"code-block:: python\n\n((?: {4}.*\n|\n)*?    def convert(?:.*\n)(?: {4}.*\n|\n)*)",
        (ROOT / "docs" / "guarantees.rst").read_text(),
    )
    names: dict[str, Any] = {}
    exec(textwrap.dedent(code), names)
    names["convert"](tmp_path / "items.jsonl", tmp_path / "items.json")
    assert json_numbers(tmp_path / "items.json") == NUMBERS
