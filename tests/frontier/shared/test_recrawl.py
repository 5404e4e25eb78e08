"""What several workers of one crawl do with pages that are old enough to be crawled again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgpack
import pytest
import redis

from scrapy_altsched.age import Age
from scrapy_altsched.errors import ConfigError
from scrapy_altsched.frontier import Options, Verdict
from scrapy_altsched.frontier.entry import DeadLetter, PageFailure, Reason
from scrapy_altsched.frontier.events import Refused, SeenInvalidated, VersionOutdated
from scrapy_altsched.frontier.shared import stream
from scrapy_altsched.frontier.shared.batches import Status, pack, parse_reply
from scrapy_altsched.frontier.shared.exchange import read_batch_script
from scrapy_altsched.frontier.shared.steering import SteeredCrawl

from ...frontiers import page
from ...servers import RedisServer
from ...shared import ServerClock
from .joining import KEY, Joined, crawl_whole, join

MINUTE, HOUR, DAY = 60.0, 3_600.0, 86_400.0


def aged(after: object, **options: Any) -> Options:
    return Options(records_ages=True, recrawl_after=Age.parse(after), **options)


@pytest.fixture
def clock(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> ServerClock:
    """The server's, years before that of the workers."""
    return ServerClock(server.client(), monkeypatch, ahead=-9_000 * DAY)


@pytest.fixture
def crawl(client: redis.Redis) -> SteeredCrawl:
    return SteeredCrawl(client, KEY)


@pytest.fixture
def next_pass(crawl: SteeredCrawl) -> Callable[[], None]:
    return lambda: crawl.restart(lambda _: True, keeps_seen=True)


def refused(worker: Joined) -> list[tuple[bytes, Verdict]]:
    """Pages that a worker had to be told of, and why."""
    events = [event for event in worker.events if isinstance(event, Refused)]
    return [(event.entry.fingerprint, event.verdict) for event in events]


def test_two_workers_find_the_same_old_page(
    server: RedisServer, clock: ServerClock, crawl: SteeredCrawl, next_pass: Callable[[], None]
) -> None:
    crawl_whole(server, "a", "b", options=aged("run"))
    next_pass()
    workers = [join(server, options=aged("run")) for _ in range(2)]
    for worker in workers:
        worker.frontier.add(page("a"))
    for worker in workers:
        worker.settle()
    assert [refused(worker) for worker in workers] == [[], [(b"a", Verdict.SEEN)]]
    counts = crawl.look().counts
    assert (counts.accepted, counts.seen) == (1, 2)
    workers[1].close()
    assert workers[0].work_off() == ["a"]
    # It was crawled in this pass.
    join(server, options=aged("run"), idle="wait").add(page("a"))
    assert crawl.look().counts.accepted == 1


def test_a_worker_without_ages_finishes_pages_of_those_that_have_some(
    server: RedisServer, clock: ServerClock, crawl: SteeredCrawl, next_pass: Callable[[], None]
) -> None:
    first, second = join(server, options=aged("1d")), join(server)
    first.add(page("a"))
    first.close()
    assert second.frontier.job.records_ages
    clock.advance(10 * HOUR)
    assert second.work_off() == ["a"]
    second.close(finished=True)
    clock.advance(20 * HOUR)
    next_pass()
    # It is 30 hours since it was found.
    worker = join(server, options=aged("1d"))
    worker.add(page("a"))
    assert refused(worker) == [(b"a", Verdict.SEEN)]
    clock.advance(5 * HOUR)
    worker = join(server, options=aged("1d"))
    worker.add(page("a"))
    assert refused(worker) == []


def test_a_page_of_a_worker_that_died_is_no_duplicate_in_the_next_pass_only(
    server: RedisServer, clock: ServerClock, crawl: SteeredCrawl, next_pass: Callable[[], None]
) -> None:
    worker = join(server, options=aged("run"))
    worker.add(page("a"))
    worker.take()
    worker.frontier.abandon()
    clock.advance(DAY)
    other = join(server, options=aged("run"))
    other.add(page("a"))
    assert refused(other) == [(b"a", Verdict.SEEN)]
    assert other.work_off() == ["a"]
    other.close(finished=True)
    next_pass()
    crawl_whole(server, "a", options=aged("run"))


def test_what_a_restart_drops_is_found_again(
    server: RedisServer, clock: ServerClock, crawl: SteeredCrawl, next_pass: Callable[[], None]
) -> None:
    names = ["pending", "leased", "dead", "failed", "retried"]
    worker, other = (join(server, options=aged("2h")) for _ in range(2))
    worker.add(*map(page, names))
    clock.advance(DAY)
    taken = {it.entry.fingerprint.decode(): it for it in (worker.take() for _ in names)}
    worker.frontier.release(taken["pending"])
    worker.frontier.dead_letter(taken["dead"], DeadLetter("why"))
    taken["failed"].failure = PageFailure(Reason.DOWNLOAD, "why")
    worker.frontier.finish(taken["failed"])
    worker.frontier.finish(taken["retried"], page("retried"))
    worker.commit()
    other.add(*map(page, names))
    assert len(refused(other)) == len(names)
    for each in (worker, other):
        each.close()
    next_pass()
    crawl_whole(server, *names, options=aged("2h"))


def test_a_start_request_is_not_crawled_once_more_where_it_is_linked(
    server: RedisServer, clock: ServerClock, next_pass: Callable[[], None]
) -> None:
    for _ in range(3):
        worker, second, other = (join(server, options=aged("run")) for _ in range(3))
        for each in (worker, second):
            each.add(page("start", from_start=True))
            clock.advance(MINUTE)
        for each in (worker, other):
            each.add(page("start"), page("a"))
        second.close()
        other.close()
        assert sorted(worker.work_off()) == ["a", "start"]
        worker.close(finished=True)
        next_pass()


