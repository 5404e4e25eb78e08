"""Real crawls that nobody kills, and crawls that must not start."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from ..crawls import ONE_BY_ONE, STOCK, Crawl, listing
from ..sites import Page, Site, random_graph


@pytest.mark.parametrize("spider", ["pages", "async"])
def test_without_a_crash_a_crawl_fetches_exactly_what_stock_fetches(
    tmp_path: Path, spider: str
) -> None:
    graph = random_graph(80, 8, 5)
    hits = []
    for name, settings in {"ours": {}, "memory": {"JOBDIR": None}, "stock": STOCK}.items():
        (tmp_path / name).mkdir()
        with Site(graph) as site:
            crawl = Crawl(tmp_path / name, spider, f"{site.url}/0")
            assert crawl.run(**settings) == 0
            hits.append(site.hits)
            assert sorted(crawl.item_paths()) == sorted(graph)
            assert crawl.stat("scheduler/enqueued") == len(graph)
    assert hits[0] == hits[1] == hits[2]


def test_without_a_crash_a_crawl_fetches_in_the_order_of_stock(tmp_path: Path) -> None:
    graph = random_graph(60, 4, 6)
    orders = []
    for name, settings in {"ours": {}, "stock": STOCK}.items():
        (tmp_path / name).mkdir()
        with Site(graph) as site:
            crawl = Crawl(tmp_path / name, "pages", f"{site.url}/0")
            assert crawl.run(**ONE_BY_ONE, **settings) == 0
            orders.append(site.order)
    assert orders[0] == orders[1]


@pytest.mark.smoke
def test_a_stopped_crawl_resumes_where_it_was(tmp_path: Path) -> None:
    graph = random_graph(60, 4, 7)
    with Site(graph) as site:
        crawl = Crawl(tmp_path, "pages", f"{site.url}/0")
        assert crawl.run(CLOSESPIDER_PAGECOUNT=20) == 0
        assert "is not finished" in crawl.log
        command = f"-m scrapy crawl pages -a url={site.url}/0 -s JOBDIR={crawl.jobdir} -s "
        assert command in crawl.log
        assert crawl.run() == 0
        assert "Resuming crawl (" in crawl.log
        assert "The job in" in crawl.log
        assert "is finished: 60 requests done, none pending, 0 dead" in crawl.log
        assert set(site.hits.values()) == {1}
        assert sorted(crawl.item_paths()) == sorted(graph)
        assert crawl.stat("altsched/done") == 60


def test_a_finished_job_runs_again_as_stock_does(tmp_path: Path) -> None:
    with Site({"/0": Page(), "/1": Page()}) as site:
        crawl = Crawl(tmp_path, "starts", site.url, count=2)
        for run in (1, 2):
            assert crawl.run() == 0
            assert site.hits == {"/0": run, "/1": run}
        assert "altsched/start/skipped" not in crawl.log


def test_a_finished_job_whose_start_requests_were_all_seen_says_that_nothing_was_crawled(
    tmp_path: Path,
) -> None:
    with Site({"/0": Page(["/1"]), "/1": Page()}) as site:
        crawl = Crawl(tmp_path, "pages", f"{site.url}/0")
        assert crawl.run() == 0
        assert "This run crawled nothing" not in crawl.log
        assert crawl.run() == 0
        assert site.hits.total() == 2
        assert "WARNING: This run crawled nothing" in crawl.log
        assert "its start request was seen by earlier runs, which finished the job" in crawl.log
        assert "or yield start requests with dont_filter=True" in crawl.log


def test_a_job_that_died_when_all_was_done_says_that_nothing_was_left(tmp_path: Path) -> None:
    with Site({"/0": Page(["/1"]), "/1": Page()}) as site:
        crawl = Crawl(tmp_path, "pages", f"{site.url}/0")
        assert crawl.run(KILL_ON="idle", KILL_AT=1, ALTSCHED_COMMIT_EVERY=1) < 0
        assert crawl.run() == 0
        assert site.hits.total() == 2
        assert "its start request was accepted by earlier runs" in crawl.log
        assert "is finished" in crawl.log


@pytest.mark.smoke
def test_unserializable_requests_are_crawled_in_order(tmp_path: Path) -> None:
    pages = {"/start": Page(), **{f"/{number}": Page() for number in range(7)}}
    with Site(pages) as site:
        crawl = Crawl(tmp_path, "order", site.url)
        one = "scrapy.pqueues.ScrapyPriorityQueue"
        assert crawl.run(**ONE_BY_ONE, SCHEDULER_PRIORITY_QUEUE=one) == 0
        assert site.order == ["/start", "/5", "/3", "/1", "/6", "/2", "/0", "/4"]
        assert crawl.log.count("Unable to serialize request") == 1
        assert crawl.stat("scheduler/unserializable") == 3


def test_a_jobdir_may_change_its_order_between_runs(tmp_path: Path) -> None:
    graph = random_graph(60, 4, 8)
    with Site(graph) as site:
        crawl = Crawl(tmp_path, "pages", f"{site.url}/0")
        assert crawl.run(CLOSESPIDER_PAGECOUNT=10) == 0
        changed = {
            "SCHEDULER_DISK_QUEUE": "scrapy.squeues.PickleFifoDiskQueue",
            "SCHEDULER_PRIORITY_QUEUE": "scrapy.pqueues.ScrapyPriorityQueue",
            "SCHEDULER_START_DISK_QUEUE": "",
        }
        assert crawl.run(CLOSESPIDER_PAGECOUNT=10, **changed) == 0
        assert "was changed from" in crawl.log
        assert crawl.run() == 0
        assert set(site.hits.values()) == {1}
        assert set(site.hits) == set(graph)


def refused(crawl: Crawl, sentence: str, **settings: Any) -> None:
    """The crawl ends before it fetches, with one sentence at CRITICAL, and changes nothing."""
    before = listing(crawl.directory / "job")
    items = crawl.items.read_bytes() if crawl.items.exists() else None
    crawl.run(**settings)
    critical = [line for line in crawl.log.splitlines() if " CRITICAL: " in line]
    assert sentence in critical[0]
    assert "Crawled (" not in crawl.log
    assert "final commit" not in crawl.log
    assert listing(crawl.directory / "job") == before
    assert (crawl.items.read_bytes() if crawl.items.exists() else None) == items


def test_a_jobdir_held_by_a_running_crawl_is_refused(tmp_path: Path) -> None:
    with Site({"/0": Page()}) as site:
        crawl = Crawl(tmp_path, "waiting", f"{site.url}/0")
        # Long intervals: what the running crawl itself writes must not look like a change.
        quiet = {"ALTSCHED_COMMIT_INTERVAL": 1000}
        running = crawl.start(REPORT="idle", **quiet)
        assert running.stdout is not None
        assert running.stdout.readline() == "idle\n"
        refused(crawl, f"is in use by a running crawl (process {running.pid})", **quiet)
        assert site.hits == {"/0": 1}
        crawl.kill(running)


def test_a_jobdir_of_a_newer_format_is_refused(tmp_path: Path) -> None:
    with Site({"/0": Page()}) as site:
        crawl = Crawl(tmp_path, "pages", f"{site.url}/0")
        assert crawl.run() == 0
        identity = crawl.jobdir / "altsched.json"
        content = json.loads(identity.read_text())
        identity.write_text(json.dumps({**content, "format": content["format"] + 1}))
        refused(crawl, "was written by a newer scrapy_altsched")
        assert site.hits == {"/0": 1}


def test_a_jobdir_of_another_spider_is_refused(tmp_path: Path) -> None:
    with Site({"/0": Page()}) as site:
        crawl = Crawl(tmp_path, "pages", f"{site.url}/0")
        assert crawl.run() == 0
        other = Crawl(tmp_path, "waiting", f"{site.url}/0")
        refused(other, "belongs to spider 'pages', not to 'waiting'")
        assert site.hits == {"/0": 1}


def test_a_jobdir_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with Site({"/0": Page()}) as site:
        crawl = Crawl(tmp_path, "pages", f"{site.url}/0")
        refused(crawl, f"JOBDIR cannot be used: {tmp_path}/file", JOBDIR=tmp_path / "file" / "job")
        assert not site.hits


def test_a_jobdir_that_cannot_be_written_to_is_refused(tmp_path: Path) -> None:
    # Permissions do not stop root; a lock file that cannot be opened stops everybody.
    (tmp_path / "job" / "altsched.lock").mkdir(parents=True)
    with Site({"/0": Page()}) as site:
        crawl = Crawl(tmp_path, "pages", f"{site.url}/0")
        refused(crawl, "JOBDIR cannot be used")
        assert not site.hits


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("ALTSCHED_COMMIT_INTERVAL", "soon", "it must be a number of seconds"),
        ("ALTSCHED_MAX_CRASHES", "0", "it must be a whole number of crashes, 1 or more"),
        ("ALTSCHED_COMIT_EVERY", "5", "did you mean ALTSCHED_COMMIT_EVERY?"),
        ("SCHEDULER_DISK_QUEUE", "queuelib.queue.FifoDiskQueue", "PickleFifoDiskQueue"),
        ("SCHEDULER_PRIORITY_QUEUE", "queuelib.PriorityQueue", "ScrapyPriorityQueue"),
    ],
)
def test_an_impossible_setting_is_refused(
    tmp_path: Path, name: str, value: str, sentence: str
) -> None:
    with Site({"/0": Page()}) as site:
        crawl = Crawl(tmp_path, "pages", f"{site.url}/0")
        assert crawl.run() == 0
        refused(crawl, sentence, **{name: value})
        assert name in crawl.log
        assert site.hits == {"/0": 1}


def test_what_was_refused_runs_once_it_is_put_right(tmp_path: Path) -> None:
    graph = random_graph(30, 3, 9)
    with Site(graph) as site:
        crawl = Crawl(tmp_path, "pages", f"{site.url}/0")
        assert crawl.run(CLOSESPIDER_PAGECOUNT=10) == 0
        state = (crawl.jobdir / "spider.state").read_bytes()
        refused(crawl, "ALTSCHED_SYNC", ALTSCHED_SYNC="maybe")
        assert (crawl.jobdir / "spider.state").read_bytes() == state
        assert crawl.run() == 0
        assert set(site.hits) == set(graph)


def test_a_copy_of_a_jobdir_is_a_job_of_its_own(tmp_path: Path) -> None:
    graph = random_graph(30, 3, 10)
    with Site(graph) as site:
        crawl = Crawl(tmp_path, "pages", f"{site.url}/0")
        assert crawl.run(CLOSESPIDER_PAGECOUNT=10) == 0
        done = site.hits.copy()
        (tmp_path / "second").mkdir()
        second = Crawl(tmp_path / "second", "pages", f"{site.url}/0")
        shutil.copytree(crawl.jobdir, second.jobdir)
        assert second.run() == 0
        assert crawl.run() == 0
        for path in graph:
            assert site.hits[path] == (1 if done[path] else 2)
