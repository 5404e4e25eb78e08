"""What operators ask of a crawl, through the spool of its job: each action is applied once."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from scrapy import Request
from scrapy.exceptions import IgnoreRequest
from scrapy.signals import request_scheduled

from scrapy_altsched.crawl.receiver import Receiver
from scrapy_altsched.errors import SpoolError, StoreError
from scrapy_altsched.frontier.entry import PageFailure, Reason
from scrapy_altsched.frontier.store.engines import Choice
from scrapy_altsched.steering.actions import (
    Action,
    Defer,
    Discard,
    Effect,
    Forget,
    Pause,
    Push,
    Requeue,
    Resume,
    Stop,
    Undefer,
)
from scrapy_altsched.steering.spool import NAME, Sent, Spool

from ..engines import OURS, SLOTS, StandIn
from ..frontiers import DiskKind, page, problems_of, take
from ..stores import BY_ENGINE

SITE = "http://site.test"


def open_crawl(jobdir: Path, engine: Choice = "auto", **settings: Any) -> StandIn:
    names = {"JOBDIR": str(jobdir), "ALTSCHED_STORE": engine, "SCHEDULER_PRIORITY_QUEUE": SLOTS}
    return StandIn({**OURS, **names, **settings})


def receiver_of(crawl: StandIn) -> Receiver:
    receiver: Receiver = crawl.scheduler._session.steering._receiver
    return receiver


def take_all(crawl: StandIn) -> None:
    """What the timer of a crawl does until nothing waits."""
    spool = receiver_of(crawl)._spool
    for _ in range(10_000):
        # A store may be busy with itself.
        if not receiver_of(crawl).step() and not spool.waiting():
            return


def ask(crawl: StandIn, jobdir: Path, action: Action) -> Effect:
    spool = Spool(jobdir)
    sent = spool.send(action)
    take_all(crawl)
    effect = spool.take_answer(sent)
    assert effect is not None
    assert list((jobdir / NAME).iterdir()) == []
    return effect


def urls(count: int, path: str = "") -> list[dict[str, Any]]:
    return [{"url": f"{SITE}/{path}{number}"} for number in range(count)]


def counts_of(crawl: StandIn) -> Any:
    return crawl.scheduler._session.frontier.counts()


def end_all(crawl: StandIn) -> list[str]:
    """Crawl all that is pending; the URLs, in their order."""
    found = []
    while (request := crawl.next()) is not None:
        found.append(request.url)
        crawl.engine.end(request)
    return found


@pytest.fixture
def jobdir(tmp_path: Path) -> Path:
    return tmp_path / "job"


@BY_ENGINE
def test_pushed_requests_are_crawled_and_seen_ones_are_not(jobdir: Path, engine: Choice) -> None:
    crawl = open_crawl(jobdir, engine)
    assert ask(crawl, jobdir, Push(urls(3))) == Effect(changed=3)
    assert ask(crawl, jobdir, Push([*urls(4), {"url": f"{SITE}/0", "dont_filter": True}])) == (
        Effect(changed=2, refused=3)
    )
    bad = {"url": "nonsense"}, {"url": f"{SITE}/x", "callback": "parse_nothing"}, {"method": "GET"}
    effect = ask(crawl, jobdir, Push(bad))
    assert (effect.changed, effect.refused) == (0, 3)
    assert effect.reason.startswith("'nonsense' cannot be requested: Missing scheme")
    assert sorted(end_all(crawl)) == sorted(f"{SITE}/{it}" for it in ("0", "0", "1", "2", "3"))
    crawl.scheduler.close("finished")


@pytest.mark.long
@BY_ENGINE
def test_an_action_is_applied_once_whenever_the_process_dies(
    jobdir: Path, engine: Choice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before and after each commit, and around the answer."""
    crawl = open_crawl(jobdir, engine)
    spool = Spool(jobdir)
    requests = [{"url": f"{SITE}/{it % 7}", "dont_filter": True} for it in range(1_300)]
    pushed = spool.send(Push(requests))
    images: list[Path] = []

    def copy() -> None:
        images.append(tmp_path / f"image {len(images)}")
        shutil.copytree(jobdir, images[-1])

    def around(call: Callable[..., Any]) -> Callable[..., Any]:
        def copying(*arguments: Any) -> Any:
            copy()
            result = call(*arguments)
            copy()
            return result

        return copying

    receiver = receiver_of(crawl)
    monkeypatch.setattr(receiver, "_commit", around(receiver._commit))
    monkeypatch.setattr(receiver._spool, "answer", around(receiver._spool.answer))
    take_all(crawl)
    crawl.scheduler._session.frontier.abandon()
    assert len(images) > 10
    lines = set()
    for image in images:
        resumed = open_crawl(image, engine)
        begun = receiver_of(resumed)._begun
        lines.add(begun[pushed.id].line if begun else None)
        take_all(resumed)
        assert counts_of(resumed).accepted == len(requests)
        assert Spool(image).take_answer(pushed) == Effect(changed=len(requests))
        assert problems_of(resumed.scheduler._session.frontier) == []
        resumed.scheduler.close("shutdown")
    # There were images with a part of it.
    assert len(lines) > 2


