"""What other code reaches for: the scheduler's parts, arguments, stats and log lines."""

from __future__ import annotations

import importlib.util
import inspect
import json
import re
import shutil
import signal
import threading
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from scrapy import Request
from scrapy.core.scheduler import Scheduler as StockScheduler
from scrapy.dupefilters import BaseDupeFilter, RFPDupeFilter
from scrapy.http import Response
from scrapy.signals import response_received
from scrapy.squeues import FifoMemoryQueue, PickleFifoDiskQueue
from scrapy.utils.misc import load_object
from twisted.internet.defer import Deferred

from scrapy_altsched import DupeFilter, Scheduler
from scrapy_altsched.frontier import Entry, Verdict
from scrapy_altsched.frontier.local.frontier import LocalFrontier
from scrapy_altsched.maintenance.opening import open_frontier

from ..crawls import ONE_BY_ONE, STOCK, Crawl
from ..engines import ONE, OURS, SLOTS, StandIn
from ..frontiers import lease_from
from ..sites import Page, Site, random_graph
from .test_neighbours import Outcome, both, once, pair, run_with

STOCK_SCHEDULER = "scrapy.core.scheduler.Scheduler"
#: Whatever is asked of ours is asked of Scrapy's own too: the test says what is so with both.
BOTH = pytest.mark.parametrize("classes", [OURS, {}], ids=["ours", "stock"])
ON_DISK = pytest.mark.parametrize("on_disk", [True, False], ids=["disk", "memory"])


def open_scheduler(classes: dict[str, Any], jobdir: Path | None, **settings: Any) -> StandIn:
    own = {"JOBDIR": str(jobdir)} if jobdir is not None else {}
    stand_in = StandIn({**classes, **own, **settings})
    assert isinstance(stand_in.scheduler, Scheduler if classes else StockScheduler)
    return stand_in


def page(path: object, **arguments: Any) -> Request:
    return Request(f"http://host.example/{path}", **arguments)


# Its parts


@BOTH
@ON_DISK
def test_its_parts_are_where_other_code_looks(
    tmp_path: Path, classes: dict[str, Any], on_disk: bool
) -> None:
    stand_in = open_scheduler(classes, tmp_path / "job" if on_disk else None)
    scheduler = stand_in.scheduler
    assert scheduler.spider is stand_in.spider
    assert scheduler.stats is stand_in.crawler.stats
    assert scheduler.crawler is stand_in.crawler
    assert isinstance(scheduler.df, BaseDupeFilter)
    assert (scheduler.dqdir is not None) is on_disk
    if on_disk:
        assert Path(scheduler.dqdir).is_dir()
        assert tmp_path / "job" in Path(scheduler.dqdir).parents
    assert (scheduler.dqs is not None) is on_disk
    assert not scheduler.has_pending_requests()
    for number in range(3):
        assert scheduler.enqueue_request(page(number))
    assert len(scheduler) == 3
    assert scheduler.has_pending_requests()
    assert len(scheduler.dqs or []) == (3 if on_disk else 0)
    assert len(scheduler.mqs) == (0 if on_disk else 3)
    queue = scheduler.dqs if on_disk else scheduler.mqs
    assert queue.pop().url.endswith("/2")
    assert len(queue) == len(scheduler) == 2
    assert scheduler.next_request().url.endswith("/1")
    assert queue.pop().url.endswith("/0")
    assert queue.pop() is None
    assert len(queue) == len(scheduler) == 0
    assert not queue
    assert not scheduler.has_pending_requests()
    scheduler.close("finished")


@BOTH
def test_unserializable_requests_are_in_the_memory_queue(
    tmp_path: Path, classes: dict[str, Any]
) -> None:
    scheduler = open_scheduler(classes, tmp_path / "job").scheduler
    scheduler.enqueue_request(page(1))
    scheduler.enqueue_request(page(2, callback=lambda response: None))
    assert (len(scheduler.dqs), len(scheduler.mqs), len(scheduler)) == (1, 1, 2)
    scheduler.close("finished")


