"""The scheduler, driven by calls, beside Scrapy's own."""

from __future__ import annotations

import logging
import os
import resource
import shutil
import tempfile
import time
import weakref
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scrapy import Request, pqueues, signals
from scrapy.core.scheduler import Scheduler as StockScheduler
from scrapy.dupefilters import RFPDupeFilter
from scrapy.exceptions import DontCloseSpider
from twisted.python.failure import Failure

from scrapy_altsched import Scheduler
from scrapy_altsched.crawl import committer
from scrapy_altsched.errors import StoreDamagedError, StoreError
from scrapy_altsched.frontier import Counts
from scrapy_altsched.frontier.local import uncommitted
from scrapy_altsched.frontier.store.journal import Journal
from scrapy_altsched.frontier.store.store import Store
from scrapy_altsched.maintenance.opening import open_frontier
from scrapy_altsched.signals import frontier_committed, frontier_committing

from ..disks import stalled
from ..engines import ONE, OURS, SLOTS, Engine, StandIn
from ..frontiers import journal_of, problems_of
from ..stores import BY_ENGINE

QUEUES = {
    "lifo": ("scrapy.squeues.PickleLifoDiskQueue", "scrapy.squeues.LifoMemoryQueue"),
    "fifo": ("scrapy.squeues.PickleFifoDiskQueue", "scrapy.squeues.FifoMemoryQueue"),
    None: (None, None),
}
#: Scrapy's slot policy takes turns by name since 2.15; before, the first name always won.
TAKES_TURNS = hasattr(pqueues.DownloaderAwarePriorityQueue, "_next_slot")

STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("enqueue"),
            st.integers(0, 4),  # host
            st.integers(0, 30),  # page
            st.sampled_from([0, 0, 0, 1, -1, 10**30]),  # priority
            st.booleans(),  # dont_filter
            st.booleans(),  # start request
            st.sampled_from([None, None, "own"]),  # download_slot
        ),
        st.tuples(st.just("next")),
        st.tuples(st.just("download"), st.integers(0, 20)),
        st.tuples(st.just("end"), st.integers(0, 20)),
    ),
    max_size=200,
)
#: How often each of the differential tests is run; ALTSCHED_EXAMPLES=500 makes 2,000 in all.
EXAMPLES = int(os.environ.get("ALTSCHED_EXAMPLES", "60"))


@pytest.mark.parametrize("on_disk", [False, True])
@pytest.mark.parametrize("policy", [ONE, SLOTS] if TAKES_TURNS else [ONE])
@given(
    steps=STEPS,
    normal=st.sampled_from(["lifo", "fifo"]),
    start=st.sampled_from(["lifo", "fifo", None]),
)
@settings(max_examples=EXAMPLES, deadline=None)
def test_every_answer_is_that_of_scrapys_own_scheduler(
    on_disk: bool, policy: str, steps: list[Any], normal: str, start: str | None
) -> None:
    common = {
        "SCHEDULER_PRIORITY_QUEUE": policy,
        "SCHEDULER_DISK_QUEUE": QUEUES[normal][0],
        "SCHEDULER_MEMORY_QUEUE": QUEUES[normal][1],
        "SCHEDULER_START_DISK_QUEUE": QUEUES[start][0],
        "SCHEDULER_START_MEMORY_QUEUE": QUEUES[start][1],
    }
    directory = Path(tempfile.mkdtemp())
    try:
        if on_disk:
            common["JOBDIR"] = str(directory / "stock")
        stock = StandIn(common)
        if on_disk:
            common["JOBDIR"] = str(directory / "ours")
        ours = StandIn({**common, **OURS})
        assert type(stock.scheduler) is StockScheduler
        assert type(ours.scheduler) is Scheduler
        drive(stock, ours, steps)
        for stand_in in (stock, ours):
            stand_in.scheduler.close("finished")
    finally:
        shutil.rmtree(directory)