@BY_ENGINE
@pytest.mark.parametrize(
    ("action", "gone"),
    [
        (Discard(slot="trap.test"), {"trap.test/deep", "trap.test/flat"}),
        (Discard(pattern="trap.test/deep*"), {"trap.test/deep"}),
        (Discard(depth_over=5), {"trap.test/deep", "site.test/deep"}),
        (Discard(pattern="trap.test", depth_over=5), {"trap.test/deep"}),
        (Discard(slot="elsewhere.test"), set()),
    ],
    ids=["slot", "pattern", "depth", "both", "none"],
)
def test_discarded_requests_go_and_others_stay(
    jobdir: Path, engine: Choice, action: Discard, gone: set[str]
) -> None:
    crawl = open_crawl(jobdir, engine, ALTSCHED_MEMORY_REQUESTS=50)
    kinds = {"trap.test/deep": 9, "trap.test/flat": 1, "site.test/deep": 9, "site.test/flat": 1}

    def add(first: int, **meta: Any) -> None:
        for number in range(first, first + 200):
            for kind, depth in kinds.items():
                url = f"http://{kind}{number}"
                crawl.scheduler.enqueue_request(Request(url, meta={"depth": depth, **meta}))

    add(0)
    crawl.scheduler.checkpoint()
    add(1_000)
    add(2_000, altsched_delay=3_600)
    busy = [crawl.next() for _ in range(8)]
    before = counts_of(crawl)
    effect = ask(crawl, jobdir, action)

    def is_gone(url: str) -> bool:
        return any(url.startswith(f"http://{kind}") for kind in gone)

    kept = sum(is_gone(it.url) for it in busy if it is not None)
    assert effect == Effect(changed=len(gone) * 600 - kept)
    after = counts_of(crawl)
    assert after.accepted == before.accepted - effect.changed
    assert after.unaccounted == 0
    assert after.delayed == 200 * (4 - len(gone))
    assert problems_of(crawl.scheduler._session.frontier) == []
    for request in busy:
        assert request is not None
        crawl.engine.end(request)
    crawled = end_all(crawl)
    assert not any(map(is_gone, crawled))
    assert len(crawled) == 400 * (4 - len(gone)) - (8 - kept)
    # Their pages stay seen.
    assert ask(crawl, jobdir, Push([{"url": "http://trap.test/deep5"}])).refused == 1
    crawl.scheduler.close("shutdown")


def test_nothing_is_held_against_what_was_discarded(disk: DiskKind) -> None:
    frontier = disk.open()
    for name in "abc":
        frontier.add(page(name))
    frontier.commit()
    for lease in [take(frontier), take(frontier)]:
        frontier.run.note_response(lease)
        frontier.add(page(lease.entry.fingerprint.decode(), unique=False))
    frontier.commit()
    disk.crash(frontier)
    frontier = disk.open()
    assert len(dict(frontier.run.journal.suspects())) == 2
    # One of them is in flight, and is suspected though another of its page goes.
    leased = take(frontier).entry.fingerprint
    assert sum(frontier.discard(lambda *_: True)) == 4
    frontier.commit()
    assert dict(frontier.run.journal.suspects()).keys() == {leased}