def test_requests_in_memory_only(
    server: RedisServer, clock: ServerClock, crawl: SteeredCrawl, next_pass: Callable[[], None]
) -> None:
    for _ in range(3):
        worker = join(server, options=aged("run"))
        worker.add(page("a", stored=False))
        # What is known of pages is outdated by then.
        clock.advance(HOUR)
        worker.clock.advance(HOUR)
        for _ in range(2):
            worker.settle()
            worker.add(page("a", stored=False), page("a"))
        assert worker.work_off() == ["a"]
        worker.close(finished=True)
        other = join(server, options=aged("run"), idle="wait")
        other.add(page("a"))
        assert refused(other) == [(b"a", Verdict.SEEN)]
        other.close()
        assert crawl.look().counts.seen == 1
        next_pass()


def test_a_page_gets_old_enough_while_a_worker_knows_it(
    server: RedisServer, clock: ServerClock, next_pass: Callable[[], None]
) -> None:
    crawl_whole(server, "a", options=aged("1h"))
    clock.advance(50 * MINUTE)
    next_pass()
    worker = join(server, options=aged("1h"))
    worker.add(page("a"), page("b"))
    assert refused(worker) == [(b"a", Verdict.SEEN)]
    clock.advance(20 * MINUTE)
    worker.add(page("a"))
    assert worker.frontier.counts().accepted == 1
    worker.clock.advance(20 * MINUTE)
    for _ in range(2):
        worker.settle()
    assert SeenInvalidated() in worker.events
    worker.add(page("a"), page("b"))
    assert worker.frontier.counts().accepted == 2
    assert sorted(worker.work_off()) == ["a", "b"]


def test_an_old_page_is_in_the_budget_of_its_slot(
    server: RedisServer, clock: ServerClock, next_pass: Callable[[], None]
) -> None:
    crawl_whole(server, "a", "b", options=aged("run"))
    next_pass()
    worker = join(server, options=aged("run", slot_budget=1))
    worker.add(page("a"), page("a"), page("b"))
    assert refused(worker) == [(b"b", Verdict.OVER_BUDGET)]
    assert worker.work_off() == ["a"]


def test_pages_from_before_count_as_finished_when_it_began(
    server: RedisServer, clock: ServerClock, next_pass: Callable[[], None]
) -> None:
    worker = join(server)
    clock.advance(30 * DAY)
    worker.add(page("a"))
    assert worker.work_off() == ["a"]
    worker.close(finished=True)
    next_pass()
    crawl_whole(server, "b", options=aged("2h"))
    for hours, expected in ((1, []), (1.5, ["a", "b"])):
        clock.advance(hours * HOUR)
        next_pass()
        worker = join(server, options=aged("2h"))
        worker.add(page("a"), page("b"))
        assert sorted(worker.work_off()) == expected
        worker.close(finished=True)


def test_no_pass_reaches_into_the_one_before_if_the_clock_is_set_back(
    server: RedisServer, clock: ServerClock, next_pass: Callable[[], None]
) -> None:
    clock.advance(DAY)
    crawl_whole(server, "a", options=aged("run"))
    clock.advance(-2 * HOUR)
    for _ in range(3):
        next_pass()
        worker = join(server, options=aged("run"))
        worker.add(page("a"))
        assert worker.work_off() == ["a"]
        other = join(server, options=aged("run"), idle="wait")
        other.add(page("a"))
        assert refused(other) == [(b"a", Verdict.SEEN)]
        other.close()


def test_a_crawl_from_nothing_knows_no_ages(
    server: RedisServer, clock: ServerClock, crawl: SteeredCrawl, client: redis.Redis
) -> None:
    crawl_whole(server, "a", options=aged("run"))
    assert client.hget(crawl.keys.meta, "protocol") == b"5"
    crawl.restart(lambda _: True)
    assert client.hget(crawl.keys.meta, "protocol") == b"2"
    crawl_whole(server, "a", "b")
    assert client.hget(crawl.keys.meta, "ages") is None
    seen = next(key for key in client.scan_iter() if b":seen:" in key)
    assert client.hvals(seen) == [b"0"]


def test_a_worker_of_an_older_version_has_nothing_of_a_crawl_with_ages(
    server: RedisServer, crawl: SteeredCrawl, client: redis.Redis
) -> None:
    older = join(server, prefetch=4)
    older.add(page("a"), page("b"))
    batch = older.frontier._stream.build(want=4)
    _, *fields = msgpack.unpackb(batch.blob, raw=True)
    assert fields.pop() is False  # nothing is said of ages
    join(server, options=aged("run")).close()
    script = client.register_script(read_batch_script())
    reply = parse_reply(script(batch.keys, [pack([b"4", *fields])]))
    assert (reply.status, reply.leases) == (Status.PROTOCOL, ())
    # Nor does a pause let it in.
    crawl.pause()
    assert parse_reply(script(batch.keys, [pack([b"4", *fields])])).status is Status.PROTOCOL


def test_older_versions_are_told_why_they_end(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as older:
        older.setattr(stream, "PROTOCOL", b"4")
        worker = join(server, idle="wait")
        join(server, idle="wait").add(page("a"))  # there are no ages
    join(server, options=aged("run"))
    with monkeypatch.context() as older:
        older.setattr(stream, "PROTOCOL", b"4")
        worker.add(page("b"))
        assert VersionOutdated() in worker.events
        with pytest.raises(ConfigError, match="continued with a newer version of scrapy_altsched"):
            join(server)
