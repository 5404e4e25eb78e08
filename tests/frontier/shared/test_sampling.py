"""How a shared crawl stood over its whole life: what its workers keep of that on the server."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import msgpack
import pytest
import redis

from scrapy_altsched.frontier.entry import Counts
from scrapy_altsched.frontier.history import Sample, WorkerCounts
from scrapy_altsched.frontier.shared import exchange, sampling
from scrapy_altsched.frontier.shared.keys import Keys
from scrapy_altsched.frontier.shared.sampling import Sampler
from scrapy_altsched.frontier.shared.steering import SteeredCrawl
from scrapy_altsched.redis_client import CLOCK, read_script

from ...frontiers import page
from ...servers import RedisServer
from .joining import KEY, crawl_whole, dump, join

#: A key on the server: by how many ms its clock is ahead.
AHEAD = "ahead"
_SET_CLOCK = f"""local now = clock
local function clock() return now() + tonumber(redis.call('GET', '{AHEAD}') or 0) end
"""
#: Seconds after which the leases of a worker that is silent have expired, and it counts as dead.
LONG = 120


class Clock:
    """The server's clock, as scripts see it."""

    def __init__(self, client: redis.Redis) -> None:
        self._client, self._ahead = client, 0

    def advance(self, seconds: float) -> None:
        self._ahead += round(seconds * 1000)
        self._client.set(AHEAD, self._ahead)