def test_requests_that_live_in_memory_only_are_not_discarded(jobdir: Path) -> None:
    """The pages that have led to them wait for their end."""
    crawl = open_crawl(jobdir)
    for number in range(5):
        meta = {"key": lambda: None}
        crawl.scheduler.enqueue_request(Request(f"{SITE}/memory{number}", meta=meta))
    crawl.scheduler.enqueue_request(Request(f"{SITE}/stored"))
    assert ask(crawl, jobdir, Discard(slot="site.test")).changed == 1
    counts = counts_of(crawl)
    assert (counts.accepted, counts.memory_only, counts.unaccounted) == (5, 5, 0)
    assert len(end_all(crawl)) == 5
    crawl.scheduler.close("finished")


def test_what_a_component_drops_was_not_seen_before(jobdir: Path) -> None:
    crawl = open_crawl(jobdir)

    def drop(request: Request) -> None:
        if "elsewhere" in request.url:
            raise IgnoreRequest

    crawl.crawler.signals.connect(drop, request_scheduled)
    effect = ask(crawl, jobdir, Push([*urls(1), *urls(1), {"url": f"{SITE}/elsewhere"}]))
    assert (effect.changed, effect.refused) == (1, 2)
    assert effect.reason.startswith(f"{SITE}/elsewhere: a component of the project drops it")
    crawl.scheduler.close("finished")


@BY_ENGINE
def test_forgotten_pages_can_be_crawled_again(jobdir: Path, engine: Choice) -> None:
    crawl = open_crawl(jobdir, engine)
    ask(crawl, jobdir, Push(urls(2)))
    end_all(crawl)
    crawl.scheduler.checkpoint()
    assert ask(crawl, jobdir, Forget([f"{SITE}/0", f"{SITE}/9", "nonsense"])) == Effect(
        1, 2, reason="'nonsense' is no URL: Missing scheme in request url: nonsense"
    )
    assert ask(crawl, jobdir, Push(urls(2))) == Effect(changed=1, refused=1)
    assert end_all(crawl) == [f"{SITE}/0"]
    crawl.scheduler.close("finished")


@BY_ENGINE
@pytest.mark.parametrize("saved", [True, False])
def test_pages_that_are_still_to_be_crawled_are_not_forgotten(
    jobdir: Path, engine: Choice, saved: bool
) -> None:
    """There are more of them than one look finds, and few of them in memory."""
    crawl = open_crawl(jobdir, engine, ALTSCHED_MEMORY_REQUESTS=50)
    late = [{**it, "meta": {"altsched_delay": 3_600}} for it in urls(5, "late")]
    ask(crawl, jobdir, Push([*urls(7_000), *late]))
    busy, done = crawl.next(), crawl.next()
    assert busy is not None
    assert done is not None
    crawl.engine.end(done)
    crawl.scheduler.enqueue_request(Request(f"{SITE}/memory", meta={"key": lambda: None}))
    if not saved:
        crawl.scheduler.enqueue_request(Request(f"{SITE}/new"))
    waiting = [f"{SITE}/{it}" for it in range(7_000) if not done.url.endswith(f"/{it}")]
    waiting += [f"{SITE}/memory", f"{SITE}/late3"]
    waiting += [] if saved else [f"{SITE}/new"]
    effect = ask(crawl, jobdir, Forget([*waiting, done.url, f"{SITE}/never"]))
    assert effect == Effect(1, len(waiting) + 1, left=len(waiting))
    # None of them is found again, but for the one that is done.
    again = [{"url": url} for url in waiting]
    assert ask(crawl, jobdir, Push([*again, {"url": done.url}])).changed == 1
    crawl.engine.end(busy)
    assert ask(crawl, jobdir, Forget([busy.url])) == Effect(1)
    crawl.scheduler.close("shutdown")