def drive(stock: StandIn, ours: StandIn, steps: list[Any]) -> None:
    under_way: list[tuple[Request, Request]] = []
    for step in [*steps, *[("next",)] * len(steps)]:
        if step[0] == "enqueue":
            _, host, page, priority, dont_filter, is_start, slot = step
            answers = []
            for stand_in in (stock, ours):
                meta = {"is_start_request": True} if is_start else {}
                if slot:
                    meta["download_slot"] = slot
                request = Request(
                    f"http://host{host}.example/{page}",
                    priority=priority,
                    dont_filter=dont_filter,
                    meta=meta,
                )
                answers.append(stand_in.scheduler.enqueue_request(request))
            assert answers[0] == answers[1]
        elif step[0] == "next":
            first, second = stock.next(), ours.next()
            assert (first is None) == (second is None)
            if first is not None and second is not None:
                assert (first.url, first.priority) == (second.url, second.priority)
                assert first.meta == second.meta
                under_way.append((first, second))
        elif under_way:
            pair = under_way[step[1] % len(under_way)]
            for stand_in, request in zip((stock, ours), pair, strict=True):
                (stand_in.engine.end if step[0] == "end" else stand_in.engine.download)(request)
            if step[0] == "end":
                under_way.remove(pair)
        assert len(stock.scheduler) == len(ours.scheduler)
        assert stock.scheduler.has_pending_requests() == ours.scheduler.has_pending_requests()
    for name in ("enqueued", "enqueued/disk", "enqueued/memory", "dequeued", "dequeued/disk"):
        assert stock.stat(f"scheduler/{name}") == ours.stat(f"scheduler/{name}")
    assert stock.stat("dupefilter/filtered") == ours.stat("dupefilter/filtered")


def crash_image(jobdir: Path, copy: Path) -> Counts:
    """What a resumed job would find if the process died now."""
    shutil.copytree(jobdir, copy)
    frontier = open_frontier(copy, "spider")
    try:
        assert problems_of(frontier) == []
        return frontier.counts()
    finally:
        frontier.close()


def page(path: object, **arguments: Any) -> Request:
    return Request(f"http://host.example/{path}", **arguments)


def test_a_commit_inside_next_request_does_not_finish_what_was_just_leased(
    tmp_path: Path,
) -> None:
    settings = {**OURS, "JOBDIR": str(tmp_path / "job"), "ALTSCHED_COMMIT_EVERY": 1}
    stand_in = StandIn(settings)
    for number in range(3):
        stand_in.scheduler.enqueue_request(page(number))
    first = stand_in.next()
    second = stand_in.next()
    assert first is not None
    assert second is not None
    stand_in.scheduler.checkpoint()
    assert crash_image(tmp_path / "job", tmp_path / "a").pending == 3
    stand_in.engine.end(first)
    third = stand_in.next()
    assert third is not None
    stand_in.scheduler.checkpoint()
    image = crash_image(tmp_path / "job", tmp_path / "b")
    assert (image.pending, image.done) == (2, 1)
    stand_in.scheduler.close("shutdown")


def test_a_page_that_ends_as_another_component_downloads_something_is_found_done(
    tmp_path: Path,
) -> None:
    """As many requests are in the engine then as before."""
    settings = {**OURS, "JOBDIR": str(tmp_path / "job")}
    killed = StandIn(settings)
    for number in range(3):
        killed.scheduler.enqueue_request(page(number))
    assert killed.next() is not None
    killed.scheduler.checkpoint()
    killed.scheduler._session.frontier.abandon()
    stand_in = StandIn(settings)
    taken = []
    # Some page may have killed the process, and is to be alone until it is done.
    for _ in range(3):
        request = stand_in.next()
        assert request is not None
        taken.append(request)
        if len(taken) < 3:
            another = Request("http://host.example/robots.txt")
            stand_in.engine._slot.inprogress.add(another)
            stand_in.engine.end(request)
    assert len({request.url for request in taken}) == 3
    stand_in.engine._slot.inprogress.clear()
    stand_in.engine._slot.inprogress.add(Request("http://host.example/sitemap.xml"))
    stand_in.scheduler.enqueue_request(page(3))
    stand_in.scheduler.checkpoint()
    image = crash_image(tmp_path / "job", tmp_path / "image")
    assert (image.pending, image.done) == (1, 3)
    stand_in.scheduler.close("shutdown")


