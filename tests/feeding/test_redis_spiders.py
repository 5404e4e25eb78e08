"""Spiders of scrapy-redis, unchanged, on this package's scheduler."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import redis

from ..crawls import Crawl
from ..servers import RedisServer
from ..sites import Site
from .crawls import crawl_of, end, start, wait_for_items


def test_they_are_fed_from_a_list_a_set_and_a_sorted_set(
    tmp_path: Path, server: RedisServer, client: redis.Redis, site: Site
) -> None:
    kinds: dict[str, tuple[str, dict[str, Any]]] = {
        "list": ("redis-pages", {}),
        "set": ("redis-pages", {"REDIS_START_URLS_AS_SET": 1}),
        "zset": ("redis-pages", {"REDIS_START_URLS_AS_ZSET": 1}),
        "rules": ("redis-rules", {}),
    }
    urls = [f"{site.url}/0", json.dumps({"url": f"{site.url}/8", "meta": {"job": 1}})]
    client.rpush("list", *urls)
    client.sadd("set", *urls)
    client.zadd("zset", dict.fromkeys(urls, 1))
    client.rpush("rules", *urls)
    crawls = {kind: crawl_of(tmp_path / kind, spider, site) for kind, (spider, _) in kinds.items()}
    running = {kind: start(crawls[kind], server, **more) for kind, (_, more) in kinds.items()}
    for kind, crawl in crawls.items():
        end(crawl, running[kind])
        # The start request is not filtered, so the link to it is its first request that counts.
        assert sorted(crawl.item_paths()) == ["/0", "/0", "/1", "/2", "/8", "/9"], kind
        assert "is finished" in crawl.log
    assert client.keys() == []


@pytest.mark.slow
def test_equal_start_urls_are_each_crawled(
    tmp_path: Path, server: RedisServer, client: redis.Redis, site: Site
) -> None:
    client.rpush("pages", *[f"{site.url}/9"] * 3)
    crawl = crawl_of(tmp_path / "pages", "redis-pages", site)
    end(crawl, start(crawl, server))
    assert crawl.item_paths() == ["/9"] * 3
    # So they are in a later run of the job.
    client.rpush("pages", f"{site.url}/9")
    end(crawl, start(crawl, server))
    assert crawl.item_paths() == ["/9"] * 4


@pytest.mark.slow
def test_they_wait_for_what_is_fed_later(
    tmp_path: Path, server: RedisServer, client: redis.Redis, site: Site
) -> None:
    crawl = crawl_of(tmp_path / "pages", "redis-pages", site)
    # Until it is stopped.
    process = start(crawl, server, MAX_IDLE_TIME_BEFORE_CLOSE=0)
    for count, path in enumerate(["/9", "/2"], 1):
        client.rpush("pages", f"{site.url}{path}")
        wait_for_items(crawl, process, count)
    process.terminate()
    process.communicate(timeout=60)
    assert crawl.stat("finish_reason") == "shutdown"


@pytest.mark.slow
def test_workers_of_a_shared_crawl_are_fed(
    tmp_path: Path, server: RedisServer, client: redis.Redis, site: Site
) -> None:
    crawls = [crawl_of(tmp_path / "pages", "redis-pages", site)]
    second = Crawl(tmp_path / "second", "redis-pages", site.url, redis_key="pages")
    second.directory.mkdir()
    crawls.append(second)
    client.rpush("pages", f"{site.url}/0", f"{site.url}/8", f"{site.url}/8")
    running = [start(crawl, server, ALTSCHED_SHARED=1) for crawl in crawls]
    for crawl, process in zip(crawls, running, strict=True):
        end(crawl, process)
    paths = sorted(path for crawl in crawls for path in crawl.item_paths())
    assert paths == ["/0", "/0", "/1", "/2", "/8", "/8", "/9"]


@pytest.mark.slow
def test_a_worker_is_fed_after_all_others_of_its_crawl_have_ended(
    tmp_path: Path, server: RedisServer, client: redis.Redis, site: Site
) -> None:
    for number, path in enumerate(["/9", "/2"]):
        client.rpush("pages", f"{site.url}{path}")
        crawl = Crawl(tmp_path / str(number), "redis-pages", site.url, redis_key="pages")
        crawl.directory.mkdir()
        end(crawl, start(crawl, server, ALTSCHED_SHARED=1))
        assert path in crawl.item_paths()
