"""Real crawls whose disk or files break under them."""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
from pathlib import Path

import pytest

from scrapy_altsched.frontier.store.engines import Choice
from scrapy_altsched.frontier.store.journal import Journal

from ..crawls import KILLED, Crawl, altsched, assert_complete
from ..damage import largest_table, overwrite_requests, targets
from ..disks import Disk, limit
from ..processes import Process
from ..sites import Gates, Page, Site, random_graph, wait_for_pages
from ..stores import BY_ENGINE


def have_tables_written(crawl: Crawl) -> Path:
    """Have all that is stored in tables; the file with the pending requests."""
    # Not through a frontier: it would give the requests its own order, and the crawl, with another
    # one, would write them all again before it reads them.
    journal = Journal(crawl.jobdir, crawl.spider)
    journal.database.flush()
    journal.close()
    return largest_table(crawl.jobdir / "frontier")


def logs_of(crawl: Crawl) -> list[Path]:
    store = crawl.jobdir / "frontier"
    return [store / name for name in targets(store, "log")]


# Damaged files


@BY_ENGINE
def test_a_crawl_whose_log_was_lost_goes_back_and_completes(tmp_path: Path, engine: Choice) -> None:
    graph = random_graph(60, 3, 1)
    with Site(graph) as site:
        crawl = Crawl(tmp_path, "pages", f"{site.url}/0", engine=engine)
        assert crawl.run(KILL_AT=30, KILL_ON="item") == KILLED
        have_tables_written(crawl)
        assert crawl.run(KILL_AT=10, KILL_ON="item", ALTSCHED_COMMIT_EVERY=1) == KILLED
        for log in logs_of(crawl):
            log.unlink()
        assert crawl.run() == 0
        assert "the job is rolled back from commit" in crawl.log
        assert crawl.stat("altsched/rolled_back") > 0
        assert_complete(crawl, site, set(graph))


@BY_ENGINE
def test_a_crawl_that_meets_a_damaged_table_ends_unfinished_until_it_is_repaired(
    tmp_path: Path, engine: Choice
) -> None:
    graph = random_graph(300, 2, 1)
    with Site(graph) as site:
        crawl = Crawl(tmp_path, "pages", f"{site.url}/0", engine=engine)
        # As many pending requests as there can be, each read from the store.
        settings = {"CONCURRENT_REQUESTS": 1, "ALTSCHED_MEMORY_REQUESTS": 1}
        # An orderly end, so that none of what is damaged has been crawled since the last commit.
        assert crawl.run(CLOSESPIDER_ITEMCOUNT=100, **settings) == 0
        overwrite_requests(have_tables_written(crawl))
        for _ in range(2):
            crawl.run(**settings)
            assert "Spider closed (store_damaged)" in crawl.log
            command = f"scrapy altsched check {crawl.jobdir} --repair"
            # SQLite may meet it where it writes, too.
            failed = "The final commit of this crawl failed" in crawl.log and engine == "sqlite"
            assert failed or "is not finished, and its store is damaged" in crawl.log
            assert f"Repair {'the job' if failed else 'it'} with: {command}" in crawl.log
            assert "esume" not in crawl.log.partition("Spider closed (store_damaged)")[2]
            assert "is finished" not in crawl.log
        check = altsched("check", crawl.jobdir)
        assert check.returncode == 1
        assert "Not all of 'pending' can be read" in check.stdout
        repaired = altsched("check", "--repair", crawl.jobdir)
        assert repaired.returncode == 1
        for _ in range(2):
            assert crawl.run(**settings) == 0
            assert "Spider closed (finished)" in crawl.log
            assert "could not be read. The job cannot be finished" in crawl.log
            assert f"Run `scrapy altsched check {crawl.jobdir} --accept-loss`" in crawl.log
            assert "is not finished" in crawl.log
        missing = set(graph) - set(site.hits)
        assert missing
        assert crawl.stat("altsched/unaccounted") > 0
        assert altsched("check", "--accept-loss", crawl.jobdir).returncode == 0
        assert crawl.run(**settings) == 0
        assert "is finished" in crawl.log


# A disk that fails