def test_an_object_that_was_scheduled_twice_is_done_twice() -> None:
    stand_in = StandIn(OURS)
    request = page(1, dont_filter=True)
    for _ in range(2):
        stand_in.scheduler.enqueue_request(request)
    assert [stand_in.next(), stand_in.next()] == [request, request]
    assert stand_in.scheduler._session.frontier.counts() == Counts(
        2, leased=2, memory_only=2, seen=0
    )
    stand_in.engine.end(request)
    assert stand_in.next() is None
    assert stand_in.scheduler._session.frontier.counts() == Counts(2, done=2, seen=0)
    stand_in.scheduler.close("finished")


def test_the_spider_gets_copies_with_a_jobdir(tmp_path: Path) -> None:
    stand_in = StandIn({**OURS, "JOBDIR": str(tmp_path / "job")})
    request = page(1, meta={"list": [1]})
    stand_in.scheduler.enqueue_request(request)
    request.meta["list"].append(2)
    copy = stand_in.next()
    assert copy is not None
    assert copy is not request
    assert copy.meta["list"] == [1]
    stand_in.scheduler.close("finished")


@pytest.mark.parametrize("changed", [False, True])
def test_what_nobody_else_holds_is_handed_out_as_it_was_added(
    tmp_path: Path, changed: bool
) -> None:
    stand_in = StandIn({**OURS, "JOBDIR": str(tmp_path / "job")})
    request: Request | None = page(1, meta={"depth": 1})
    assert request is not None
    stand_in.scheduler.enqueue_request(request)
    seen_as = weakref.ref(request)
    if changed:
        request.meta["depth"] = 2
    request = None
    taken = stand_in.next()
    assert taken is not None
    assert taken.meta["depth"] == 1
    assert (taken is seen_as()) is not changed
    stand_in.scheduler.close("shutdown")


def test_a_request_that_somebody_holds_on_to_is_handed_out_as_a_copy(tmp_path: Path) -> None:
    stand_in = StandIn({**OURS, "JOBDIR": str(tmp_path / "job")})
    request = page(1, dont_filter=True)
    for _ in range(2):
        stand_in.scheduler.enqueue_request(request)
    taken = [stand_in.next(), stand_in.next()]
    assert None not in taken
    assert len({id(request), *map(id, taken)}) == 3
    stand_in.scheduler.close("shutdown")


def test_own_leases_do_not_count_as_pending() -> None:
    stand_in = StandIn(OURS)
    stand_in.scheduler.enqueue_request(page(1))
    assert stand_in.scheduler.has_pending_requests()
    assert stand_in.next() is not None
    assert not stand_in.scheduler.has_pending_requests()
    assert len(stand_in.scheduler) == 0
    stand_in.scheduler.close("finished")


def test_signals_surround_each_commit_and_checkpoint_forces_one(tmp_path: Path) -> None:
    stand_in = StandIn({**OURS, "JOBDIR": str(tmp_path / "job"), "ALTSCHED_COMMIT_INTERVAL": 1000})
    seen: list[Any] = []

    def committing() -> None:
        seen.append("committing")

    def committed(commit: int) -> None:
        seen.append(commit)

    stand_in.crawler.signals.connect(committing, frontier_committing)
    stand_in.crawler.signals.connect(committed, frontier_committed)
    stand_in.scheduler.enqueue_request(page(1))  # nothing is leased: committed at once
    assert len(seen) == 2
    assert stand_in.next() is not None
    stand_in.scheduler.enqueue_request(page(2))
    assert len(seen) == 2
    assert stand_in.scheduler.checkpoint()
    assert seen == ["committing", seen[1], "committing", seen[1] + 1]
    assert stand_in.scheduler.checkpoint()
    assert len(seen) == 4
    stand_in.scheduler.close("finished")


