"""Every way in which a crawl ends or is ended, beside SIGKILL; after each the job goes on."""

from __future__ import annotations

import signal
import threading
import time
from pathlib import Path

import pytest

from ..crawls import Crawl, run_python
from ..sites import Gates, Page, Site, random_graph, wait_for_pages

#: All of it is found also without the links of any one page but the first: a callback that ends the
#: crawl, or fails, yields none.
GRAPH = random_graph(40, 4, 2)


def assert_complete(crawl: Crawl, site: Site, paths: set[str]) -> None:
    """The job is finished: every page was visited and has its item; nothing is dead."""
    assert "is finished" in crawl.log
    assert crawl.stat("altsched/dead") == 0
    assert "neither done, pending" not in crawl.log
    assert set(site.hits) & paths == paths
    assert paths <= set(crawl.item_paths())


def test_a_crawl_is_closed_in_an_orderly_way_while_its_start_goes_on(tmp_path: Path) -> None:
    with Site(lambda path, before: Page()) as site:
        crawl = Crawl(tmp_path, "endless", site.url)
        for _ in range(2):
            assert crawl.run(CLOSESPIDER_PAGECOUNT=10) == 0
            assert "Error" not in crawl.log.replace("HttpError", "")
            assert "Spider closed (closespider_pagecount)" in crawl.log
            assert "is not finished" in crawl.log
        # No page was accepted and then not crawled, nor crawled twice.
        assert sorted(site.hits) == sorted(crawl.item_paths())
        assert set(site.hits.values()) == {1}


@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_crawl_in_an_orderly_way(tmp_path: Path, signal_number: int) -> None:
    # Until the signal is there no more pages are answered: the crawl would be at its end.
    gates = Gates(GRAPH, 10)
    with Site(gates) as site:
        crawl = Crawl(tmp_path, "pages", f"{site.url}/0")
        process = crawl.start(CONCURRENT_REQUESTS=2)
        wait_for_pages(site, 11, process)
        process.send_signal(signal_number)
        name = signal.Signals(signal_number).name
        crawl.wait_for_log(process, f"Received {name}, shutting down gracefully")
        gates.open()
        process.communicate(timeout=60)
        assert "is not finished" in crawl.log
        fetched = site.hits.copy()
        assert crawl.run() == 0
        assert_complete(crawl, site, set(GRAPH))
        # What was done is not done again.
        assert site.hits.total() <= len(GRAPH) + 4, (fetched, site.hits)


def test_a_second_sigint_ends_the_crawl_at_once_and_loses_nothing(tmp_path: Path) -> None:
    held = threading.Event()
    graph = {"/0": Page([f"/{number}" for number in range(1, 20)]), "/1": Page(held=held)}
    graph |= {f"/{number}": Page() for number in range(2, 20)}
    with Site(graph) as site:
        crawl = Crawl(tmp_path, "pages", f"{site.url}/0")
        process = crawl.start(CONCURRENT_REQUESTS=2, REPORT="committed")
        site.wait_for(lambda site: site.hits["/1"] and site.hits.total() >= 8)
        process.send_signal(signal.SIGINT)
        # The orderly end waits for the page that is held back.
        wait_for_log(crawl, "Received SIGINT, shutting down gracefully")
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
        held.set()
        assert "Received SIGINT twice, forcing unclean shutdown" in crawl.log
        assert crawl.run() == 0
        assert_complete(crawl, site, set(graph))


def wait_for_log(crawl: Crawl, text: str) -> None:
    deadline = time.monotonic() + 60
    while text not in crawl.log:
        assert time.monotonic() < deadline, crawl.log
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("action", "exit_code"),
    [("exit", 7), ("close", 0)],
)
def test_a_callback_may_end_the_crawl(tmp_path: Path, action: str, exit_code: int) -> None:
    with Site(GRAPH) as site:
        crawl = Crawl(tmp_path, "troubled", f"{site.url}/0", action=action, at=10)
        assert crawl.run() == exit_code
        assert "is finished" not in crawl.log
        crawl.arguments["at"] = 0
        assert crawl.run() == 0
        assert_complete(crawl, site, set(GRAPH))


@pytest.mark.parametrize("action", ["memory", "error"])
def test_a_callback_that_raises_is_not_called_again(tmp_path: Path, action: str) -> None:
    graph = {f"/{number}": Page([f"/{number + 1}"]) for number in range(9)} | {"/9": Page()}
    with Site(graph) as site:
        crawl = Crawl(tmp_path, "troubled", f"{site.url}/0", action=action, at=6)
        assert crawl.run() == 0
        assert "is finished: 5 requests done, none pending, 0 dead" in crawl.log
        assert crawl.stat("altsched/failed/callback") == crawl.stat("altsched/failed") == 1
        assert set(site.hits.values()) == {1}


@pytest.mark.parametrize("action", ["fork", "worker"])
def test_a_child_of_a_callback_is_refused_and_does_no_harm(tmp_path: Path, action: str) -> None:
    with Site(GRAPH) as site:
        crawl = Crawl(tmp_path, "troubled", f"{site.url}/0", action=action, at=10)
        assert crawl.run(KILL_ON="item", KILL_AT=20) == -signal.SIGKILL
        assert crawl.output.count("refused") == 4
        crawl.arguments["at"] = 0
        assert crawl.run() == 0
        assert_complete(crawl, site, set(GRAPH))


def test_a_handler_of_committing_that_always_raises_ends_the_crawl_unfinished(
    tmp_path: Path,
) -> None:
    with Site(GRAPH) as site:
        crawl = Crawl(tmp_path, "troubled", f"{site.url}/0", action="committing")
        assert crawl.run(ALTSCHED_COMMIT_TIMEOUT=0.2) == 0
        assert "a handler of frontier_committing, raised a handler of the test fails" in crawl.log
        assert "The final commit of this crawl failed" in crawl.log
        assert "is finished" not in crawl.log
        crawl.arguments["action"] = ""
        assert crawl.run() == 0
        assert_complete(crawl, site, set(GRAPH))


def test_a_handler_of_committed_that_raises_changes_nothing(tmp_path: Path) -> None:
    with Site(GRAPH) as site:
        crawl = Crawl(tmp_path, "troubled", f"{site.url}/0", action="committed")
        assert crawl.run() == 0
        assert crawl.output.count("failed") > 1
        assert_complete(crawl, site, set(GRAPH))
        assert set(site.hits.values()) == {1}


FORK = """
import os, sys
from scrapy_altsched.frontier import Entry
from scrapy_altsched.maintenance.opening import open_frontier

path = sys.argv[1]

def files():
    found = (entry.stat() for entry in os.scandir(f"{path}/frontier"))
    return sorted((status.st_ino, status.st_size, status.st_mtime_ns) for status in found)

frontier = open_frontier(path, "spider")
frontier.add(Entry(b"first", payload=b"1"))
frontier.commit()
before = files()
child = os.fork()
if not child:
    sys.exit(3)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
assert files() == before
frontier.add(Entry(b"second", payload=b"2"))
frontier.close()
frontier = open_frontier(path, "spider")
assert frontier.pending == 2
from scrapy_altsched.maintenance.audit import audit
assert audit(frontier._kept.journal) == []
frontier.close()
"""


def test_a_child_that_ends_as_a_program_does_leaves_the_store_alone(tmp_path: Path) -> None:
    run = run_python("-c", FORK, tmp_path)
    assert run.returncode == 0, run.stderr