GOES_ON = "The crawl continues in memory and tries again"
SAVED = "The frontier is saved again"
#: Seconds of failing commits that end a crawl, where dozens of pages are to be crawled before: it
#: counts on while the process has to wait for a busy machine.
FOR_LONG = 12
#: A site whose pending requests are read from its tables a few at a time, however far Scrapy is
#: ahead of the items by which a fault begins: older versions leased dozens meanwhile.
MANY_PENDING = {f"/{number}": Page() for number in range(600)}
MANY_PENDING["/0"].links += list(MANY_PENDING)
#: Pages of a site whose crawl cannot be saved on a full disk, and how many are answered before the
#: rest: the last 4 KiB of a file that was there before may still be free, and hold a small crawl.
MORE_THAN_FITS, MANY = 300, 200


def refusal(engine: Choice, message: str) -> str:
    """What an engine says when the operating system refuses a write with *message*."""
    return "disk I/O error" if engine == "sqlite" else message


def crawl_on(disk: Disk, tmp_path: Path, url: str, engine: Choice) -> Crawl:
    """A crawl whose job directory is on *disk*."""
    crawl = Crawl(tmp_path, "pages", url, engine=engine)
    crawl.jobdir = disk.path / "job"
    crawl.prefix = disk.enter
    return crawl


def start_and_fill(
    crawl: Crawl,
    disk: Disk,
    gates: Gates,
    site: Site,
    feed: tuple[str, ...] | None = None,
    **settings: object,
) -> Process:
    """Start a crawl whose disk is full from its 31st page on."""
    process = crawl.start(feed, **settings)
    wait_for_pages(site, 31, process)
    disk.fill(process)
    gates.open()
    return process


@BY_ENGINE
def test_a_crawl_whose_disk_is_full_goes_on_in_memory_and_is_saved_when_there_is_space(
    tmp_path: Path, small_disk: Disk, engine: Choice
) -> None:
    gates = Gates(random_graph(MORE_THAN_FITS, 2, 1), 30, MANY)
    with Site(gates) as site:
        crawl = crawl_on(small_disk, tmp_path, f"{site.url}/0", engine)
        process = start_and_fill(crawl, small_disk, gates, site)
        crawl.wait_for_log(process, GOES_ON)
        # Nothing can be saved, and still page after page is crawled.
        wait_for_pages(site, MANY + 1, process)
        small_disk.free(process)
        crawl.wait_for_log(process, SAVED)
        gates.open()
        process.communicate(timeout=60)
        assert process.returncode == 0
        assert crawl.log.count(GOES_ON) == 1
        assert crawl.log.count(SAVED) == 1
        assert crawl.stat("altsched/commit/failed") >= 1
        assert_complete(crawl, site, set(gates.graph))
        # Nothing was fetched twice.
        assert site.hits.total() == len(gates.graph)


@BY_ENGINE
def test_a_crawl_killed_while_its_disk_was_full_goes_on_from_its_last_commit(
    tmp_path: Path, small_disk: Disk, engine: Choice
) -> None:
    gates = Gates(random_graph(MORE_THAN_FITS, 2, 1), 30, MANY)
    with Site(gates) as site:
        crawl = crawl_on(small_disk, tmp_path, f"{site.url}/0", engine)
        process = start_and_fill(crawl, small_disk, gates, site)
        crawl.wait_for_log(process, GOES_ON)
        wait_for_pages(site, MANY + 1, process)
        crawl.kill(process)
        gates.open()
        small_disk.free(process)
        assert crawl.run() == 0
        assert_complete(crawl, site, set(gates.graph))


@BY_ENGINE
def test_a_crawl_that_is_done_while_its_disk_is_full_waits_and_is_not_finished(
    tmp_path: Path, small_disk: Disk, engine: Choice
) -> None:
    gates = Gates(random_graph(MORE_THAN_FITS, 2, 1), 30)
    with Site(gates) as site:
        crawl = crawl_on(small_disk, tmp_path, f"{site.url}/0", engine)
        process = start_and_fill(crawl, small_disk, gates, site, ALTSCHED_COMMIT_TIMEOUT=FOR_LONG)
        process.communicate(timeout=60)
        assert set(site.hits) == set(gates.graph)
        assert "Spider closed (commit_failed)" in crawl.log
        assert "The final commit of this crawl failed" in crawl.log
        assert "is finished" not in crawl.log
        small_disk.free(process)
        assert crawl.run() == 0
        assert_complete(crawl, site, set(gates.graph))