def test_a_handler_that_raises_postpones_the_commit(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    stand_in = StandIn({**OURS, "JOBDIR": str(tmp_path / "job")})
    full = [True]

    def committing() -> None:
        if full[0]:
            raise OSError("No space left on device")

    stand_in.crawler.signals.connect(committing, frontier_committing)
    stand_in.scheduler.enqueue_request(page(1))
    assert not stand_in.scheduler.checkpoint()
    assert crash_image(tmp_path / "job", tmp_path / "a").pending == 0
    assert stand_in.stat("altsched/commit/failed") >= 1
    assert caplog.text.count("No space left on device") == 1
    assert "postponed" in caplog.text
    full[0] = False
    assert stand_in.scheduler.checkpoint()
    assert crash_image(tmp_path / "job", tmp_path / "b").pending == 1
    assert "is saved again" in caplog.text
    stand_in.scheduler.close("finished")


def test_what_an_early_batch_leaves_does_not_wait_for_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uncommitted, "BATCH", 3)
    settings = {**OURS, "JOBDIR": str(tmp_path / "job"), "ALTSCHED_COMMIT_EVERY": 10}
    stand_in = StandIn({**settings, "ALTSCHED_COMMIT_INTERVAL": 3600})
    stand_in.scheduler.enqueue_request(page("parent"))
    assert stand_in.next() is not None
    stand_in.scheduler.checkpoint()
    commits = []
    for number in range(17):
        stand_in.scheduler.enqueue_request(page(number))
        commits.append(stand_in.stat("altsched/commit/count"))
    first = commits[0]
    assert [count - first for count in commits] == [0] * 9 + [1, 2, 3, 4, 5, 5, 5, 5]
    assert crash_image(tmp_path / "job", tmp_path / "copy").pending == 15
    stand_in.scheduler.close("shutdown")


@BY_ENGINE
@pytest.mark.parametrize("is_parent_under_way", [True, False])
def test_a_store_that_is_behind_is_not_asked_again_at_each_request(
    tmp_path: Path, is_parent_under_way: bool, engine: str
) -> None:
    settings = {**OURS, "JOBDIR": str(tmp_path / "job"), "ALTSCHED_COMMIT_EVERY": 1}
    stand_in = StandIn({**settings, "ALTSCHED_STORE": engine})
    stand_in.scheduler.enqueue_request(page(0))
    if is_parent_under_way:
        assert stand_in.next() is not None
    frontier = stand_in.scheduler._session.frontier
    assert frontier is not None
    with stalled(journal_of(frontier)):
        start = time.monotonic()
        for number in range(1, 200):
            assert stand_in.scheduler.enqueue_request(page(number))
        seconds = time.monotonic() - start
        assert 1 <= stand_in.stat("altsched/commit/stalled") <= 1 + seconds / committer._STALLED_FOR
        assert not stand_in.scheduler.checkpoint()
    assert not stand_in.stat("altsched/commit/failed")
    assert stand_in.scheduler.checkpoint()
    assert crash_image(tmp_path / "job", tmp_path / "copy").pending == 200
    commits = stand_in.stat("altsched/commit/count")
    stand_in.scheduler.enqueue_request(page(200))
    assert stand_in.stat("altsched/commit/count") == commits + 1
    stand_in.scheduler.close("shutdown")


