"""A feed's file is one crawl's at a time, and each worker can have a file of its own."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from scrapy import Spider
from scrapy.settings import Settings

from scrapy_altsched.errors import FeedLockedError
from scrapy_altsched.feeds import FileStorage
from scrapy_altsched.feeds.locks import FeedLocks

from ..crawls import ONE_BY_ONE, Crawl
from ..sites import Page, Site
from .test_feeds import LINES, Run, messages, stop_in_the_middle


def add_site(params: dict[str, Any], spider: Spider) -> dict[str, Any]:
    """A project's FEED_URI_PARAMS, after the example in Scrapy's documentation."""
    return {**params, "site": "example"}


@contextmanager
def held_at(number: int) -> Iterator[tuple[Site, threading.Event]]:
    """A site of twelve pages in a row, one of which is answered only when the event is set."""
    gate = threading.Event()
    pages = {f"/{at}": Page([f"/{at + 1}"]) for at in range(11)} | {"/11": Page()}
    pages[f"/{number}"].held = gate
    with Site(pages) as site:
        try:
            yield site, gate
        finally:
            gate.set()


def crawl_in(directory: Path, site: Site, spider: str = "pages", **arguments: Any) -> Crawl:
    directory.mkdir(exist_ok=True)
    return Crawl(directory, spider, f"{site.url}/0", **arguments)


def rows(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


@contextmanager
def running(crawl: Crawl, feed: tuple[str, ...], site: Site, at: int) -> Iterator[Any]:
    """The first crawl, which has written *at* rows and waits for its next page."""
    process = crawl.start(feed, **ONE_BY_ONE)
    try:
        site.wait_for(lambda site: site.hits[f"/{at}"])
        crawl.wait_until(process, lambda: rows(Path(feed[1])) == at)
        yield process
    finally:
        process.kill()
        process.communicate()


def new_locks() -> FeedLocks:
    return FeedLocks(Spider("test"), Settings())


def as_it_is(path: Path) -> str:
    return str(path)


def as_uri(path: Path) -> str:
    return path.as_uri()


def through_a_link(path: Path) -> str:
    link = path.with_name("link.jsonl")
    link.symlink_to(path)
    return str(link)


def from_elsewhere(path: Path) -> str:
    return os.path.relpath(path, Path(__file__).parents[1] / "project")


@pytest.mark.parametrize(
    ("option", "name", "at"),
    [
        ("-o", as_it_is, 4),
        ("-O", as_it_is, 4),
        ("-O", through_a_link, 4),
        ("-o", from_elsewhere, 4),
        ("-o", as_uri, 4),
        # Both could start at once: the first one has the file before it has a row.
        ("-O", as_it_is, 0),
    ],
)
def test_a_second_crawl_is_refused_at_its_start_and_changes_nothing(
    tmp_path: Path, option: str, name: Callable[[Path], str], at: int
) -> None:
    items = tmp_path / "items.jsonl"
    with held_at(at) as (site, gate):
        first = crawl_in(tmp_path / "a", site)
        second = crawl_in(tmp_path / "b", site)
        with running(first, ("-o", str(items)), site, at) as process:
            before, hits = items.read_bytes(), site.hits.copy()
            second.run((option, name(items)))
            assert f"The feed {items} is in use by another crawl (process {process.pid})" in (
                second.log
            )
            assert "with %(altsched_worker)s in the feed's path" in second.log
            # Old versions of Scrapy exit with 0 all the same.
            assert "FeedLockedError" in second.log
            assert (items.read_bytes(), site.hits) == (before, hits)
            gate.set()
            process.communicate(timeout=60)
        assert rows(items) == 12
        # What was refused has harmed nothing: it can have the file now.
        assert second.run(("-o", str(items))) == 0
        assert rows(items) == 24


def test_a_refused_resume_does_not_cut_what_another_crawl_is_writing(tmp_path: Path) -> None:
    items = tmp_path / "items.jsonl"
    with held_at(4) as (site, gate):
        first = crawl_in(tmp_path / "a", site)
        with running(first, ("-o", str(items)), site, 4):
            pass
        torn = items.read_bytes() + b'{"url": "torn'
        items.write_bytes(torn)
        with items.open("ab") as other:
            fcntl.flock(other, fcntl.LOCK_EX)
            # The feed of the earlier run is not even configured now.
            first.run(("-o", str(tmp_path / "others.jsonl")))
            assert f"The feed {items} is in use" in first.log
        assert items.read_bytes() == torn
        assert not (tmp_path / "others.jsonl").exists()
        gate.set()
        assert first.run(("-o", str(items))) == 0
        assert b"torn" not in items.read_bytes()
        assert rows(items) >= 12


def test_a_killed_crawl_leaves_no_lock(tmp_path: Path) -> None:
    items = tmp_path / "items.jsonl"
    with held_at(4) as (site, gate):
        first = crawl_in(tmp_path / "a", site)
        with running(first, ("-o", str(items)), site, 4) as process:
            process.kill()
            assert process.wait() == -signal.SIGKILL
        gate.set()
        assert crawl_in(tmp_path / "b", site).run(("-o", str(items))) == 0
        assert rows(items) == 16


def test_a_forked_child_that_outlives_its_crawl_does_not_hold_the_lock(tmp_path: Path) -> None:
    items = tmp_path / "items.jsonl"
    with held_at(4) as (site, gate):
        first = crawl_in(tmp_path / "a", site, "troubled", action="pool", at=2)
        process = first.start(("-o", str(items)), **ONE_BY_ONE)
        assert process.stdout is not None
        child = int(process.stdout.readline())
        try:
            first.wait_until(process, lambda: rows(items) == 4)
            process.kill()
            process.wait()
            gate.set()
            assert crawl_in(tmp_path / "b", site).run(("-o", str(items))) == 0
            os.kill(child, 0)
        finally:
            os.kill(child, signal.SIGKILL)
            process.communicate()
        assert rows(items) == 16


def test_without_a_job_crawls_may_append_to_one_file_as_with_scrapys_own_storage(
    tmp_path: Path,
) -> None:
    items = tmp_path / "items.jsonl"
    with held_at(4) as (site, gate):
        first = crawl_in(tmp_path / "a", site)
        second = crawl_in(tmp_path / "b", site)
        process = first.start(("-o", str(items)), JOBDIR=None, **ONE_BY_ONE)
        site.wait_for(lambda site: site.hits["/4"])
        gate.set()
        assert second.run(("-o", str(items)), JOBDIR=None) == 0
        process.communicate(timeout=60)
        assert rows(items) == 24


# In this process


def test_a_feed_whose_name_changes_is_refused_when_it_opens_and_loses_no_item(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    names = iter(["early", "late"])

    def change(params: dict[str, Any], spider: Spider) -> dict[str, Any]:
        return {**params, "changing": next(names)}

    late = tmp_path / "late.jsonl"
    with late.open("wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        run = Run(tmp_path, {"%(changing)s.jsonl": {"format": "jsonlines"}}, FEED_URI_PARAMS=change)
        assert run.stand_in.engine.closed_with is None
        run.items({"a": 1})
        assert run.stand_in.engine.closed_with == "feed_locked"
    assert f"The feed {late} is in use by another crawl" in "\n".join(messages(caplog))
    # Nothing is written, though the other one has ended.
    assert not run.stand_in.scheduler.checkpoint()
    with pytest.raises(BlockingIOError):
        run.end()
    assert late.read_bytes() == b""
    assert not (tmp_path / "early.jsonl").exists()


def test_two_feeds_of_a_crawl_may_share_a_file_until_the_last_is_closed(tmp_path: Path) -> None:
    locks, others = (new_locks() for _ in range(2))
    path = tmp_path / "items.jsonl"
    locks.take(path, "first")
    locks.take(tmp_path / "." / "items.jsonl", "second")
    locks.give_back("first")
    with pytest.raises(FeedLockedError, match=f"process {os.getpid()}"):
        others.take(path, "third")
    locks.give_back("second")
    others.take(path, "third")
    with pytest.raises(FeedLockedError):
        locks.take(path, "first")


def test_the_first_file_in_batches_stays_locked_and_others_until_they_are_full(
    tmp_path: Path,
) -> None:
    run = Run(tmp_path, {"items-%(batch_id)d.jsonl": {"format": "jsonlines"}})
    crawler, others = run.stand_in.crawler, new_locks()
    first, second = (tmp_path / f"items-{number}.jsonl" for number in (1, 2))
    for path in (first, second):
        storage = FileStorage.from_crawler(crawler, str(path), feed_options={"format": "jsonl"})
        file = storage.open(run.spider)
        with pytest.raises(FeedLockedError):
            others.take(path, "another")
        storage.store(file)
    others.take(second, "another")
    # Who begins to count at one meanwhile would come to the later ones.
    with pytest.raises(FeedLockedError):
        others.take(first, "another")
    run.end()
    others.take(first, "another")


@pytest.mark.parametrize("store_empty", [True, False])
def test_a_file_that_got_no_item_is_not_left_behind(tmp_path: Path, store_empty: bool) -> None:
    run = Run(tmp_path, {"items.jsonl": {"format": "jsonlines", "store_empty": store_empty}})
    assert (tmp_path / "items.jsonl").exists()
    run.end()
    # Scrapy itself stores the empty file, if it is asked to.
    assert not (tmp_path / "items.jsonl").exists()


def test_an_empty_file_of_others_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "items.jsonl").touch()
    Run(tmp_path, LINES).end()
    assert (tmp_path / "items.jsonl").exists()


def test_a_pipe_is_not_locked(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for locks in (new_locks(), new_locks()):
        for path in (tmp_path / "pipe", Path("/dev/null")):
            locks.take(path, "feed")


def test_where_there_are_no_locks_a_crawl_goes_on_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock = fcntl.flock

    def refuse(descriptor: int, operation: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        if path.suffix == ".jsonl":
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", refuse)
    feeds = {name: {"format": "jsonlines"} for name in ("a.jsonl", "b.jsonl")}
    Run(tmp_path, feeds).items({"a": 1}).end()
    assert (tmp_path / "b.jsonl").read_bytes() == b'{"a": 1}\n'
    (warning,) = messages(caplog, logging.WARNING)
    assert f"The feed {tmp_path / 'a.jsonl'} cannot be locked (No locks available)" in warning


def test_a_lock_on_a_file_that_was_deleted_meanwhile_is_not_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "items.jsonl"
    locks, others = (new_locks() for _ in range(2))
    locks.take(path)
    flock = fcntl.flock

    def end_first(descriptor: int, operation: int) -> None:
        monkeypatch.setattr(fcntl, "flock", flock)
        locks.give_back()
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", end_first)
    others.take(path)
    assert path.exists()
    with pytest.raises(FeedLockedError):
        locks.take(path)


@pytest.mark.parametrize("reason", ["finished", "shutdown"])
def test_a_refused_run_leaves_the_job_as_it_was(tmp_path: Path, reason: str) -> None:
    run = Run(tmp_path, LINES)
    is_finished = reason == "finished"
    run.stand_in.scheduler._session.traffic.start.exhausted = is_finished
    run.items({"a": 1}).end(reason)
    with (tmp_path / "items.jsonl").open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        for _ in range(2):
            with pytest.raises(FeedLockedError):
                Run(tmp_path, LINES)
    run = Run(tmp_path, LINES)
    assert run.stand_in.scheduler.resumed is not is_finished
    run.items({"a": 2}).end()
    assert (tmp_path / "items.jsonl").read_bytes() == b'{"a": 1}\n{"a": 2}\n'


# The name of a worker


def test_the_workers_name_is_in_the_path_and_the_same_in_the_next_run(tmp_path: Path) -> None:
    with held_at(4) as (site, gate):
        first = crawl_in(tmp_path / "a", site)
        first.jobdir = tmp_path / "job 1"
        feed = ("-o", str(tmp_path / "items-%(altsched_worker)s.jsonl"))
        items = tmp_path / f"items-{socket.gethostname()}-job_1.jsonl"
        process = first.start(feed, **ONE_BY_ONE)
        first.wait_until(process, lambda: rows(items) == 4)
        second = crawl_in(tmp_path / "b", site)
        # Of the same name, by another directory's: what to do about that is told.
        second.jobdir = tmp_path / "b" / "job 1"
        second.run(feed)
        assert "a name of its own with the setting ALTSCHED_SHARED_WORKER" in second.log
        first.kill(process)
        gate.set()
        assert second.run(feed, ALTSCHED_SHARED_WORKER="w2") == 0
        assert rows(tmp_path / "items-w2.jsonl") == 12
        assert rows(items) == 4
        assert first.run(feed) == 0
        assert rows(items) >= 12


@pytest.mark.parametrize(
    ("change", "names"),
    [(add_site, "%(site)s-%(altsched_worker)s"), (None, "%(altsched_worker)s")],
)
def test_the_projects_function_of_uri_parameters_gets_the_name(
    tmp_path: Path, change: Any, names: str
) -> None:
    values = {"FEED_URI_PARAMS": change, "ALTSCHED_SHARED_WORKER": "w1"}
    feeds = {f"{names}.jsonl": {"format": "jsonlines"}}
    stop_in_the_middle(tmp_path, feeds, {"a": 1}, **values)
    stop_in_the_middle(tmp_path, feeds, {"a": 2}, **values)
    name = names % {"site": "example", "altsched_worker": "w1"}
    assert (tmp_path / f"{name}.jsonl").read_bytes() == b'{"a": 1}\n{"a": 2}\n'


def test_a_spider_that_has_the_attribute_keeps_it(tmp_path: Path) -> None:
    crawl = Crawl(tmp_path, "pages", "data:,", altsched_worker="mine")
    assert crawl.run(("-o", str(tmp_path / "%(altsched_worker)s.jsonl"))) == 0
    assert (tmp_path / "mine.jsonl").exists()


def test_without_a_job_the_process_tells_workers_apart(tmp_path: Path) -> None:
    crawl = Crawl(tmp_path, "pages", "data:,")
    process = crawl.start(("-o", str(tmp_path / "%(altsched_worker)s.jsonl")), JOBDIR=None)
    process.communicate(timeout=60)
    assert (tmp_path / f"{socket.gethostname()}-{process.pid}.jsonl").exists()
