"""What an operator does with a crawl on a server."""

from __future__ import annotations

import pytest
import redis

from scrapy_altsched.errors import SharedError
from scrapy_altsched.frontier import Entry, Options, Waiting
from scrapy_altsched.frontier.entry import Counts, DeadLetter, PageFailure, Reason
from scrapy_altsched.frontier.events import AlreadyFinished, FailuresDropped, FrontierLost
from scrapy_altsched.frontier.shared.keys import Keys, slot_id_of
from scrapy_altsched.frontier.shared.operating import SharedCrawl
from scrapy_altsched.frontier.shared.steering import SteeredCrawl
from scrapy_altsched.frontier.store.states import decode_value

from ...frontiers import OWNER, page
from ...servers import RedisServer
from .joining import KEY, Joined, crawl_whole, dump, join

FEEDING = Keys(KEY).fixed[6]
#: A download slot.
LATER = next(name for name in map(str, range(100)) if slot_id_of(name) > slot_id_of(""))


@pytest.fixture
def crawl(client: redis.Redis) -> SteeredCrawl:
    return SteeredCrawl(client, KEY)


def bury(worker: Joined, *names: str) -> None:
    """Have these pages become dead letters."""
    worker.add(*map(page, names))
    for _ in names:
        lease = worker.take()
        worker.frontier.dead_letter(
            lease, DeadLetter(f"why {lease.entry.fingerprint.decode()} is dead")
        )
    worker.commit()


def dead_keys(crawl: SharedCrawl) -> list[bytes]:
    return [key for key, _, _ in crawl.dead()]


@pytest.mark.parametrize("verb", ["restart", "drop", "look", "requeue", "dead"])
def test_a_crawl_that_is_not_there(crawl: SharedCrawl, client: redis.Redis, verb: str) -> None:
    client.set("other", "data")
    before = dump(client)
    arguments = {"requeue": [[b"key"]], "restart": [bool]}.get(verb, [])
    with pytest.raises(SharedError, match="There is no shared crawl 'crawl' on the Redis server"):
        list(getattr(crawl, verb)(*arguments) or ())
    assert dump(client) == before


@pytest.mark.parametrize("verb", ["restart", "drop", "look"])
def test_a_server_that_is_not_there(own_directory, verb: str) -> None:
    with RedisServer(own_directory) as server:
        crawl = SharedCrawl(server.client(), KEY)
    with pytest.raises(SharedError, match="cannot be reached, as nothing listens there"):
        getattr(crawl, verb)(*([bool] if verb == "restart" else []))


# Restart


def test_a_finished_crawl_starts_again_from_nothing(
    crawl: SharedCrawl, server: RedisServer, client: redis.Redis
) -> None:
    crawl_whole(server, "a", "b")
    crawl.restart(lambda _: True)
    state = crawl.look()
    assert (state.finished, state.counts, state.workers) == (False, Counts(seen=0), 0)
    assert [key for key in client.scan_iter() if b":seen:" in key] == []
    crawl_whole(server, "a", "c")


def test_a_crawl_that_runs_is_not_restarted(
    crawl: SharedCrawl, server: RedisServer, client: redis.Redis
) -> None:
    join(server).add(page("a"))
    before = dump(client)
    with pytest.raises(SharedError, match=r"has workers, .* altsched stop --shared crawl"):
        crawl.restart(lambda _: True)
    assert dump(client) == before


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_stopped_crawl_starts_again_from_nothing(
    crawl: SharedCrawl, server: RedisServer, client: redis.Redis, is_clean: bool
) -> None:
    worker = join(server)
    worker.add(page("a"), page("b"))
    worker.take()
    if is_clean:
        worker.close()
    else:
        # It has died with what it had leased, a while ago.
        client.zadd(crawl.keys.deadlines, {worker.frontier._stream.token: 1})
        worker.frontier.abandon()
    crawl.restart(lambda _: True)
    assert (crawl.look().counts, crawl.look().workers) == (Counts(seen=0), 0)
    assert [key for key in client.scan_iter() if b":seen:" in key or b":leases:" in key] == []
    crawl_whole(server, "a", "c")