def test_large_requests_are_committed_before_they_are_many(tmp_path: Path) -> None:
    settings = {**OURS, "JOBDIR": str(tmp_path / "job"), "ALTSCHED_COMMIT_INTERVAL": 1_000}
    stand_in = StandIn(settings)
    stand_in.scheduler.enqueue_request(page(0))
    assert stand_in.next() is not None
    commits = stand_in.stat("altsched/commit/count")
    for number in range(1, 10):
        stand_in.scheduler.enqueue_request(page(number, meta={"item": "x" * 1_000_000}))
    assert stand_in.stat("altsched/commit/count") > commits
    assert crash_image(tmp_path / "job", tmp_path / "copy").pending > 4
    stand_in.scheduler.close("shutdown")


def test_an_asynchronous_handler_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stand_in = StandIn({**OURS, "JOBDIR": str(tmp_path / "job")})

    async def committing() -> None:
        pass

    stand_in.crawler.signals.connect(committing, frontier_committing)
    stand_in.scheduler.enqueue_request(page(1))
    assert "is asynchronous" in caplog.text
    stand_in.scheduler.close("finished")
    assert "final commit of this crawl failed" in caplog.text


def test_commits_that_go_on_failing_close_the_spider(tmp_path: Path) -> None:
    stand_in = StandIn({**OURS, "JOBDIR": str(tmp_path / "job"), "ALTSCHED_COMMIT_TIMEOUT": 0})

    def committing() -> None:
        raise OSError("No space left on device")

    stand_in.crawler.signals.connect(committing, frontier_committing)
    stand_in.scheduler.enqueue_request(page(1))
    assert stand_in.engine.closed_with == "commit_failed"
    stand_in.scheduler.close("commit_failed")


def stays_open(stand_in: StandIn) -> bool:
    """Whether a spider that is idle is kept open, as Scrapy asks."""
    results = stand_in.crawler.signals.send_catch_log(
        signals.spider_idle, spider=stand_in.spider, dont_log=DontCloseSpider
    )
    raised = [result.value for _, result in results if isinstance(result, Failure)]
    return any(isinstance(error, DontCloseSpider) for error in raised)


def test_while_nothing_can_be_saved_an_idle_spider_stays_open_and_is_told_that_it_is_idle(
    tmp_path: Path,
) -> None:
    stand_in = StandIn({**OURS, "JOBDIR": str(tmp_path / "job")})
    is_full = True

    def committing() -> None:
        if is_full:
            raise OSError("No space left on device")

    stand_in.crawler.signals.connect(committing, frontier_committing)
    stand_in.scheduler.enqueue_request(page(1))
    request = stand_in.next()
    assert request is not None
    stand_in.engine.end(request)
    assert stand_in.next() is None
    assert not stand_in.scheduler.has_pending_requests()
    assert stays_open(stand_in)
    is_full = False
    assert stand_in.scheduler.checkpoint()
    assert not stays_open(stand_in)
    stand_in.scheduler.close("finished")


def test_what_cannot_be_read_keeps_an_idle_spider_open_and_is_not_pending(tmp_path: Path) -> None:
    stand_in = StandIn({**OURS, "JOBDIR": str(tmp_path / "job")})
    stand_in.scheduler.enqueue_request(page(1))
    committer = stand_in.scheduler._session._committer
    assert stand_in.scheduler.has_pending_requests()
    committer.note_failure(StoreError("it cannot be read"), reading=True)
    assert not stand_in.scheduler.has_pending_requests()
    assert stays_open(stand_in)
    committer.unreadable = False
    assert committer.commit()
    assert stand_in.scheduler.has_pending_requests()
    stand_in.scheduler.close("shutdown")


