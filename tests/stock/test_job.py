"""Crawls of Scrapy's own scheduler that go on as ours: whole, in order, or not at all."""

from __future__ import annotations

import json
import logging
import os
import pickle
import pty
import random
import re
import shutil
import signal
import subprocess
import sys
import traceback
from collections import Counter
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import scrapy
from scrapy import Request, Spider, squeues
from scrapy.utils.request import fingerprint

from scrapy_altsched.errors import AltschedError, JobdirError
from scrapy_altsched.frontier import Components, Options
from scrapy_altsched.frontier.store.database import RowBatch
from scrapy_altsched.frontier.store.journal import Journal
from scrapy_altsched.frontier.store.records import Batch
from scrapy_altsched.maintenance import progress
from scrapy_altsched.maintenance.opening import open_frontier
from scrapy_altsched.maintenance.repair import repair

from ..crawls import STOCK, Crawl, altsched
from ..engines import ONE, OURS, SLOTS, StandIn
from ..frontiers import OWNER, journal_of, problems_of
from ..sites import Page, Site, random_graph

KINDS = [
    name for name in vars(squeues) if re.fullmatch("(Pickle|Marshal).*(Disk|SQLite)Queue", name)
]
DISK_KINDS = [name for name in KINDS if name.endswith("DiskQueue")]
POLICIES = {"slots": SLOTS, "one": ONE}
RFP = "scrapy.dupefilters.RFPDupeFilter"
#: Rows of a batch, where the process is to die between any two of them.
CHUNK = 3
#: Since then turns go by name, as ours do on every version.
TURNS_BY_NAME = tuple(map(int, scrapy.__version__.split(".")[:2])) >= (2, 15)


def queues(kind: str, policy: str, start: str | None = "PickleFifoDiskQueue") -> dict[str, Any]:
    return {
        "SCHEDULER_DISK_QUEUE": f"scrapy.squeues.{kind}",
        "SCHEDULER_START_DISK_QUEUE": f"scrapy.squeues.{start}" if start else None,
        "SCHEDULER_PRIORITY_QUEUE": POLICIES[policy],
    }


DEFAULT = queues("PickleLifoDiskQueue", "slots")


class Pages(Spider):
    """Has the callbacks that the requests here name."""

    name = "pages"

    def detail(self, response: Any) -> None:
        pass


class Renamed(Spider):
    """Has lost one."""

    name = "pages"


def page(number: int, host: str = "a", **arguments: Any) -> Request:
    return Request(f"http://{host}.example/{number}", **arguments)


def fill(stand_in: StandIn, seed: int, count: int, hosts: str) -> None:
    """Requests of any host, priority and queue; some of them done."""
    rng = random.Random(seed)
    spider = stand_in.spider
    for number in range(count):
        stand_in.scheduler.enqueue_request(
            page(
                number,
                rng.choice(hosts),
                priority=rng.choice([0, 0, 0, 5, -1]),
                dont_filter=rng.random() < 0.3,
                callback=spider.detail if number % 5 == 0 else None,
                cb_kwargs={"text": "." * number},
                meta={"is_start_request": True} if rng.random() < 0.3 else {},
            )
        )
        if rng.random() < 0.25:
            request = stand_in.next()
            assert request is not None
            stand_in.engine.end(request)


def stock_job(
    path: Path,
    settings: dict[str, Any] = DEFAULT,
    *,
    seed: int = 1,
    count: int = 60,
    hosts: str = "abc",
) -> StandIn:
    """Scrapy's own scheduler with some requests in *path*, not closed yet."""
    stand_in = StandIn({**settings, "JOBDIR": str(path)}, Pages)
    fill(stand_in, seed, count, hosts)
    return stand_in


def closed_job(path: Path, settings: dict[str, Any] = DEFAULT, **more: Any) -> Path:
    stock_job(path, settings, **more).scheduler.close("shutdown")
    return path


def dead_job(path: Path, settings: dict[str, Any] = DEFAULT) -> Path:
    """What the process's death leaves in a directory."""
    living = path.with_name(path.name + " alive")
    stand_in = stock_job(living, settings)
    shutil.copytree(living, path)
    stand_in.scheduler.close("shutdown")
    return path


def open_ours(
    path: Path,
    settings: dict[str, Any] = DEFAULT,
    spider: type[Spider] = Pages,
    **more: Any,
) -> StandIn:
    stand_in = StandIn({**settings, **OURS, "JOBDIR": str(path), **more}, spider)
    assert problems_of(stand_in.scheduler._session.frontier) == []
    assert stand_in.scheduler._session.frontier.counts().unaccounted == 0
    return stand_in


def drain(stand_in: StandIn) -> list[Request]:
    """All requests, in order, one at a time."""
    found = []
    while (request := stand_in.next()) is not None:
        found.append(request)
        stand_in.engine.end(request)
    stand_in.scheduler.close("shutdown")
    return found


def comparable(request: Request) -> dict[str, Any]:
    fields = {name: getattr(request, name) for name in request.attributes}
    fields["meta"] = {k: v for k, v in request.meta.items() if k != "download_slot"}
    for name in ("callback", "errback"):
        fields[name] = getattr(fields[name], "__name__", None)
    return fields


