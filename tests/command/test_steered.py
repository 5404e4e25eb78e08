"""What an operator asks of a shared crawl, with real workers, and without."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scrapy_altsched.errors import ConfigError, InputError, SharedError
from scrapy_altsched.frontier.entry import Counts
from scrapy_altsched.frontier.shared.keys import Keys
from scrapy_altsched.steering.actions import (
    Defer,
    Discard,
    Effect,
    Forget,
    Pause,
    Push,
    Requeue,
    Resume,
    Stop,
    Undefer,
    tell_over_budget,
)

from ..crawls import BY_SLOT, PYTHONPATH
from ..servers import RedisServer
from ..sites import Page
from ..workers import Worker, crawling
from .steering import KEY, pages, steer
from .test_shared_commands import bury, on, work
from .test_shared_commands import crawl as crawl

#: Seconds for something to happen in another process.
PATIENCE = 180.0


def wait_until(reached: Any) -> None:
    deadline = time.monotonic() + PATIENCE
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def chain(length: int) -> dict[str, Page]:
    """Pages of which each links to the next: one is in flight at a time."""
    site = {f"/{number}": Page([f"/{number + 1}"]) for number in range(length)}
    return {**site, f"/{length}": Page(), "/pushed": Page()}


def test_workers_pause_take_what_is_pushed_and_go_on(tmp_path: Path, server: RedisServer) -> None:
    with crawling(chain(300), tmp_path, server, 2, DOWNLOAD_DELAY=0.02) as (site, workers):
        workers.launch()
        site.wait_for(lambda site: len(site.hits) > 3)
        crawl, given = steer(server.port), [f"url={site.url}/0"]
        assert crawl.apply(Pause()).changed == 1
        for worker in workers:
            worker.wait_for("is paused: what is in flight is finished")
        wait_until(lambda: not crawl.crawl.look().counts.leased)
        hits = sum(site.hits.values())
        pushed = {"url": f"{site.url}/pushed", "callback": "parse"}
        assert crawl.apply(Push([pushed, pushed]), given) == Effect(1, 1)
        answer = " ".join(on(server, "status", "--shared", KEY).stdout.split())
        assert f"`scrapy altsched resume --shared {KEY} -s REDIS_PORT={server.port}`" in answer
        # It stays so for a worker that is started again.
        workers[0].die()
        workers[0].launch()
        workers[0].wait_for("resume --shared pages")
        assert sum(site.hits.values()) == hits
        assert workers.is_any_running
        assert crawl.apply(Resume()) == Effect(1)
        workers.wait()
        assert site.hits["/pushed"] == 1
        assert crawl.crawl.look().counts.done == 302
        assert crawl.crawl.look().finished


def test_workers_that_are_stopped_can_be_started_again(tmp_path: Path, server: RedisServer) -> None:
    with crawling(chain(60), tmp_path, server, 2, DOWNLOAD_DELAY=0.05) as (site, workers):
        workers.launch()
        site.wait_for(lambda site: len(site.hits) > 3)
        for worker in workers:
            worker.wait_until_open()
        crawl = steer(server.port)
        assert crawl.apply(Stop()).changed == 2
        for worker in workers:
            assert worker.wait() in (0, 4), worker.log
            assert "An operator has stopped the workers" in worker.log
            assert worker.stat("finish_reason") == "shutdown"
        assert crawl.crawl.look().counts.left > 0
        assert crawl.apply(Stop()) == Effect(note="No worker is running.")
        workers.launch()
        workers.wait()
        assert crawl.crawl.look().counts == Counts(accepted=61, done=61, seen=61)


@pytest.fixture
def begun(crawl: Any, server: RedisServer) -> Any:
    """A crawl that was stopped after its first page, which has led to two."""
    work(crawl, server, CLOSESPIDER_PAGECOUNT=1, CONCURRENT_REQUESTS=1)
    return crawl


def given(crawl: Any) -> list[str]:
    return [f"url={crawl.arguments['url']}"]


def test_a_trap_is_discarded(begun: Any, server: RedisServer) -> None:
    crawl, before = steer(server.port), steer(server.port).crawl.look().counts
    base = begun.arguments["url"].removesuffix("/0")
    host = base.removeprefix("http://").partition(":")[0]
    traps = [{**it, "meta": {"depth": 9}} for it in pages(f"{base}/trap", 20_000)]
    assert crawl.apply(Push(traps), given(begun)).changed == 20_000
    late = {"url": f"{base}/trap?late", "meta": {"altsched_delay": 3600}}
    assert crawl.apply(Push([late]), given(begun)).changed == 1
    for nothing in Discard(slot="other"), Discard(pattern=f"{base}/no*"), Discard(depth_over=9):
        assert crawl.count(nothing) == (0, 20_003)
        assert crawl.apply(nothing) == Effect(0)
    assert crawl.count(Discard(depth_over=8)) == (20_000, 20_003)
    action = Discard(slot=host, pattern=f"{base}/trap")
    assert crawl.count(action) == (20_001, 20_003)
    assert crawl.apply(action) == Effect(20_001)
    # They stay seen.
    assert crawl.crawl.look().counts == replace(before, seen=before.seen + 20_001)
    assert crawl.apply(Push(traps[:10]), given(begun)) == Effect(0, 10)
    work(begun, server)
    assert crawl.crawl.look().counts.done == 3


def test_a_page_is_forgotten_unless_it_is_still_to_be_crawled(
    begun: Any, server: RedisServer
) -> None:
    crawl, url = steer(server.port), begun.arguments["url"]
    base = url.removesuffix("/0")
    effect = crawl.apply(Forget([url, f"{base}/1", f"{base}/never"]))
    assert effect == Effect(1, 2, left=1)
    assert crawl.apply(Push([{"url": url}, {"url": f"{base}/1"}]), given(begun)).changed == 1


def test_what_cannot_be_forgotten_is_said(begun: Any, server: RedisServer) -> None:
    with pytest.raises(InputError, match="'no url' is no URL"):
        steer(server.port).apply(Forget(["no url"]))
    rules = [{"ignore_params": ["session"]}]
    with pytest.raises(ConfigError, match=r"were made with .*its pages cannot be told here"):
        steer(server.port, ALTSCHED_URL_RULES=rules).apply(Forget(["http://example.com/"]))


def test_dead_letters_are_requeued(begun: Any, server: RedisServer) -> None:
    bury(begun, server, "/1", "/2")
    crawl = steer(server.port)
    keys = [request.key.hex() for request in crawl.dead()]
    effect = crawl.apply(Requeue("dead", [keys[0], "00"]))
    assert (effect.changed, effect.refused) == (1, 1)
    assert crawl.crawl.look().counts.dead == 1


def test_a_finished_crawl_is_open_again_only_for_what_is_new(
    crawl: Any, server: RedisServer
) -> None:
    work(crawl, server)
    steered, url = steer(server.port), crawl.arguments["url"]
    assert steered.apply(Push([{"url": url, "dont_filter": False}]), given(crawl)).changed <= 1
    seen = f"{url.removesuffix('/0')}/1"
    work(crawl, server)
    assert steered.crawl.look().finished
    assert steered.apply(Push([{"url": seen}]), given(crawl)) == Effect(0, 1)
    assert steered.crawl.look().finished
    effect = steered.apply(Push([{"url": f"{seen}?new"}]), given(crawl))
    assert effect == Effect(1, note="No worker is running: start one to go on.")
    assert not steered.crawl.look().finished


def test_more_than_the_budget_of_a_slot_is_said(crawl: Any, server: RedisServer) -> None:
    settings = {**BY_SLOT, "ALTSCHED_SLOT_BUDGET": 4}
    work(crawl, server, **settings)
    steered, url = steer(server.port, **settings), crawl.arguments["url"]
    accepted = steered.crawl.look().counts.accepted
    effect = steered.apply(Push(pages(url, 5)), given(crawl))
    assert (effect.changed, effect.refused) == (4 - accepted, 1 + accepted)
    assert effect.reason == tell_over_budget(f"{url}?{5 - accepted}")


def test_a_slot_cannot_be_deferred_without_a_pace(begun: Any, server: RedisServer) -> None:
    crawl = steer(server.port)
    work(begun, server, ALTSCHED_SHARED_PACE=0, CLOSESPIDER_PAGECOUNT=1, CONCURRENT_REQUESTS=1)
    effect = crawl.apply(Defer("127.0.0.1", time.time() + 60))
    assert not effect.is_applied
    assert "ALTSCHED_SHARED_PACE" in effect.note
    assert crawl.apply(Undefer("127.0.0.1")) == Effect(0)


def test_a_slot_is_deferred(begun: Any, server: RedisServer) -> None:
    crawl, keys = steer(server.port), Keys(KEY)
    until = time.time() + 3_600
    # That is the first to make this crawl one with a pace.
    assert crawl.apply(Undefer("127.0.0.1")) == Effect(0)
    assert crawl.apply(Defer("127.0.0.1", until)) == Effect(1)
    with server.client() as client:
        assert client.zrange(keys.resting, 0, -1, withscores=True)[0][1] == pytest.approx(
            until * 1000, abs=5_000
        )
        assert crawl.apply(Undefer("127.0.0.1")) == Effect(1)
        assert client.zcard(keys.resting) == 0
        limits = crawl.crawl.observe().limits
    assert limits is not None
    assert limits[2] == 8  # CONCURRENT_REQUESTS_PER_DOMAIN


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        ({"url": "nothing"}, "Missing scheme"),
        ({}, "url"),
        ({"url": "http://a/", "callback": "missing"}, "missing"),
        ({"url": "http://a/", "meta": {"altsched_delay": "soon"}}, "altsched_delay = 'soon'"),
        ({"url": "http://a/", "meta": 7}, ""),
    ],
)
def test_a_request_that_cannot_be_pushed(
    begun: Any, server: RedisServer, request_: dict[str, Any], words: str
) -> None:
    crawl = steer(server.port)
    good = {"url": f"{begun.arguments['url']}?good"}
    with pytest.raises(InputError, match=r"^Request 2 .*cannot be pushed") as caught:
        crawl.apply(Push([good, request_]), given(begun))
    assert words in str(caught.value)
    # As it says, what came before it may be there, and is not added twice.
    effect = crawl.apply(Push([good]), given(begun))
    assert effect.changed + effect.refused == 1
    assert crawl.crawl.look().counts.unaccounted == 0


def test_a_full_server_takes_no_push(begun: Any, server: RedisServer) -> None:
    crawl = steer(server.port)
    with server.client() as client:
        client.config_set("maxmemory", 1)
        try:
            with pytest.raises(SharedError, match="has no memory for all that is brought"):
                crawl.apply(Push(pages(begun.arguments["url"], 3)), given(begun))
        finally:
            client.config_set("maxmemory", 0)
    assert crawl.apply(Push(pages(begun.arguments["url"], 3)), given(begun)).changed == 3


def test_a_push_that_is_killed_is_done_again(begun: Any, server: RedisServer) -> None:
    count, crawl = 100_000, steer(server.port)
    before = crawl.crawl.look().counts.accepted
    url = begun.arguments["url"]
    command = [sys.executable, "-m", "tests.command.steering", str(server.port), url, str(count)]
    root = Path(__file__).parent.parent.parent
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(root), PYTHONPATH))}
    for least in (10_000, 50_000):
        process = subprocess.Popen(command, env=environment, cwd=root)
        wait_until(lambda least=least: crawl.crawl.look().counts.accepted > least)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert crawl.crawl.look().counts.accepted < count
    there = crawl.crawl.look().counts.accepted - before
    done = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True)
    assert done.stdout.split() == [str(count - there), str(there)], done.stderr
    assert crawl.crawl.look().counts.accepted == before + count
    assert crawl.crawl.look().counts.unaccounted == 0


def test_restart_with_what_was_seen(begun: Any, server: RedisServer) -> None:
    done = on(server, "restart", "--shared", KEY, "--keep-seen")
    assert done.returncode == 2
    assert "2 requests are still to be crawled." in done.stdout
    assert "there is no terminal to ask on, so nothing was changed; --yes does it" in done.stderr
    work(begun, server)
    done = on(server, "restart", "--shared", KEY, "--keep-seen")
    assert done.returncode == 0, done.stderr
    assert "'pages' starts again with what it has seen, with the next worker" in done.stdout
    work(begun, server)
    # The start request is crawled again, and what it leads to is not.
    assert begun.stat("response_received_count") == 1


def test_a_crawl_that_runs_is_not_restarted(tmp_path: Path, server: RedisServer) -> None:
    held = threading.Event()
    site = {"/0": Page(["/1"]), "/1": Page(held=held)}
    with crawling(site, tmp_path, server, 1, ALTSCHED_LEASE_TIMEOUT=1) as (_, workers):
        worker: Worker = workers.launch()[0]
        worker.wait_until_open()
        done = on(server, "restart", "--shared", KEY, "--yes")
        assert done.returncode == 1
        stop = f"scrapy altsched stop --shared {KEY} -s REDIS_PORT={server.port}"
        assert f"has workers, and is restarted without them. Stop them: {stop};" in done.stderr
        crawl = steer(server.port).crawl
        wait_until(lambda: crawl.look().counts == Counts(2, 0, 1, 1, seen=2))
        worker.die()
        held.set()
        # What was in flight is still to be crawled.
        done = on(server, "restart", "--shared", KEY)
        assert done.returncode == 2
        assert "1 request is still to be crawled." in done.stdout
        wait_until(lambda: on(server, "restart", "--shared", KEY, "--yes").returncode == 0)