def test_a_duplicate_that_came_while_the_store_could_not_be_read_is_told_of_later(
    tmp_path: Path,
) -> None:
    crawl = StandIn({**OURS, "JOBDIR": str(tmp_path)})
    dropped: list[str] = []

    def note_drop(request: Request) -> None:
        dropped.append(request.url)

    crawl.crawler.signals.connect(note_drop, signals.request_dropped)
    assert crawl.scheduler.enqueue_request(Request("http://site.test/a"))
    assert crawl.scheduler.checkpoint()
    crawl.scheduler.df.identity.forget_recent()
    journal_of(crawl.scheduler._session.frontier).database.close()
    for name in ("a", "b"):
        assert crawl.scheduler.enqueue_request(Request(f"http://site.test/{name}"))
    assert not crawl.stat("dupefilter/filtered")
    crawl.scheduler._session._committer.commit()
    assert crawl.stat("dupefilter/filtered") == 1
    assert dropped == ["http://site.test/a"]
    assert len(crawl.scheduler) == 2
    crawl.scheduler.close("finished")


class HalfAnEngine(Engine):
    """Fails when the scheduler, which has its frontier by then, asks how the spider starts."""

    _start = property(lambda _: 1 / 0, lambda *_: None)


def test_a_crawl_that_failed_while_it_opened_can_be_closed_and_opened_again(
    tmp_path: Path,
) -> None:
    settings = {**OURS, "JOBDIR": str(tmp_path)}
    crawl = StandIn(settings)
    assert crawl.scheduler.enqueue_request(Request("http://site.test/a"))
    crawl.scheduler.close("shutdown")
    half = StandIn(settings, opens=False)
    half.engine.__class__ = HalfAnEngine
    with pytest.raises(ZeroDivisionError):
        half.scheduler.open(half.spider)
    half.scheduler.close("shutdown")
    again = StandIn(settings)
    assert len(again.scheduler) == 1
    again.scheduler.close("finished")


def test_commits_that_succeed_do_not_end_an_outage_of_reads(tmp_path: Path) -> None:
    stand_in = StandIn({**OURS, "JOBDIR": str(tmp_path / "job")})
    committer = stand_in.scheduler._session._committer
    committer.note_failure(StoreError("it cannot be read"), reading=True)
    stand_in.scheduler.enqueue_request(page(1))
    assert committer.commit()
    assert committer.failing_since is not None
    assert stand_in.scheduler.next_request() is not None
    assert committer.commit()
    assert committer.failing_since is None
    stand_in.scheduler.close("finished")


def test_a_damaged_store_closes_the_spider_only_when_it_is_still_damaged_after_reopening(
    tmp_path: Path,
) -> None:
    crawl = StandIn({**OURS, "JOBDIR": str(tmp_path / "job")})
    committer = crawl.scheduler._session._committer
    for _ in range(3):
        committer.note_failure(StoreDamagedError("damaged.", "Repair it."), reading=True)
    assert crawl.engine.closed_with is None
    assert committer.commit()
    assert crawl.engine.closed_with is None
    committer.note_failure(StoreDamagedError("damaged.", "Repair it."), reading=True)
    assert crawl.engine.closed_with == "store_damaged"
    crawl.scheduler.close("store_damaged")