@BOTH
def test_a_queue_can_be_deleted(tmp_path: Path, classes: dict[str, Any]) -> None:
    scheduler = open_scheduler(classes, tmp_path / "job").scheduler
    scheduler.enqueue_request(page(1))
    del scheduler.dqs
    assert not hasattr(scheduler, "dqs")
    # As Scrapy's own tests have it: whoever closes then is to hear of it.
    with pytest.raises(AttributeError):
        scheduler.close("finished")


def test_what_was_accepted_is_saved_though_a_queue_was_deleted(tmp_path: Path) -> None:
    scheduler = open_scheduler(OURS, tmp_path / "job").scheduler
    scheduler.enqueue_request(page(1))
    del scheduler.dqs
    with pytest.raises(AttributeError):
        scheduler.close("shutdown")
    again = open_scheduler(OURS, tmp_path / "job").scheduler
    assert len(again) == 1
    again.close("finished")


# Opening and closing


class WaitingFilter(RFPDupeFilter):
    """Answers later."""

    opened: Deferred[None]
    closed: Deferred[None]

    def open(self) -> Deferred[None]:
        return self.opened

    def close(self, reason: str) -> Deferred[None]:  # type: ignore[override]
        return self.closed


@BOTH
def test_opening_and_closing_hand_on_what_the_filter_returns(
    tmp_path: Path, classes: dict[str, Any]
) -> None:
    WaitingFilter.opened, WaitingFilter.closed = Deferred(), Deferred()
    for dupefilter, opened, closed in (
        (WaitingFilter, WaitingFilter.opened, WaitingFilter.closed),
        (RFPDupeFilter, None, None),
        (DupeFilter, None, None),
    ):
        stand_in = StandIn({**classes, "DUPEFILTER_CLASS": dupefilter})
        stand_in.scheduler.close("finished")
        assert stand_in.scheduler.open(stand_in.spider) is opened
        assert stand_in.scheduler.close("finished") is closed


def test_a_crawl_waits_for_a_filter_that_needs_time(tmp_path: Path) -> None:
    for outcome in pair(
        tmp_path,
        "pages",
        random_graph(10, 1, 21),
        DUPEFILTER_CLASS="crashsite.filters.Slow",
        REPORT="opened,received",
    ):
        lines = outcome.crawl.output.splitlines()
        assert lines == ["filter opened", "opened", *["received"] * 10, "filter closed"]


# Made by hand


def test_its_arguments_are_those_of_scrapys_own() -> None:
    ours, stock = (
        [
            (item.name, item.kind, item.default)
            for item in inspect.signature(kind).parameters.values()
        ]
        for kind in (Scheduler, StockScheduler)
    )
    assert ours == stock


@pytest.mark.parametrize("scheduler_class", [Scheduler, StockScheduler], ids=["ours", "stock"])
@ON_DISK
def test_arguments_count_more_than_settings_by_position_too(
    tmp_path: Path, scheduler_class: type[Any], on_disk: bool
) -> None:
    stand_in = StandIn(OURS)
    dupefilter = RFPDupeFilter()
    scheduler = scheduler_class(
        dupefilter,
        str(tmp_path / "job") if on_disk else None,
        PickleFifoDiskQueue,
        FifoMemoryQueue,
        True,
        stand_in.crawler.stats,
        load_object(ONE),
        stand_in.crawler,
    )
    assert scheduler.df is dupefilter
    scheduler.open(stand_in.spider)
    for number in range(3):
        scheduler.enqueue_request(page(number))
    assert [scheduler.next_request().url[-1] for _ in range(3)] == ["0", "1", "2"]
    assert scheduler.next_request() is None
    assert stand_in.stat("scheduler/dequeued/disk") == (3 if on_disk else None)
    scheduler.close("finished")


