"""The archive: a line for each request that is finished, whatever happens to the crawl."""

from __future__ import annotations

import gzip
import json
import random
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from scrapy import Request, Spider
from scrapy.http import Response

from scrapy_altsched.errors import InputError
from scrapy_altsched.feeds import archive

from ..crawls import Crawl, assert_complete
from ..disks import Disk
from ..servers import RedisServer
from ..sites import Gates, Page, Site, random_graph, wait_for_pages
from ..workers import Workers


def read_lines(directory: Path) -> Iterator[dict[str, Any]]:
    """The lines of all parts in a directory."""
    for path in sorted(directory.glob("done*")):
        data = path.read_bytes()
        text = gzip.decompress(data) if path.suffix == ".gz" else data
        yield from map(json.loads, text.decode().splitlines())


def paths_in(directory: Path) -> Counter[str]:
    return Counter(re.sub(r"^http://[^/]+", "", line["url"]) for line in read_lines(directory))


@pytest.mark.parametrize("seed", range(3))
def test_no_finished_request_is_missing_after_kills(tmp_path: Path, seed: int) -> None:
    rng, graph = random.Random(seed), random_graph(300, 3, seed)
    settings = {"ALTSCHED_ARCHIVE": tmp_path / "done.jsonl", "ALTSCHED_ARCHIVE_SIZE": 10_000}
    with Site(graph) as site:
        crawl = Crawl(tmp_path, "pages", f"{site.url}/0")
        for kills in range(1, 4):
            process = crawl.start(**settings)
            wait_for_pages(site, 60 * kills + rng.randrange(40), process)
            crawl.kill(process)
        assert crawl.run(**settings) == 0
        assert_complete(crawl, site, set(graph))
        found = paths_in(tmp_path)
        assert set(found) == set(graph)
        # A line without a commit: its page was asked for once more.
        assert all(found[path] <= site.hits[path] for path in found)
        assert {line["run"] for line in read_lines(tmp_path)} <= {1, 2, 3, 4}
    parts = sorted(path.name for path in tmp_path.glob("done*"))
    assert "done.jsonl.gz" in parts
    assert "done.2.jsonl.gz" in parts
    assert sum(not name.endswith(".gz") for name in parts) == 1


def test_a_full_disk_keeps_requests_from_being_saved_as_done(
    tmp_path: Path, small_disk: Disk
) -> None:
    gates = Gates(random_graph(160, 2, 1), 40, 120)
    with Site(gates) as site:
        crawl = Crawl(tmp_path, "pages", f"{site.url}/0")
        crawl.prefix = small_disk.enter
        settings = {"ALTSCHED_ARCHIVE": small_disk.path / "done.jsonl"}
        process = crawl.start(**settings)
        wait_for_pages(site, 41, process)
        small_disk.fill(process)
        gates.open()
        crawl.wait_for_log(process, "The commit was postponed")
        wait_for_pages(site, 121, process)
        crawl.kill(process)
        small_disk.free(process)
        gates.open()
        assert crawl.run(**settings) == 0
        assert_complete(crawl, site, set(gates.graph))
        assert set(paths_in(small_disk.outside(small_disk.path))) == set(gates.graph)


def test_a_crawl_in_memory_has_one_too(tmp_path: Path) -> None:
    graph = random_graph(80, 3, 1)
    with Site(graph) as site:
        crawl = Crawl(tmp_path, "pages", f"{site.url}/0")
        path = tmp_path / "done" / "done.jsonl"
        assert crawl.run(JOBDIR=None, ALTSCHED_ARCHIVE=path, ALTSCHED_ARCHIVE_SIZE=4_000) == 0
    assert paths_in(path.parent) == dict.fromkeys(graph, 1)
    assert {line["run"] for line in read_lines(path.parent)} == {0}
    assert (path.parent / "done.jsonl.gz").exists()


def test_it_tells_how_each_request_ended(tmp_path: Path) -> None:
    def answer(path: str, times: int) -> Page:
        if path == "/0":
            return Page(["/missing", "/moved", "/busy"])
        if path == "/moved":
            return Page(status=302, location="/found")
        if path == "/busy":
            return Page(status=200 if times >= 2 else 503)
        return Page(status=404 if path == "/missing" else 200)

    with Site(answer) as site:
        crawl = Crawl(tmp_path, "pages", f"{site.url}/0")
        settings = {"RETRY_ENABLED": True, "ALTSCHED_ARCHIVE": tmp_path / "done.jsonl"}
        assert crawl.run(**settings) == 0
    lines = [
        (line["url"].rpartition("/")[2], line["status"], line["tries"])
        for line in read_lines(tmp_path)
    ]
    assert sorted(lines) == [
        *[("0", 200, 1), ("busy", 200, 3), ("busy", 503, 1), ("busy", 503, 2)],
        *[("found", 200, 1), ("missing", 404, 1), ("moved", 302, 1)],
    ]
    line = next(read_lines(tmp_path))
    assert set(line) == {"url", "fingerprint", "status", "time", "tries", "run"}


def test_a_later_job_goes_on_in_a_new_part_after_one_that_is_compressed(tmp_path: Path) -> None:
    first = tmp_path / "done.jsonl"
    first.write_text("{}\n")
    archive.compress(first)
    assert archive.find_part(first) == tmp_path / "done.2.jsonl"
    (tmp_path / "done.2.jsonl").touch()
    assert archive.find_part(first) == tmp_path / "done.2.jsonl"
    (tmp_path / "done.11.jsonl").touch()
    (tmp_path / "undone.12.jsonl").touch()
    assert archive.find_part(first) == tmp_path / "done.11.jsonl"