def test_a_deleted_jobdir_closes_the_spider(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stand_in = StandIn({**OURS, "JOBDIR": str(tmp_path / "job")})
    shutil.rmtree(tmp_path / "job")
    stand_in.scheduler.enqueue_request(page(1))
    assert stand_in.engine.closed_with == "jobdir_lost"
    assert "was deleted or replaced" in caplog.text
    stand_in.scheduler.close("jobdir_lost")
    assert "final commit of this crawl failed" in caplog.text
    assert not (tmp_path / "job").exists()


def test_a_request_that_cannot_be_serialized_is_kept_in_order_counted_and_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stand_in = StandIn({**OURS, "JOBDIR": str(tmp_path / "job"), "SCHEDULER_PRIORITY_QUEUE": ONE})
    for number, priority in enumerate([0, 5, 0, 5, -1]):
        callback = (lambda response: None) if number % 2 else None
        stand_in.scheduler.enqueue_request(page(number, priority=priority, callback=callback))
    assert stand_in.stat("scheduler/unserializable") == 2
    assert caplog.text.count("Unable to serialize request") == 1
    assert len(stand_in.scheduler.mqs) == 2
    assert len(stand_in.scheduler.dqs) == 3
    order = [request.url[-1] for request in iter(stand_in.next, None)]
    assert order == ["3", "1", "2", "0", "4"]
    stand_in.scheduler.close("finished")


def test_a_stored_request_whose_callback_is_gone_is_dead_and_the_crawl_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from scrapy import Spider

    class Before(Spider):
        name = "spider"

        def parse_gone(self, response: Any) -> None:
            pass

    settings = {**OURS, "JOBDIR": str(tmp_path / "job")}
    before = StandIn(settings, Before)
    before.scheduler.enqueue_request(page(1))
    before.scheduler.enqueue_request(page(2, callback=before.spider.parse_gone))  # type: ignore[attr-defined]
    before.scheduler.close("shutdown")
    after = StandIn(settings)
    assert [request.url[-1] for request in iter(after.next, None)] == ["1"]
    assert "parse_gone" in caplog.text
    for request in list(after.engine._slot.inprogress):
        after.engine.end(request)
    after.scheduler.close("finished")
    assert (after.stat("altsched/done"), after.stat("altsched/dead")) == (1, 1)


def test_the_end_of_a_crawl_is_one_line_that_says_how_to_go_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    settings = {**OURS, "JOBDIR": str(tmp_path / "job")}
    stand_in = StandIn(settings)
    for number in range(3):
        stand_in.scheduler.enqueue_request(page(number))
    request = stand_in.next()
    assert request is not None
    stand_in.engine.end(request)
    stand_in.scheduler.close("shutdown")
    assert (
        "is not finished: 1 request done, 2 pending, 0 dead. Resume it by running the same"
        in caplog.text
    )
    caplog.clear()
    stand_in = StandIn(settings)
    assert "Resuming crawl (2 requests scheduled)" in caplog.text
    assert stand_in.scheduler.resumed
    while (request := stand_in.next()) is not None:
        stand_in.engine.end(request)
    stand_in.scheduler.close("finished")
    assert "is finished: 3 requests done, none pending, 0 dead" in caplog.text
    assert stand_in.stat("altsched/done") == 3


class SplashAwareDupeFilter(RFPDupeFilter):
    """Named as that of scrapy-splash."""


def test_the_filter_of_scrapy_splash_is_better_replaced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    filters = {"DUPEFILTER_CLASS": SplashAwareDupeFilter}
    StandIn({**OURS, "JOBDIR": str(tmp_path / "job"), **filters})
    assert "scrapy_splash.SplashRequestFingerprinter" in caplog.text
    assert "DUPEFILTER_CLASS = 'scrapy_altsched.DupeFilter'" in caplog.text


def test_a_third_party_filter_is_asked_and_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {
        **OURS,
        "JOBDIR": str(tmp_path / "job"),
        "DUPEFILTER_CLASS": "scrapy.dupefilters.RFPDupeFilter",
    }
    stand_in = StandIn(settings)
    assert "not saved atomically" in caplog.text
    assert stand_in.scheduler.enqueue_request(page(1))
    assert not stand_in.scheduler.enqueue_request(page(1))
    assert stand_in.stat("dupefilter/filtered") == 1
    stand_in.scheduler.close("finished")


def test_no_filter_at_all_is_nothing_to_warn_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {
        **OURS,
        "JOBDIR": str(tmp_path / "job"),
        "DUPEFILTER_CLASS": "scrapy.dupefilters.BaseDupeFilter",
    }
    stand_in = StandIn(settings)
    assert "DUPEFILTER_CLASS" not in caplog.text
    assert stand_in.scheduler.enqueue_request(page(1))
    assert stand_in.scheduler.enqueue_request(page(1))
    stand_in.scheduler.close("finished")


def test_synced_commits_are_announced_after_they_reached_the_disk(tmp_path: Path) -> None:
    stand_in = StandIn({**OURS, "JOBDIR": str(tmp_path / "job"), "ALTSCHED_SYNC": True})
    announced: list[int] = []

    def committed(commit: int) -> None:
        announced.append(commit)

    stand_in.crawler.signals.connect(committed, frontier_committed)
    stand_in.scheduler.enqueue_request(page(1))
    while not announced:
        stand_in.scheduler.enqueue_request(page(1))
        stand_in.next()
    assert crash_image(tmp_path / "job", tmp_path / "a").accepted == 1
    stand_in.scheduler.close("finished")


@pytest.mark.parametrize("always", [False, True])
def test_after_a_sync_that_failed_the_store_is_reopened_before_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, always: bool
) -> None:
    """The operating system may have forgotten what to write, and say nothing any more."""
    calls: list[str] = []
    sync, reopen = Store.sync, Journal.reopen

    def fail_once(store: Store) -> None:
        calls.append("sync")
        if calls == ["sync"]:
            raise StoreError("The disk cannot write.")
        sync(store)

    def note_reopening(journal: Journal) -> None:
        calls.append("reopen")
        reopen(journal)

    settings = {"JOBDIR": str(tmp_path / "job"), "ALTSCHED_SYNC": always}
    stand_in = StandIn({**OURS, **settings, "ALTSCHED_COMMIT_INTERVAL": 1_000})
    monkeypatch.setattr(Store, "sync", fail_once)
    monkeypatch.setattr(Journal, "reopen", note_reopening)
    stand_in.scheduler.enqueue_request(page(1))
    assert not stand_in.scheduler.checkpoint(force=True)
    assert stand_in.scheduler.checkpoint(force=True)
    assert calls[:2] == ["sync", "reopen"]
    assert calls[-1] == "sync"
    stand_in.scheduler.close("finished")


