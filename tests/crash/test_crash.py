"""Real crawls, killed with SIGKILL and resumed."""

from __future__ import annotations

import pickle
import random
import subprocess
import threading
from pathlib import Path

import pytest

from scrapy_altsched.frontier.store.status import read_status

from ..crawls import KILLED, ONE_BY_ONE, Crawl, assert_complete
from ..sites import Page, Site, random_graph


@pytest.mark.parametrize("spider", ["pages", "async"])
@pytest.mark.parametrize("seed", range(4))
def test_killed_at_random_events_again_and_again(tmp_path: Path, seed: int, spider: str) -> None:
    rng = random.Random(f"{spider} {seed}")
    graph = random_graph(60, 6, seed)
    kills: list[int] = []
    with Site(graph) as site:
        crawl = Crawl(tmp_path, spider, f"{site.url}/0")
        while crawl.run(KILL_AT=rng.randrange(1, 400)) == KILLED:
            kills.append(crawl.runs)
            # Enough: the last run is left alone.
            if len(kills) == 6:
                assert crawl.run() == 0
                break
        print(f"seed {seed}: {len(kills)} kills")
        assert_complete(crawl, site, set(graph))


@pytest.mark.parametrize("seed", range(4))
def test_killed_at_random_moments(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    graph = random_graph(60, 6, seed)
    with Site(graph) as site:
        crawl = Crawl(tmp_path, "pages", f"{site.url}/0")
        for _ in range(4):
            process = crawl.start()
            hits = site.hits.total() + rng.randrange(1, 15)
            with site.changed:
                # A process that is at its end tells nobody.
                while site.hits.total() < hits and process.poll() is None:
                    site.changed.wait(0.1)
            try:
                process.wait(rng.random() / 10)
            except subprocess.TimeoutExpired:
                crawl.kill(process)
        assert crawl.run() == 0
        assert_complete(crawl, site, set(graph))


@pytest.mark.parametrize("event", ["committing", "committed", "item", "scheduled", "left"])
def test_killed_at_each_event_of_one_kind(tmp_path: Path, event: str) -> None:
    graph = random_graph(40, 2, 1)
    with Site(graph) as site:
        crawl = Crawl(tmp_path, "pages", f"{site.url}/0")
        every_change = {"ALTSCHED_COMMIT_EVERY": 1}
        rng = random.Random(event)
        kills = 0
        # Not at a fixed one: the same page would die there again and again, and be dead.
        while crawl.run(KILL_AT=rng.randrange(4, 40), KILL_ON=event, **every_change) == KILLED:
            kills += 1
            assert kills < 100, "no progress"
        assert kills
        assert_complete(crawl, site, set(graph))


@pytest.mark.smoke
def test_what_is_added_while_nothing_is_leased_survives_a_kill_right_after(tmp_path: Path) -> None:
    with Site({"/start": Page(), "/fed": Page()}) as site:
        crawl = Crawl(tmp_path, "fed", site.url, die=1)
        slow = {"ALTSCHED_COMMIT_INTERVAL": 1000}
        assert crawl.run(**slow) == KILLED
        assert site.hits == {"/start": 1}
        crawl.arguments["die"] = 0
        assert crawl.run(**slow) == 0
        assert site.hits == {"/start": 1, "/fed": 1}
        assert_complete(crawl, site, {"/start", "/fed"})


def count_in_memory(crawl: Crawl) -> int:
    """How many requests a running crawl had in memory only at its last commit."""
    status = read_status(crawl.jobdir)
    assert status is not None
    return status.standing.counts.memory_only


def test_a_memory_only_request_killed_while_pending_is_not_seen(tmp_path: Path) -> None:
    held = threading.Event()
    pages = {"/a": Page(), "/b": Page(), "/c": Page(held=held)}
    with Site(pages) as site:
        crawl = Crawl(tmp_path, "memory", site.url)
        process = crawl.start(ALTSCHED_COMMIT_EVERY=1, **ONE_BY_ONE)
        # Then /a is done, /b waits in memory, /c is under way, and a commit knows of it.
        site.wait_for(lambda site: site.hits["/c"])
        crawl.wait_until(process, lambda: count_in_memory(crawl) == 1)
        crawl.kill(process)
        held.set()
        assert crawl.run() == 0
        assert site.hits["/b"] == 1
        assert "1 request that could not be serialized ended with an earlier run" in crawl.log
        assert_complete(crawl, site, {"/a", "/b", "/c"})


def test_a_crawl_held_full_for_ten_seconds_still_commits(tmp_path: Path) -> None:
    held = threading.Event()
    pages = {"/quick": Page(), "/held": Page(held=held), "/late": Page()}
    with Site(pages) as site:
        crawl = Crawl(tmp_path, "slow", site.url, after=10)
        process = crawl.start(CONCURRENT_REQUESTS=1, REPORT="committed")
        site.wait_for(lambda site: site.hits["/held"])
        assert process.stdout is not None
        for line in process.stdout:
            if line == "late\n":
                break
        # The engine is full and asks the scheduler for nothing; only the timer can commit.
        assert process.stdout.readline() == "committed\n"
        assert site.hits == {"/quick": 1, "/held": 1}
        crawl.kill(process)
        held.set()
        assert crawl.run(CONCURRENT_REQUESTS=1) == 0
        assert site.hits == {"/quick": 1, "/held": 2, "/late": 1}


def test_a_page_is_not_done_while_its_item_is_in_a_pipeline(tmp_path: Path) -> None:
    pipelines = {"ITEM_PIPELINES": '{"crashsite.pipelines.StuckPipeline": 1}'}
    held = threading.Event()
    pages = {"/0": Page(["/1", "/2"]), "/1": Page(), "/2": Page(held=held)}
    with Site(pages) as site:
        crawl = Crawl(tmp_path, "pages", f"{site.url}/0")
        process = crawl.start(STUCK_ON="/1", REPORT="committed", **pipelines)
        assert process.stdout is not None
        for line in process.stdout:
            if line == "stuck\n":
                break
        # All may be committed by now, and nothing else would ever change.
        held.set()
        for line in process.stdout:
            if line == "committed\n":
                break
        crawl.kill(process)
        assert crawl.run(**pipelines) == 0
        assert (site.hits["/0"], site.hits["/1"]) == (1, 2)
        assert_complete(crawl, site, {"/0", "/1", "/2"})


@pytest.mark.smoke
def test_spider_state_is_restored_after_a_kill(tmp_path: Path) -> None:
    graph = random_graph(30, 2, 3)
    with Site(graph) as site:
        crawl = Crawl(tmp_path, "pages", f"{site.url}/0")
        assert crawl.run(KILL_AT=12, KILL_ON="item", ALTSCHED_COMMIT_EVERY=1) == KILLED
        assert not (crawl.jobdir / "spider.state").exists()
        assert crawl.run() == 0
        assert_complete(crawl, site, set(graph))
    state = pickle.loads((crawl.jobdir / "spider.state").read_bytes())
    # Pages in flight at the kill are counted again, or not at all before a commit: never fewer
    # than the pages there are, once a page's count is in the commit that makes it done.
    assert state["pages"] >= len(graph)


def test_an_unfinished_job_does_not_crawl_its_start_list_again(tmp_path: Path) -> None:
    count = 40
    with Site({f"/{number}": Page() for number in range(count)}) as site:
        crawl = Crawl(tmp_path, "starts", site.url, count=count)
        settings = {"CONCURRENT_REQUESTS": 4}
        assert crawl.run(KILL_AT=20, KILL_ON="item", **settings) == KILLED
        assert crawl.run(KILL_AT=10, KILL_ON="item", **settings) == KILLED
        assert crawl.run(**settings) == 0
        assert_complete(crawl, site, {f"/{number}" for number in range(count)})
        # Only what was under way, or done since the last commit, may be fetched twice.
        assert crawl.stat("altsched/start/skipped") > 5
        finished = site.hits.copy()
        # A finished job crawls its start pages again, as stock does.
        assert crawl.run(**settings) == 0
        assert site.hits.total() == finished.total() + count


def test_one_setting_crawls_the_start_list_again_as_stock_does(tmp_path: Path) -> None:
    count = 20
    with Site({f"/{number}": Page() for number in range(count)}) as site:
        crawl = Crawl(tmp_path, "starts", site.url, count=count)
        settings = {"CONCURRENT_REQUESTS": 1, "ALTSCHED_SKIP_STARTED": "False"}
        assert crawl.run(KILL_AT=10, KILL_ON="item", **settings) == KILLED
        before = site.hits.total()
        assert crawl.run(**settings) == 0
        assert site.hits.total() >= before + count


def test_equal_start_requests_of_one_run_both_pass_also_across_a_kill(tmp_path: Path) -> None:
    count = 10
    with Site({f"/{number}": Page() for number in range(count)}) as site:
        crawl = Crawl(tmp_path, "twice", site.url, count=count)
        settings = {"ALTSCHED_COMMIT_EVERY": 1, **ONE_BY_ONE}
        assert crawl.run(KILL_AT=14, KILL_ON="item", **settings) == KILLED
        assert crawl.run(**settings) == 0
        assert all(hits >= 2 for hits in site.hits.values())
        assert site.hits.total() <= 2 * count + 3


def test_a_broken_start_leaves_the_job_unfinished(tmp_path: Path) -> None:
    with Site({"/0": Page(), "/1": Page()}) as site:
        crawl = Crawl(tmp_path, "broken", site.url, count=2)
        crawl.run()
        assert "is not finished" in crawl.log
        crawl.arguments["repaired"] = 1
        assert crawl.run() == 0
        assert site.hits == {"/0": 1, "/1": 1}
        assert "is finished" in crawl.log


@pytest.mark.smoke
@pytest.mark.parametrize("status", [301, 503])
def test_redirects_and_retries_of_start_requests_pass_on_resume(
    tmp_path: Path, status: int
) -> None:
    def pages(path: str, before: int) -> Page:
        if path == "/0" and status == 301:
            return Page(status=301, location="/target")
        if path == "/0" and before < 2:
            return Page(status=503)
        return Page()

    with Site(pages) as site:
        crawl = Crawl(tmp_path, "starts", site.url, count=1)
        retry = {"RETRY_ENABLED": "True", "ALTSCHED_COMMIT_EVERY": 1}
        # Killed when the retry or the redirect's target is under way.
        assert crawl.run(KILL_AT=2, KILL_ON="reached", **retry) == KILLED
        assert crawl.run(**retry) == 0
        assert crawl.item_paths() == ["/target" if status == 301 else "/0"]


def test_items_of_start_come_again_with_each_run(tmp_path: Path) -> None:
    graph = {"/0": Page(["/1"]), "/1": Page()}
    with Site(graph) as site:
        crawl = Crawl(tmp_path, "item-first", f"{site.url}/0")
        assert crawl.run(KILL_AT=2, KILL_ON="reached", ALTSCHED_COMMIT_EVERY=1) == KILLED
        assert crawl.run() == 0
        assert crawl.item_paths().count("/0-start") == 2


def test_a_page_that_kills_the_process_is_found_among_innocents_and_put_aside(
    tmp_path: Path,
) -> None:
    graph = {"/0": Page([f"/{number}" for number in range(1, 17)])}
    graph |= {f"/{number}": Page() for number in range(1, 17)}
    with Site(graph) as site:
        crawl = Crawl(tmp_path, "pages", f"{site.url}/0", poison="/7")
        kills = 0
        while crawl.run() == KILLED:
            kills += 1
        # Once among the others, once as the suspect among them, then alone for as often as
        # ALTSCHED_MAX_CRASHES says.
        assert kills == 5
        assert crawl.stat("altsched/dead") == 1
        assert f"The request {site.url}/7 is now a dead letter" in crawl.log
        assert set(site.hits) == set(graph)
        assert set(crawl.item_paths()) == set(graph) - {"/7"}