def test_what_cannot_be_compressed_stays_as_it_was(tmp_path: Path) -> None:
    part = tmp_path / "done.jsonl"
    part.write_text("{}\n")
    (tmp_path / "done.jsonl.gz").mkdir()
    with pytest.raises(IsADirectoryError):
        archive.compress(part)
    assert part.read_text() == "{}\n"
    assert not (tmp_path / "done.jsonl.gz.partial").exists()


def test_the_next_run_compresses_what_a_kill_has_left(tmp_path: Path) -> None:
    first = tmp_path / "done.jsonl"
    for name in ("done.jsonl", "done.2.jsonl", "done.3.jsonl", "done.2.jsonl.gz.partial"):
        (tmp_path / name).write_text("{}\n")
    run = archive.Archive(first, 1_000, Spider("any"), run=2, feeds=None)
    # The same request twice, as when the same object was scheduled twice.
    request = Request("http://example.com/")
    run.note_response(Response(request.url, status=404), request)
    run.note_finished(request, b"\1")
    run.note_finished(request, b"\1")
    run.close()
    run.wait()
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"done.jsonl.gz", "done.2.jsonl.gz", "done.3.jsonl"}
    lines = [json.loads(line) for line in (tmp_path / "done.3.jsonl").read_text().splitlines()]
    assert [line.get("status") for line in lines] == [None, 404, 404]


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("%(nope)s.jsonl", "ALTSCHED_ARCHIVE = '%(nope)s.jsonl' cannot be filled in"),
        ("%d", "ALTSCHED_ARCHIVE = '%d' cannot be filled in"),
        ("", "ALTSCHED_ARCHIVE = '' cannot be used: it must be the path of a file"),
        ("/proc/none/done.jsonl", "ALTSCHED_ARCHIVE: /proc/none/done.jsonl cannot be written"),
    ],
)
def test_a_path_that_cannot_be_used_is_refused(tmp_path: Path, value: str, problem: str) -> None:
    with Site(random_graph(3, 2, 1)) as site:
        crawl = Crawl(tmp_path, "pages", f"{site.url}/0")
        assert crawl.run(ALTSCHED_ARCHIVE=value) == 1
        assert f"ConfigError: {problem}" in crawl.log
        assert not site.hits


def test_a_second_crawl_does_not_write_to_the_same_file(tmp_path: Path) -> None:
    settings = {"ALTSCHED_ARCHIVE": tmp_path / "done.jsonl"}
    (tmp_path / "other").mkdir()
    with Site(random_graph(300, 3, 1)) as site:
        crawl = Crawl(tmp_path, "pages", f"{site.url}/0")
        other = Crawl(tmp_path / "other", "pages", f"{site.url}/0")
        process = crawl.start(**settings)
        wait_for_pages(site, 5, process)
        assert other.run(**settings) == 1
        assert f"{tmp_path / 'done.jsonl'} is in use by another crawl" in other.log
        process.communicate(timeout=60)
    assert len(paths_in(tmp_path)) == 300


def test_workers_of_a_shared_crawl_have_files_of_their_own(
    tmp_path: Path, server: RedisServer
) -> None:
    graph = random_graph(200, 3, 1)
    settings = {"ALTSCHED_ARCHIVE": str(tmp_path / "done-%(altsched_worker)s.jsonl")}
    with (
        Site(graph) as site,
        Workers(tmp_path, "pages", f"{site.url}/0", server.port, 2, **settings) as workers,
    ):
        for number, worker in enumerate(workers):
            worker.launch(ALTSCHED_SHARED_WORKER=f"w{number}")
        workers.wait()
    assert set(paths_in(tmp_path)) == set(graph)


def test_urls_are_read_from_all_parts_in_their_order(tmp_path: Path) -> None:
    first = tmp_path / "done.jsonl"
    for number in (1, 2, 10):
        lines = [json.dumps({"url": f"http://a.example/{number}/{it}"}) + "\n" for it in range(2)]
        archive.name_part(first, number).write_text("".join(lines))
    archive.compress(first)
    archive.compress(tmp_path / "done.2.jsonl")
    with (tmp_path / "done.10.jsonl").open("a") as file:
        file.write('{"url": "http://a.exam')  # it is being written
    expected = [f"http://a.example/{number}/{it}" for number in (1, 2, 10) for it in range(2)]
    assert list(archive.read_urls(first)) == expected
    assert list(archive.read_urls(tmp_path / "none" / "done.jsonl")) == []


@pytest.mark.parametrize("content", [b"{}\n", b"[]\n", b"1\n", b"\xff\n", b"no JSON\n"])
def test_a_part_that_holds_something_else_is_named(tmp_path: Path, content: bytes) -> None:
    part = tmp_path / "done.jsonl"
    part.write_bytes(content)
    with pytest.raises(InputError, match=rf"{part}, a part of the archive, cannot be read \("):
        list(archive.read_urls(part))


@pytest.mark.parametrize("keep", [0.1, 0.9])
def test_a_compressed_part_that_is_cut_short_is_named(tmp_path: Path, keep: float) -> None:
    part = tmp_path / "done.jsonl"
    part.write_text('{"url": "http://a.example/"}\n' * 10_000)
    archive.compress(part)
    whole = part.with_name("done.jsonl.gz")
    data = whole.read_bytes()
    whole.write_bytes(data[: int(len(data) * keep)])
    with pytest.raises(InputError, match="Move it away to go on without it"):
        list(archive.read_urls(part))