def test_a_crawl_with_a_subclass_is_that_of_the_same_subclass_of_scrapys_own(
    tmp_path: Path,
) -> None:
    graph = random_graph(40, 2, 22)
    ours = run_with(
        {},
        tmp_path / "ours",
        "pages",
        Site(graph),
        SCHEDULER="crashsite.schedulers.Choosy",
        **ONE_BY_ONE,
    )
    stock = run_with(
        STOCK,
        tmp_path / "stock",
        "pages",
        Site(graph),
        SCHEDULER="crashsite.schedulers.StockChoosy",
        **ONE_BY_ONE,
    )
    assert ours.order == stock.order
    assert ours.stats == stock.stats
    assert ours.stats[0]["choosy/handed out"] == str(len(ours.order))
    assert not [path for path in ours.hits if path.endswith("3")]
    # A project's own class is what it asked for: nothing to warn of.
    assert "is used instead of" not in ours.logs[0]


def test_a_crawl_with_a_subclass_is_resumed_after_a_kill(tmp_path: Path) -> None:
    graph = {f"/{number}": Page([f"/{number + 1}", f"/{number + 3}"]) for number in range(30)}
    choosy = {"SCHEDULER": "crashsite.schedulers.Choosy"}
    with Site(lambda path, before: graph.get(path, Page())) as site:
        crawl = Crawl(tmp_path, "pages", f"{site.url}/0")
        assert crawl.run(KILL_AT=9, KILL_ON="item", **choosy) == -signal.SIGKILL
        assert crawl.run(**choosy) == 0
        reached = {path for path in site.hits if not path.endswith("3")}
        assert set(site.hits) == reached
        assert set(crawl.item_paths()) == reached
        assert len(reached) > 20
        assert "is finished" in crawl.log


# A running engine


def test_the_telnet_consoles_status_is_as_with_scrapys_own(tmp_path: Path) -> None:
    shown = []
    for outcome in pair(
        tmp_path,
        "pages",
        random_graph(20, 3, 23),
        in_order=True,
        EXTENSIONS='{"crashsite.observers.Status": 1}',
    ):
        lines = [json.loads(line) for line in outcome.crawl.output.splitlines()]
        assert len(lines) == 20
        for line in lines:
            assert not [value for value in line.values() if "exception" in str(value)]
            queues = [value for name, value in line.items() if "dqs" in name or "mqs" in name]
            assert len(queues) == 2
            assert sum(queues) == line["pending"]
            line.pop("time()-engine.start_time")
        assert max(line["pending"] for line in lines) > 3
        shown.append(lines)
    assert {line.pop("scheduler") for line in shown[0]} == {"scrapy_altsched.scheduler"}
    assert {line.pop("scheduler") for line in shown[1]} == {"scrapy.core.scheduler"}
    assert shown[0] == shown[1]


if importlib.util.find_spec("scrapy.extensions.remote_control") is not None:  # new in Scrapy 2.19

    def test_the_remote_control_reaches_the_scheduler(tmp_path: Path) -> None:
        jobs = tmp_path / "remote"
        with Site({"/0": Page(["/1"]), "/1": Page()}) as site:
            crawl = Crawl(tmp_path, "waiting", f"{site.url}/0")
            process = crawl.start(REMOTE_CONTROL_JOBS_DIR=jobs, REPORT="idle")
            assert process.stdout is not None
            assert process.stdout.readline() == "idle\n"
            (job,) = [json.loads(path.read_text()) for path in jobs.iterdir()]
            code = (
                "from scrapy import Request\n"
                "scheduler = crawler.engine.scheduler\n"
                "print(type(scheduler).__module__, len(scheduler), scheduler.dqs is None)\n"
                "crawler.engine.crawl(Request(crawler.spider.url + '?again'))\n"
                "print(len(scheduler))\n"
            )
            request = urllib.request.Request(
                f"http://127.0.0.1:{job['port']}/execute",
                json.dumps({"code": code}).encode(),
                {"Authorization": f"Bearer {job['token']}", "Content-Type": "application/json"},
            )
            with urllib.request.urlopen(request, timeout=60) as response:
                answer = json.load(response)
            assert answer["status"] == "ok", answer
            assert answer["output"] == "scrapy_altsched.scheduler 0 False\n1\n"
            site.wait_for(lambda site: site.hits["/0?again"])
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
            assert "'altsched/done': 3" in crawl.log


