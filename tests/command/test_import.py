"""Importing crawls of scrapy-redis, from a real server."""

from __future__ import annotations

import pickle
import re
import subprocess
from collections import deque
from pathlib import Path
from typing import Any

import pytest
import redis
from scrapy import Request

from scrapy_altsched import ScrapyRedisFingerprinter

from ..crawls import STOCK, Crawl, altsched
from ..servers import RedisServer
from ..sites import Site, random_graph, wait_for_pages

SAME = {"REQUEST_FINGERPRINTER_CLASS": "scrapy_altsched.ScrapyRedisFingerprinter"}
THEIRS = {
    **STOCK,
    "SCHEDULER": "scrapy_redis.scheduler.Scheduler",
    "DUPEFILTER_CLASS": "scrapy_redis.dupefilter.RFPDupeFilter",
    "SCHEDULER_PERSIST": 1,
    "JOBDIR": None,
}


def run_import(
    server: RedisServer, *arguments: str, **settings: Any
) -> subprocess.CompletedProcess[str]:
    options = list(arguments)
    if "--from" not in arguments:
        options += ["--from", f"redis://localhost:{server.port}/0", "--trust-pickle"]
    for name, value in settings.items():
        options += ["-s", f"{name}={value}"]
    return altsched("import", "pages", *options)


def push(client: redis.Redis, *urls: str, **more: Any) -> list[Request]:
    """Put requests into queue and dupefilter, as scrapy-redis does."""
    requests = [Request(url) for url in urls]
    for request in requests:
        data = pickle.dumps({**request.to_dict(), **more}, -1)
        client.execute_command("ZADD", "pages:requests", -request.priority, data)
        client.sadd("pages:dupefilter", ScrapyRedisFingerprinter().fingerprint(request).hex())
    return requests


def content(client: redis.Redis) -> list[Any]:
    """All that is in both keys."""
    queue = "pages:requests"
    is_list = client.type(queue) == b"list"
    rows = client.lrange(queue, 0, -1) if is_list else client.zrange(queue, 0, -1, withscores=True)
    return [rows, client.smembers("pages:dupefilter")]


# A crawl


@pytest.mark.parametrize(
    ("queue", "shared"),
    [
        ("PriorityQueue", False),
        pytest.param("FifoQueue", False, marks=pytest.mark.slow),
        pytest.param("PriorityQueue", True, marks=pytest.mark.slow),
    ],
)
def test_a_crawl_that_was_stopped_is_completed_and_nothing_lost(
    tmp_path: Path, server: RedisServer, client: redis.Redis, queue: str, shared: bool
) -> None:
    graph = random_graph(80, 2, seed=5)
    with Site(graph) as site:
        crawl = Crawl(tmp_path, "pages", f"{site.url}/0")
        settings = {
            "REDIS_PORT": server.port,
            "SCHEDULER_QUEUE_CLASS": f"scrapy_redis.queue.{queue}",
        }
        process = crawl.start(**settings, **THEIRS, CONCURRENT_REQUESTS=2)
        wait_for_pages(site, 20, process)
        process.terminate()
        process.communicate(timeout=60)
        before = content(client)
        assert len(before) == 2, crawl.log
        crawled = set(crawl.item_paths())
        assert len(crawled) < 80
        place = {"ALTSCHED_SHARED": 1} if shared else {"JOBDIR": crawl.jobdir}
        done = run_import(server, **place, **SAME, REDIS_PORT=server.port)
        assert done.returncode == 0, done.stdout + done.stderr
        assert content(client) == before
        crawl.run(REDIS_PORT=server.port, ALTSCHED_SHARED=int(shared), **SAME)
        assert crawl.stat("finish_reason") == "finished", crawl.log
        assert set(crawl.item_paths()) == graph.keys()
        # What was seen is crawled once; the start page is unfiltered in each run.
        again = [path for path, hits in site.hits.items() if hits > 1]
        assert set(again) <= {"/0"}


def test_a_full_server_is_named_and_has_nothing_of_the_import(
    server: RedisServer, client: redis.Redis
) -> None:
    where = {"ALTSCHED_SHARED": 1, "REDIS_PORT": server.port, **SAME}
    push(client, *(f"http://a.test/{number}" for number in range(40)))
    before = client.keys()
    client.config_set("maxmemory", 1)
    done = run_import(server, **where)
    assert done.returncode == 1
    assert "has no memory left: raise its maxmemory" in done.stderr
    assert "Traceback" not in done.stderr
    assert client.keys() == before
    client.config_set("maxmemory", 0)
    done = run_import(server, **where)
    assert done.returncode == 0
    assert "40 requests are pending in the shared crawl 'pages'; duplicates: 0." in done.stdout
    done = run_import(server, **where)
    assert done.returncode == 1
    assert "two cannot be merged" in done.stderr