@pytest.mark.parametrize("is_filtered", [False, True])
def test_a_crawl_starts_again_with_what_it_has_seen(
    crawl: SharedCrawl, server: RedisServer, is_filtered: bool
) -> None:
    def starts(count: int) -> list[Entry]:
        return [page("start", unique=is_filtered, from_start=True) for _ in range(count)]

    for name, seen in (("a", 2), ("b", 3)):
        worker = join(server)
        worker.add(*starts(2), page("a"), page(name), page("start"))
        # Once, or each time that it is yielded; and again after a restart.
        count = 1 if is_filtered else 2
        found = worker.work_off()
        assert found.count("start") == count + (not is_filtered and name == "a")
        assert {*found} == {"start", name}
        worker.close(finished=True)
        crawl.restart(lambda _: True, keeps_seen=True)
        assert crawl.look().counts == Counts(seen=seen)
    worker = join(server)
    worker.add(*starts(1), page("a"), page("b"), page("c"))
    other = join(server)
    other.add(*starts(1))
    other.close()
    assert sorted(worker.work_off()) == ["c", "start"]
    assert crawl.look().counts.seen == 4


def test_a_late_worker_of_the_crawl_before_ends(
    crawl: SharedCrawl, server: RedisServer, client: redis.Redis
) -> None:
    old = join(server)
    # It stands still for so long that the others end without it.
    client.delete(FEEDING)
    other = join(server)
    assert other.work_off() == []
    other.close()
    crawl.restart(lambda _: True)
    old.frontier.add(page("a"))
    old.settle()
    assert AlreadyFinished() in old.events
    assert old.frontier.is_over
    assert crawl.look().counts == Counts(seen=0)


def test_a_crawl_of_an_older_version_keeps_more_of_fingerprints_after_a_restart(
    crawl: SharedCrawl, server: RedisServer
) -> None:
    names = [f"the beginning......{number}" for number in range(2)]
    crawl_whole(server, names[0])
    crawl.restart(lambda note: note != "rules")
    warnings: list[str] = []
    crawl_whole(server, *names, are_sha1=False, warn=warnings.append)
    assert not [text for text in warnings if "fingerprint" in text]
    # Another restart leaves it so.
    crawl.restart(lambda note: note != "rules")
    crawl_whole(server, *names, are_sha1=False)


# Drop


@pytest.mark.parametrize("finished", [False, True])
def test_a_dropped_crawl_leaves_nothing(
    crawl: SharedCrawl, server: RedisServer, client: redis.Redis, finished: bool
) -> None:
    client.set("other", "data")
    if finished:
        crawl_whole(server, "a", "b")
    else:
        worker = join(server)
        bury(worker, "a")
        worker.add(page("b"))
        worker.take()
        worker.commit()
    assert crawl.drop() == 2
    assert list(dump(client)) == [b"other"]


def test_a_worker_of_a_dropped_crawl_is_told(
    crawl: SharedCrawl, server: RedisServer, client: redis.Redis
) -> None:
    worker = join(server)
    worker.add(page("a"))
    crawl.drop()
    worker.frontier.add(page("b"))
    worker.settle()
    assert FrontierLost() in worker.events
    assert isinstance(worker.frontier.lease(), Waiting) or worker.frontier.is_over
    # What it has left to say is for nobody.
    worker.frontier.add(page("c"))
    assert worker.frontier.commit(wait=True)
    worker.close()
    assert dump(client) == {}


# Dead letters