# Stats and log lines


def said(outcome: Outcome) -> list[str]:
    """What the loggers of Scrapy's scheduler and filter logged, but for ports and addresses."""
    lines = []
    for log in outcome.logs:
        lines += re.findall(r" \[(scrapy\.(?:core\.scheduler|dupefilters)\] .+)", log)
        # The last line of a traceback that follows a log line.
        lines += re.findall("^ValueError: .+", log, re.MULTILINE)
    lines = [re.sub(r"127\.0\.0\.1:\d+", "SITE", line) for line in lines]
    return [re.sub("0x[0-9a-f]+", "ADDRESS", line) for line in lines]


UNSERIALIZABLE = "scrapy.core.scheduler] WARNING: Unable to serialize request: <GET http://SITE/5>"


@pytest.mark.parametrize("debug", [False, True])
def test_stats_and_log_lines_are_those_of_scrapys_own(tmp_path: Path, debug: bool) -> None:
    ours, stock = pair(
        tmp_path,
        "mixed",
        {f"/{number}": Page() for number in range(7)},
        start="",
        LOG_LEVEL="DEBUG",
        DUPEFILTER_DEBUG=debug,
        SCHEDULER_DEBUG=debug,
    )
    # pair() has compared all stats; these are the ones that must not be missing in both.
    stats = ours.stats[0]
    assert stats["scheduler/enqueued"] == stats["scheduler/dequeued"] == "7"
    assert stats["scheduler/enqueued/memory"] == stats["scheduler/dequeued/memory"] == "2"
    assert stats["scheduler/unserializable"] == "2"
    assert stats["dupefilter/filtered"] == "3"
    lines = said(ours)
    assert sum("Filtered duplicate request" in line for line in lines) == (3 if debug else 1)
    assert sum(line.startswith(UNSERIALIZABLE) for line in lines) == 1
    if not debug:
        # The one line that Scrapy's own has only with SCHEDULER_DEBUG: here it means that a
        # request would not survive a crash.
        lines = [line for line in lines if not line.startswith(UNSERIALIZABLE)]
    assert lines == said(stock)


def test_stats_and_log_lines_of_a_resumed_job_are_those_of_scrapys_own(tmp_path: Path) -> None:
    ours, stock = pair(
        tmp_path,
        "pages",
        random_graph(30, 3, 24),
        runs=({"CLOSESPIDER_PAGECOUNT": 9}, {}),
        in_order=True,
        LOG_LEVEL="DEBUG",
        DUPEFILTER_DEBUG=True,
        SCHEDULER_DEBUG=True,
    )
    resumptions = [line for line in said(ours) if "Resuming crawl" in line]
    assert len(resumptions) == 1
    lines = said(stock)
    # The start request, which a resumed job skips.
    lines.remove(
        "scrapy.dupefilters] DEBUG: Filtered duplicate request: <GET http://SITE/0> (referer: None)"
    )
    assert said(ours) == lines


# Filters and fingerprinters of others

FILTERS = {
    "scrapy.dupefilters.RFPDupeFilter": 5,
    "scrapy.dupefilters.BaseDupeFilter": 7,
    "scrapy_altsched.DupeFilter": 5,
    "crashsite.filters.OnStock": 3,
    "crashsite.filters.OnBase": 3,
    "crashsite.filters.OnOurs": 3,
    "crashsite.filters.OnOurFingerprint": 3,
}


def queries(path: str, before: int) -> Page:
    """/1 is linked to four times, under three names."""
    links = {"/0": ["/1?a", "/1?b", "/2", "/1?a"], "/2": ["/1?c", "/1?a"]}
    return Page(links.get(path, []))