@BY_ENGINE
def test_a_crawl_that_is_done_while_its_disk_is_full_is_finished_when_there_is_space(
    tmp_path: Path, small_disk: Disk, engine: Choice
) -> None:
    gates = Gates(random_graph(MORE_THAN_FITS, 2, 1), 30)
    with Site(gates) as site:
        crawl = crawl_on(small_disk, tmp_path, f"{site.url}/0", engine)
        process = start_and_fill(crawl, small_disk, gates, site)
        wait_for_pages(site, MORE_THAN_FITS, process)
        crawl.wait_for_log(process, GOES_ON)
        small_disk.free(process)
        process.communicate(timeout=60)
        assert "Spider closed (finished)" in crawl.log
        assert_complete(crawl, site, set(gates.graph))
        assert site.hits.total() == len(gates.graph)


@pytest.mark.parametrize("killed", [False, True])
def test_no_item_is_lost_when_the_feeds_disk_is_full(
    tmp_path: Path, small_disk: Disk, killed: bool
) -> None:
    graph = random_graph(120, 2, 1)
    gates = Gates(graph, 30, 80)
    with Site(gates) as site:
        # The job is on another disk, and could be saved at any time.
        crawl = Crawl(tmp_path, "pages", f"{site.url}/0", padding=2000)
        crawl.prefix = small_disk.enter
        feed = ("-o", str(small_disk.path / "items.jsonl"))
        process = start_and_fill(crawl, small_disk, gates, site, feed)
        crawl.wait_for_log(process, "The commit was postponed")
        assert small_disk.reason in crawl.log
        wait_for_pages(site, 81, process)
        if killed:
            crawl.kill(process)
            small_disk.free(process)
            gates.open()
            assert crawl.run(feed) == 0
        else:
            small_disk.free(process)
            crawl.wait_for_log(process, SAVED)
            gates.open()
            process.communicate(timeout=60)
        shutil.copy(small_disk.outside(small_disk.path / "items.jsonl"), crawl.items)
        assert_complete(crawl, site, set(graph))
        if not killed:
            assert len(crawl.item_paths()) == len(graph)


def incompressible(graph: dict[str, Page]) -> dict[str, Page]:
    """The same site with long names that are made of chance, but for its first page's."""
    rng = random.Random(1)
    names = {path: f"{path}/{rng.randbytes(200).hex()}" for path in graph} | {"/0": "/0"}
    return {names[path]: Page([names[link] for link in graph[path].links]) for path in graph}


@BY_ENGINE
def test_a_crawl_whose_files_may_not_grow_is_saved_when_they_may(
    tmp_path: Path, engine: Choice
) -> None:
    gates = Gates(incompressible(random_graph(120, 2, 1)), 30, 80)
    with Site(gates) as site:
        crawl = Crawl(tmp_path, "pages", f"{site.url}/0", engine=engine)
        process = crawl.start()
        wait_for_pages(site, 31, process)
        # All files are limited alike, and what follows has to fit into the crawl's log.
        [log] = logs_of(crawl)
        crawl.wait_until(process, lambda: log.stat().st_size > 2 * len(crawl.log))
        limit(process, log.stat().st_size)
        gates.open()
        crawl.wait_for_log(process, GOES_ON)
        assert refusal(engine, "File too large") in crawl.log
        wait_for_pages(site, 81, process)
        limit(process, resource.RLIM_INFINITY)
        crawl.wait_for_log(process, SAVED)
        gates.open()
        process.communicate(timeout=60)
        assert crawl.log.count(GOES_ON) == 1
        assert_complete(crawl, site, set(gates.graph))
        assert site.hits.total() == len(gates.graph)