@pytest.mark.slow
def test_what_was_seen_is_left_out_unless_fingerprints_agree(
    tmp_path: Path, server: RedisServer, client: redis.Redis
) -> None:
    push(client, "http://a.test/1", "http://a.test/2")
    client.sadd("pages:dupefilter", "00" * 20)
    done = run_import(server, JOBDIR=tmp_path / "job")
    assert done.returncode == 0, done.stderr
    assert "2 requests are pending in the job in" in done.stdout
    assert "WARNING: its dupefilter (3 fingerprints) was left out: only 0 of 2" in done.stdout
    assert "'scrapy_altsched.ScrapyRedisFingerprinter'" in done.stdout
    done = run_import(server, JOBDIR=tmp_path / "same", **SAME)
    assert "1 more fingerprints of its dupefilter are seen" in done.stdout
    assert "2 of 2 queued requests" in done.stdout
    done = run_import(
        server,
        "--without-seen",
        "--trust-pickle",
        "--from",
        f"redis://localhost:{server.port}",
        JOBDIR=tmp_path / "without",
        **SAME,
    )
    assert "dupefilter" not in done.stdout


def test_what_cannot_be_restored_is_counted_and_named(
    tmp_path: Path, server: RedisServer, client: redis.Redis
) -> None:
    push(client, "http://a.test/1")
    push(client, "http://a.test/2", callback="gone")
    client.zadd("pages:requests", {b"\x80no pickle": 0, b"nothing": 0})
    done = run_import(server, JOBDIR=tmp_path / "job")
    assert done.returncode == 1
    assert "1 request is pending" in done.stdout
    assert "2 requests cannot be restored" in done.stdout
    assert "1 entry of the queue is no pickled" in done.stdout


# Bad input


def test_what_msgpack_cannot_carry_is_a_dead_letter_of_a_shared_crawl(
    server: RedisServer, client: redis.Redis
) -> None:
    push(client, "http://a.test/1")
    push(client, "http://a.test/2", meta={"queue": deque()})
    client.zadd("pages:requests", {b"\x80no pickle.": 0})
    done = run_import(server, ALTSCHED_SHARED=1, REDIS_PORT=server.port)
    assert done.returncode == 1
    assert "1 request is pending in the shared crawl 'pages'" in done.stdout
    assert "2 requests cannot be restored, and will not be crawled." in done.stdout
    check = altsched("check", "--shared", "pages", "-s", f"REDIS_PORT={server.port}")
    assert "1 pending, 0 delayed, 2 dead" in check.stdout


def test_pickles_are_not_loaded_unless_they_are_trusted(
    tmp_path: Path, server: RedisServer, client: redis.Redis
) -> None:
    made = tmp_path / "made"

    class Evil:
        def __reduce__(self) -> Any:
            return Path.mkdir, (made,)

    client.zadd("pages:requests", {pickle.dumps(Evil()): 0})
    url = f"redis://localhost:{server.port}"
    done = run_import(server, "--from", url, JOBDIR=tmp_path / "job")
    assert done.returncode == 1
    assert "can execute code on this machine" in done.stderr
    assert not made.exists()
    assert not (tmp_path / "job" / "frontier").exists()


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (None, "There is neither 'pages:requests' nor 'pages:dupefilter'"),
        ("pages:requests", "'pages:requests' .* is a string, not a sorted set or a list"),
        ("pages:dupefilter", "'pages:dupefilter' .* is a string, not a set"),
    ],
)
def test_keys_that_are_not_there_or_of_another_type_are_named(
    tmp_path: Path, server: RedisServer, client: redis.Redis, key: str | None, message: str
) -> None:
    if key is not None:
        client.set(key, "text")
    done = run_import(server, JOBDIR=tmp_path / "job")
    assert done.returncode == 1
    assert re.search(message, done.stderr)
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_where_to_and_where_from_have_to_be_usable(
    tmp_path: Path, server: RedisServer, client: redis.Redis
) -> None:
    push(client, "http://a.test/1")
    assert "set where to" in run_import(server).stderr
    wrong = ("--trust-pickle", "--from")
    done = run_import(server, *wrong, "nowhere", JOBDIR=tmp_path / "job")
    assert "nowhere cannot be read (No such file or directory): --from takes" in done.stderr
    done = run_import(server, *wrong, "redis://localhost:1", JOBDIR=tmp_path / "job")
    assert "cannot be reached" in done.stderr
    (tmp_path / "job" / "frontier").mkdir(parents=True)
    done = run_import(server, JOBDIR=tmp_path / "job")
    assert "holds a job (frontier)" in done.stderr
    done = run_import(
        server,
        JOBDIR=tmp_path / "other",
        DUPEFILTER_CLASS="scrapy_redis.dupefilter.RFPDupeFilter",
    )
    assert "DUPEFILTER_CLASS = 'scrapy_redis" in done.stderr