@BY_ENGINE
def test_failed_requests_are_pending_again(jobdir: Path, engine: Choice) -> None:
    crawl = open_crawl(jobdir, engine)
    ask(crawl, jobdir, Push(urls(3)))
    frontier = crawl.scheduler._session.frontier
    keys = []
    for _ in range(2):
        lease = frontier.lease(crawl.scheduler._session._engine)
        lease.failure = PageFailure(Reason.STATUS, "it was not there", 503, 3)
        frontier.finish(lease)
    crawl.scheduler.checkpoint()
    keys = [key.hex() for key, _, _ in frontier.run.journal.failed()]
    assert len(keys) == 2
    assert ask(crawl, jobdir, Requeue("failed", [*keys, keys[0], "00"])) == Effect(2, 2)
    counts = counts_of(crawl)
    assert (counts.failed, counts.pending, counts.unaccounted) == (0, 3, 0)
    assert problems_of(frontier) == []
    crawl.scheduler.close("shutdown")
    resumed = open_crawl(jobdir, engine)
    assert sorted(end_all(resumed)) == [f"{SITE}/{it}" for it in range(3)]
    resumed.scheduler.close("finished")


def test_a_paused_crawl_stays_paused_until_it_is_resumed(
    jobdir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    crawl = open_crawl(jobdir)
    assert ask(crawl, jobdir, Pause()).changed == 1
    assert ask(crawl, jobdir, Pause()).changed == 0
    assert crawl.engine.paused
    crawl.scheduler.close("shutdown")
    resumed = open_crawl(jobdir)
    assert resumed.engine.paused
    assert f"told otherwise: scrapy altsched resume {jobdir}" in caplog.text
    assert ask(resumed, jobdir, Resume()).changed == 1
    assert not resumed.engine.paused
    resumed.scheduler.close("shutdown")
    again = open_crawl(jobdir)
    assert not again.engine.paused
    again.scheduler.close("shutdown")


def test_a_deferred_slot_can_be_asked_again_at_once(jobdir: Path) -> None:
    crawl = open_crawl(jobdir)
    ask(crawl, jobdir, Push(urls(2)))
    assert ask(crawl, jobdir, Defer("site.test", 2e9 * 2)).changed == 1
    assert crawl.next() is None
    assert ask(crawl, jobdir, Undefer("site.test")).changed == 1
    assert ask(crawl, jobdir, Undefer("site.test")).changed == 0
    assert len(end_all(crawl)) == 2
    crawl.scheduler.close("shutdown")


def test_a_crawl_is_stopped_as_by_ctrl_c(jobdir: Path) -> None:
    crawl = open_crawl(jobdir)
    assert ask(crawl, jobdir, Stop()) == Effect(changed=1)
    assert crawl.engine.closed_with == "shutdown"
    crawl.scheduler.close("shutdown")


def test_a_spider_can_steer_its_crawl(jobdir: Path) -> None:
    crawl = open_crawl(jobdir)
    scheduler = crawl.scheduler
    assert scheduler.push(f"{SITE}/a", Request(f"{SITE}/b"), f"{SITE}/a") == 2
    assert scheduler.pause()
    assert crawl.engine.paused
    assert scheduler.resume()
    assert not scheduler.resume()
    assert scheduler.forget(f"{SITE}/a", f"{SITE}/c") == 0
    assert len(end_all(crawl)) == 2
    assert scheduler.forget(f"{SITE}/a", f"{SITE}/c") == 1
    assert scheduler.push(f"{SITE}/a") == 1
    scheduler.close("shutdown")
    assert (scheduler.push(f"{SITE}/d"), scheduler.pause(), scheduler.forget(SITE)) == (0, 0, 0)


def put(jobdir: Path, content: str, name: str = "0-0.action") -> Path:
    directory = jobdir / NAME
    directory.mkdir(mode=0o700, exist_ok=True)
    path = directory / name
    path.write_text(content)
    return path


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "is not a valid action"),
        ("nonsense\n", "is not a valid action"),
        ("[1]\n", "is not a valid action"),
        (json.dumps({"format": 99, "id": "0", "verb": "pause", "arguments": {}}), "newer"),
    ],
)
def test_what_is_not_a_valid_action_is_skipped_and_said(
    jobdir: Path, content: str, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    crawl = open_crawl(jobdir)
    path = put(jobdir, content)
    assert ask_again(crawl, jobdir) == Effect(changed=1)
    assert said in caplog.text
    assert path.with_suffix(".refused").exists()
    crawl.scheduler.close("shutdown")


def ask_again(crawl: StandIn, jobdir: Path) -> Effect | None:
    """Ask for something else, which waits behind that."""
    sent = Spool(jobdir).send(Pause())
    take_all(crawl)
    return Spool(jobdir).take_answer(sent)


@pytest.mark.parametrize(
    ("verb", "arguments", "lines", "note"),
    [
        ("explode", {}, (), "cannot be applied: there is no action 'explode'"),
        ("defer", {"slot": "a"}, (), "it has other arguments than defer takes"),
        ("push", {}, ("nonsense",), "Not all of it was applied: line 2 of"),
        ("discard", {"pattern": "http://["}, (), "cannot be used"),
    ],
)
def test_an_action_that_cannot_be_applied_is_answered(
    jobdir: Path, verb: str, arguments: dict[str, Any], lines: Iterable[str], note: str
) -> None:
    crawl = open_crawl(jobdir)
    crawl.scheduler.enqueue_request(Request(SITE))
    head = {"format": 1, "id": "a" * 32, "verb": verb, "arguments": arguments}
    path = put(jobdir, "\n".join([json.dumps(head), *lines]))
    take_all(crawl)
    effect = Spool(jobdir).take_answer(Sent("a" * 32, path))
    assert effect is not None
    assert not effect.is_applied
    assert note in effect.note
    crawl.scheduler.close("shutdown")


@pytest.mark.parametrize("kind", ["link", "pipe", "directory"])
def test_only_plain_files_of_ones_own_are_read(
    jobdir: Path, tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    crawl = open_crawl(jobdir)
    spool = Spool(jobdir)
    sent = spool.send(Stop())
    path = sent.path.with_name("0-0.action")
    if kind == "link":
        secret = tmp_path / "secret"
        sent.path.rename(secret)
        path.symlink_to(secret)
    elif kind == "pipe":
        sent.path.unlink()
        os.mkfifo(path)
    else:
        sent.path.unlink()
        path.mkdir()
    assert ask_again(crawl, jobdir) == Effect(changed=1)
    assert crawl.engine.closed_with is None
    assert str(path) in caplog.text
    crawl.scheduler.close("shutdown")


def test_what_another_user_wrote_is_not_read(
    jobdir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    crawl = open_crawl(jobdir)
    spool = Spool(jobdir)
    spool.send(Stop())
    monkeypatch.setattr("os.geteuid", lambda: 54321)
    assert not receiver_of(crawl).step()
    assert "is no directory of user 54321" in caplog.text
    assert crawl.engine.closed_with is None
    with pytest.raises(SpoolError, match="is no directory of user 54321"):
        spool.send(Pause())
    monkeypatch.undo()
    take_all(crawl)
    assert crawl.engine.closed_with == "shutdown"
    crawl.scheduler.close("shutdown")


def test_others_cannot_look_into_the_spool(jobdir: Path) -> None:
    crawl = open_crawl(jobdir)
    sent = Spool(jobdir).send(Pause())
    assert (jobdir / NAME).stat().st_mode & 0o777 == 0o700
    assert sent.path.stat().st_mode & 0o777 == 0o600
    (jobdir / NAME).chmod(0o755)
    take_all(crawl)
    assert (jobdir / NAME).stat().st_mode & 0o777 == 0o700
    crawl.scheduler.close("shutdown")


def test_an_action_that_was_withdrawn_is_not_applied(jobdir: Path) -> None:
    crawl = open_crawl(jobdir)
    spool = Spool(jobdir)
    sent = spool.send(Stop())
    assert spool.withdraw(sent)
    assert not spool.withdraw(sent)
    take_all(crawl)
    assert crawl.engine.closed_with is None
    crawl.scheduler.close("shutdown")


# When something fails in the midst of it


def test_a_step_is_one_batch_however_large(
    jobdir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a death between two batches would have a part of it applied twice."""
    crawl = open_crawl(jobdir)
    requests = [{"url": SITE, "body": "x" * 100_000, "dont_filter": True} for _ in range(90)]
    pushed = Spool(jobdir).send(Push(requests))
    journal = crawl.scheduler._session.frontier.run.journal
    images: list[Path] = []
    write = journal.write

    def write_and_copy(*arguments: Any, **named: Any) -> None:
        write(*arguments, **named)
        images.append(tmp_path / f"image {len(images)}")
        shutil.copytree(jobdir, images[-1])

    monkeypatch.setattr(journal, "write", write_and_copy)
    take_all(crawl)
    crawl.scheduler._session.frontier.abandon()
    assert images
    for image in images:
        resumed = open_crawl(image)
        take_all(resumed)
        assert counts_of(resumed).accepted == len(requests)
        assert Spool(image).take_answer(pushed) == Effect(changed=len(requests))
        resumed.scheduler.close("shutdown")


@BY_ENGINE
def test_a_discard_goes_on_after_a_commit_that_failed(
    jobdir: Path, engine: Choice, monkeypatch: pytest.MonkeyPatch
) -> None:
    crawl = open_crawl(jobdir, engine)
    for number in range(1_000):
        crawl.scheduler.enqueue_request(Request(f"{SITE}/{number}"))
    crawl.scheduler.checkpoint()
    frontier = crawl.scheduler._session.frontier
    sent = Spool(jobdir).send(Discard(slot="site.test"))
    receiver = receiver_of(crawl)
    while not frontier.counts().accepted < 1_000:
        receiver.step()
    write, failures = frontier.run.journal.write, [StoreError("the disk is full")]

    def fail_once(*arguments: Any, **named: Any) -> None:
        if failures:
            raise failures.pop()
        write(*arguments, **named)

    monkeypatch.setattr(frontier.run.journal, "write", fail_once)
    while failures:
        receiver.step()
    # The store is opened again for that.
    crawl.scheduler._session._committer._due_at = 0.0
    take_all(crawl)
    assert Spool(jobdir).take_answer(sent) == Effect(changed=1_000)
    assert counts_of(crawl).accepted == 0
    assert problems_of(frontier) == []
    crawl.scheduler.close("shutdown")


def test_delayed_requests_that_are_discarded_do_not_come_back_before_the_commit(
    jobdir: Path,
) -> None:
    crawl = open_crawl(jobdir, ALTSCHED_MEMORY_REQUESTS=50)
    for number in range(1_000):
        meta = {"altsched_delay": 0.001 * number}
        crawl.scheduler.enqueue_request(Request(f"{SITE}/{number}", meta=meta))
    crawl.scheduler.checkpoint()
    frontier = crawl.scheduler._session.frontier
    before = frontier.delayed
    gone = sum(frontier.discard(lambda _, entry: entry.fingerprint[0] % 2 == 0))
    assert gone > 100
    found = []
    while frontier.delayed or frontier.pending:
        found += end_all(crawl)
    assert len(found) == before + (1_000 - before) - gone
    assert crawl.scheduler.checkpoint()
    assert problems_of(frontier) == []
    crawl.scheduler.close("finished")


def test_an_error_of_the_project_s_own_code_costs_a_line_and_no_more(
    jobdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    crawl = open_crawl(jobdir)
    enqueue = crawl.scheduler.enqueue_request

    def fail_for_one(request: Request) -> bool:
        if request.url.endswith("/3"):
            raise KeyError("product")
        accepted: bool = enqueue(request)
        return accepted

    monkeypatch.setattr(crawl.scheduler, "enqueue_request", fail_for_one)
    effect = ask(crawl, jobdir, Push(urls(10)))
    assert (effect.changed, effect.refused, effect.is_applied) == (9, 1, True)
    assert effect.reason == f"{SITE}/3 was not accepted (KeyError: 'product')"
    crawl.scheduler.close("shutdown")


def test_an_action_that_is_withdrawn_in_the_midst_of_it_ends_there(jobdir: Path) -> None:
    crawl = open_crawl(jobdir)
    spool = Spool(jobdir)
    sent = spool.send(Push(urls(5_000)))
    while not counts_of(crawl).accepted:
        receiver_of(crawl).step()
    assert spool.withdraw(sent)
    take_all(crawl)
    assert 0 < counts_of(crawl).accepted < 5_000
    assert ask(crawl, jobdir, Pause()) == Effect(changed=1)
    crawl.scheduler.close("shutdown")