def test_a_checkpoint_promises_nothing_without_a_jobdir() -> None:
    stand_in = StandIn(OURS)
    stand_in.scheduler.enqueue_request(page(1))
    assert not stand_in.scheduler.checkpoint()
    stand_in.scheduler.close("finished")


def test_requests_that_could_not_be_noted_as_under_way_are_reported_at_the_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stand_in = StandIn({**OURS, "JOBDIR": str(tmp_path), "ALTSCHED_COMMIT_INTERVAL": 1_000})
    for number in range(3):
        stand_in.scheduler.enqueue_request(Request(f"http://site.test/{number}"))
    assert stand_in.next() is not None
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
    try:
        assert stand_in.next() is not None
        assert stand_in.next() is not None
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    stand_in.scheduler.close("shutdown")
    assert stand_in.stat("altsched/unrecorded_leases") == 2
    assert "that 2 requests were in flight" in caplog.text


def test_stats_say_with_each_commit_how_far_the_job_is(tmp_path: Path) -> None:
    def progress(stand_in: StandIn) -> tuple[int, int, int]:
        return tuple(stand_in.stat(f"altsched/{name}") for name in ("pending", "done", "dead"))  # type: ignore[return-value]

    settings = {**OURS, "JOBDIR": str(tmp_path / "job")}
    stand_in = StandIn(settings)
    assert progress(stand_in) == (0, 0, 0)
    for number in range(4):
        stand_in.scheduler.enqueue_request(page(number))
    assert stand_in.scheduler.checkpoint()
    assert progress(stand_in) == (4, 0, 0)
    first, second = stand_in.next(), stand_in.next()
    assert first is not None
    assert second is not None
    stand_in.engine.end(first)
    stand_in.scheduler.enqueue_request(page("another"))
    assert stand_in.scheduler.checkpoint()
    assert progress(stand_in) == (4, 1, 0)  # the second one is in flight
    stand_in.engine.end(second)
    stand_in.scheduler.close("shutdown")
    assert progress(stand_in) == (3, 2, 0)
    resumed = StandIn(settings)
    assert progress(resumed) == (3, 2, 0)
    resumed.scheduler.close("shutdown")