@BY_ENGINE
def test_a_crawl_whose_log_cannot_be_written_any_more_opens_another(
    tmp_path: Path, engine: Choice
) -> None:
    graph = random_graph(120, 2, 1)
    with Site(graph) as site:
        crawl = Crawl(tmp_path, "pages", f"{site.url}/0", engine=engine)
        assert crawl.run(FAULT="log_fails", FAULT_AT=30) == 0
        assert refusal(engine, "Input/output error") in crawl.log
        assert SAVED in crawl.log
        assert_complete(crawl, site, set(graph))
        assert site.hits.total() == len(graph)


def test_a_crawl_whose_tables_cannot_be_read_any_more_opens_them_again(tmp_path: Path) -> None:
    with Site(MANY_PENDING) as site:
        crawl = Crawl(tmp_path, "pages", f"{site.url}/0")
        settings = {"CONCURRENT_REQUESTS": 1, "ALTSCHED_MEMORY_REQUESTS": 1}
        assert crawl.run(CLOSESPIDER_ITEMCOUNT=20, **settings) == 0
        have_tables_written(crawl)
        assert crawl.run(FAULT="tables_fail", FAULT_AT=5, **settings) == 0
        assert "Input/output error" in crawl.log
        assert_complete(crawl, site, set(MANY_PENDING))


def test_a_crawl_that_cannot_read_its_queue_for_long_is_closed_unfinished(tmp_path: Path) -> None:
    with Site(MANY_PENDING) as site:
        crawl = Crawl(tmp_path, "pages", f"{site.url}/0")
        settings = {"CONCURRENT_REQUESTS": 1, "ALTSCHED_MEMORY_REQUESTS": 1}
        assert crawl.run(CLOSESPIDER_ITEMCOUNT=20, **settings) == 0
        have_tables_written(crawl)
        crawl.run(FAULT="no_tables", FAULT_AT=5, ALTSCHED_COMMIT_TIMEOUT=3, **settings)
        assert "Input/output error" in crawl.log
        assert "Spider closed (commit_failed)" in crawl.log
        assert "is finished" not in crawl.log
        assert crawl.run(**settings) == 0
        assert_complete(crawl, site, set(MANY_PENDING))


@BY_ENGINE
@pytest.mark.parametrize(
    ("fault", "message"),
    [("read_only", "Read-only file system"), ("log_is_full", "No space left on device")],
)
def test_a_crawl_that_cannot_be_saved_for_long_is_closed_unfinished(
    tmp_path: Path, engine: Choice, fault: str, message: str
) -> None:
    gates = Gates(random_graph(120, 2, 1), 60)
    with Site(gates) as site:
        crawl = Crawl(tmp_path, "pages", f"{site.url}/0", engine=engine)
        process = crawl.start(FAULT=fault, FAULT_AT=30, ALTSCHED_COMMIT_TIMEOUT=FOR_LONG)
        crawl.wait_for_log(process, GOES_ON)
        # It goes on in memory until then.
        wait_for_pages(site, 61, process)
        crawl.wait_for_log(process, "(commit_failed)")
        gates.open()
        process.communicate(timeout=60)
        assert message in crawl.log
        assert crawl.log.count(GOES_ON) == 1
        assert "Spider closed (commit_failed)" in crawl.log
        assert "is finished" not in crawl.log
        assert crawl.run() == 0
        assert_complete(crawl, site, set(gates.graph))


@BY_ENGINE
def test_a_crawl_on_a_full_disk_does_not_start_and_says_why(tmp_path: Path, engine: Choice) -> None:
    graph = random_graph(60, 2, 1)
    with Site(graph) as site:
        crawl = Crawl(tmp_path, "pages", f"{site.url}/0", engine=engine)
        assert crawl.run(KILL_AT=20, KILL_ON="item") == KILLED
        before = site.hits.total()
        crawl.run(FAULT="no_new_files", FAULT_AT=-1)
        assert "No space left on device" in crawl.log
        assert "is finished" not in crawl.log
        assert site.hits.total() == before
        assert crawl.run() == 0
        assert_complete(crawl, site, set(graph))