@pytest.mark.parametrize("name", FILTERS)
def test_each_filter_is_asked_by_both_schedulers(tmp_path: Path, name: str) -> None:
    ours = both(
        tmp_path,
        "pages",
        queries,
        stock={"SCHEDULER": STOCK_SCHEDULER},
        in_order=True,
        DUPEFILTER_CLASS=name,
    )
    assert ours.hits.total() == FILTERS[name]


@pytest.mark.parametrize("name", ["crashsite.filters.OnOurs", "crashsite.filters.OnOurFingerprint"])
def test_a_filter_on_top_of_ours_loses_nothing_in_a_kill(tmp_path: Path, name: str) -> None:
    graph = random_graph(40, 3, 25)

    def pages(path: str, before: int) -> Page:
        origin = path.partition("?")[0]
        return Page([f"{link}?from={origin[1:]}" for link in graph[origin].links])

    with Site(pages) as site:
        crawl = Crawl(tmp_path, "pages", f"{site.url}/0")
        own = {"DUPEFILTER_CLASS": name}
        assert crawl.run(KILL_AT=15, KILL_ON="item", **own) == -signal.SIGKILL
        assert crawl.run(**own) == 0
        assert "is finished" in crawl.log
        assert {path.partition("?")[0] for path in site.hits} == set(graph)
        assert {path.partition("?")[0] for path in crawl.item_paths()} == set(graph)
        # Only what was under way when the process died came twice.
        assert site.hits.total() < 2 * len(graph)


@pytest.mark.parametrize("length", ["Short", "Long"])
def test_fingerprints_of_a_projects_own_are_used(tmp_path: Path, length: str) -> None:
    graph = random_graph(30, 3, 26)
    ours = both(
        tmp_path,
        "pages",
        graph,
        runs=({"CLOSESPIDER_PAGECOUNT": 9}, {}),
        in_order=True,
        REQUEST_FINGERPRINTER_CLASS=f"crashsite.fingerprinters.{length}",
    )
    assert ours.hits == once(*graph)


class LongFingerprinter:
    """Makes fingerprints longer than a key of the store may be."""

    def fingerprint(self, request: Request) -> bytes:
        return b"x" * 300 + request.url.encode()


@BOTH
@pytest.mark.parametrize("dupefilter", [RFPDupeFilter, BaseDupeFilter, DupeFilter])
def test_long_fingerprints_go_with_every_filter(
    tmp_path: Path, classes: dict[str, Any], dupefilter: type[BaseDupeFilter]
) -> None:
    own = {"DUPEFILTER_CLASS": dupefilter, "REQUEST_FINGERPRINTER_CLASS": LongFingerprinter}
    stand_in = open_scheduler(classes, tmp_path / "job", **own)
    answers = [stand_in.scheduler.enqueue_request(page(name)) for name in "aab"]
    assert answers == [True, dupefilter is BaseDupeFilter, True]
    urls = [request.url[-1] for request in iter(stand_in.next, None)]
    assert urls == (["b", "a", "a"] if answers[1] else ["b", "a"])
    for request in list(stand_in.engine._slot.inprogress):
        stand_in.engine.end(request)
    stand_in.scheduler.close("finished")


# Nothing to give, though something is pending


def test_a_spider_stays_open_while_what_is_pending_must_wait(tmp_path: Path) -> None:
    released = threading.Event()

    def pages(path: str, before: int) -> Page:
        return Page(held=released if before else None)

    with Site(pages) as site:
        crawl = Crawl(tmp_path, "holding", site.url, count=3, hold=1)
        killed = crawl.start(ALTSCHED_COMMIT_EVERY=1)
        assert killed.stdout is not None
        assert [killed.stdout.readline() for _ in range(3)] == ["holding\n"] * 3
        crawl.kill(killed)
        crawl.arguments["hold"] = 0
        # Each of the three may be what killed the process: they are tried one by one.
        process = crawl.start(EXTENSIONS='{"crashsite.observers.EmptyHanded": 1}')
        assert process.stdout is not None
        site.wait_for(lambda site: site.hits.total() == 4)
        assert process.stdout.readline() == "empty-handed True\n"
        assert site.hits.total() == 4
        released.set()
        assert process.communicate(timeout=60)[0].endswith("empty-handed False\n")
        assert process.returncode == 0
        assert site.hits == {f"/{number}": 2 for number in range(3)}
        assert sorted(crawl.item_paths()) == ["/0", "/1", "/2"]
        assert "is finished" in crawl.log


