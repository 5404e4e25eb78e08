"""Which crawls a worker may join, and what it finds there."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
import redis

from scrapy_altsched.errors import ConfigError, JobdirMismatchError, SharedError
from scrapy_altsched.frontier import Options, Order
from scrapy_altsched.frontier.events import AlreadyFinished, Committed, ServerRolledBack
from scrapy_altsched.frontier.shared.batches import Reply
from scrapy_altsched.frontier.shared.exchange import Exchange
from scrapy_altsched.frontier.shared.keys import Keys
from scrapy_altsched.frontier.shared.operating import SharedCrawl
from scrapy_altsched.maintenance.opening import open_frontier
from scrapy_altsched.redis_client.connection import connect

from ...frontiers import OWNER, page, take
from ...servers import RedisServer
from .joining import KEY, Joined, crawl_whole, dump, join

META = Keys(KEY).meta


def begin(server: RedisServer) -> None:
    """Leave a crawl on the server that is not finished."""
    worker = join(server)
    worker.add(page("a"), page("b"))
    worker.close()


def test_the_first_worker_creates_a_crawl_and_others_join_it(
    server: RedisServer, client: redis.Redis
) -> None:
    begin(server)
    worker = join(server)
    assert worker.frontier.job.resumed
    assert worker.frontier.counts().pending == 2
    assert json.loads(client.hget(META, "about") or b"") == {
        "spider": OWNER,
        "order": str(Options().order),
        "fingerprints": "rules",
    }
    assert sorted(worker.work_off()) == ["a", "b"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"spider": "other"}, "is of spider 'spider', not of 'other'"),
        ({"fingerprints": b"more rules"}, r"other fingerprints \(rules\) than this worker's"),
        (
            {"options": Options(order=Order("one"))},
            "begun with the order slots/lifo/fifo, and this worker has one/lifo/fifo",
        ),
    ],
    ids=["spider", "fingerprints", "order"],
)
def test_a_worker_that_differs_is_refused(
    server: RedisServer, client: redis.Redis, changes: dict, words: str
) -> None:
    begin(server)
    before = dump(client)
    with pytest.raises(ConfigError, match=words):
        join(server, **changes)
    assert dump(client) == before


@pytest.mark.parametrize("number", range(len(Keys(KEY).fixed)))
def test_a_key_of_another_program_is_refused(
    server: RedisServer, client: redis.Redis, number: int
) -> None:
    key = Keys(KEY).fixed[number]
    client.set(key, "mine")
    before = dump(client)
    with pytest.raises(ConfigError, match="is another program's: set ALTSCHED_SHARED_KEY"):
        join(server)
    assert dump(client) == before


def test_a_user_with_the_rights_that_the_docs_name_has_all_that_is_needed(
    own_directory: Path,
) -> None:
    docs = Path(__file__).parents[3].joinpath("docs", "shared.rst").read_text(encoding="utf-8")
    found = re.search(r"ACL SETUSER (crawler .+ \\\n.+)", docs)
    assert found
    user = " ".join(shlex.split(found[1].replace("\\\n", "")))
    with RedisServer(own_directory, users=[user]) as server:
        url = f"redis://crawler:secret@127.0.0.1:{server.port}"
        warnings: list[str] = []
        crawl_whole(server, "a", "b", redis_settings={"REDIS_URL": url}, warn=warnings.append)
        crawl = SharedCrawl(connect({"REDIS_URL": url}), KEY)
        assert crawl.look() is not None
        assert not crawl.requeue([b"a"])
        crawl.drop()
        assert not [text for text in warnings if "CONFIG GET" in text]


def test_data_of_another_version_is_refused(server: RedisServer, client: redis.Redis) -> None:
    begin(server)
    client.hset(META, "protocol", "0")
    before = dump(client)
    with pytest.raises(ConfigError, match="written by another version of scrapy_altsched"):
        join(server)
    for verb in (lambda it: it.restart(bool), SharedCrawl.look, lambda it: it.requeue([b"a"])):
        with pytest.raises(ConfigError, match="written by another version of scrapy_altsched"):
            verb(SharedCrawl(client, KEY))
    assert dump(client) == before
    # What to do with it is known.
    assert SharedCrawl(client, KEY).drop() == 2
    assert dump(client) == {}


def test_data_of_the_version_before_is_gone_on_with(
    server: RedisServer, client: redis.Redis
) -> None:
    begin(server)
    client.hset(META, "protocol", "1")
    assert SharedCrawl(client, KEY).look().counts.pending == 2
    join(server).close()
    assert client.hget(META, "protocol") == b"2"


def test_an_evicting_server_is_refused(own_directory: Path) -> None:
    with RedisServer(own_directory, options={"maxmemory-policy": "allkeys-lru"}) as server:
        with pytest.raises(
            ConfigError,
            match=r"(Redis|Valkey) [0-9.]+ at .* may delete requests when its memory is full.*"
            r"CONFIG SET maxmemory-policy noeviction",
        ):
            join(server)
        assert server.client().keys() == []


@pytest.mark.parametrize(
    ("rights", "words"),
    [
        ("~* +@all -evalsha", "evalsha"),
        ("~* +@all -zrangebylex", "zrangebylex"),
        ("~other:* +@all", "keys?"),
    ],
)
def test_a_user_who_may_not_do_what_is_needed_is_refused_at_once(
    own_directory: Path, rights: str, words: str
) -> None:
    with RedisServer(own_directory, users=[f"worker on >pw {rights}"]) as server:
        settings = {
            "REDIS_PORT": server.port,
            "REDIS_PARAMS": {"username": "worker", "password": "pw"},
        }
        with pytest.raises(ConfigError, match=f"does not permit user 'worker' .*{words}"):
            join(server, redis_settings=settings)
        assert server.client().keys() == []


def test_a_user_with_the_keys_of_shared_crawls_is_enough(own_directory: Path) -> None:
    with RedisServer(own_directory, users=["worker on >pw ~altsched:* +@all"]) as server:
        params = {"username": "worker", "password": "pw"}
        worker = join(server, redis_settings={"REDIS_PORT": server.port, "REDIS_PARAMS": params})
        worker.add(page("a"))
        assert worker.work_off() == ["a"]


# Fingerprints


def first_of(worker: Joined) -> list[str]:
    """The pages crawled of two whose fingerprints of 20 bytes begin alike."""
    worker.add(page("the beginning......1"), page("the beginning......2"))
    done = worker.work_off()
    worker.close(finished=True)
    return done


def test_fingerprints_that_may_begin_alike_are_told_apart(server: RedisServer) -> None:
    assert len(first_of(join(server, are_sha1=False))) == 2


def test_a_worker_that_cuts_fingerprints_does_not_in_a_crawl_that_does_not(
    server: RedisServer,
) -> None:
    first = join(server, are_sha1=False)
    first.add(page("the beginning......0"))
    first.close()
    # As in a crawl that came from a job directory.
    assert len(first_of(join(server, are_sha1=True))) == 3


def test_a_crawl_of_an_older_version_keeps_what_it_has_seen(server: RedisServer) -> None:
    older = join(server, are_sha1=True)
    older.add(page("the beginning......0"))
    older.close()
    warnings: list[str] = []
    worker = join(server, are_sha1=False, warn=warnings.append)
    [warning] = [text for text in warnings if "fingerprint" in text]
    assert "scrapy altsched drop crawl" in warning
    assert first_of(worker) == ["the beginning......0"]


# Job directories


def test_a_worker_comes_back_with_its_job_directory(server: RedisServer, tmp_path: Path) -> None:
    first = join(server, tmp_path / "job")
    first.add(page("a"))
    assert first.take().entry.fingerprint == b"a"
    first.frontier.abandon()
    second = join(server, tmp_path / "job")
    assert second.frontier.job.resumed
    assert second.take().entry.fingerprint == b"a"


def test_a_job_directory_of_another_crawl_is_refused(
    server: RedisServer, client: redis.Redis, tmp_path: Path
) -> None:
    join(server, tmp_path / "job").close()
    before = dump(client)
    with pytest.raises(
        JobdirMismatchError, match=r"belongs to a worker of the shared crawl 'crawl' on .* not of"
    ):
        join(server, tmp_path / "job", key="other")
    assert dump(client) == before


def test_a_job_directory_of_a_local_crawl_is_refused(
    server: RedisServer, client: redis.Redis, tmp_path: Path
) -> None:
    local = open_frontier(tmp_path / "job", OWNER)
    local.add(page("a"))
    local.close()
    with pytest.raises(JobdirMismatchError, match="holds a crawl of one machine"):
        join(server, tmp_path / "job")
    assert dump(client) == {}
    local = open_frontier(tmp_path / "job", OWNER)
    assert take(local).entry.fingerprint == b"a"
    local.close()


def test_a_job_directory_of_a_worker_is_refused_to_a_local_crawl(
    server: RedisServer, tmp_path: Path
) -> None:
    first = join(server, tmp_path / "job")
    first.add(page("a"))
    first.close()
    with pytest.raises(JobdirMismatchError, match="belongs to a worker of the shared crawl 'cra"):
        open_frontier(tmp_path / "job", OWNER)
    assert join(server, tmp_path / "job").work_off() == ["a"]


def test_a_job_directory_of_a_crawl_that_is_gone_is_refused(
    server: RedisServer, client: redis.Redis, tmp_path: Path
) -> None:
    worker = join(server, tmp_path / "job")
    worker.add(page("a"))
    worker.close()
    SharedCrawl(client, KEY).drop()
    with pytest.raises(
        SharedError,
        match=r"in which JOBDIR .* took part, is not there any more\. Restore the server's data",
    ):
        join(server, tmp_path / "job")
    assert dump(client) == {}


def test_a_crawl_that_is_dropped_while_a_worker_joins_is_said_to_be_gone(
    server: RedisServer, client: redis.Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = join(server, tmp_path / "job")
    first.add(page("a"))
    first.take()  # so that the worker tells the server of a suspect when it is back
    first.frontier.abandon()
    take_answer = Exchange.take

    def take_and_drop(link: Exchange, timeout: float = 0.0) -> Reply | None:
        reply = take_answer(link, timeout)
        monkeypatch.undo()
        client.flushall()
        return reply

    monkeypatch.setattr(Exchange, "take", take_and_drop)
    with pytest.raises(SharedError, match="was replaced while this worker joined it"):
        join(server, tmp_path / "job")


# Crawls that are finished


def test_a_late_worker_of_a_finished_crawl_changes_nothing(
    server: RedisServer, client: redis.Redis
) -> None:
    crawl_whole(server, "a", "b")
    before = dump(client)
    late = join(server)
    assert [type(event) for event in late.events] == [AlreadyFinished]
    assert late.frontier.is_over
    assert late.frontier.counts().done == 2
    late.frontier.add(page("c"))
    late.close()
    assert dump(client) == before


def test_a_finished_crawl_is_restarted_by_a_worker(
    server: RedisServer, client: redis.Redis
) -> None:
    crawl_whole(server, "a", "b")
    # It may also be another one, of the same name.
    crawl_whole(server, "a", "c", restart=True, fingerprints=b"other rules")
    assert SharedCrawl(client, KEY).look().counts.done == 2
    assert client.zcard(Keys(KEY).pending) == 0


def test_a_crawl_that_runs_is_not_restarted_by_a_worker(server: RedisServer) -> None:
    begin(server)
    assert sorted(join(server, restart=True).work_off()) == ["a", "b"]


# Commits


def test_a_commit_is_told_of_requests_that_no_page_brought(server: RedisServer) -> None:
    worker = join(server)
    worker.frontier.add(page("a"))
    assert not worker.events
    worker.settle()
    assert worker.events == [Committed(worker.events[-1].number)]


def test_a_commit_is_told_although_something_always_ends(server: RedisServer) -> None:
    worker = join(server)
    worker.add(page("a"), page("b"))
    first, second = worker.take(), worker.take()
    worker.events.clear()
    worker.frontier.finish(first)
    worker.frontier.commit()
    # This one is for the next commit, and it is there before the first one is answered.
    worker.frontier.finish(second)
    worker.settle()
    assert [type(event) for event in worker.events] == [Committed]
    assert worker.frontier.pressure.changes == 1
    worker.commit()
    assert [type(event) for event in worker.events] == [Committed] * 2
    assert worker.frontier.pressure.changes == 0


# Workers that are gone


def test_workers_that_were_not_heard_of_for_a_week_are_forgotten(
    server: RedisServer, client: redis.Redis
) -> None:
    keys = Keys(KEY)
    gone, silent = join(server), join(server)
    gone.close()

    def let_a_week_pass() -> None:
        # The server's clock cannot be changed.
        for token in client.hkeys(keys.workers):
            client.zincrby(keys.heard, -7 * 24 * 3_600_000, token)

    let_a_week_pass()
    third = join(server)
    left = {silent.frontier._stream.token, third.frontier._stream.token}
    # Its leases are still to expire.
    assert set(client.hkeys(keys.workers)) == left
    assert set(client.zrange(keys.heard, 0, -1)) == left
    third.close()
    client.zrem(keys.deadlines, silent.frontier._stream.token)
    let_a_week_pass()
    fourth = join(server)
    assert client.hkeys(keys.workers) == [fourth.frontier._stream.token]
    # It begins anew, and nothing is lost.
    silent.add(page("a"))
    assert ServerRolledBack() in silent.events
    fourth.close()
    assert silent.work_off() == ["a"]
