"""Subcommands on a shared crawl, as an operator types them."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scrapy_altsched.frontier.shared.keys import Keys

from ..crawls import BY_SLOT, Crawl, altsched
from ..servers import RedisServer
from ..sites import Page, Site

KEY = "pages"
SITE = {"/0": Page(["/1", "/2"]), "/1": Page(), "/2": Page()}


@pytest.fixture
def crawl(tmp_path: Path, server: RedisServer) -> Iterator[Crawl]:
    """A crawl that is to begin, on a server with no data in it."""
    with Site(SITE) as site:
        yield Crawl(tmp_path, KEY, f"{site.url}/0")


def work(crawl: Crawl, server: RedisServer, **settings: Any) -> None:
    shared = {"JOBDIR": None, "ALTSCHED_SHARED": 1, "REDIS_PORT": server.port, **BY_SLOT}
    crawl.run(**{**shared, **settings})


def on(server: RedisServer, *arguments: object) -> subprocess.CompletedProcess[str]:
    done = altsched(*arguments, "-s", f"REDIS_PORT={server.port}")
    assert "Traceback" not in done.stderr
    return done


def bury(crawl: Crawl, server: RedisServer, *paths: str) -> None:
    """Have these pages become dead letters, as if they had killed their workers."""
    keys = Keys(KEY)
    with server.client() as client:
        letters = client.register_script(
            "for i = 1, #ARGV, 2 do"
            " redis.call('HSET', KEYS[1], ARGV[i], cmsgpack.pack({'why', ARGV[i + 1]})) end"
        )
        members = [
            member
            for member in client.zrange(keys.pending, 0, -1)
            if any(member.endswith(path.encode()) or path.encode() in member for path in paths)
        ]
        assert len(members) == len(paths)
        for member in members:
            # See batch/entering.lua: slot, order key of a usual priority, row.
            size = 8 + 1 + abs(member[8] - 128) + 9
            letters(keys=[keys.dead], args=[member[:size], member[size:]])
            client.zrem(keys.pending, member)
            client.hincrby(keys.meta, "dead", 1)


@pytest.mark.parametrize(
    "arguments",
    [
        ("restart", "--shared", KEY),
        ("drop", KEY),
        ("check", "--shared", KEY),
        ("requeue", "--shared", KEY),
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_crawl_that_is_not_there(
    crawl: Crawl, server: RedisServer, arguments: tuple[str, ...]
) -> None:
    done = on(server, *arguments)
    assert done.returncode == 1
    message = (
        f"scrapy altsched {arguments[0]}: There is no shared crawl 'pages' on the Redis server"
    )
    # Before Scrapy 2.14 the log begins above it.
    assert done.stderr.splitlines()[-1].startswith(message)
    assert server.client().dbsize() == 0


@pytest.mark.smoke
@pytest.mark.slow
def test_restart_and_drop(crawl: Crawl, server: RedisServer) -> None:
    work(crawl, server, CLOSESPIDER_PAGECOUNT=1)
    assert on(server, "restart", "--shared", KEY).returncode == 2
    work(crawl, server)
    done = on(server, "restart", "--shared", KEY)
    assert done.returncode == 0, done.stderr
    assert "starts again from nothing, with the next worker" in done.stdout
    work(crawl, server)
    assert crawl.stat("response_received_count") == 3
    done = on(server, "drop", KEY)
    assert done.stdout == "The shared crawl 'pages' is deleted, with 3 requests.\n"
    assert server.client().dbsize() == 0


@pytest.mark.slow
def test_dead_letters_are_listed_and_requeued(crawl: Crawl, server: RedisServer) -> None:
    work(crawl, server, CLOSESPIDER_PAGECOUNT=1, CONCURRENT_REQUESTS=1)
    for state in (), ("--dead",):
        done = on(server, "requeue", "--shared", KEY, *state)
        assert "There are no dead letters." in done.stdout
    bury(crawl, server, "/1", "/2")
    base = crawl.arguments["url"].removesuffix("/0")
    done = on(server, "requeue", "--shared", KEY)
    for path in ("/1", "/2"):
        assert base + path in done.stdout
    requeue = f"scrapy altsched requeue --shared pages -s REDIS_PORT={server.port}"
    assert f"with: {requeue} --all (or name some:" in done.stdout
    done = on(server, "requeue", "--shared", KEY, f"{base}/nothing")
    assert done.returncode == 2
    assert "there is no dead letter named" in done.stderr
    done = on(server, "requeue", "--shared", KEY, f"{base}/1")
    assert done.stdout == (
        "1 request is pending again; dead: 1.\nNo worker is running: start one to go on.\n"
    )
    work(crawl, server)
    assert requeue in crawl.log
    check = on(server, "check", "--finished", "--shared", KEY)
    assert check.returncode == 3
    assert "3 accepted: 2 done, 0 in flight, 0 pending, 0 delayed, 1 dead" in check.stdout
    assert on(server, "requeue", "--all", "--shared", KEY).returncode == 0
    assert on(server, "check", "--finished", "--shared", KEY).returncode == 4
    work(crawl, server)
    assert crawl.item_paths() == ["/0", "/1", "/2"] or len(crawl.item_paths()) == 3
    assert on(server, "check", "--finished", "--shared", KEY).returncode == 0


def test_check_says_when_the_counters_do_not_add_up(crawl: Crawl, server: RedisServer) -> None:
    work(crawl, server)
    done = on(server, "check", "--shared", KEY)
    assert done.returncode == 0, done.stderr
    assert "the counters add up" in done.stdout
    server.client().hincrby(Keys(KEY).meta, "done", -1)
    done = on(server, "check", "--shared", KEY)
    assert done.returncode == 1
    assert "The counters do not add up: 1 of the requests are in no state" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("requeue",), "name a JOBDIR, or a crawl with --shared KEY"),
        (("check",), "name a JOBDIR, or a crawl with --shared KEY"),
        (("restart",), "name a JOBDIR, or a crawl with --shared KEY"),
        (
            ("check", "--repair", "--shared", KEY),
            "--shared takes no option but --finished and --json",
        ),
        (("requeue", "--all", "--shared", KEY, "http://a"), "name requests, or --all, not both"),
    ],
)
def test_arguments_that_make_no_sense(
    server: RedisServer, arguments: tuple[str, ...], words: str
) -> None:
    done = on(server, *arguments)
    assert done.returncode == 2
    assert words in done.stderr
