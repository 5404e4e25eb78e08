"""Workers that do not come forward: a full server, one that is silent, leases that are gone."""

from __future__ import annotations

import time

import pytest
import redis

from scrapy_altsched.errors import StoreError
from scrapy_altsched.frontier.events import Event, MemoryFull, Stalled
from scrapy_altsched.frontier.shared.keys import Keys

from ...frontiers import page
from ...servers import RedisServer
from .joining import KEY, PATIENCE, Joined, join


def wait(*workers: Joined, seconds: int) -> None:
    """Let time pass, with all that is asked answered at once."""
    for _ in range(seconds * 10):
        for worker in workers:
            worker.clock.advance(0.1)
            if worker.frontier._stream.is_in_flight:
                assert worker.frontier.take_replies(PATIENCE)


def of(worker: Joined, kind: type[Event]) -> list[Event]:
    return [event for event in worker.events if isinstance(event, kind)]


def test_a_full_server_is_left_alone_and_then_has_all(
    server: RedisServer, client: redis.Redis
) -> None:
    worker = join(server)
    worker.add(page("parent"))
    lease = worker.take()
    client.config_set("maxmemory", 1)
    try:
        for number in range(600):
            worker.frontier.add(page(str(number)))
        worker.frontier.finish(lease)
        worker.frontier.commit()
        wait(worker, seconds=1)
        [full] = of(worker, MemoryFull)
        assert full == MemoryFull(601)
        # It is asked as seldom as one that does not answer.
        before = client.info("commandstats")["cmdstat_evalsha"]["calls"]
        worker.frontier.lease()
        wait(worker, seconds=58)
        assert of(worker, Stalled) == []
        wait(worker, seconds=22)
        calls = client.info("commandstats")["cmdstat_evalsha"]["calls"] - before
        assert calls < 80 / 0.25 + 30  # an idle worker asks 4 times a second
        [stalled] = of(worker, Stalled)
        assert isinstance(stalled, Stalled)
        assert 60 <= stalled.seconds <= 80
        assert "the server's memory is full, and 601 changes" in stalled.why
        assert len(of(worker, MemoryFull)) == 1
    finally:
        client.config_set("maxmemory", 0)
    wait(worker, seconds=20)
    assert of(worker, Stalled)[1:] == [Stalled(of(worker, Stalled)[1].seconds, "")]
    counts = worker.frontier.counts()
    assert (counts.accepted, counts.done, counts.unaccounted) == (601, 1, 0)
    worker.close()


def test_a_worker_leaves_a_full_server_at_once_and_others_have_its_pages(
    server: RedisServer, client: redis.Redis
) -> None:
    worker = join(server)
    worker.add(page("parent"))
    lease = worker.take()
    client.config_set("maxmemory", 1)
    try:
        worker.frontier.add(page("link"))
        worker.frontier.finish(lease)
        worker.frontier.commit(wait=True)
        with pytest.raises(StoreError, match="memory is full: 2 changes are not saved"):
            worker.close()
    finally:
        client.config_set("maxmemory", 0)
    other = join(server)
    assert other.work_off() == ["parent"]
    other.close()


def test_what_others_have_leased_and_do_nothing_with(server: RedisServer) -> None:
    first, second = join(server), join(server)
    first.add(page("slow"))
    first.take()
    second.frontier.lease()
    wait(first, second, seconds=80)
    # The page may take as long as it likes where it is worked on.
    assert of(first, Stalled) == []
    [stalled] = of(second, Stalled)
    assert isinstance(stalled, Stalled)
    assert "all that is left (1 request) is leased by other workers" in stalled.why
    first.close()
    second.close()


def test_a_worker_with_nothing_to_do_is_not_stalled(server: RedisServer) -> None:
    worker = join(server, idle="wait")
    worker.frontier.lease()
    wait(worker, seconds=80)
    assert of(worker, Stalled) == []
    worker.close()


def test_leases_that_went_missing_are_unaccounted_for(
    server: RedisServer, client: redis.Redis
) -> None:
    first, second = join(server, prefetch=2), join(server, prefetch=2)
    first.add(*(page(str(number)) for number in range(6)))
    lost = [first.take(), first.take()]
    first.settle()
    [key] = client.keys(Keys(KEY).leases(b"*"))
    missing = client.hlen(key)
    client.delete(key)
    for lease in lost:
        first.frontier.finish(lease)
    first.frontier.note_start_end()
    first.commit()
    done = second.work_off()
    assert len(done) == 6 - missing
    assert second.frontier.counts().unaccounted == missing
    first.close()
    second.close()


def test_leases_of_a_dead_worker_that_went_missing(
    server: RedisServer, client: redis.Redis
) -> None:
    dead = join(server, prefetch=1, lease_timeout=0.2)
    dead.add(*(page(str(number)) for number in range(4)))
    dead.take()
    dead.settle()
    token = dead.frontier._stream.token
    missing = client.hlen(Keys(KEY).leases(token))
    assert missing
    client.delete(Keys(KEY).leases(token))
    dead.frontier.abandon()
    other = join(server)
    deadline = time.monotonic() + PATIENCE
    while client.zscore(Keys(KEY).deadlines, token) is not None:
        assert time.monotonic() < deadline
        other.answer()
    assert len(other.work_off()) + missing == 4
    assert other.frontier.counts().unaccounted == missing
    other.close()
