"""Pages that kill the process, from their first victim to their second chance."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from scrapy import Request, Spider

from scrapy_altsched.frontier import Entry, Options, Order, Verdict
from scrapy_altsched.frontier.entry import DeadLetter
from scrapy_altsched.frontier.local.frontier import LocalFrontier
from scrapy_altsched.frontier.store.jobdir import FORMAT
from scrapy_altsched.frontier.store.journal import Journal
from scrapy_altsched.maintenance.opening import open_frontier, visit
from scrapy_altsched.maintenance.requeue import dead_requests, requeue
from scrapy_altsched.requests.codec import encode_request, locate

from ..crawls import KILLED, Crawl, altsched, assert_complete
from ..frontiers import (
    OWNER,
    DiskKind,
    lease_from,
    name_of,
    names,
    problems_of,
    stored,
    take,
    take_all,
    work_off,
)
from ..sites import Page, Site

INNOCENTS = [f"/{number}" for number in range(1, 16)]
POISON = "/poison"


@pytest.mark.parametrize("options", [(), ("--all",)])
def test_a_job_of_a_newer_format_is_not_read(tmp_path: Path, options: tuple[str, ...]) -> None:
    open_frontier(tmp_path, OWNER).close()
    identity = json.loads((tmp_path / "altsched.json").read_text())
    (tmp_path / "altsched.json").write_text(json.dumps({**identity, "format": FORMAT + 1}))
    run = altsched("requeue", tmp_path, *options)
    assert run.returncode
    assert f"{tmp_path} was written by a newer scrapy_altsched" in run.stderr
    assert "Traceback" not in run.stderr


@pytest.mark.parametrize(
    ("spider", "arguments"),
    # The second one dies twenty commits after its response was there.
    [("pages", {}), ("late", {"delay": 1})],
    ids=["at once", "late"],
)
def test_of_sixteen_pages_under_way_the_one_that_kills_alone_is_dead_until_it_is_requeued(
    tmp_path: Path, spider: str, arguments: dict[str, int]
) -> None:
    all_are_out, is_over = threading.Event(), threading.Event()
    graph = {path: Page(held=is_over) for path in INNOCENTS}
    graph[POISON] = Page(held=all_are_out)
    graph["/0"] = Page([*INNOCENTS[:7], POISON, *INNOCENTS[7:]])
    settings = {"CONCURRENT_REQUESTS": 16, "CONCURRENT_REQUESTS_PER_DOMAIN": 16}
    with Site(graph) as site:
        crawl = Crawl(tmp_path, spider, f"{site.url}/0", poison=POISON, **arguments)
        process = crawl.start(**settings)
        site.wait_for(lambda site: set(site.hits) == set(graph))
        all_are_out.set()
        process.communicate(timeout=60)
        assert process.returncode == KILLED
        is_over.set()
        kills = 1
        while crawl.run(**settings) == KILLED:
            kills += 1
        # Once among the others, once as the suspect among them, then alone for as often as
        # ALTSCHED_MAX_CRASHES says.
        assert kills == 5
        assert crawl.stat("altsched/dead") == 1
        assert set(crawl.item_paths()) == set(graph) - {POISON}
        assert site.hits[POISON] == 5
        # With it in flight at two deaths; before it is crawled alone, all others are committed.
        assert max(site.hits[path] for path in INNOCENTS) <= 3

        listed = altsched("requeue", crawl.jobdir)
        assert listed.returncode == 0
        assert f"{site.url}{POISON}" in listed.stdout
        assert "the process died 3 times while it alone was being processed" in listed.stdout
        again = altsched("requeue", crawl.jobdir, f"{site.url}{POISON}")
        assert again.returncode == 0, again.stderr
        assert "1 request is pending again; dead: 0" in again.stdout
        assert altsched("check", crawl.jobdir).returncode == 0
        crawl.arguments["poison"] = "none"
        assert crawl.run(**settings) == 0
        assert site.hits[POISON] == 6
        assert_complete(crawl, site, set(graph))
    assert altsched("check", crawl.jobdir).returncode == 0
    assert "There are no dead letters" in altsched("requeue", crawl.jobdir).stdout


# On the store


SPIDER = Spider(OWNER)
FIFO = Options(order=Order("slots", "fifo"))


def page(name: str, host: str = "host.example", **values: int) -> Entry:
    payload = encode_request(Request(f"http://{host}/{name}", **values), SPIDER)
    return Entry(name.encode(), host, payload=payload, **values)


def bury(frontier: LocalFrontier, *wanted: str) -> None:
    """Bury these pages and finish all others."""
    for lease in take_all(frontier):
        if lease.entry.fingerprint.decode() in wanted:
            frontier.dead_letter(lease, DeadLetter("it cannot be crawled"))
        else:
            frontier.finish(lease)


def requeue_in(path: Path, *wanted: str) -> int:
    frontier = visit(path, OWNER, FIFO)
    try:
        dead = dead_requests(frontier.dead())
        chosen = [item for item in dead if not wanted or item.fingerprint.decode() in wanted]
        return requeue(frontier, chosen, locate)
    finally:
        frontier.close()


def test_a_requeued_request_is_pending_and_still_seen(disk: DiskKind) -> None:
    frontier = disk.open(FIFO)
    for name in "abcd":
        frontier.add(page(name))
    bury(frontier, "b", "c")
    frontier.close()
    assert requeue_in(disk.path, "b") == 1
    frontier = disk.open(FIFO)
    counts = frontier.counts()
    assert (counts.pending, counts.dead, counts.done, counts.unaccounted) == (1, 1, 2, 0)
    assert problems_of(frontier) == []
    assert frontier.add(page("b")) is Verdict.SEEN
    assert work_off(frontier) == ["b"]
    disk.verify()


def test_requeued_requests_keep_their_priorities_and_slots(disk: DiskKind) -> None:
    frontier = disk.open(FIFO)
    for number, name in enumerate("abcdef"):
        frontier.add(page(name, f"host{number % 2}.example", priority=number // 2))
    bury(frontier, *"abcdef")
    frontier.close()
    assert requeue_in(disk.path) == 6
    frontier = disk.open(FIFO)
    frontier.add(page("g", "host0.example", priority=1))
    assert problems_of(frontier) == []
    busy = {"host1.example": 1}
    quiet = [name_of(lease) for _ in range(4) if (lease := lease_from(frontier, busy)) is not None]
    assert quiet == ["e", "c", "g", "a"]
    assert names(take_all(frontier)) == ["f", "d", "b"]
    disk.verify()


def test_a_finished_job_is_unfinished_when_a_request_is_requeued(disk: DiskKind) -> None:
    frontier = disk.open(FIFO)
    frontier.add(page("a"))
    bury(frontier, "a")
    frontier.close(finished=True)
    assert requeue_in(disk.path) == 1
    frontier = disk.open(FIFO)
    assert frontier.job.resumed
    assert work_off(frontier) == ["a"]
    disk.verify()


@pytest.mark.parametrize(
    "order",
    [Order("one", "fifo"), Order("slots", "lifo"), Order("one", "lifo", None)],
    ids=str,
)
def test_a_job_whose_order_has_changed_since_can_be_requeued(disk: DiskKind, order: Order) -> None:
    frontier = disk.open(FIFO)
    for name in "abc":
        frontier.add(page(name, priority=ord(name)))
    bury(frontier, *"abc")
    frontier.close()
    disk.open(Options(order=order)).close()
    assert requeue_in(disk.path) == 3
    frontier = disk.open(Options(order=order))
    assert problems_of(frontier) == []
    assert work_off(frontier) == ["c", "b", "a"]
    disk.verify()


def test_a_requeue_has_its_crashes_forgotten(disk: DiskKind) -> None:
    frontier = disk.open(FIFO)
    frontier.add(page("a"))
    frontier.commit()
    for _ in range(5):
        frontier.run.note_response(take(frontier))
        disk.crash(frontier)
        frontier = disk.open(FIFO)
    assert lease_from(frontier) is None
    assert frontier.counts().dead == 1
    frontier.close()
    requeue_in(disk.path)
    for _ in range(5):
        frontier = disk.open(FIFO)
        frontier.run.note_response(take(frontier))
        disk.crash(frontier)
    frontier = disk.open(FIFO)
    assert lease_from(frontier) is None
    assert frontier.counts().dead == 1
    disk.verify()


def test_a_requeue_after_a_change_of_order_that_was_cut_short_takes_no_rows_of_it(
    disk: DiskKind,
) -> None:
    frontier = disk.open(FIFO)
    frontier.add(page("a"))
    bury(frontier, "a")
    frontier.close()
    journal = Journal(disk.path, OWNER)
    counters = journal.counters()
    orphan = counters.next_slot.to_bytes(8, "big") + FIFO.order.encode(0, False, 99)
    journal.write(stored(replace(counters), (orphan, b"\0\x01x")))
    journal.close()
    requeue_in(disk.path)
    frontier = disk.open(FIFO)
    assert problems_of(frontier) == []
    assert work_off(frontier) == ["a"]
    disk.verify()


# The command


@pytest.fixture
def job(disk: DiskKind) -> Path:
    """A job with two dead letters, one of which lived in memory only."""
    frontier = disk.open(FIFO)
    frontier.add(page("a-fingerprint"))
    frontier.add(Entry(b"b-fingerprint", "host.example", request="an object"))
    bury(frontier, "a-fingerprint", "b-fingerprint")
    frontier.close()
    return disk.path


def test_the_dead_are_listed_with_reason_and_url(job: Path) -> None:
    run = altsched("requeue", job)
    assert run.returncode == 0, run.stderr
    assert "http://host.example/a-fingerprint" in run.stdout
    assert b"b-fingerprint".hex() in run.stdout
    assert "lived in memory only" in run.stdout
    assert run.stdout.count("it cannot be crawled") == 2


def test_all_that_can_be_crawled_again_is_requeued_by_all(job: Path) -> None:
    run = altsched("requeue", job, "--all")
    assert "1 request is pending again; dead: 1" in run.stdout
    assert "1 request is pending again" not in altsched("requeue", job, "--all").stdout


def test_a_request_is_named_by_its_url_or_the_first_digits_of_its_fingerprint(job: Path) -> None:
    run = altsched("requeue", job, b"a-fing".hex())
    assert "1 request is pending again" in run.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["http://host.example/nowhere"], "there is no dead letter named"),
        ([b"b-fingerprint".hex()], "nothing whole is stored of it"),
        (["http://host.example/a-fingerprint", "--all"], "not both"),
    ],
)
def test_what_cannot_be_requeued_is_refused_in_one_sentence(
    job: Path, arguments: list[str], message: str
) -> None:
    run = altsched("requeue", job, *arguments)
    assert run.returncode == 2
    assert message in run.stderr
    assert "Traceback" not in run.stderr


def test_a_job_of_a_running_crawl_is_listed(disk: DiskKind, job: Path) -> None:
    frontier = disk.open(FIFO)
    assert "a-fingerprint" in altsched("requeue", job).stdout
    frontier.close()


def test_the_usage_says_that_a_job_or_a_shared_crawl_is_required() -> None:
    run = altsched("requeue")
    assert run.returncode == 2
    assert "name a JOBDIR, or a crawl with --shared KEY\n" in run.stderr
