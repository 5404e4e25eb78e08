"""Requests that every run makes before all others."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from scrapy import Request

from ..clocks import ManualClock
from ..crawls import KILLED, ONE_BY_ONE, Crawl
from ..engines import OURS, StandIn
from ..sites import Page, Site, random_graph

LOGIN = {"altsched_every_run": True}


async def starting(*requests: Request) -> AsyncIterator[Request]:
    for request in requests:
        yield request


async def go_on(crawl: StandIn) -> bool:
    """Schedule what start() yields next; whether it did."""
    try:
        crawl.scheduler.enqueue_request(await anext(crawl.engine._start))  # type: ignore[arg-type]
    except StopAsyncIteration:
        return False
    return True


def run(coroutine: Any) -> Any:
    """Drive a coroutine that never waits."""
    with pytest.raises(StopIteration) as answer:
        coroutine.send(None)
    return answer.value.value


def url(name: str, **more: Any) -> Request:
    return Request(f"http://site.test/{name}", **more)


def opened(settings: dict[str, Any], *requests: Request) -> StandIn:
    crawl = StandIn(settings, opens=False)
    crawl.engine._start = starting(*requests)
    crawl.scheduler.open(crawl.spider)
    return crawl


def taken(crawl: StandIn) -> Request:
    request = crawl.next()
    assert request is not None
    return request


@pytest.mark.parametrize("on_disk", [True, False])
def test_nothing_else_is_handed_out_until_it_is_over(tmp_path: Path, on_disk: bool) -> None:
    settings = {**OURS, "JOBDIR": str(tmp_path) if on_disk else None}
    crawl = opened(settings, url("login", meta=LOGIN), url("a"))
    crawl.scheduler.enqueue_request(url("urgent", priority=9))
    assert run(go_on(crawl))
    assert run(go_on(crawl))
    assert len(crawl.scheduler) == 3
    login = taken(crawl)
    assert login.url.endswith("/login")
    assert crawl.next() is None
    assert crawl.scheduler.has_pending_requests()
    # Its form goes with it, as a redirect or a retry does.
    crawl.scheduler.enqueue_request(url("form", method="POST", meta=dict(login.meta)))
    crawl.scheduler.enqueue_request(url("home"))
    crawl.engine.end(login)
    form = taken(crawl)
    assert form.url.endswith("/form")
    for _ in range(3):
        assert crawl.next() is None
    crawl.engine.end(form)
    assert {taken(crawl).url[-4:] for _ in range(3)} == {"gent", "home", "st/a"}
    assert crawl.next() is None
    assert crawl.stat("scheduler/enqueued") == crawl.stat("scheduler/dequeued") == 5
    crawl.scheduler.close("finished")


def test_a_resumed_run_waits_for_as_many_as_start_yielded(tmp_path: Path) -> None:
    settings = {**OURS, "JOBDIR": str(tmp_path)}
    logins = [url(f"login {number}", meta=LOGIN) for number in range(2)]
    crawl = opened(settings, *logins, url("a"))
    while run(go_on(crawl)):
        pass
    crawl.scheduler.close("shutdown")
    for _ in range(2):  # a run that ended before it had logged in changes nothing
        crawl = opened(settings, url("new"), *[login.copy() for login in logins], url("a"))
        assert len(crawl.scheduler) >= 1
        assert crawl.next() is None
        assert run(go_on(crawl))
        assert crawl.next() is None, "start() is not past the first of them"
        assert run(go_on(crawl))
        first = taken(crawl)
        crawl.engine.end(first)
        assert crawl.next() is None, "start() is not past the second of them"
        crawl.scheduler.close("shutdown")
    crawl = opened(settings, *[login.copy() for login in logins])
    for _ in range(2):
        assert run(go_on(crawl))
        crawl.engine.end(taken(crawl))
    assert {taken(crawl).url[-3:] for _ in range(2)} == {"t/a", "new"}
    crawl.scheduler.close("shutdown")


def test_a_spider_that_makes_none_any_more_does_not_wait(tmp_path: Path) -> None:
    settings = {**OURS, "JOBDIR": str(tmp_path)}
    crawl = opened(settings, url("login", meta=LOGIN), url("a"))
    while run(go_on(crawl)):
        pass
    crawl.scheduler.close("shutdown")
    crawl = opened(settings)
    assert crawl.next() is None
    assert not run(go_on(crawl))
    assert taken(crawl).url.endswith("/a")
    crawl.scheduler.close("shutdown")


def test_others_do_not_wait_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    monkeypatch.setattr("scrapy_altsched.crawl.setup.CrawlClock", lambda: clock)
    settings = {**OURS, "JOBDIR": str(tmp_path), "DOWNLOAD_TIMEOUT": 10}
    logins = [url(f"login {number}", meta=LOGIN) for number in range(2)]
    crawl = opened(settings, *logins, url("a"), url("b"))
    while run(go_on(crawl)):
        pass
    crawl.scheduler.close("shutdown")
    crawl = opened(settings, logins[0].copy(), url("c"))
    assert crawl.next() is None
    assert run(go_on(crawl))
    login = taken(crawl)
    clock.advance(29.9)
    assert crawl.next() is None
    clock.advance(0.1)
    assert {taken(crawl).url[-1] for _ in range(2)} == {"a", "b"}
    assert caplog.text.count("1 are still in flight and 1 did not come from start()") == 1
    crawl.engine.end(login)
    crawl.scheduler.close("shutdown")


def test_a_false_key_is_none() -> None:
    crawl = opened(OURS)
    crawl.scheduler.enqueue_request(url("a", meta={"altsched_every_run": False}))
    crawl.scheduler.enqueue_request(url("b"))
    assert {taken(crawl).url[-1], taken(crawl).url[-1]} == {"a", "b"}
    crawl.scheduler.close("finished")


def test_a_resumed_crawl_logs_in_before_it_fetches_a_page(tmp_path: Path) -> None:
    graph = random_graph(60, 2, 1)
    graph |= {"/login": Page(), "/form": Page()}
    with Site(graph) as site:
        crawl = Crawl(tmp_path, "members", f"{site.url}/")
        crawl.arguments["url"] = site.url
        assert crawl.run(KILL_AT=20, KILL_ON="item", **ONE_BY_ONE) == KILLED
        before = len(site.order)
        assert site.order[:2] == ["/login", "/form"]
        assert crawl.run() == 0
        assert site.order[before : before + 2] == ["/login", "/form"]
        assert "1 start request was skipped" in crawl.log
        assert set(site.hits) == set(graph)
        assert site.hits["/login"] == site.hits["/form"] == 2
        assert "is finished" in crawl.log


def test_without_the_key_a_login_is_skipped_and_the_log_says_so(tmp_path: Path) -> None:
    graph = random_graph(60, 2, 1)
    graph |= {"/login": Page(), "/form": Page()}
    with Site(graph) as site:
        crawl = Crawl(tmp_path, "members", site.url, keyed=0)
        assert crawl.run(KILL_AT=20, KILL_ON="item", **ONE_BY_ONE) == KILLED
        assert crawl.run() == 0
        assert site.hits["/login"] == 1
        assert "2 start requests were skipped" in crawl.log
        assert "altsched_every_run" in crawl.log