def test_dead_letters_are_pending_again_at_their_old_places(
    crawl: SharedCrawl, server: RedisServer
) -> None:
    worker = join(server, prefetch=1)
    bury(worker, "a", "b", "c")
    assert sorted(str(why) for _, why, _ in crawl.dead()) == [
        f"why {name} is dead" for name in ("a", "b", "c")
    ]
    keys = sorted(dead_keys(crawl))
    assert crawl.requeue(keys[:2]) == 2
    assert crawl.look().counts == Counts(accepted=3, pending=2, dead=1, seen=3)
    # Who asks for those that are no longer dead has asked for nothing.
    assert crawl.requeue(keys) == 1
    assert crawl.requeue(keys) == 0
    assert crawl.look().counts == Counts(accepted=3, pending=3, seen=3)
    assert worker.work_off() == ["c", "b", "a"]
    assert crawl.look() == crawl.look()
    assert crawl.look().counts == Counts(accepted=3, done=3, seen=3)


def test_a_finished_crawl_is_open_again(crawl: SharedCrawl, server: RedisServer) -> None:
    worker = join(server)
    bury(worker, "a")
    worker.add(page("b"))
    assert worker.work_off() == ["b"]
    worker.close(finished=True)
    assert crawl.look().finished
    assert crawl.requeue(dead_keys(crawl)) == 1
    assert not crawl.look().finished
    assert join(server).work_off() == ["a"]
    assert crawl.look().finished
    assert crawl.look().counts == Counts(accepted=2, done=2, seen=2)


def test_more_dead_letters_than_are_requeued_at_once(
    crawl: SharedCrawl, server: RedisServer
) -> None:
    worker = join(server)
    bury(worker, *(str(number) for number in range(1_203)))
    assert crawl.requeue(dead_keys(crawl)) == 1_203
    assert crawl.look().counts == Counts(accepted=1_203, pending=1_203, seen=1_203)


def test_a_requeued_one_counts_for_the_load_of_its_slot(
    crawl: SharedCrawl, server: RedisServer
) -> None:
    worker = join(server, prefetch=1)
    bury(worker, "a")
    worker.add(page("b"))
    assert worker.take().entry.fingerprint == b"b"
    crawl.requeue(dead_keys(crawl))
    # Of slots that are equally busy, that of "a" would be first, but it is busy with "b".
    assert slot_id_of("") < slot_id_of(LATER)
    worker.add(page("c", slot=LATER))
    assert worker.take().entry.fingerprint == b"c"


# Looking


def test_what_is_known_of_a_crawl(
    crawl: SharedCrawl, server: RedisServer, client: redis.Redis
) -> None:
    worker = join(server)
    bury(worker, "a")
    worker.add(page("b"), page("c"))
    worker.frontier.finish(worker.take())
    worker.take()
    worker.commit()
    before = dump(client)
    state = crawl.look()
    assert dump(client) == before
    assert (state.spider, state.finished, state.workers) == (OWNER, False, 1)
    assert state.counts == Counts(accepted=3, done=1, leased=1, dead=1, seen=3)
    assert state.large_buckets == 0


def test_how_many_pages_are_seen(
    crawl: SteeredCrawl, server: RedisServer, client: redis.Redis
) -> None:
    worker, other = join(server), join(server)

    def start(name: str, *, stored: bool) -> Entry:
        return page(name, unique=False, from_start=True, stored=stored)

    worker.add(page("a"), page("b"), page("a"), start("s", stored=True), page("c", unique=False))
    other.add(page("b"), page("d"), start("t", stored=False), page("e", stored=False))
    assert crawl.look().counts.seen == 3
    # What stays on a worker is seen once it is done; a start request is known by its claim.
    done: set[str] = set()
    while not done.issuperset({"t", "e"}):
        lease = other.take()
        done.add(lease.entry.fingerprint.decode())
        other.frontier.finish(lease)
        other.commit()
    assert crawl.look().counts.seen == 4
    worker.frontier.forget(b"a")
    worker.frontier.forget(b"none")
    worker.frontier.mark_seen(b"marked")
    worker.settle()
    assert crawl.look().counts.seen == worker.frontier.counts().seen == 4
    assert crawl.forget([b"b", b"d", b"none"]) == 2
    assert crawl.look().counts.seen == 2
    # Of a crawl that an earlier version has begun it is not known.
    client.hdel(crawl.keys.meta, "seen")
    worker.add(page("f"))
    assert crawl.forget([b"f"]) == 1
    worker.settle()
    assert crawl.look().counts.seen is worker.frontier.counts().seen is None