def test_what_must_wait_is_pending_though_there_is_nothing_to_give(tmp_path: Path) -> None:
    first = open_scheduler(OURS, tmp_path / "job")
    for number in range(2):
        first.scheduler.enqueue_request(page(number))
    assert first.scheduler.checkpoint()
    for _ in range(2):
        request = first.next()
        response = Response("http://host.example/", request=request)
        first.crawler.signals.send_catch_log(
            response_received, response=response, request=request, spider=first.spider
        )
    shutil.copytree(tmp_path / "job", tmp_path / "killed")
    first.scheduler.close("shutdown")
    second = open_scheduler(OURS, tmp_path / "killed")
    alone = second.next()
    assert alone is not None
    assert second.next() is None
    assert second.scheduler.has_pending_requests()
    assert len(second.scheduler) == 1
    second.engine.end(alone)
    last = second.next()
    assert last is not None
    assert not second.scheduler.has_pending_requests()
    second.engine.end(last)
    second.scheduler.close("finished")


# Limits


@BOTH
@ON_DISK
def test_limits_per_ip_do_not_go_with_slots(
    tmp_path: Path, classes: dict[str, Any], on_disk: bool
) -> None:
    own = {"CONCURRENT_REQUESTS_PER_IP": 2, "SCHEDULER_PRIORITY_QUEUE": SLOTS}
    with pytest.raises(ValueError, match="does not support CONCURRENT_REQUESTS_PER_IP"):
        open_scheduler(classes, tmp_path / "job" if on_disk else None, **own)


@BOTH
@ON_DISK
def test_limits_per_ip_go_with_one_queue(
    tmp_path: Path, classes: dict[str, Any], on_disk: bool
) -> None:
    own = {"CONCURRENT_REQUESTS_PER_IP": 2, "SCHEDULER_PRIORITY_QUEUE": ONE}
    stand_in = open_scheduler(classes, tmp_path / "job" if on_disk else None, **own)
    stand_in.scheduler.enqueue_request(page(1))
    assert stand_in.scheduler.next_request().url.endswith("/1")
    stand_in.scheduler.close("finished")


@pytest.mark.long
def test_a_hundred_thousand_slots_need_no_file_each(tmp_path: Path) -> None:
    slots = 100_000

    def fill(frontier: LocalFrontier, name: str, count: int) -> None:
        for number in range(count):
            for half in "ab":
                fingerprint = f"{name}{number}{half}".encode()
                entry = Entry(fingerprint, f"{name}{number}.example", payload=fingerprint)
                assert frontier.add(entry) is Verdict.ADDED
            if frontier.pressure.changes >= 2_000:
                frontier.commit()
        frontier.commit()

    def open_files() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    frontier = open_frontier(tmp_path / "job", "spider")
    fill(frontier, "few", 100)
    few = open_files()
    fill(frontier, "many", slots - 100)
    frontier.close()
    frontier = open_frontier(tmp_path / "job", "spider")
    assert frontier.pending == 2 * slots
    given: set[bytes] = set()
    total = 0
    while (lease := lease_from(frontier)) is not None:
        given.add(lease.entry.fingerprint)
        total += 1
        frontier.finish(lease)
        if not total % 5_000:
            frontier.commit()
            # Tables of the store come and go as it merges them.
            assert open_files() <= few + 20
    assert len(given) == total == 2 * slots
    assert frontier.counts().done == total
    assert [path for path in (tmp_path / "job").rglob("*") if path.is_dir()] == [
        tmp_path / "job" / "frontier"
    ]
    frontier.close(finished=True)