@pytest.fixture
def clock(client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> Clock:
    def read(package: str, *paths: str) -> str:
        return read_script(package, *paths).replace(CLOCK, CLOCK + _SET_CLOCK)

    for module in (sampling, exchange):
        monkeypatch.setattr(module, "read_script", read)
    return Clock(client)


@pytest.fixture
def crawl(client: redis.Redis) -> SteeredCrawl:
    return SteeredCrawl(client, KEY)


class Member:
    """A worker that takes part in the crawl, and samples when it is told to."""

    def __init__(self, server: RedisServer) -> None:
        self.worker, self.refused = join(server), 0
        stream = self.worker.frontier._stream
        self._crawl = stream.crawl
        keys = Keys(KEY)
        self.sampler = Sampler(server.client(), keys, lambda: stream.token, lambda: self.refused)

    def note(self) -> None:
        self.sampler.look()
        self.sampler.note(self._crawl)

    def hear(self) -> None:
        """Have the server hear of it."""
        self.worker.frontier._server.flush_soon()
        self.worker.settle()

    def leave(self) -> None:
        self.worker.close()
        self.note()


@pytest.fixture
def begin(server: RedisServer, clock: Clock) -> Callable[[], Member]:
    return lambda: Member(server)


Begin = Callable[[], Member]


def crews(crawl: SteeredCrawl) -> list[tuple[int, int, int, int]]:
    """Run, and how many workers have begun, ended and died, of each sample."""
    found = []
    for it in crawl.history():
        assert it.workers is not None
        found.append((it.run, it.workers.begun, it.workers.ended, it.workers.died))
    return found


def test_a_sample_says_how_the_crawl_stood(crawl: SteeredCrawl, begin: Begin, clock: Clock) -> None:
    begin()
    one = begin()
    one.note()
    clock.advance(1)
    one.worker.add(page("a"), page("b"), page("c"))
    one.worker.frontier.finish(one.worker.take())
    one.worker.commit()
    one.refused = 7
    one.note()
    first, second = crawl.history()
    # Of a worker that has not said that it is there, nothing is known.
    workers = WorkerCounts(1, 0, 0)
    assert first == Sample(first.at, 1, "running", Counts(seen=0), 0, workers, 0)
    counts = crawl.look().counts
    assert (counts.accepted, counts.done, counts.left) == (3, 1, 2)
    assert second == Sample(second.at, 1, "running", counts, 7, workers, 3)
    assert 1 <= second.at - first.at < 60


def test_there_is_one_a_second_at_most_whoever_asks(
    crawl: SteeredCrawl, begin: Begin, clock: Clock
) -> None:
    one, other = begin(), begin()
    for _ in range(3):
        one.note()
        other.note()
        clock.advance(1)
    other.refused, one.refused = 2, 3
    other.note()
    one.note()
    clock.advance(1)
    one.note()
    assert [it.duplicates for it in crawl.history()] == [0, 0, 0, 2, 5]
    assert crews(crawl) == [(1, 1, 0, 0), *[(1, 2, 0, 0)] * 4]


def test_the_first_and_the_last_worker_are_sampled_at_once(
    crawl: SteeredCrawl, begin: Begin, clock: Clock
) -> None:
    one, other = begin(), begin()
    one.note()
    other.note()
    one.leave()
    other.refused = 5
    other.leave()
    again = begin()
    again.refused = 1
    again.note()
    # The next one has found none there.  Each run counts its own duplicates.
    assert crews(crawl) == [(1, 1, 0, 0), (1, 2, 2, 0), (2, 3, 2, 0)]
    assert [it.duplicates for it in crawl.history()] == [0, 5, 1]


def test_a_worker_that_dies_is_counted_when_its_leases_have_expired(
    crawl: SteeredCrawl, begin: Begin, clock: Clock
) -> None:
    one, dead = begin(), begin()
    dead.refused = 4
    dead.note()
    one.note()
    clock.advance(LONG)
    one.hear()
    one.note()
    clock.advance(1)
    one.note()
    assert crews(crawl) == [(1, 1, 0, 0), (1, 2, 0, 1), (1, 2, 0, 1)]
    assert [it.duplicates for it in crawl.history()] == [4, 4, 4]
    # It only stood still.
    dead.hear()
    dead.note()
    clock.advance(1)
    one.note()
    assert crews(crawl)[-1] == (1, 3, 0, 1)


def test_of_a_crawl_that_all_have_died_of_the_last_sample_says_so(
    crawl: SteeredCrawl, begin: Begin, clock: Clock
) -> None:
    one, other = begin(), begin()
    one.note()
    other.note()
    clock.advance(LONG)
    begin().note()
    assert crews(crawl) == [(1, 1, 0, 2), (2, 3, 0, 2)]


@pytest.mark.parametrize("block", [b"", b"\xc1", b"no sample", msgpack.packb([1, 2, 3]), b"\x01"])
def test_a_sample_that_cannot_be_read_is_left_out_and_ends_no_worker(
    crawl: SteeredCrawl,
    begin: Begin,
    clock: Clock,
    client: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
    block: bytes,
) -> None:
    monkeypatch.setattr(sampling, "MOST", 3)
    one = begin()
    one.note()
    client.rpush(crawl.keys.samples, block, block)
    assert len(crawl.history()) == 1
    clock.advance(2)  # later ones are taken half as often
    one.note()
    assert len(crawl.history()) == 2
    assert client.llen(crawl.keys.samples) == 2


def test_a_worker_that_has_just_left_is_not_taken_to_be_dead(
    crawl: SteeredCrawl, begin: Begin, clock: Clock
) -> None:
    one, other = begin(), begin()
    one.note()
    other.note()
    other.worker.close()
    clock.advance(1)
    one.note()
    other.note()
    clock.advance(1)
    one.note()
    assert crews(crawl)[1:] == [(1, 2, 0, 0), (1, 2, 1, 0)]


def test_a_clock_that_is_set_back_stops_nothing(
    crawl: SteeredCrawl, begin: Begin, clock: Clock
) -> None:
    one = begin()
    one.note()
    clock.advance(-100)
    one.note()
    one.note()
    clock.advance(1)
    one.note()
    assert len(crawl.history()) == 3


def test_a_long_life_is_seen_from_its_beginning_in_a_short_list(
    crawl: SteeredCrawl, begin: Begin, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampling, "MOST", 20)
    one, other = begin(), begin()
    lengths = set()
    for _ in range(400):
        for member in (one, other):
            member.hear()
            member.note()
            lengths.add(len(crawl.history()))
        clock.advance(1)
    assert max(lengths) == 20
    found = crawl.history()
    assert len(found) >= 10
    assert crews(crawl)[0] == (1, 1, 0, 0)
    distances = [round(new.at - old.at) for old, new in pairwise(found)]
    assert max(distances[:-1]) <= 3 * min(distances[:-1])
    assert 360 <= found[-1].at - found[0].at <= 410


def test_two_workers_that_find_the_list_full_thin_it_once(
    crawl: SteeredCrawl, begin: Begin, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampling, "MOST", 8)
    one, other = begin(), begin()
    for _ in range(8):
        one.note()
        clock.advance(1)
    kept = [it.at for it in crawl.history()][:-1:2]
    thin = sampling.thin

    def thin_late(blocks: list[bytes], run_of: Callable[[bytes], int]) -> list[bytes]:
        monkeypatch.setattr(sampling, "thin", thin)
        clock.advance(2)
        other.note()  # while this one has read the list, and not written it
        return thin(blocks, run_of)

    monkeypatch.setattr(sampling, "thin", thin_late)
    one.note()
    assert [it.at for it in crawl.history()][:4] == kept
    assert len(crawl.history()) == 6
    assert crawl._client.hget(crawl.keys.history, "grain") == b"2000"


def test_a_full_server_takes_no_sample_and_nothing_else_changes(
    crawl: SteeredCrawl, begin: Begin, clock: Clock, client: redis.Redis
) -> None:
    one = begin()
    one.note()
    clock.advance(1)
    before = dump(client)
    client.config_set("maxmemory", 1)
    try:
        one.note()
        assert not one.sampler.is_due
    finally:
        client.config_set("maxmemory", 0)
    assert dump(client) == before
    one.note()
    assert len(crawl.history()) == 2


def test_a_server_that_is_away_is_no_failure(own_directory: Path) -> None:
    with RedisServer(own_directory) as own:
        one = Member(own)
        one.note()
        assert own.client().exists(Keys(KEY).samples)
        own.kill()
        one.note()
        assert not one.sampler.is_due


def test_it_ends_with_the_crawl(
    crawl: SteeredCrawl, begin: Begin, clock: Clock, client: redis.Redis
) -> None:
    one = begin()
    one.note()
    one.leave()
    crawl.restart(lambda _: True)
    assert crawl.history() == []
    assert not client.exists(crawl.keys.history, crawl.keys.samples)
    # The crawl that it was of is not there any more.
    one.note()
    assert not client.exists(crawl.keys.history, crawl.keys.samples)
    begin().note()
    assert crews(crawl) == [(1, 1, 0, 0)]
    crawl.drop()
    assert list(client.scan_iter()) == []


def test_what_an_older_version_has_left_is_of_no_later_crawl(
    crawl: SteeredCrawl, begin: Begin, clock: Clock, client: redis.Redis
) -> None:
    old = begin()
    old.note()
    clock.advance(1)
    old.note()
    client.unlink(*crawl.keys.fixed)
    new = begin()
    assert crawl.history() == []
    new.note()
    assert crews(crawl) == [(1, 1, 0, 0)]


def test_each_worker_of_a_crawl_samples_by_itself(crawl: SteeredCrawl, server: RedisServer) -> None:
    worker = join(server, duplicates=lambda: 3)
    worker.add(page("a"), page("b"))
    assert sorted(worker.work_off()) == ["a", "b"]
    worker.close(finished=True)
    last = crawl.history()[-1]
    assert (last.counts, last.duplicates) == (Counts(accepted=2, done=2, seen=2), 3)
    assert last.workers == WorkerCounts(1, 1, 0)
    # One that is stopped says so, too.
    stopped = join(server, duplicates=lambda: 0, idle="wait")
    stopped.add(page("c"))
    stopped.close()
    last = crawl.history()[-1]
    assert (last.run, last.counts.pending, last.workers) == (2, 1, WorkerCounts(2, 2, 0))


def test_what_brings_requests_or_is_of_an_older_version_has_no_part(
    crawl: SteeredCrawl, server: RedisServer
) -> None:
    crawl_whole(server, "a")
    assert crawl.history() == []


def test_its_memory_counts(crawl: SteeredCrawl, begin: Begin, clock: Clock) -> None:
    one = begin()
    before = crawl.observe().memory
    for _ in range(200):
        one.hear()
        one.note()
        clock.advance(1)
    after = crawl.observe().memory
    assert before is not None
    assert after is not None
    # Some 50 bytes for each.
    assert 4_000 < after - before < 40_000
