"""What an operator changes in a crawl on a server, while workers take part in it."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import msgpack
import pytest
import redis

from scrapy_altsched.errors import ConfigError, SharedError
from scrapy_altsched.frontier import Entry, Lease, Options, Waiting
from scrapy_altsched.frontier.entry import Counts, Delay
from scrapy_altsched.frontier.events import (
    CrawlGoesOn,
    CrawlPaused,
    LeasesReady,
    SeenInvalidated,
    StopRequested,
)
from scrapy_altsched.frontier.queue.order import Order
from scrapy_altsched.frontier.shared.batches import Status, pack, parse_reply
from scrapy_altsched.frontier.shared.exchange import read_batch_script
from scrapy_altsched.frontier.shared.keys import slot_id_of
from scrapy_altsched.frontier.shared.steering import SteeredCrawl
from scrapy_altsched.frontier.store.records import Level, Suspicion
from scrapy_altsched.limit import Limit, Limits

from ...frontiers import page
from ...servers import RedisServer
from .joining import KEY, Joined, crawl_whole, dump, join

BY_SLOT = Options(order=Order("slots", "fifo"))


@pytest.fixture
def crawl(client: redis.Redis) -> SteeredCrawl:
    return SteeredCrawl(client, KEY)


def delayed(name: str, slot: str = "") -> Entry:
    """A page that waits for an hour."""
    return replace(page(name, slot), delay=Delay(3600))


def told(worker: Joined, kind: type) -> int:
    return sum(isinstance(event, kind) for event in worker.events)


def hear(worker: Joined) -> None:
    """Have a worker ask the server once more."""
    worker.frontier._server.flush_soon()
    worker.settle()


# Pause and resume


def test_a_paused_crawl_leases_nothing_until_it_is_resumed(
    crawl: SteeredCrawl, server: RedisServer
) -> None:
    first, second = join(server), join(server, prefetch=1)
    first.add(*map(page, "abc"))
    lease = first.take()
    assert crawl.pause()
    assert not crawl.pause()
    for worker in (first, second):
        hear(worker)
        assert worker.frontier.lease() is Waiting.FETCHING
        assert told(worker, CrawlPaused) == 1
        assert not worker.frontier.is_over
    # What is in flight is finished; what was fetched ahead is pending again.
    first.frontier.finish(lease)
    first.commit()
    assert crawl.look().counts == Counts(accepted=3, pending=2, done=1, seen=3)
    assert crawl.resume()
    assert not crawl.resume()
    for worker in (first, second):
        hear(worker)
        assert told(worker, CrawlGoesOn) == 1
    first.close()
    # The last one that was found was first.
    assert sorted(second.work_off()) == ["a", "b"]
    assert crawl.look().finished


def test_what_a_worker_has_on_its_own_waits_until_a_paused_crawl_is_resumed(
    crawl: SteeredCrawl, server: RedisServer
) -> None:
    worker = join(server)
    crawl.pause()
    hear(worker)
    worker.add(page("in memory", stored=False))
    assert not isinstance(worker.frontier.lease(), Lease)
    before = told(worker, LeasesReady)
    crawl.resume()
    hear(worker)
    # The crawl is told to ask again: no answer would have it do that.
    assert told(worker, LeasesReady) > before
    assert worker.take().entry.fingerprint == b"in memory"


def test_a_crawl_stays_paused_for_workers_that_come_later(
    crawl: SteeredCrawl, server: RedisServer
) -> None:
    first = join(server)
    first.add(page("a"))
    crawl.pause()
    first.close()
    later = join(server)
    assert told(later, CrawlPaused) == 1
    assert later.frontier.lease() is Waiting.FETCHING
    crawl.resume()
    assert later.work_off() == ["a"]


@pytest.mark.parametrize("left", [[], [delayed("a")]])
def test_a_paused_crawl_does_not_end(
    crawl: SteeredCrawl, server: RedisServer, left: list[Entry]
) -> None:
    worker = join(server)
    worker.add(*left)
    crawl.pause()
    worker.frontier.note_start_end()
    for _ in range(5):
        worker.frontier.lease()
        worker.answer()
        assert not worker.frontier.is_over
    # It waits for a request, too, that another one brings.
    join(server).add(page("b"))
    crawl.resume()
    assert worker.take().entry.fingerprint == b"b"


def test_a_worker_of_an_older_version_has_nothing_of_a_paused_crawl(
    crawl: SteeredCrawl, server: RedisServer, client: redis.Redis
) -> None:
    worker = join(server)
    worker.add(page("a"), page("b"))
    crawl.pause()
    hear(worker)
    older = join(server, prefetch=4).frontier._stream.build(want=4)
    _, *fields = msgpack.unpackb(older.blob, raw=True)
    script = client.register_script(read_batch_script())
    reply = parse_reply(script(older.keys, [pack([b"3", *fields])]))
    assert (reply.status, reply.leases) == (Status.PROTOCOL, ())
    crawl.resume()
    worker.close()
    reply = parse_reply(script(older.keys, [pack([b"3", *fields])]))
    assert reply.status is Status.OK
    assert len(reply.leases) > 0


# Stop


def test_workers_that_run_are_told_once_to_end(crawl: SteeredCrawl, server: RedisServer) -> None:
    workers = [join(server), join(server)]
    assert crawl.stop() == 2
    later = join(server)
    for worker in (*workers, later):
        for _ in range(2):
            hear(worker)
    assert [told(it, StopRequested) for it in (*workers, later)] == [1, 1, 0]
    assert crawl.stop() == 3


# Slots that are left alone


def test_a_slot_is_left_alone_by_all_workers_until_it_is_not(
    crawl: SteeredCrawl, server: RedisServer
) -> None:
    limits = Limits(Limit(cap=8), {}, are_set=True)
    workers = [join(server, options=BY_SLOT, limits=limits, prefetch=4) for _ in range(2)]
    assert crawl.defer("h", 3600).limits
    workers[0].add(page("a", slot="h"), page("b", slot="h"), page("c", slot="other"))
    assert workers[0].take().entry.fingerprint == b"c"
    for worker in workers:
        for _ in range(3):
            assert isinstance(worker.frontier.lease(), Waiting)
            worker.answer()
    assert crawl.undefer("h").limits
    assert {workers[1].take().entry.fingerprint} <= {b"a", b"b"}


def test_a_slot_cannot_be_left_alone_in_a_crawl_without_a_pace(
    crawl: SteeredCrawl, server: RedisServer
) -> None:
    join(server, prefetch=1).add(page("a"))
    assert crawl.defer("h", 3600).limits == ()
    assert join(server).take().entry.fingerprint == b"a"


# Forget


def test_a_page_that_is_forgotten_is_found_again(crawl: SteeredCrawl, server: RedisServer) -> None:
    worker = join(server)
    worker.add(page("a"), page("b"))
    for _ in "ab":
        worker.frontier.finish(worker.take())
    worker.commit()
    assert crawl.forget([b"a", b"never seen"]) == 1
    assert crawl.forget([b"a"]) == 0
    # Until it hears of that, it believes what it knows.
    hear(worker)
    assert told(worker, SeenInvalidated) == 1
    worker.add(page("a"), page("b"))
    assert worker.work_off() == ["a"]


def test_a_finished_crawl_stays_finished_if_pages_are_forgotten(
    crawl: SteeredCrawl, server: RedisServer
) -> None:
    crawl_whole(server, "a", "b")
    assert crawl.forget([b"a"]) == 1
    assert crawl.look().finished


# Discard


def test_a_worker_says_where_requests_are_that_it_does_not_have(
    crawl: SteeredCrawl, server: RedisServer
) -> None:
    frontier = join(server).frontier
    assert not frontier.undefer("h")
    where = "on its server: act on all of them with `scrapy altsched discard --shared KEY`"
    for ask in (
        lambda: frontier.discard(lambda *_: True),
        lambda: frontier.requeue("dead", b"key", lambda _: ("h", False)),
    ):
        with pytest.raises(ConfigError, match=where):
            ask()


def test_what_is_discarded_was_never_accepted_and_stays_seen(
    crawl: SteeredCrawl, server: RedisServer, client: redis.Redis
) -> None:
    budget = Options(order=BY_SLOT.order, slot_budget=2_002)
    worker = join(server, options=budget, prefetch=1)
    worker.add(*(page(f"trap {number}", slot="trap") for number in range(2_000)))
    worker.add(delayed("late", "trap"), page("in flight", slot="h"))
    worker.add(page("kept", slot="h"), page("refused by now", slot="trap"))
    trap = slot_id_of("trap")
    chosen = [it for it in crawl.waiting() if it.slot == trap]
    assert len(chosen) == 2_002
    assert crawl.discard(chosen[:-1]) == 2_001
    assert crawl.discard(chosen) == 1
    assert crawl.look().counts.unaccounted == 0
    assert crawl.look().counts.accepted == 2
    assert client.zscore(crawl.keys.ready, trap) is None
    assert client.hget(crawl.keys.budgets, trap) == b"0"
    worker.add(page("trap 7", slot="trap"), page("new", slot="trap"))
    assert sorted(worker.work_off()) == ["in flight", "kept", "new"]
    assert crawl.look().finished


def test_nothing_is_held_against_what_was_discarded(
    crawl: SteeredCrawl, server: RedisServer, client: redis.Redis
) -> None:
    worker = join(server, prefetch=1)
    worker.add(*map(page, "abc"))
    suspicion = Suspicion(Level.SUSPECT).encode()
    for name in "abc":
        client.hset(crawl.keys.suspects, page(name).fingerprint, suspicion)
    chosen = [it for it in crawl.waiting() if it.fingerprint == b"b"]
    assert crawl.discard(chosen) == 1
    assert client.hkeys(crawl.keys.suspects) == [b"a", b"c"]


def test_what_is_in_flight_is_not_discarded(crawl: SteeredCrawl, server: RedisServer) -> None:
    worker = join(server, prefetch=1)
    worker.add(*map(page, "abc"))
    lease = worker.take()
    left = worker.frontier.counts().left - 1
    assert crawl.discard(crawl.waiting()) <= left
    worker.frontier.finish(lease)
    worker.commit()
    worker.work_off()
    assert crawl.look().counts.unaccounted == 0


def test_only_one_slot_is_looked_through(crawl: SteeredCrawl, server: RedisServer) -> None:
    worker = join(server, options=BY_SLOT, prefetch=1)
    worker.add(page("a", slot="x"), page("b", slot="y"), page("c", slot="y"))
    assert {it.slot for it in crawl.waiting("y")} == {slot_id_of("y")}
    assert len(list(crawl.waiting("y"))) == 2


# What can be wrong


DOCS = Path(__file__).parent.parent.parent.parent / "docs" / "shared.rst"
ACL = re.compile(r"\+@read \+@write.*?\n\n", re.DOTALL)
VERBS = ["pause", "resume", "stop", "defer", "undefer", "forget", "discard"]
ARGUMENTS = {"defer": ["h", 1.0], "undefer": ["h"], "forget": [[b"a"]]}


@pytest.mark.parametrize("verb", VERBS)
def test_a_crawl_that_is_not_there(crawl: SteeredCrawl, client: redis.Redis, verb: str) -> None:
    client.zadd(crawl.keys.pending, {b"x" * 8 + b"\x80" + bytes(8) + b"row": 0})
    arguments = ARGUMENTS.get(verb, [])
    if verb == "discard":
        arguments = [crawl.waiting()]
    before = dump(client)
    with pytest.raises(SharedError, match="There is no shared crawl 'crawl' on the Redis server"):
        getattr(crawl, verb)(*arguments)
    assert dump(client) == before


@pytest.mark.parametrize("verb", VERBS)
def test_a_full_server_can_be_steered(own_directory, verb: str) -> None:
    with RedisServer(own_directory) as server, server.client() as client:
        crawl = SteeredCrawl(client, KEY)
        worker = join(server, limits=Limits(Limit(cap=8), {}, are_set=True))
        worker.add(page("a"), page("b"))
        worker.frontier.finish(worker.take())
        worker.commit()
        client.config_set("maxmemory", 1)
        arguments = {**ARGUMENTS, "discard": [crawl.waiting()]}.get(verb, [])
        getattr(crawl, verb)(*arguments)
        assert crawl.look().counts.unaccounted == 0


@pytest.mark.parametrize("verb", VERBS)
def test_a_user_that_may_only_read_is_told(own_directory, verb: str) -> None:
    users = ["reader on >secret ~* +@read +@connection +eval"]
    with RedisServer(own_directory, users=users) as server:
        join(server, prefetch=1).add(page("a"))
        with server.client(username="reader", password="secret") as client:
            crawl = SteeredCrawl(client, KEY)
            arguments = {**ARGUMENTS, "discard": [crawl.waiting()]}.get(verb, [])
            with pytest.raises(ConfigError, match=r"does not permit user .reader. .* ACL SETUSER"):
                getattr(crawl, verb)(*arguments)


@pytest.mark.parametrize("verb", VERBS)
def test_a_user_with_the_rights_of_workers_may_steer(own_directory, verb: str) -> None:
    [documented] = ACL.findall(DOCS.read_text())
    rights = " ".join(re.findall(r"[+-]@?\w+(?:\|\w+)?", documented))
    with RedisServer(own_directory, users=[f"crawler on >secret ~altsched:* {rights}"]) as server:
        join(server, prefetch=1).add(page("a"))
        with server.client(username="crawler", password="secret") as client:
            crawl = SteeredCrawl(client, KEY)
            getattr(crawl, verb)(*{**ARGUMENTS, "discard": [crawl.waiting()]}.get(verb, []))
            assert crawl.look().counts.unaccounted == 0


@pytest.mark.parametrize("verb", VERBS)
def test_a_replica_cannot_be_steered(own_directory, verb: str) -> None:
    with RedisServer(own_directory) as server, server.client() as client:
        join(server, prefetch=1).add(page("a"))
        client.replicaof("127.0.0.1", 1)
        crawl = SteeredCrawl(client, KEY)
        arguments = {**ARGUMENTS, "discard": [crawl.waiting()]}.get(verb, [])
        with pytest.raises(ConfigError, match="is a replica, or read-only"):
            getattr(crawl, verb)(*arguments)
