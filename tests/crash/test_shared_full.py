"""A server whose memory is full, and stays full: workers wait, and nothing is lost."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis

from ..crawls import altsched
from ..servers import RedisServer
from ..sites import Site, random_graph
from ..workers import Crawled, Workers, crawling, wait_for_pages

PAGES = 400


def fill(client: redis.Redis) -> None:
    """Use what memory there is left."""
    try:
        for _ in range(10_000):
            client.rpush("other", bytes(1_000))
    except redis.OutOfMemoryError:
        return
    raise AssertionError("it is not full")


def limit(client: redis.Redis) -> None:
    """Let there be no memory left."""
    client.config_set("maxmemory", client.info("memory")["used_memory"] + 200_000)
    fill(client)


def wait_until_drained(client: redis.Redis, site: Site, workers: Workers) -> None:
    """Wait until all that is stored was asked for, and use the memory that finished pages leave."""
    crawled = Crawled(client, "pages")
    while workers.is_any_running:
        accepted = crawled.count("accepted")
        fill(client)
        if accepted == crawled.count("accepted") == len(site.hits):
            return
        time.sleep(0.05)
    raise AssertionError("the crawl has ended")


@contextmanager
def crawled(directory: Path) -> Iterator[tuple[RedisServer, Workers]]:
    """A server with a crawl that one worker has finished, and the worker."""
    graph = random_graph(20, 2, 1)
    with (
        RedisServer(directory / "redis") as server,
        crawling(graph, directory, server, 1, has_jobdir=False) as (_, workers),
    ):
        workers.launch().wait()
        yield server, workers


def processor_time(pid: int) -> float:
    """Seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.slow
def test_workers_wait_for_memory_and_lose_nothing(tmp_path: Path) -> None:
    seconds = float(os.environ.get("FULL_FOR", "90"))
    graph = random_graph(PAGES, 4, 1)
    pages, waiting = set(), ["/0"]
    while waiting:
        if (path := waiting.pop()) not in pages:
            pages.add(path)
            waiting += graph[path].links
    with (
        RedisServer(tmp_path / "redis", appendonly=True) as server,
        Site(graph) as site,
        server.client() as client,
        Workers(tmp_path, "pages", f"{site.url}/0", server.port, 2, DOWNLOAD_DELAY=0.02) as workers,
    ):
        workers.launch()
        wait_for_pages(site, PAGES // 6, workers)
        limit(client)
        for worker in workers:
            worker.wait_for("has no memory for new requests")
        wait_until_drained(client, site, workers)
        before = {worker: processor_time(worker.process.pid) for worker in workers}
        lines = {worker: worker.log.count("\n") for worker in workers}
        calls = client.info("stats")["total_commands_processed"]
        began = time.monotonic()
        settings = ("-s", f"REDIS_PORT={server.port}")
        check = altsched("check", "--shared", "pages", *settings)
        drop = altsched("drop", "nothing", *settings)
        time.sleep(max(0.0, seconds - (time.monotonic() - began)))
        took = time.monotonic() - began
        calls = client.info("stats")["total_commands_processed"] - calls
        for worker in workers:
            used = (processor_time(worker.process.pid) - before[worker]) / took
            new = worker.log.splitlines()[lines[worker] :]
            print(f"processor time {used:.4f}, {len(new)} lines in {took:.0f} s: {new}")
            assert used <= 0.05
            assert worker.log.count("has no memory for new requests") == 1
            assert worker.log.count("has made no progress for") == 1
        print(f"{calls / took:.1f} commands/s; check {check.returncode}: {check.stdout}")
        assert check.returncode == 0, check.stderr
        assert "There is no shared crawl 'nothing'" in drop.stderr
        client.config_set("maxmemory", 0)
        workers.wait()
        assert set(workers.item_paths()) == set(site.hits) == pages
        Crawled(client, "pages").assert_finished(len(pages))


def test_a_crawl_is_dropped_to_make_room(tmp_path: Path) -> None:
    with crawled(tmp_path) as (server, workers), server.client() as client:
        client.config_set("maxmemory", 1)
        settings = ("-s", f"REDIS_PORT={server.port}")
        check = altsched("check", "--shared", "pages", *settings)
        assert "the counters add up" in check.stdout, check.stderr
        # A new crawl says at once why it cannot begin.
        began = time.monotonic()
        workers[0].launch(ALTSCHED_SHARED_KEY="another").wait()
        assert "cannot begin, as the server's memory is full: raise its maxmemory" in workers[0].log
        assert time.monotonic() - began < 20
        # One that is finished can be restarted, and deleted.
        assert altsched("restart", "--shared", "pages", *settings).returncode == 0
        drop = altsched("drop", "pages", *settings)
        assert drop.returncode == 0, drop.stderr
        assert client.keys("altsched*") == []


def test_a_replica_is_read_and_not_changed(tmp_path: Path) -> None:
    with crawled(tmp_path) as (server, _), server.client() as client:
        client.replicaof("127.0.0.1", "1")
        settings = ("-s", f"REDIS_PORT={server.port}")
        check = altsched("check", "--shared", "pages", *settings)
        assert "the counters add up" in check.stdout, check.stderr
        drop = altsched("drop", "pages", *settings)
        assert drop.returncode == 1
        assert "is a replica, or read-only for another reason" in drop.stderr
        assert "Traceback" not in drop.stderr