@BY_ENGINE
def test_a_crawl_whose_jobdir_is_deleted_is_closed_and_makes_none_in_its_place(
    tmp_path: Path, engine: Choice
) -> None:
    gates = Gates(random_graph(60, 2, 1), 30)
    with Site(gates) as site:
        crawl = Crawl(tmp_path, "pages", f"{site.url}/0", engine=engine)
        process = crawl.start()
        wait_for_pages(site, 31, process)
        shutil.rmtree(crawl.jobdir)
        gates.open()
        process.communicate(timeout=60)
        assert "Spider closed (jobdir_lost)" in crawl.log
        assert "deleted or replaced while the crawl was running" in crawl.log
        assert "is finished" not in crawl.log
        assert not (crawl.jobdir / "frontier").exists()


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_feed_that_is_deleted_under_the_crawl_is_missed_and_made_anew(
    tmp_path: Path, *, overwrite: bool
) -> None:
    gates = Gates(random_graph(60, 2, 1), 20, 40)
    with Site(gates) as site:
        crawl = Crawl(tmp_path, "pages", f"{site.url}/0")
        process = crawl.start(("-O" if overwrite else "-o", str(crawl.items)))
        wait_for_pages(site, 21, process)
        crawl.wait_until(process, lambda: len(crawl.item_paths()) >= 20)
        crawl.items.unlink()
        gates.open()
        wait_for_pages(site, 41, process)
        crawl.wait_until(process, crawl.items.exists)
        crawl.items.rename(tmp_path / "rotated")
        crawl.items.write_text('{"url": "http://host/restored"}\n')
        gates.open()
        process.communicate(timeout=60)
        assert crawl.log.count("deleted, moved or replaced while this crawl was writing to it") == 2
        paths = crawl.item_paths()
        assert paths[0] == "/restored"
        crawl.items = tmp_path / "rotated"
        # Only what was in the file that was deleted is gone.
        assert len(paths[1:]) + len(crawl.item_paths()) == 40


def test_a_feed_without_rows_that_is_deleted_under_the_crawl_is_not_called_stored(
    tmp_path: Path,
) -> None:
    gates = Gates(random_graph(60, 2, 1), 20)
    with Site(gates) as site:
        crawl = Crawl(tmp_path, "pages", f"{site.url}/0")
        feed = tmp_path / "items.json"
        process = crawl.start(("-o", str(feed)))
        wait_for_pages(site, 21, process)
        crawl.wait_until(process, feed.exists)
        feed.unlink()
        gates.open()
        process.communicate(timeout=60)
        assert "What is still to be written goes with it." in crawl.log
        assert "Error storing json feed" in crawl.log
        assert "Stored json feed" not in crawl.log
        assert not feed.exists()


@BY_ENGINE
def test_a_log_that_is_deleted_under_the_crawl_is_missed_by_the_next_run(
    tmp_path: Path, engine: Choice
) -> None:
    gates = Gates(random_graph(60, 2, 1), 20, 40)
    with Site(gates) as site:
        crawl = Crawl(tmp_path, "pages", f"{site.url}/0", engine=engine)
        # A page is asked for when all that those before it led to is committed.
        process = crawl.start(ALTSCHED_COMMIT_EVERY=1)
        wait_for_pages(site, 21, process)
        for log in logs_of(crawl):
            log.unlink()
        gates.open()
        # It is still at work when it is killed: at its end all would be in tables.
        wait_for_pages(site, 41, process)
        crawl.kill(process)
        gates.open()
        assert crawl.run() == 0
        assert "the job is rolled back from commit" in crawl.log
        assert_complete(crawl, site, set(gates.graph))


def test_a_crawl_whose_worker_outlived_it_goes_on(tmp_path: Path) -> None:
    gates = Gates(random_graph(60, 2, 1), 30)
    with Site(gates) as site:
        crawl = Crawl(tmp_path, "troubled", f"{site.url}/0", action="pool", at=10)
        process = crawl.start()
        assert process.stdout is not None
        worker = int(process.stdout.readline())
        try:
            wait_for_pages(site, 31, process)
            process.kill()
            process.wait()
            gates.open()
            crawl.arguments["action"] = ""
            assert crawl.run() == 0
            os.kill(worker, 0)
        finally:
            os.kill(worker, signal.SIGKILL)
            process.communicate()
        assert_complete(crawl, site, set(gates.graph))
