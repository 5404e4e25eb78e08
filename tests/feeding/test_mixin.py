"""A spider that takes its start requests from a queue, and loses none."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pytest
import redis
from scrapy.utils.test import get_crawler

from scrapy_altsched import RedisQueueMixin, Scheduler
from scrapy_altsched.errors import ConfigError

from ..crawls import STOCK, Crawl, run_scrapy
from ..servers import RedisServer
from ..sites import Page, Site
from ..workers import Crawled
from .crawls import crawl_of, end, start, wait_for_items


def make(data: bytes) -> Any:
    return RedisQueueMixin("queue").make_request_from_data(data)


def test_an_entry_is_a_url_or_an_object() -> None:
    request = make(b" http://site.test/1\n")
    assert (request.url, request.method, request.dont_filter) == ("http://site.test/1", "GET", True)
    text = {"url": "http://site.test/2", "method": "post", "meta": {"job": 1}, "name": "value"}
    request = make(json.dumps(text).encode())
    assert (request.url, request.method, request.dont_filter) == (text["url"], "POST", True)
    assert request.meta == {"job": 1}
    assert parse_qsl(request.body.decode()) == [("name", "value")]


@pytest.mark.parametrize(
    "data",
    [b"", b"nothing", b"\xff", b"{", b"{}", b'{"url": 1}', b'{"url": "http://a", "meta": 1}'],
)
def test_what_is_neither_is_an_error(data: bytes) -> None:
    with pytest.raises((ValueError, TypeError)):
        make(data)


class Named(RedisQueueMixin):
    name = "named"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"MAX_IDLE_TIME_BEFORE_CLOSE": "soon"}, "MAX_IDLE_TIME_BEFORE_CLOSE = 'soon' cannot"),
        ({"CONCURRENT_REQUESTS": 0}, "CONCURRENT_REQUESTS = 0 cannot be used"),
        ({"REDIS_URL": "nowhere"}, "REDIS_URL cannot be used"),
    ],
)
def test_a_setting_that_cannot_be_used_is_named(settings: dict[str, Any], message: str) -> None:
    crawler = get_crawler(Named, settings)
    spider = Named.from_crawler(crawler)
    with pytest.raises(ConfigError, match=message):
        Scheduler.from_crawler(crawler).open(spider)


def test_another_scheduler_is_refused_and_nothing_taken(
    tmp_path: Path, server: RedisServer, client: redis.Redis, site: Site
) -> None:
    client.rpush("stock", f"{site.url}/9")
    crawl = crawl_of(tmp_path / "stock", "queue", site)
    start(crawl, server, **STOCK).communicate(timeout=120)
    assert crawl.stat("finish_reason") == "no_scheduler"
    assert "set it to 'scrapy_altsched.Scheduler'" in crawl.log
    assert "Traceback" not in crawl.log
    assert client.llen("stock") == 1


def pages(count: int) -> dict[str, Page]:
    return {f"/{number}": Page() for number in range(count)}


def test_a_shell_takes_nothing(server: RedisServer, client: redis.Redis, site: Site) -> None:
    client.rpush("queue:start_urls", f"{site.url}/9")
    settings = ("SPIDER_MODULES=crashsite.fed", f"REDIS_PORT={server.port}")
    options = [part for text in settings for part in ("-s", text)]
    words = ("shell", f"{site.url}/2", "-c", "response.status", "--spider", "queue")
    shell = run_scrapy(*words, *options)
    assert shell.stdout.strip() == "200", shell.stderr
    assert client.keys() == [b"queue:start_urls"]


@pytest.mark.slow
def test_it_is_fed_from_a_list_a_set_and_a_sorted_set(
    tmp_path: Path, server: RedisServer, client: redis.Redis, site: Site
) -> None:
    urls = [f"{site.url}/0", json.dumps({"url": f"{site.url}/8", "meta": {"job": 1}})]
    client.rpush("list", *urls, urls[1])
    client.sadd("set", *urls)
    client.zadd("zset", dict.fromkeys(urls, 1))
    crawls = {kind: crawl_of(tmp_path / kind, "queue", site) for kind in ("list", "set", "zset")}
    running = {kind: start(crawl, server) for kind, crawl in crawls.items()}
    for kind, crawl in crawls.items():
        end(crawl, running[kind])
        twice = ["/8"] * (kind == "list")
        assert sorted(crawl.item_paths()) == ["/0", "/0", "/1", "/2", "/8", *twice, "/9"], kind
        assert crawl.stat("altsched/queue/taken") == 2 + len(twice)
    assert client.keys() == []


@pytest.mark.slow
def test_an_entry_that_is_no_request_is_kept_beside_and_logged_once(
    tmp_path: Path, server: RedisServer, client: redis.Redis, site: Site
) -> None:
    client.rpush("bad", "nothing", b"\xff", f"{site.url}/9", "{", '{"meta": {}}')
    crawl = crawl_of(tmp_path / "bad", "queue", site)
    process = start(crawl, server)
    process.communicate(timeout=120)
    assert crawl.item_paths() == ["/9"]
    assert client.lrange("bad:dead", 0, -1) == [b"nothing", b"\xff", b"{", b'{"meta": {}}']
    assert client.keys() == [b"bad:dead"]
    assert crawl.stat("altsched/queue/dead") == 4
    lines = [line for line in crawl.log.splitlines() if "moved to 'bad:dead'" in line]
    assert [line.rpartition(": ")[2] for line in lines[:3]] == ["b'nothing'", r"b'\xff'", "b'{'"]
    assert "Traceback" not in crawl.log


@pytest.mark.parametrize("shared", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_spider_that_dies_before_the_commit_loses_nothing(
    tmp_path: Path, server: RedisServer, client: redis.Redis, shared: int
) -> None:
    """It is killed with entries that it was handed, and none of the crawl knows them."""
    with Site(pages(30)) as site:
        client.rpush("killed", *[f"{site.url}/{number}" for number in range(30)])
        crawl = crawl_of(tmp_path / "killed", "queue", site)
        crawl.arguments["redis_batch_size"] = 4
        settings = {
            "ALTSCHED_SHARED": shared,
            "ALTSCHED_LEASE_TIMEOUT": 1,
            # Most of what it does is not committed.
            "ALTSCHED_COMMIT_INTERVAL": 60,
        }
        for die_at in (5, 14):
            crawl.arguments["die_at"] = die_at
            process = start(crawl, server, **settings)
            process.communicate(timeout=120)
            assert process.returncode == -9, crawl.log
            assert client.keys("killed:taken:*") != []
        crawl.arguments["die_at"] = 0
        end(crawl, start(crawl, server, **settings))
        assert set(crawl.item_paths()) == set(pages(30))
    assert client.keys("killed*") == []


@pytest.mark.slow
def test_what_a_dead_worker_had_taken_goes_to_the_others(
    tmp_path: Path, server: RedisServer, client: redis.Redis
) -> None:
    with Site(pages(60)) as site:
        client.rpush("pages", *[f"{site.url}/{number}" for number in range(60)])
        crawls = []
        for name in ("first", "second"):
            (tmp_path / name).mkdir()
            crawls.append(Crawl(tmp_path / name, "queue", site.url, redis_key="pages"))
        crawls[0].arguments["die_at"] = 10
        settings = {"ALTSCHED_SHARED": 1, "ALTSCHED_LEASE_TIMEOUT": 2, "CONCURRENT_REQUESTS": 4}
        running = [start(crawl, server, **settings) for crawl in crawls]
        running[0].communicate(timeout=120)
        assert running[0].returncode == -9
        end(crawls[1], running[1])
        done = {path for crawl in crawls for path in crawl.item_paths()}
        assert done == set(pages(60))
    assert client.keys("pages*") == []


FILL: dict[str, Callable[[redis.Redis, str, list[str]], object]] = {
    "list": lambda client, key, urls: client.rpush(key, *urls),
    "set": lambda client, key, urls: client.sadd(key, *urls),
    "zset": lambda client, key, urls: client.zadd(key, {url: len(url) for url in urls}),
}


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("kind", FILL)
def test_workers_end_when_all_is_done_and_none_of_it_is_fed_again(
    tmp_path: Path, server: RedisServer, client: redis.Redis, kind: str, count: int
) -> None:
    """One of them is killed when it is idle: what it was fed has long been acknowledged."""
    entries, linked = pages(40), {f"/{number}/more": Page() for number in range(40)}
    graph = {**{path: Page([f"{path}/more"]) for path in entries}, **linked}
    with Site(graph) as site:
        FILL[kind](client, "idle", [site.url + path for path in entries])
        workers = []
        for number in range(count):
            (tmp_path / str(number)).mkdir()
            workers.append(Crawl(tmp_path / str(number), "queue", site.url, redis_key="idle"))
        settings = {"ALTSCHED_SHARED": 1, "CONCURRENT_REQUESTS": 4, "MAX_IDLE_TIME_BEFORE_CLOSE": 3}
        settings["ALTSCHED_LEASE_TIMEOUT"] = 2
        running = [start(worker, server, **settings) for worker in workers]
        site.wait_for(lambda site: len(site.hits) == len(graph))
        fetched_at = time.monotonic()
        crawled = Crawled(client, "queue")
        workers[0].wait_until(running[0], lambda: crawled.count("done") == len(graph))
        workers[0].wait_until(running[0], lambda: not client.keys("idle*"))
        workers[0].kill(running[0])
        for worker, process in list(zip(workers, running, strict=True))[1:]:
            end(worker, process)
        seconds = time.monotonic() - fetched_at
        assert site.hits == dict.fromkeys(graph, 1)
    assert client.keys("idle*") == []
    print(f"{kind}, {count} workers: ended {seconds:.1f} s after the last page")


@pytest.mark.slow
def test_it_goes_on_when_the_server_is_back(tmp_path: Path, site: Site) -> None:
    with RedisServer(tmp_path / "redis", appendonly=True) as own, own.client() as client:
        client.rpush("again", f"{site.url}/9")
        crawl = crawl_of(tmp_path / "again", "queue", site)
        process = start(crawl, own)
        wait_for_items(crawl, process, 1)
        own.kill()
        crawl.wait_for_log(process, "Nothing is taken from 'again' until it answers")
        own.start()
        client.rpush("again", f"{site.url}/2")
        process.communicate(timeout=120)
        assert "/2" in crawl.item_paths()
        assert crawl.stat("finish_reason") == "finished"
        assert client.keys("again*") == []


@pytest.mark.slow
def test_what_is_durable_is_acknowledged_at_a_clean_stop(
    tmp_path: Path, server: RedisServer, client: redis.Redis, site: Site
) -> None:
    client.rpush("stopped", f"{site.url}/9")
    crawl = crawl_of(tmp_path / "stopped", "queue", site)
    process = start(crawl, server, MAX_IDLE_TIME_BEFORE_CLOSE=0)
    wait_for_items(crawl, process, 1)
    process.terminate()
    process.communicate(timeout=60)
    assert crawl.stat("finish_reason") == "shutdown"
    assert client.keys() == []
    assert "ScrapyDeprecationWarning" not in crawl.log
