"""What a worker is told of that waits for something to lease."""

from __future__ import annotations

import pytest
import redis

from scrapy_altsched.frontier import Lease, Options
from scrapy_altsched.frontier.contract import Waiting
from scrapy_altsched.frontier.events import LeasesReady
from scrapy_altsched.frontier.shared.keys import Keys
from scrapy_altsched.frontier.store.records import Level, Suspicion

from ...frontiers import page
from ...servers import RedisServer
from ...shared import LEASE_TIMEOUT, SettledShared
from .joining import Joined, join

DEADLINES, SUSPECTS = Keys("test").fixed[5], Keys("test").fixed[8]


def hold_against(client: redis.Redis, fingerprint: bytes, level: Level) -> None:
    client.hset(SUSPECTS, fingerprint, Suspicion(level).encode())


def test_the_end_of_the_crawl(client: redis.Redis) -> None:
    worker = SettledShared(Options(), client)
    frontier = worker._frontier
    frontier.note_start_end()
    assert frontier.lease() == Waiting.ELSEWHERE
    worker.events.clear()
    while not frontier.is_over:
        worker.send()
    assert worker.events == [LeasesReady()]
    assert frontier.lease() == Waiting.EMPTY
    worker.abandon()


def test_a_suspect_that_the_server_knows_of_now(client: redis.Redis) -> None:
    worker = SettledShared(Options(), client)
    frontier = worker._frontier
    entry = page("a")
    hold_against(client, entry.fingerprint, Level.SUSPECT)
    worker.add(entry)
    frontier.lease()
    worker.send()
    assert frontier.lease() == Waiting.FETCHING
    worker.events.clear()
    worker.send()
    assert worker.events == [LeasesReady()]
    assert isinstance(frontier.lease(), Lease)
    worker.abandon()


@pytest.mark.parametrize(
    ("before", "names", "after"),
    [
        ({}, "a", {"a": Suspicion(Level.BLAMED)}),
        ({}, "ab", dict.fromkeys("ab", Suspicion(Level.SUSPECT, narrowed=1))),
        ({"a": 1, "b": 1}, "ab", dict.fromkeys("ab", Suspicion(Level.BLAMED, narrowed=1))),
    ],
    ids=["one", "two", "two again"],
)
def test_suspects_that_a_worker_had_in_work_when_it_was_lost(
    client: redis.Redis, before: dict[str, int], names: str, after: dict[str, Suspicion]
) -> None:
    for name in names:
        suspicion = Suspicion(Level.SUSPECT, narrowed=before.get(name, 0))
        client.hset(SUSPECTS, page(name).fingerprint, suspicion.encode())
    worker = SettledShared(Options(), client)
    for name in names:
        worker.add(page(name))
    # Each lets the next one in, as seconds pass with each answer.
    leased = [lease for _ in range(10) if isinstance(lease := worker.lease(), Lease)]
    assert sorted(lease.entry.fingerprint.decode() for lease in leased) == [*names]
    other = SettledShared(Options(), client)
    client.zincrby(DEADLINES, -2 * LEASE_TIMEOUT, worker._stream.token)
    for _ in range(3):
        other.send()
    found = client.hgetall(SUSPECTS)
    rows = {name: Suspicion.parse(found[page(name).fingerprint]) for name in names}
    assert rows == after
    worker.abandon()
    other.abandon()


def test_a_suspect_no_longer_that_comes_back_to_the_worker_that_works_on_it(
    client: redis.Redis,
) -> None:
    worker, other = (SettledShared(Options(), client) for _ in range(2))
    frontier, entry = worker._frontier, page("a")
    hold_against(client, entry.fingerprint, Level.SUSPECT)
    worker.add(entry)
    first = next(lease for _ in range(10) if isinstance(lease := worker.lease(), Lease))
    client.zincrby(DEADLINES, -2 * LEASE_TIMEOUT, worker._stream.token)
    for _ in range(3):
        other.send()
    # Another request for the same page is done.
    client.delete(SUSPECTS)
    frontier._suspects.clear(entry.fingerprint)
    assert not isinstance(frontier.lease(), Lease)
    worker.send()
    again = frontier.lease()
    # Only its first lease is watched: the server need not be told of this one.
    assert isinstance(again, Lease)
    assert again is not first
    assert again.key == first.key
    worker.abandon()
    other.abandon()


def test_a_request_to_be_leased_alone_whose_turn_has_come(client: redis.Redis) -> None:
    worker, other = (SettledShared(Options(), client) for _ in range(2))
    frontier = worker._frontier
    entry = page("a", priority=1)
    hold_against(client, entry.fingerprint, Level.BLAMED)
    worker.add(entry)
    worker.add(page("b"))
    frontier.lease()
    worker.send()
    # There is something else pending, until the other worker takes it.
    assert isinstance(other.lease(), Lease)
    assert frontier.lease() == Waiting.ISOLATING
    worker.events.clear()
    worker.send()
    assert worker.events == [LeasesReady()]
    assert frontier.lease() == Waiting.FETCHING
    worker.send()
    assert isinstance(frontier.lease(), Lease)
    worker.abandon()
    other.abandon()


def join_two(server: RedisServer) -> tuple[Joined, Joined]:
    """Two workers that lease ahead more than there is, and eight requests."""
    first, second = (join(server, prefetch=100) for _ in range(2))
    first.add(*(page(str(number)) for number in range(8)))
    return first, second


def test_each_worker_has_its_share_when_little_is_pending(server: RedisServer) -> None:
    first, second = join_two(server)
    for worker in (first, second):
        worker.take()
        assert len(worker.frontier._leases.by_key) == 4
    for worker in (first, second):
        worker.close()


def test_a_worker_that_has_nothing_else_to_do_has_more_than_its_share(server: RedisServer) -> None:
    first, second = join_two(server)
    assert len({first.take().entry.fingerprint for _ in range(8)}) == 8
    for worker in (first, second):
        worker.close()