def test_buckets_that_take_too_much_memory_are_noticed(
    crawl: SharedCrawl, server: RedisServer, client: redis.Redis
) -> None:
    worker = join(server)
    meta_crawl = worker.frontier._stream.crawl
    # More than a small hash may have, in each bucket that can be looked at.
    fields = {str(number): "x" * 65 for number in range(2)}
    with client.pipeline() as together:
        for bucket in Keys(KEY).buckets(meta_crawl):
            together.hset(bucket, mapping=fields)
        together.execute()
    assert crawl.look().large_buckets == 32


# Failed requests


DOWN = PageFailure(Reason.STATUS, "HTTP status 503", 503, 3)


def fail(worker: Joined, *names: str) -> None:
    """Have these pages fail, one after the other."""
    worker.add(*map(page, names))
    for _ in names:
        lease = worker.take()
        lease.failure = DOWN
        worker.frontier.finish(lease)
    worker.commit()


def test_failed_requests_are_told_and_pending_again(
    crawl: SharedCrawl, server: RedisServer
) -> None:
    worker = join(server, prefetch=1)
    fail(worker, "a", "b", "c")
    assert worker.frontier.counts().failed == 3
    assert crawl.look().counts == Counts(accepted=3, failed=3, seen=3)
    failed = sorted(crawl.failed(), key=lambda row: row[2])
    assert [why for _, why, _ in failed] == [DOWN] * 3
    assert crawl.requeue_failed(failed[:2]) == 2
    assert crawl.look().counts == Counts(accepted=3, pending=2, failed=1, seen=3)
    # Those that have not failed any more are not asked for twice.
    assert crawl.requeue_failed(failed) == 1
    assert crawl.requeue_failed(failed) == 0
    leases = [worker.take() for _ in range(3)]
    assert all(lease.entry.again for lease in leases)
    for lease in leases:
        lease.failure = DOWN
        worker.frontier.finish(lease)
    worker.commit()
    # Once more, as they are stored now.
    assert crawl.requeue_failed(crawl.failed()) == 3
    assert sorted(worker.work_off()) == ["a", "b", "c"]
    assert crawl.look().counts == Counts(accepted=3, done=3, seen=3)
    worker.close(finished=True)


def test_of_too_many_failed_requests_the_oldest_count_as_done(
    crawl: SharedCrawl, server: RedisServer
) -> None:
    worker = join(server, options=Options(keep_failed=20))
    fail(worker, *(f"old {number}" for number in range(15)))
    with server.client() as client:
        # They are told apart by milliseconds.
        seconds, microseconds = client.time()
        while client.time() <= (seconds, microseconds + 2_000):
            pass
    fail(worker, *(f"new {number}" for number in range(15)))
    assert crawl.look().counts == Counts(accepted=30, failed=18, done=12, seen=30)
    names = [decode_value(value).fingerprint.decode() for _, _, value in crawl.failed()]
    assert sum(name.startswith("new") for name in names) == 15
    assert [event.count for event in worker.events if isinstance(event, FailuresDropped)] == [12]
    worker.close(finished=True)


def test_a_finished_crawl_begins_with_what_has_failed(
    crawl: SharedCrawl, server: RedisServer
) -> None:
    again = Options(retry_failed=True)
    worker = join(server, options=again)
    fail(worker, "a")
    # Not while it goes on.
    other = join(server, options=again)
    assert other.frontier.job.retried == 0
    other.close()
    assert worker.work_off() == []
    worker.close(finished=True)
    assert crawl.look().finished
    worker = join(server, options=again)
    assert worker.frontier.job.retried == 1
    assert worker.work_off() == ["a"]
    worker.close(finished=True)