def files(directory: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(path.relative_to(directory)): (path.stat().st_mtime_ns, path.read_bytes())
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def seen_count(path: Path) -> int:
    stand_in = StandIn({**DEFAULT, "JOBDIR": str(path)}, Pages)
    filter_ = stand_in.scheduler.df
    count = len(getattr(filter_, "_fingerprints", None) or filter_.fingerprints)
    stand_in.scheduler.close("shutdown")
    return count


# The same requests in the same order


@pytest.mark.long
@pytest.mark.parametrize("start", ["PickleFifoDiskQueue", "MarshalLifoDiskQueue", None])
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_job_of_stock_goes_on_as_stock_would(
    tmp_path: Path, kind: str, policy: str, start: str | None
) -> None:
    settings = queues(kind, policy, start)
    closed_job(tmp_path / "job", settings)
    shutil.copytree(tmp_path / "job", tmp_path / "copy")
    expected = [
        comparable(request)
        for request in drain(StandIn({**settings, "JOBDIR": str(tmp_path / "copy")}, Pages))
    ]
    ours = open_ours(tmp_path / "job", settings)
    assert ours.stat("altsched/stock/pending") == len(expected) > 20
    assert ours.stat("altsched/stock/unclean") == 0
    found = [comparable(request) for request in drain(ours)]
    if policy == "slots" and not TURNS_BY_NAME:
        found.sort(key=lambda fields: fields["url"].split("/")[2])
        expected.sort(key=lambda fields: fields["url"].split("/")[2])
    assert found == expected


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("policy", POLICIES)
def test_all_that_a_dead_stock_has_on_its_disk_is_recovered(
    tmp_path: Path, kind: str, policy: str
) -> None:
    settings = queues(kind, policy)
    stand_in = stock_job(tmp_path / "alive", settings)
    # As much as Python holds back reaches the disk with the next larger page.
    for host in "abc":
        for priority in (0, 5, -1):
            for meta in ({}, {"is_start_request": True}):
                large = page(99, host, priority=priority, meta=meta, dont_filter=True)
                large.cb_kwargs["text"] = "x" * 200_000
                stand_in.scheduler.enqueue_request(large)
    shutil.copytree(tmp_path / "alive", tmp_path / "job")
    pending = {request.url for request in drain(stand_in)}
    ours = open_ours(tmp_path / "job", settings)
    assert ours.stat("altsched/stock/unclean") > 0
    recovered = {request.url for request in drain(ours)}
    assert {url for url in pending if not url.endswith("/99")} <= recovered


def test_the_priority_policy_may_change_with_the_import(tmp_path: Path) -> None:
    path = closed_job(tmp_path / "job", queues("PickleFifoDiskQueue", "slots"))
    shutil.copytree(path, tmp_path / "copy")
    ours = open_ours(path, queues("PickleLifoDiskQueue", "one", None))
    theirs = open_ours(tmp_path / "copy", queues("PickleFifoDiskQueue", "slots"))
    assert Counter(r.url for r in drain(ours)) == Counter(r.url for r in drain(theirs))


# What was seen, and what it counts for


@pytest.mark.parametrize("format_", ["hex", "binary"])
def test_what_was_seen_is_not_crawled_again_in_either_format(tmp_path: Path, format_: str) -> None:
    path = closed_job(tmp_path / "job")
    seen = path / "requests.seen"
    stand_in = StandIn({**DEFAULT, "JOBDIR": str(path)}, Pages)
    prints = getattr(stand_in.scheduler.df, "_fingerprints", None)
    if prints is None:
        prints = {bytes.fromhex(text) for text in stand_in.scheduler.df.fingerprints}
    stand_in.scheduler.close("shutdown")
    times = seen.stat().st_atime_ns, (path / "requests.queue/active.json").stat().st_mtime_ns
    if format_ == "hex":
        seen.write_text("".join(f"{one.hex()}\n" for one in prints))
    else:
        seen.write_bytes(b"".join(len(one).to_bytes(2, "big") + one for one in prints))
    os.utime(seen, ns=times)
    ours = open_ours(path)
    again = sum(
        ours.scheduler.enqueue_request(page(number, host)) for number in range(60) for host in "abc"
    )
    assert again == 3 * 60 - len(prints)
    pending = ours.stat("altsched/stock/pending")
    counts = ours.scheduler._session.frontier.counts()
    assert counts.done == ours.stat("altsched/stock/done")
    assert counts.accepted == pending + counts.done + again
    ours.scheduler.close("shutdown")


def test_done_is_what_was_seen_and_is_not_pending(tmp_path: Path, caplog: Any) -> None:
    caplog.set_level(logging.INFO)
    stock = StandIn({**DEFAULT, "JOBDIR": str(tmp_path / "job")}, Pages)
    for number in range(10):
        stock.scheduler.enqueue_request(page(number))
    stock.scheduler.enqueue_request(page(1, dont_filter=True))
    for _ in range(4):
        request = stock.next()
        assert request is not None
        stock.engine.end(request)
    stock.scheduler.close("shutdown")
    ours = open_ours(tmp_path / "job")
    counts = ours.scheduler._session.frontier.counts()
    # The last one in is the copy of /1: of the ten that were seen, seven are pending.
    assert (counts.pending, counts.done, counts.accepted) == (7, 3, 10)
    assert "7 requests pending (read: 7 LIFO), 0 dead" in caplog.text
    assert "fingerprints in requests.seen: 10" in caplog.text
    assert "3 of them imported as done" in caplog.text
    assert "Resuming crawl (7 requests scheduled)" in caplog.text
    assert ours.scheduler.resumed
    ours.scheduler.close("shutdown")


def test_a_finished_job_of_stock_is_finished(tmp_path: Path) -> None:
    stock = StandIn({**DEFAULT, "JOBDIR": str(tmp_path / "job")}, Pages)
    stock.scheduler.enqueue_request(page(1))
    request = stock.next()
    assert request is not None
    stock.engine.end(request)
    stock.scheduler.close("finished")
    ours = open_ours(tmp_path / "job")
    assert not ours.scheduler.resumed
    assert not ours.scheduler.enqueue_request(page(1))
    assert ours.scheduler.enqueue_request(page(2))
    ours.scheduler.close("shutdown")


def test_other_rules_for_fingerprints_are_warned_of(tmp_path: Path, caplog: Any) -> None:
    path = closed_job(tmp_path / "job")
    other = {"REQUEST_FINGERPRINTER_CLASS": f"{__name__}.OtherFingerprinter"}
    open_ours(path, **other).scheduler.close("shutdown")
    assert "the rules for fingerprints have changed" in caplog.text


def test_rules_for_urls_hold_for_what_is_taken_over(tmp_path: Path, caplog: Any) -> None:
    path = closed_job(tmp_path / "job")
    shutil.copytree(path, tmp_path / "copy")
    pending = [
        request for request in drain(open_ours(tmp_path / "copy")) if not request.dont_filter
    ]
    caplog.clear()
    ours = open_ours(path, ALTSCHED_URL_RULES=[{"ignore_scheme": True}])
    for request in pending:
        secure = Request(request.url.replace("http:", "https:"))
        assert not ours.scheduler.enqueue_request(secure)
    # Said once, and not again as of a job of ours whose rules were changed.
    assert caplog.text.count("fingerprints") == 1
    assert "the rules for fingerprints have changed" in caplog.text
    ours.scheduler.close("shutdown")


class OtherFingerprinter:
    def fingerprint(self, request: Request) -> bytes:
        return request.url.encode()


# Start requests


@pytest.mark.smoke
def test_start_requests_that_wait_are_not_taken_twice(tmp_path: Path) -> None:
    urls = 20
    with Site({f"/{number}": Page() for number in range(urls)}) as site:
        crawl = Crawl(tmp_path, "starts", site.url, count=urls)
        slow = {"CLOSESPIDER_PAGECOUNT": 5, "CONCURRENT_REQUESTS": 1}
        assert crawl.run(**STOCK, **slow) == 0
        before = site.hits.copy()
        assert crawl.run() == 0
        assert crawl.stat("altsched/stock/pending") == urls - before.total()
        # As with stock, those that were done are crawled again; as with ours, those that wait are
        # not.
        assert set(site.hits) == {f"/{number}" for number in range(urls)}
        assert site.hits.total() == urls + before.total()
        assert crawl.stat("altsched/start/skipped") == urls - before.total()


# Unclean ends


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_stock_crawl_that_was_killed_is_completed(tmp_path: Path, kind: str, policy: str) -> None:
    graph = random_graph(60, 5, 3)
    graph["/0"].links += graph
    settings = {
        "SCHEDULER_DISK_QUEUE": f"scrapy.squeues.{kind}",
        "SCHEDULER_PRIORITY_QUEUE": POLICIES[policy],
        "CONCURRENT_REQUESTS": 4,
        # Else Scrapy fetches ahead of the callbacks, perhaps everything.
        "SCRAPER_SLOT_MAX_ACTIVE_SIZE": 1,
    }
    with Site(graph) as site:
        crawl = Crawl(tmp_path, "pages", f"{site.url}/0")
        assert crawl.run(**STOCK, **settings, KILL_AT=25, KILL_ON="item") == -signal.SIGKILL
        assert set(site.hits) < set(graph)
        assert crawl.run(**settings) == 0
        assert set(site.hits) == set(graph)
        assert set(crawl.item_paths()) == set(graph)
        assert ": active.json is missing" in crawl.log
        assert "is finished: 60 requests done" in crawl.log
        assert crawl.stat("altsched/stock/pending") > 0


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("kind", DISK_KINDS)
def test_a_stock_crawl_that_was_stopped_is_completed_and_nothing_is_fetched_twice(
    tmp_path: Path, kind: str, policy: str
) -> None:
    graph = random_graph(60, 5, 4)
    settings = {
        "SCHEDULER_DISK_QUEUE": f"scrapy.squeues.{kind}",
        "SCHEDULER_PRIORITY_QUEUE": POLICIES[policy],
    }
    with Site(graph) as site:
        crawl = Crawl(tmp_path, "pages", f"{site.url}/0")
        assert crawl.run(**STOCK, **settings, CLOSESPIDER_PAGECOUNT=20) == 0
        assert set(site.hits) < set(graph)
        assert crawl.run(**settings) == 0
        assert site.hits == Counter(graph.keys())
        assert sorted(crawl.item_paths()) == sorted(graph)
        assert "WARNING" not in crawl.log
        assert "is finished: 60 requests done" in crawl.log


def test_what_stock_itself_would_have_lost_is_recovered(tmp_path: Path) -> None:
    # Enough pages for Scrapy's filter to have written what it saw.
    graph = random_graph(420, 1, 5)
    graph["/0"].links += graph
    with Site(graph) as site:
        crawl = Crawl(tmp_path, "pages", f"{site.url}/0")
        assert crawl.run(**STOCK, KILL_AT=30, KILL_ON="item") == -signal.SIGKILL
        assert (crawl.jobdir / "requests.seen").stat().st_size
        assert crawl.run(**STOCK) == 0
        assert "'finish_reason': 'finished'" in crawl.log
        assert set(site.hits) < set(graph)
        assert crawl.run() == 0
        assert "active.json does not name" in crawl.log or "was not closed" in crawl.log
        assert set(site.hits) == set(graph)


def unclosed(path: Path) -> None:
    (path / "requests.queue" / "active.json").unlink()


def torn_active(path: Path) -> None:
    active = path / "requests.queue" / "active.json"
    active.write_text(active.read_text()[:-2])


def unnamed(path: Path) -> None:
    active = path / "requests.queue" / "active.json"
    named = json.loads(active.read_text())
    del named["a.example"]
    active.write_text(json.dumps(named))


def one_priority_unnamed(path: Path) -> None:
    active = path / "requests.queue" / "active.json"
    named = json.loads(active.read_text())
    named["b.example"].remove(0)
    active.write_text(json.dumps(named))


def newer_queue(path: Path) -> None:
    later = (path / "requests.queue" / "active.json").stat().st_mtime_ns + 10**7
    queue = next(path.glob("requests.queue/*/0"))
    os.utime(queue, ns=(later, later))


def newer_folder(path: Path) -> None:
    later = (path / "requests.queue" / "active.json").stat().st_mtime_ns + 10**7
    os.utime(next(path.glob("requests.queue/*/")), ns=(later, later))


def newer_seen(path: Path) -> None:
    later = (path / "requests.queue" / "active.json").stat().st_mtime_ns + 60 * 10**9
    os.utime(path / "requests.seen", ns=(later, later))


def torn_seen(path: Path) -> None:
    seen = path / "requests.seen"
    times = seen.stat().st_atime_ns, seen.stat().st_mtime_ns
    os.truncate(seen, seen.stat().st_size - 1)
    os.utime(seen, ns=times)


def another_header(path: Path) -> None:
    queue = next(path.glob("requests.queue/*/0"))
    times = queue.stat().st_atime_ns, queue.stat().st_mtime_ns
    with queue.open("r+b") as file:
        file.write((255).to_bytes(4, "big"))
    os.utime(queue, ns=times)


SIGNS: dict[Callable[[Path], None], str] = {
    unclosed: "active.json is missing",
    torn_active: "active.json cannot be read",
    unnamed: "active.json does not name requests.queue/a.example-",
    one_priority_unnamed: "active.json does not name requests.queue/b.example-",
    newer_queue: "/0 is newer than active.json",
    newer_folder: "is newer than active.json",
    newer_seen: "requests.seen is newer than active.json",
    torn_seen: "bytes that are no fingerprints",
    another_header: "/0 was not closed",
}


@pytest.mark.long
@pytest.mark.parametrize("spoil", SIGNS)
def test_each_sign_of_an_unclean_end_leaves_seen_out_unless_it_is_trusted(
    tmp_path: Path, spoil: Callable[[Path], None], caplog: Any
) -> None:
    path = closed_job(tmp_path / "job")
    seen = seen_count(path)
    spoil(path)
    shutil.copytree(path, tmp_path / "trusted")
    ours = open_ours(path)
    assert SIGNS[spoil] in caplog.text
    assert "requests.seen is left out" in caplog.text
    assert "ALTSCHED_TRUST_STOCK_SEEN = True" in caplog.text
    assert ours.stat("altsched/stock/unclean") >= 1
    assert ours.stat("altsched/stock/done") == 0
    pending = ours.stat("altsched/stock/pending")
    # Nothing but what is pending is refused.
    unique = {request.url for request in drain(ours) if not request.dont_filter}
    ours = open_ours(path)
    every = [page(number, host) for number in range(60) for host in "abc"]
    assert {r.url for r in every if not ours.scheduler.enqueue_request(r)} == unique
    ours.scheduler.close("shutdown")

    caplog.clear()
    ours = open_ours(tmp_path / "trusted", ALTSCHED_TRUST_STOCK_SEEN=True)
    assert SIGNS[spoil] in caplog.text
    assert "an unknown number of pages is missed" in caplog.text
    assert ours.stat("altsched/stock/pending") == pending
    done = seen - len(unique)
    # The fingerprint that is torn may be of a pending request.
    assert ours.stat("altsched/stock/done") in ((done, done - 1) if spoil is torn_seen else (done,))
    ours.scheduler.close("shutdown")


def test_what_is_there_more_than_once_is_crawled_once(tmp_path: Path) -> None:
    path = dead_job(tmp_path / "job", queues("PickleFifoDiskQueue", "slots"))
    # Nothing of requests.seen was written, so Scrapy's own scheduler accepts them again.
    (path / "requests.seen").write_bytes(b"")
    stock = stock_job(path, queues("PickleFifoDiskQueue", "slots"))
    stock.scheduler.close("shutdown")
    ours = open_ours(path, queues("PickleFifoDiskQueue", "slots"))
    assert ours.stat("altsched/stock/duplicates") > 10
    unique = [request.url for request in drain(ours) if not request.dont_filter]
    assert len(unique) == len(set(unique))


# Requests that cannot be restored


def test_a_request_whose_callback_is_gone_is_dead_with_the_reason(
    tmp_path: Path, caplog: Any
) -> None:
    path = closed_job(tmp_path / "job")
    shutil.copytree(path, tmp_path / "copy")
    requests = drain(open_ours(tmp_path / "copy"))
    lost = [request for request in requests if request.callback is not None]
    caplog.clear()
    ours = open_ours(path, spider=Renamed)
    assert ours.stat("altsched/stock/dead") == len(lost) > 0
    assert ours.stat("altsched/stock/pending") == len(requests) - len(lost)
    assert f"{len(lost)} requests of Scrapy's own scheduler cannot be restored" in caplog.text
    assert "Method 'detail' not found" in caplog.text
    frontier = ours.scheduler._session.frontier
    reasons = [str(why) for _, why, _ in journal_of(frontier).dead()]
    assert len(reasons) == len(lost)
    assert all("it cannot be restored" in why and "detail" in why for why in reasons)
    # A dead one is known to have been seen.
    unique = next(request for request in lost if not request.dont_filter)
    assert not ours.scheduler.enqueue_request(Request(unique.url))
    assert {request.url for request in drain(ours)}.isdisjoint({unique.url})


class Gone(Request):
    """A class that is not there any more when the job goes on."""


def test_a_request_whose_class_is_gone_is_dead(tmp_path: Path, monkeypatch: Any) -> None:
    stock = StandIn({**DEFAULT, "JOBDIR": str(tmp_path / "job")}, Pages)
    stock.scheduler.enqueue_request(Gone("http://a.example/1"))
    stock.scheduler.enqueue_request(page(2, meta={"one": Gone("http://a.example/3")}))
    stock.scheduler.enqueue_request(page(4))
    stock.scheduler.close("shutdown")
    monkeypatch.delattr(sys.modules[__name__], "Gone")
    ours = open_ours(tmp_path / "job")
    assert ours.stat("altsched/stock/dead") == 2
    assert [request.url for request in drain(ours)] == ["http://a.example/4"]


class Choosy:
    def fingerprint(self, request: Request) -> bytes:
        if request.url.endswith("7"):
            raise RuntimeError("no sevens")
        return request.url.encode()


def test_a_request_that_has_no_fingerprint_any_more_is_dead(tmp_path: Path, caplog: Any) -> None:
    path = closed_job(tmp_path / "job")
    ours = open_ours(path, REQUEST_FINGERPRINTER_CLASS=f"{__name__}.Choosy")
    assert "no sevens" in caplog.text
    assert ours.stat("altsched/stock/dead") > 0
    ours.scheduler.close("shutdown")


def test_garbage_among_the_records_is_counted_and_said(tmp_path: Path, caplog: Any) -> None:
    path = closed_job(tmp_path / "job")
    queue = next(path.glob("requests.queue/*/0"))
    with queue.open("ab") as file:
        file.write(b"{z0" + (3).to_bytes(4, "big") + b"torn")
    ours = open_ours(path)
    assert ours.stat("altsched/stock/unreadable") == len(b"{z0torn")
    assert f"{len(b'{z0torn')} bytes of the files of Scrapy's own scheduler" in caplog.text
    ours.scheduler.close("shutdown")


# The directory


def test_the_original_is_kept_aside_as_it_was(tmp_path: Path) -> None:
    path = closed_job(tmp_path / "job")
    (path / "spider.state").write_bytes(b"state")
    before = files(path)
    open_ours(path).scheduler.close("shutdown")
    assert (path / "spider.state").read_bytes() == b"state"
    assert not (path / "requests.queue").exists()
    assert not (path / "requests.seen").exists()
    aside = {name: old for name, old in before.items() if name != "spider.state"}
    assert files(path / "stock") == aside


def test_a_name_that_is_taken_is_not_written_over(tmp_path: Path) -> None:
    path = closed_job(tmp_path / "job")
    (path / "stock" / "requests.queue").mkdir(parents=True)
    (path / "stock-2").write_text("somebody's")
    open_ours(path).scheduler.close("shutdown")
    assert list((path / "stock" / "requests.queue").iterdir()) == []
    assert (path / "stock-2").read_text() == "somebody's"
    assert (path / "stock-3" / "requests.queue" / "active.json").exists()


def test_the_spiders_state_goes_on(tmp_path: Path) -> None:
    graph = random_graph(40, 3, 4)
    with Site(graph) as site:
        crawl = Crawl(tmp_path, "pages", f"{site.url}/0")
        assert crawl.run(**STOCK, CLOSESPIDER_PAGECOUNT=10) == 0
        assert crawl.run() == 0
    state = pickle.loads((crawl.jobdir / "spider.state").read_bytes())
    assert state["pages"] == len(graph)


@pytest.mark.parametrize("name", ["requests.seen", "requests.queue/active.json"])
def test_a_file_that_cannot_be_read_is_an_error_and_nothing_changes(
    tmp_path: Path, name: str
) -> None:
    path = closed_job(tmp_path / "job")
    (path / name).unlink()
    (path / name).symlink_to((path / name).name)
    (path / "altsched.lock").touch()
    before = sorted(path.rglob("*"))
    with pytest.raises(JobdirError, match="Make it readable to this user"):
        open_ours(path)
    assert sorted(path.rglob("*")) == before
    # What the message says helps.
    (path / name).unlink()
    open_ours(path).scheduler.close("shutdown")


def test_a_failure_in_the_middle_leaves_stock_as_it_was(tmp_path: Path) -> None:
    path = closed_job(tmp_path / "job")
    (path / "requests.seen").unlink()
    (path / "requests.seen").mkdir()
    shutil.copytree(path, tmp_path / "copy")
    before = files(path)
    with pytest.raises(AltschedError):
        open_ours(path)
    assert {name: old for name, old in files(path).items() if name != "altsched.lock"} == before
    assert not (path / "frontier.partial").exists()


def test_an_empty_directory_of_stock_is_nothing_to_import(tmp_path: Path, caplog: Any) -> None:
    caplog.set_level(logging.INFO)
    path = tmp_path / "job"
    (path / "requests.queue").mkdir(parents=True)
    (path / "requests.seen").write_bytes(b"")
    ours = open_ours(path)
    assert ours.stat("altsched/stock/pending") is None
    assert "Scrapy's own scheduler" not in caplog.text
    ours.scheduler.close("shutdown")


# Beside a store of ours


def test_the_queue_of_stock_joins_what_our_filter_had_seen(tmp_path: Path) -> None:
    path = tmp_path / "job"
    filter_only = {**DEFAULT, "DUPEFILTER_CLASS": OURS["DUPEFILTER_CLASS"]}
    stock = StandIn({**filter_only, "JOBDIR": str(path)}, Pages)
    for number in range(20):
        stock.scheduler.enqueue_request(page(number))
    for _ in range(5):
        request = stock.next()
        assert request is not None
        stock.engine.end(request)
    stock.scheduler.close("shutdown")
    assert (path / "frontier").exists()
    ours = open_ours(path)
    assert ours.stat("altsched/stock/pending") == 15
    assert not any(ours.scheduler.enqueue_request(page(number)) for number in range(20))
    assert len(drain(ours)) == 15


def test_scrapys_filter_under_our_scheduler_keeps_its_file(tmp_path: Path) -> None:
    path = closed_job(tmp_path / "job")
    count = seen_count(path)
    ours = open_ours(path, DUPEFILTER_CLASS=RFP)
    assert (path / "requests.seen").exists()
    assert not (path / "requests.queue").exists()
    assert ours.scheduler.enqueue_request(page(1000))
    pending = len(drain(ours))
    assert seen_count(path) == count + 1
    shutil.rmtree(path / "requests.queue", ignore_errors=True)
    # With our filter, what that file knows is known from then on.
    ours = open_ours(path)
    assert not ours.scheduler.enqueue_request(page(1000))
    assert not (path / "requests.seen").exists()
    assert pending
    ours.scheduler.close("shutdown")


def test_a_job_of_ours_and_a_later_one_of_stock_are_not_mixed(tmp_path: Path) -> None:
    path = tmp_path / "job"
    ours = open_ours(path)
    ours.scheduler.enqueue_request(page(1))
    ours.scheduler.close("shutdown")
    closed_job(path)
    before = files(path)
    with pytest.raises(JobdirError, match="came later") as caught:
        open_ours(path)
    assert str(path) in str(caught.value)
    unchanged = {"altsched.lock", "frontier/rocksdict-config.json"}
    after = files(path)
    for name in before.keys() - unchanged:
        if not name.startswith("frontier/"):
            assert after[name] == before[name]
    # What the message says helps, in both ways.
    (path / "requests.queue").rename(tmp_path / "requests.queue")
    (path / "requests.seen").rename(tmp_path / "requests.seen")
    assert [request.url for request in drain(open_ours(path))] == ["http://a.example/1"]
    (tmp_path / "requests.queue").rename(path / "requests.queue")
    (tmp_path / "requests.seen").rename(path / "requests.seen")
    (path / "frontier").rename(tmp_path / "frontier")
    (path / "altsched.json").rename(tmp_path / "altsched.json")
    assert len(drain(open_ours(path))) > 20


# Scrapy's scheduler or filter in one run, and ours in the next

CHAIN = {f"/{number}": Page([f"/{number + 1}"] if number < 29 else []) for number in range(30)}
#: What was seen is on the disk at once, and what is pending seldom.
AHEAD = {
    "REQUEST_FINGERPRINTER_CLASS": "crashsite.fingerprinters.Huge",
    "ALTSCHED_COMMIT_INTERVAL": 600,
}
#: When the queue is empty.
DEATH = {"KILL_AT": 10, "KILL_ON": "received"}
OUR_FILTER = {"DUPEFILTER_CLASS": OURS["DUPEFILTER_CLASS"]}


@pytest.mark.parametrize("pages", [0, 3])
def test_a_stock_crawl_that_was_killed_without_a_queue_leaves_its_seen_out(
    tmp_path: Path, pages: int
) -> None:
    with Site(CHAIN) as site:
        crawl = Crawl(tmp_path, "pages", f"{site.url}/0")
        if pages:
            assert crawl.run(**AHEAD, CLOSESPIDER_PAGECOUNT=pages) == 0
        assert crawl.run(**STOCK, **AHEAD, **DEATH) == -signal.SIGKILL
        assert (crawl.jobdir / "requests.seen").stat().st_size
        assert not [path for path in (crawl.jobdir / "requests.queue").rglob("*") if path.is_file()]
        assert crawl.run(**AHEAD) == 0
        assert set(site.hits) == set(crawl.item_paths()) == set(CHAIN)
        assert "is finished" in crawl.log
        assert ": active.json is missing" in crawl.log
        assert "So requests.seen is left out" in crawl.log
        assert not (crawl.jobdir / "requests.queue").exists()
        assert not (crawl.jobdir / "requests.seen").exists()


@pytest.mark.parametrize("pages", [0, 3])
def test_what_our_filter_saw_under_a_stock_scheduler_that_was_killed_is_left_out(
    tmp_path: Path, pages: int
) -> None:
    with Site(CHAIN) as site:
        crawl = Crawl(tmp_path, "pages", f"{site.url}/0")
        if pages:
            assert crawl.run(CLOSESPIDER_PAGECOUNT=pages) == 0
            # Our filter refuses what our scheduler has crawled.
            crawl.arguments["url"] = f"{site.url}/10"
        often = {"ALTSCHED_COMMIT_INTERVAL": 0.01}
        assert crawl.run(**STOCK, **OUR_FILTER, **often, **DEATH) == -signal.SIGKILL
        crawl.arguments["url"] = f"{site.url}/0"
        assert crawl.run() == 0
        assert set(site.hits) == set(crawl.item_paths()) == set(CHAIN)
        assert "is finished" in crawl.log
        assert ", under scrapy.core.scheduler.Scheduler, did not end" in crawl.log
        assert re.search(
            r"So what scrapy_altsched.DupeFilter noted then \(fingerprints: \d+\) is", crawl.log
        )
        before = site.hits.copy()
        # Decided once and for all.
        assert crawl.run() == 0
        assert site.hits == before
        assert "did not end" not in crawl.log


def test_a_crawl_with_the_filter_of_stock_that_was_killed_is_not_finished(tmp_path: Path) -> None:
    filter_ = {**AHEAD, "DUPEFILTER_CLASS": RFP}
    with Site(CHAIN) as site:
        crawl = Crawl(tmp_path, "pages", f"{site.url}/0")
        assert crawl.run(**filter_, **DEATH) == -signal.SIGKILL
        assert crawl.run(**filter_) == 0
        assert set(site.hits) < set(CHAIN)
        assert "may be missing: run 1 died, and scrapy.dupefilters.RFPDupeFilter" in crawl.log
        assert "is not finished" in crawl.log
        check = altsched("check", str(crawl.jobdir))
        assert check.returncode == 1
        assert "Requests may be missing: run 1 died" in " ".join(check.stdout.split())
        assert altsched("check", "--accept-loss", str(crawl.jobdir)).returncode == 0
        assert crawl.run(**filter_) == 0
        assert "is finished" in crawl.log


def test_a_crawl_with_the_filter_of_stock_that_was_killed_is_completed_with_ours(
    tmp_path: Path,
) -> None:
    with Site(CHAIN) as site:
        crawl = Crawl(tmp_path, "pages", f"{site.url}/0")
        assert crawl.run(**AHEAD, DUPEFILTER_CLASS=RFP, **DEATH) == -signal.SIGKILL
        assert crawl.run(**AHEAD) == 0
        assert set(site.hits) == set(crawl.item_paths()) == set(CHAIN)
        assert "is finished" in crawl.log
        assert "run 1, with scrapy.dupefilters.RFPDupeFilter, did not end" in crawl.log


def crawl_a_page(path: Path, number: int, filter_: dict[str, Any], *, dies: bool) -> None:
    """One page under Scrapy's scheduler, of whose queue nothing is left then."""
    living = path.with_name("living")
    path.rename(living)
    stock = StandIn({**DEFAULT, **filter_, "JOBDIR": str(living)}, Pages)
    stock.scheduler.enqueue_request(page(number))
    request = stock.next()
    assert request is not None
    if getattr(stock.scheduler.df, "file", None) is not None:
        stock.scheduler.df.file.flush()
    if dies:
        shutil.copytree(living, path)
    stock.engine.end(request)
    stock.scheduler.close("finished")
    if not dies:
        shutil.copytree(living, path)
    shutil.rmtree(living)


def accepted(path: Path, *numbers: int, **more: Any) -> list[bool]:
    """Whether our scheduler accepts these pages when it opens *path* next."""
    ours = open_ours(path, **more)
    found = [ours.scheduler.enqueue_request(page(number)) for number in numbers]
    drain(ours)
    return found


@pytest.mark.parametrize("filter_", [{}, OUR_FILTER], ids=["stock", "ours"])
def test_the_last_of_several_ends_decides(tmp_path: Path, filter_: dict[str, Any]) -> None:
    path = tmp_path / "job"
    assert accepted(path, 1) == [True]
    crawl_a_page(path, 2, filter_, dies=False)
    assert accepted(path, 1, 2, 3) == [False, False, True]
    crawl_a_page(path, 4, filter_, dies=False)
    crawl_a_page(path, 5, filter_, dies=True)
    # What came before is settled.
    assert accepted(path, 1, 2, 3, 4, 5) == [False, False, False, True, True]
    assert accepted(path, 1, 2, 3, 4, 5) == [False] * 5


def test_what_our_filter_saw_before_a_death_may_be_trusted(tmp_path: Path, caplog: Any) -> None:
    path = tmp_path / "job"
    path.mkdir()
    crawl_a_page(path, 1, OUR_FILTER, dies=True)
    assert accepted(path, 1, 2, ALTSCHED_TRUST_STOCK_SEEN=True) == [False, True]
    assert "an unknown number of pages is missed" in caplog.text
    assert accepted(path, 1) == [False]


@pytest.mark.parametrize("dies", [True, False])
def test_what_our_filter_saw_in_an_earlier_version_is_believed_after_a_clean_end_only(
    tmp_path: Path, dies: bool
) -> None:
    path = tmp_path / "job"
    path.mkdir()
    crawl_a_page(path, 1, OUR_FILTER, dies=dies)
    journal = Journal(path, "spider")
    [key] = dict(journal.seen())
    journal.write(Batch(journal.counters(), seen_rows=[(key, b"")]))
    rows = RowBatch()
    rows.delete("meta", [b"note:run:0000000001"])
    journal.database.write(rows, wait=True)
    journal.close()
    assert accepted(path, 1) == [dies]
    assert accepted(path, 1) == [False]


@pytest.mark.rocksdb
def test_a_repair_keeps_apart_what_our_filter_saw_under_another_scheduler(tmp_path: Path) -> None:
    path = tmp_path / "job"
    assert accepted(path, 1) == [True]
    crawl_a_page(path, 2, OUR_FILTER, dies=True)
    (path / "frontier" / "CURRENT").unlink()
    repair(path, "spider", lambda _: True)
    assert accepted(path, 1, 2) == [False, True]


def test_a_seen_file_that_nobody_vouches_for_is_left_out(tmp_path: Path, caplog: Any) -> None:
    path = tmp_path / "job"
    assert accepted(path, 1) == [True]
    crawl_a_page(path, 2, {}, dies=False)
    shutil.rmtree(path / "requests.queue")
    assert accepted(path, 1, 2) == [False, True]
    assert "nothing tells how the crawl ended that wrote requests.seen" in caplog.text


def test_a_filter_of_stock_beside_a_scheduler_of_stock_that_died_is_not_finished(
    tmp_path: Path, caplog: Any
) -> None:
    path = dead_job(tmp_path / "job")
    ours = StandIn({**DEFAULT, **OURS, "DUPEFILTER_CLASS": RFP, "JOBDIR": str(path)}, Pages)
    assert "may be missing: Scrapy's own scheduler died, and DUPEFILTER_CLASS" in caplog.text
    while (request := ours.next()) is not None:
        ours.engine.end(request)
    caplog.set_level(logging.INFO)
    ours.scheduler.close("finished")
    assert "is not finished" in caplog.text


# Killed in the middle


class Nursery:
    """Opens directories with our scheduler, each in a fork of a process that has opened none.

    (What RocksDB does in threads would be missing in a fork of this one.)
    """

    def __enter__(self) -> Nursery:
        self._process = subprocess.Popen(
            [sys.executable, "-c", "from tests.stock.test_job import serve; serve()"],
            cwd=Path(__file__).parents[2],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate("", timeout=60)

    def open(self, path: Path, **death: int) -> int:
        """The exit code, negative if a signal ended it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps([str(path), death]), file=self._process.stdin, flush=True)
        return int(self._process.stdout.readline())


def serve() -> None:
    import_module("tests.conftest")
    logging.disable()
    for line in sys.stdin:
        path, death = json.loads(line)
        child = os.fork()
        if not child:
            try:
                open_and_die(path, **death)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def open_and_die(path: str, step: int = 0, fingerprint: int = 0) -> None:
    """Open *path*, and die at the given step of what it writes, or n-th fingerprint."""

    def count(event: str, arguments: Any) -> None:
        nonlocal step
        writes = event in ("os.rename", "os.mkdir", "os.truncate", "os.rmdir", "os.remove")
        if writes or (event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)):
            step -= 1
            if not step:
                os.kill(os.getpid(), signal.SIGKILL)

    Deadly.left = fingerprint
    # So small that the import is killed between two of its batches, too.
    import_module("scrapy_altsched.maintenance.rewriter").CHUNK = CHUNK  # type: ignore[attr-defined]
    deadly = {"REQUEST_FINGERPRINTER_CLASS": f"{__name__}.Deadly"}
    sys.addaudithook(count)
    StandIn({**DEFAULT, **OURS, **deadly, "JOBDIR": path}, Pages)


class Deadly:
    """Kills the process at its n-th fingerprint."""

    left = 0

    def fingerprint(self, request: Request) -> bytes:
        Deadly.left -= 1
        if not Deadly.left:
            os.kill(os.getpid(), signal.SIGKILL)
        return fingerprint(request)


def assert_taken_over(path: Path, expected: list[dict[str, Any]]) -> None:
    ours = open_ours(path)
    counts = ours.scheduler._session.frontier.counts()
    assert counts.pending == len(expected)
    assert [comparable(request) for request in drain(ours)] == expected
    assert not (path / "requests.queue").exists()
    assert not (path / "frontier.partial").exists()
    # Nothing of it comes again.
    assert drain(open_ours(path)) == []


def test_a_kill_at_any_step_of_the_take_over_is_got_over(tmp_path: Path) -> None:
    job = closed_job(tmp_path / "job", count=12, hosts="a")
    before = files(job)
    shutil.copytree(job, tmp_path / "copy")
    expected = [comparable(request) for request in drain(open_ours(tmp_path / "copy"))]
    stages: Counter[str] = Counter()
    with Nursery() as nursery:
        for step in range(1, 400):
            path = tmp_path / str(step)
            shutil.copytree(job, path)
            if nursery.open(path, step=step) != -signal.SIGKILL:
                break
            if (path / "frontier").exists():
                stages["committed" if (path / "requests.queue").exists() else "put aside"] += 1
            else:
                stages["untouched"] += 1
                left = {n: old for n, old in files(path).items() if n.startswith("requests.")}
                assert left == before
            assert_taken_over(path, expected)
            shutil.rmtree(path)
    # The last one was not killed.
    assert_taken_over(path, expected)
    assert min(stages["untouched"], stages["committed"], stages["put aside"]) >= 2, stages


@pytest.mark.parametrize("beside", ["nothing", "a filter's store", "that of one that died"])
def test_a_kill_between_any_two_batches_is_got_over(tmp_path: Path, beside: str) -> None:
    job = tmp_path / "job"
    if beside == "a filter's store":
        frontier = open_frontier(job, OWNER)
        frontier.mark_seen(b"x" * 20)
        frontier.close()
    elif beside != "nothing":
        frontier = open_frontier(job, OWNER, Options(components=Components(scheduler="another")))
        for number in range(24):
            frontier.mark_seen(fingerprint(page(number)))
            frontier.mark_seen(fingerprint(page(number, "b")))
        frontier.commit()
        frontier.abandon()
    closed_job(job, count=24)
    shutil.copytree(job, tmp_path / "copy")
    expected = [comparable(request) for request in drain(open_ours(tmp_path / "copy"))]
    with Nursery() as nursery:
        for number in range(1, len(expected) + 1, CHUNK):
            path = tmp_path / str(number)
            shutil.copytree(job, path)
            assert nursery.open(path, fingerprint=number) == -signal.SIGKILL
            assert (path / "requests.queue").exists()
            assert_taken_over(path, expected)


def test_rows_of_a_take_over_that_was_cut_short_are_not_mixed_with_another_order(
    tmp_path: Path,
) -> None:
    frontier = open_frontier(tmp_path / "job", OWNER)
    frontier.mark_seen(b"x" * 20)
    frontier.close()
    path = closed_job(tmp_path / "job", count=24)
    shutil.copytree(path, tmp_path / "copy")
    with Nursery() as nursery:
        assert nursery.open(path, fingerprint=3 * CHUNK) == -signal.SIGKILL
    other = queues("PickleFifoDiskQueue", "one", None)
    expected = [request.url for request in drain(open_ours(tmp_path / "copy", other))]
    assert [request.url for request in drain(open_ours(path, other))] == expected


# How far it is


def test_log_lines_tell_how_far_it_is(tmp_path: Path, monkeypatch: Any, caplog: Any) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(progress, "_LOG_EVERY", 0)
    monkeypatch.setattr(progress, "_STRIDE", 10)
    path = closed_job(tmp_path / "job")
    open_ours(path).scheduler.close("shutdown")
    assert re.search(r"Importing requests of Scrapy's own scheduler: 10 of \d\d\n", caplog.text)
    assert re.search(r"Importing fingerprints .*: 20 of \d\d\n", caplog.text)


def test_a_terminal_shows_a_bar(tmp_path: Path) -> None:
    closed_job(tmp_path / "job")
    master, terminal = pty.openpty()
    script = (
        "import sys, tests.conftest; from tests.stock.test_job import *;"
        "StandIn({**DEFAULT, **OURS, 'JOBDIR': sys.argv[1]}, Pages).scheduler.close('shutdown')"
    )
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "job")],
        stderr=terminal,
        cwd=Path(__file__).parents[2],
        env=environment,
    ) as process:
        os.close(terminal)
        shown = b""
        try:
            while more := os.read(master, 1 << 16):
                shown += more
        except OSError:  # the other end was closed
            pass
    os.close(master)
    assert process.returncode == 0
    text = shown.decode()
    assert "Importing requests of Scrapy's own scheduler" in text
    assert "━" in text
