"""Whole crawls of requests that wait."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from ..crawls import Crawl
from ..servers import RedisServer


def items(crawl: Crawl) -> list[dict[str, float]]:
    return [json.loads(line) for line in crawl.items.read_text().splitlines()]


@pytest.mark.parametrize("jobdir", [True, False])
def test_a_crawl_waits_for_what_is_delayed(tmp_path: Path, jobdir: bool) -> None:
    crawl = Crawl(tmp_path, "delaying", "", count=30, least=0.2, most=1.5)
    began = time.monotonic()
    assert crawl.run(**({} if jobdir else {"JOBDIR": None})) == 0
    assert time.monotonic() - began > 1
    found = items(crawl)
    assert {item["url"] for item in found} == {f"data:,{number}" for number in range(30)}
    assert "is too early" not in crawl.log
    assert "would wait again" not in crawl.log
    assert "requests are delayed. The crawl waits for them" in crawl.log
    assert crawl.stat("finish_reason") == "finished"
    assert crawl.stat("altsched/delayed") == 0
    if jobdir:
        assert crawl.stat("altsched/outcome") == "finished"


def test_a_crawl_that_does_not_wait_ends_unfinished(tmp_path: Path) -> None:
    crawl = Crawl(tmp_path, "delaying", "", count=5, least=60, most=90)
    began = time.monotonic()
    off = {"ALTSCHED_WAIT_AT_CLOSE": False, "ALTSCHED_EXIT_CODE": True}
    assert crawl.run(**off) == 4
    assert time.monotonic() - began < 50
    assert crawl.stat("altsched/delayed") == 5
    assert crawl.stat("altsched/outcome") == "not_finished"
    assert "Of the requests that are pending, 5 are delayed, the first one until " in crawl.log
    # The next run has nothing to do but to wait, and does not claim that there is nothing left.
    assert crawl.run(**off) == 4
    assert "Resuming crawl (5 requests scheduled)" in crawl.log
    assert "5 requests of this job are delayed, the first one until " in crawl.log
    assert "crawled nothing" not in crawl.log


def test_a_delay_that_cannot_be_used_is_told_once_and_counted(tmp_path: Path) -> None:
    crawl = Crawl(tmp_path, "delaying", "", count=4, least=-2, most=-1)
    assert crawl.run() == 0
    assert len(items(crawl)) == 4
    assert crawl.log.count("meta['altsched_delay'] of <GET data:,") == 1
    assert "is ignored: it must be a number of seconds" in crawl.log
    assert crawl.stat("altsched/delay/ignored") == 4


def test_workers_of_a_shared_crawl_wait_for_what_is_delayed(
    tmp_path: Path, server: RedisServer
) -> None:
    shared = {"ALTSCHED_SHARED": True, "REDIS_PORT": server.port, "JOBDIR": None}
    crawls = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        crawls.append(Crawl(tmp_path / name, "delaying", "", count=30, least=0.5, most=2))
    processes = [crawl.start(**shared) for crawl in crawls]
    for process in processes:
        process.communicate(timeout=120)
    found = [item["url"] for crawl in crawls for item in items(crawl)]
    assert sorted(found) == sorted(f"data:,{number}" for number in range(30))
    for crawl in crawls:
        assert "is too early" not in crawl.log
        assert "would wait again" not in crawl.log
        assert crawl.stat("altsched/outcome") == "finished"


def test_a_worker_that_does_not_wait_leaves_a_shared_crawl_unfinished(
    tmp_path: Path, server: RedisServer
) -> None:
    crawl = Crawl(tmp_path, "delaying", "", count=5, least=60, most=90)
    shared = {"ALTSCHED_SHARED": True, "REDIS_PORT": server.port, "JOBDIR": None}
    began = time.monotonic()
    assert crawl.run(**shared, ALTSCHED_WAIT_AT_CLOSE=False) == 0
    assert time.monotonic() - began < 50
    assert crawl.stat("altsched/delayed") == 5
    assert crawl.stat("altsched/outcome") == "not_finished"
    assert "Of the requests that are pending, 5 are delayed" in crawl.log
