"""Feeds in batches whose disk fills up: no row of a page that is done is missing."""

from __future__ import annotations

import csv
import io
import json
import signal
import time
from pathlib import Path

import pytest

from ..crawls import Crawl
from ..disks import Disk
from ..sites import Gates, Site, random_graph, wait_for_pages

BATCH = {"FEED_EXPORT_BATCH_ITEM_COUNT": 30}
#: How a crawl ends: by itself or by a signal, while the disk is full or right after.
ENDS = ["itself", "SIGTERM during", "SIGTERM after", "SIGKILL during", "SIGKILL after"]


class BatchCrawl:
    """A crawl with a feed in batches on a disk of its own; the job directory is on another."""

    def __init__(self, tmp_path: Path, disk: Disk, url: str, extension: str) -> None:
        self.crawl = Crawl(tmp_path, "pages", url, padding=2000)
        self.crawl.prefix = disk.enter
        self.disk = disk
        self.extension = extension
        self.feed = ("-o", str(disk.path / f"items-%(batch_id)d.{extension}"))

    def paths(self) -> list[str]:
        """The path of each row's page; a torn row fails."""
        found: list[str] = []
        for path in self.disk.outside(self.disk.path).glob(f"items-*.{self.extension}"):
            text = path.read_text()
            assert not text or text.endswith("\n"), path
            if self.extension == "csv":
                rows = list(csv.DictReader(io.StringIO(text)))
            else:
                rows = [json.loads(line) for line in text.splitlines()]
            assert all(len(row["padding"]) == 2000 for row in rows), path
            found += ["/" + row["url"].rpartition("/")[2] for row in rows]
        return found


@pytest.mark.slow
@pytest.mark.parametrize("extension", ["jsonl", "csv"])
@pytest.mark.parametrize("seconds", [1, 5, 10])
@pytest.mark.parametrize("end", ENDS)
def test_no_row_of_a_feed_in_batches_is_missing_after_a_full_disk(
    tmp_path: Path, small_disk: Disk, extension: str, seconds: int, end: str
) -> None:
    graph = random_graph(800, 2, 1)
    name, _, moment = end.partition(" ")
    with Site(graph) as site:
        batches = BatchCrawl(tmp_path, small_disk, f"{site.url}/0", extension)
        crawl = batches.crawl
        slowly = {"DOWNLOAD_DELAY": 0.02, "RANDOMIZE_DOWNLOAD_DELAY": False}
        process = crawl.start(batches.feed, **BATCH, **slowly)
        wait_for_pages(site, 100, process)
        small_disk.fill(process)
        time.sleep(seconds)  # how long it is full is what is tried here
        if moment == "during":
            process.send_signal(signal.Signals[name])
            process.communicate(timeout=60)
        small_disk.free(process)
        if moment == "after":
            process.send_signal(signal.Signals[name])
        process.communicate(timeout=120)
        if "is finished" not in crawl.log:
            crawl.run(batches.feed, **BATCH)
        assert "is finished" in crawl.log
        found = batches.paths()
        print(f"{extension}, full for {seconds} s, {end}: {crawl.runs} runs, {len(found)} rows,")
        print(f"{len(graph.keys() - set(found))} missing, {len(found) - len(set(found))} twice")
        assert set(found) == set(graph)


@pytest.mark.parametrize(
    ("extension", "end"),
    [("csv", "itself"), ("jsonl", "SIGTERM during"), ("csv", "SIGKILL during")],
)
def test_batches_that_were_full_on_a_full_disk_are_written_later(
    tmp_path: Path, small_disk: Disk, extension: str, end: str
) -> None:
    gates = Gates(random_graph(160, 2, 1), 40, 120)
    name, _, moment = end.partition(" ")
    with Site(gates) as site:
        batches = BatchCrawl(tmp_path, small_disk, f"{site.url}/0", extension)
        crawl = batches.crawl
        process = crawl.start(batches.feed, **BATCH)
        wait_for_pages(site, 41, process)
        small_disk.fill(process)
        gates.open()
        crawl.wait_for_log(process, "The commit was postponed")
        assert small_disk.reason in crawl.log
        # Two more batches are full by then.
        wait_for_pages(site, 121, process)
        if moment:
            process.send_signal(signal.Signals[name])
            if name == "SIGTERM":
                crawl.wait_for_log(process, "Closing spider")
            gates.open()
            process.communicate(timeout=60)
            assert "is finished" not in crawl.log
            small_disk.free(process)
            assert crawl.run(batches.feed, **BATCH) == 0
        else:
            small_disk.free(process)
            gates.open()
            process.communicate(timeout=60)
            assert "Traceback" not in crawl.log
            assert "Error storing" not in crawl.log
        assert "is finished" in crawl.log
        found = batches.paths()
        assert set(found) == set(gates.graph)
        if not moment:
            assert len(found) == len(gates.graph)


def test_a_crawl_that_is_done_while_its_feed_cannot_be_written_is_not_finished(
    tmp_path: Path, small_disk: Disk
) -> None:
    gates = Gates(random_graph(100, 2, 1), 40)
    with Site(gates) as site:
        batches = BatchCrawl(tmp_path, small_disk, f"{site.url}/0", "csv")
        crawl = batches.crawl
        process = crawl.start(batches.feed, ALTSCHED_COMMIT_TIMEOUT=12, **BATCH)
        wait_for_pages(site, 41, process)
        small_disk.fill(process)
        gates.open()
        process.communicate(timeout=60)
        assert set(site.hits) == set(gates.graph)
        assert "Spider closed (commit_failed)" in crawl.log
        assert "is finished" not in crawl.log
        small_disk.free(process)
        assert crawl.run(batches.feed, **BATCH) == 0
        assert "is finished" in crawl.log
        assert set(batches.paths()) == set(gates.graph)
