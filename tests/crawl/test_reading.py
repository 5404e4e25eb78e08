"""What spiders and extensions can ask a scheduler."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from scrapy import Request, Spider

from scrapy_altsched.frontier.entry import DeadLetter, PageFailure, Reason

from ..engines import ONE, OURS, SLOTS, StandIn
from ..stores import INSTALLED

Open = Callable[..., StandIn]


@pytest.fixture(params=["memory", *INSTALLED])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    """Settings of a crawl in memory, or of a job with a store of each engine."""
    if request.param == "memory":
        return {}
    return {"JOBDIR": str(tmp_path), "ALTSCHED_STORE": request.param}


@pytest.fixture
def crawl(place: dict[str, str]) -> Iterator[Open]:
    opened: list[StandIn] = []

    def open_crawl(**settings: Any) -> StandIn:
        queue = {"SCHEDULER_PRIORITY_QUEUE": SLOTS, "SCHEDULER_DISK_QUEUE": FIFO}
        memory = {"SCHEDULER_MEMORY_QUEUE": "scrapy.squeues.FifoMemoryQueue"}
        opened.append(StandIn({**OURS, **queue, **memory, **place, **settings}))
        return opened[-1]

    yield open_crawl
    for each in opened:
        each.scheduler.close("shutdown")
        # What is not open has nothing to tell.
        assert each.scheduler.status() is None
        assert each.scheduler.peek() == []
        assert each.scheduler.locate("http://a.test/1") is None


FIFO = "scrapy.squeues.PickleFifoDiskQueue"
URLS = [f"http://{host}.test/{number}" for number in (1, 2) for host in "ab"]


def urls(requests: list[Request]) -> list[str]:
    return [request.url for request in requests]


@pytest.mark.parametrize("queue", [SLOTS, ONE])
def test_the_next_requests_are_copies_and_stay_where_they_are(crawl: Open, queue: str) -> None:
    stand_in = crawl(SCHEDULER_PRIORITY_QUEUE=queue)
    scheduler = stand_in.scheduler
    for url in URLS:
        scheduler.enqueue_request(Request(url, meta={"depth": 3}))
    assert urls(scheduler.peek()) == URLS
    assert urls(scheduler.peek(2)) == URLS[:2]
    assert scheduler.peek(0) == scheduler.peek(-1) == []
    assert urls(scheduler.peek(slot="b.test")) == ["http://b.test/1", "http://b.test/2"]
    assert urls(scheduler.peek(1, "b.test")) == ["http://b.test/1"]
    scheduler.peek(1)[0].meta["depth"] = 4
    request = stand_in.next()
    assert request is not None
    assert (request.url, request.meta["depth"]) == (URLS[0], 3)
    assert urls(scheduler.peek()) == URLS[1:]


def test_what_cannot_be_stored_or_restored(crawl: Open) -> None:
    scheduler = crawl().scheduler
    own = Request("http://a.test/own", callback=lambda _: None)
    scheduler.enqueue_request(own)
    (found,) = scheduler.peek()
    assert (found.url, found.callback) == (own.url, own.callback)
    assert found is not own
    assert scheduler.locate(own.url).state == "pending"


def test_how_it_stands_is_told_without_a_commit(crawl: Open) -> None:
    stand_in = crawl()
    scheduler = stand_in.scheduler
    for url in (*URLS, URLS[0]):
        scheduler.enqueue_request(Request(url))
    assert stand_in.next() is not None
    standing = scheduler.status()
    assert (standing.spider, standing.duplicates) == ("spider", 1)
    counts = standing.counts
    assert (counts.accepted, counts.pending, counts.leased, counts.done) == (4, 3, 1, 0)
    scheduler.defer_slot("b.test", 100)
    assert [slot for slot, _ in scheduler.status().held] == ["b.test"]


def test_where_a_request_is(crawl: Open, place: dict[str, str]) -> None:
    stand_in = crawl()
    scheduler = stand_in.scheduler
    endings = ("done", "failed", "dead", "flying")
    for name in endings:
        scheduler.enqueue_request(Request(f"http://a.test/{name}"))
    in_progress = scheduler._session._in_progress
    for name in endings:
        request = stand_in.next()
        assert request is not None
        if name == "failed":
            in_progress.note_failure(request, PageFailure(Reason.STATUS, "HTTP 503", 503, 3))
        if name == "dead":
            lease = in_progress._leases.pop(request)
            scheduler._session.frontier.dead_letter(lease, DeadLetter("it kills"))
        if name != "flying":
            stand_in.engine.end(request)
    scheduler.enqueue_request(Request("http://a.test/first"))
    scheduler.enqueue_request(Request("http://b.test/?b=1&a=2"))
    scheduler.enqueue_request(Request("http://a.test/later", meta={"altsched_delay": 1_000}))
    scheduler._session._settle()
    found = {name: scheduler.locate(f"http://a.test/{name}") for name in (*endings, "later")}
    # In memory nothing is kept of what is over.
    kept = bool(place)
    assert {name: place.state for name, place in found.items()} == {
        "done": "done",
        "failed": "failed" if kept else "done",
        "dead": "dead" if kept else "done",
        "flying": "in flight",
        "later": "delayed",
    }
    if kept:
        assert (found["failed"].why, found["failed"].tries) == ("HTTP 503", 3)
        assert found["dead"].why == "it kills"
    assert scheduler.locate(Request("http://b.test/?a=2&b=1")).ahead == 0
    assert scheduler.locate("http://b.test/").state == "never seen"
    assert scheduler.locate(Request("http://a.test/first", method="POST")).state == "never seen"
    with pytest.raises(ValueError, match="Missing scheme"):
        scheduler.locate("first")


class AskingSpider(Spider):
    """A class of its own, whose requests another one cannot restore."""

    def parse_own(self, response: Any) -> None:
        pass


@pytest.mark.parametrize("engine", INSTALLED)
def test_what_cannot_be_restored_is_left_out(tmp_path: Path, engine: str) -> None:
    settings = {**OURS, "JOBDIR": str(tmp_path), "ALTSCHED_STORE": engine}
    first = StandIn(settings, AskingSpider)
    first.scheduler.enqueue_request(Request(URLS[0], first.spider.parse_own))
    first.scheduler.enqueue_request(Request(URLS[1]))
    assert len(first.scheduler.peek()) == 2
    first.scheduler.close("shutdown")
    second = StandIn(settings)
    assert urls(second.scheduler.peek()) == [URLS[1]]
    assert second.scheduler.locate(URLS[0]).state == "pending"
    second.scheduler.close("shutdown")
