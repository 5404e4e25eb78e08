"""Where a URL is, in each state that its request can be in."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis
from scrapy import Request, Spider
from scrapy.utils.request import fingerprint

from scrapy_altsched.frontier import Entry, Options, Order
from scrapy_altsched.frontier.entry import DeadLetter, Delay, PageFailure, Reason
from scrapy_altsched.frontier.shared.keys import Keys
from scrapy_altsched.frontier.shared.operating import HASHED
from scrapy_altsched.maintenance.opening import open_frontier
from scrapy_altsched.requests.codec import encode_request
from scrapy_altsched.requests.portable import PortableCodec

from ..clocks import ManualClock
from ..crawls import Crawl, altsched, listing, write_project
from ..frontiers import OWNER, DiskKind, take
from ..servers import RedisServer
from ..shared import SettledShared
from ..sites import Page, Site

SPIDER = Spider(OWNER)
FIFO = Options(order=Order("slots", "fifo"))
DOWN = PageFailure(Reason.STATUS, "HTTP status 503", 503, 3)
#: 2033-05-18 03:33:20 UTC
LATER = 2_000_000_000.0
HOST = "http://host.example"
NAMES = ("done", "failed", "dead", "flying", "first", "second", "other", "delayed", "never")


def entry_of(name: str, encode: Callable[[Request], bytes], **more: Any) -> Entry:
    host = "other.example" if name == "other" else "host.example"
    request = Request(f"http://{host}/{name}")
    return Entry(fingerprint(request), host, payload=encode(request), **more)


def url_of(name: str) -> str:
    return f"http://other.example/{name}" if name == "other" else f"{HOST}/{name}"


def fill(frontier: Any, encode: Callable[[Request], bytes]) -> None:
    """Have a request in each state; that of "flying" stays in flight."""
    for name in ("done", "failed", "dead", "flying"):
        frontier.add(entry_of(name, encode))
        frontier.commit()
        lease = take(frontier)
        if name == "failed":
            lease.failure = DOWN
        if name == "dead":
            frontier.dead_letter(lease, DeadLetter("it kills"))
        elif name != "flying":
            frontier.finish(lease)
    for name in ("first", "second", "other"):
        frontier.add(entry_of(name, encode))
    frontier.add(entry_of("delayed", encode, delay=Delay(until=LATER)))


def encode(request: Request) -> bytes:
    return encode_request(request, SPIDER)


def ask(*arguments: object, names: tuple[str, ...] = NAMES) -> dict[str, list[dict[str, Any]]]:
    done = altsched("explain", *arguments, *map(url_of, names), "--json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["fingerprints_differ"] == []
    return {
        name: [{key: value for key, value in place.items() if value is not None} for place in found]
        for name, found in zip(names, (url["places"] for url in answer["urls"]), strict=True)
    }


def check(found: dict[str, list[dict[str, Any]]], words: str, *, worker: bool) -> None:
    (failed,), (dead,) = found.pop("failed"), found.pop("dead")
    assert re.fullmatch(r"20\d\d-.+\+00:00", failed.pop("at"))
    requeue = f"scrapy altsched requeue {words}"
    name = fingerprint(Request(url_of("failed"))).hex()
    assert failed == {
        "state": "failed",
        "slot": "host.example",
        "why": "HTTP status 503",
        "tries": 3,
        "command": f"{requeue} --failed {name}",
    }
    name = fingerprint(Request(url_of("dead"))).hex()
    assert dead == {
        "state": "dead",
        "slot": "host.example",
        "why": "it kills",
        "command": f"{requeue} {name}",
    }
    ((flying,),) = (found.pop("flying"),)
    assert bool(flying.pop("worker", "")) is worker
    assert flying == {"state": "in flight", "slot": "host.example"}
    assert found == {
        "done": [{"state": "done"}],
        "first": [{"state": "pending", "slot": "host.example", "ahead": 0}],
        "second": [{"state": "pending", "slot": "host.example", "ahead": 1}],
        "other": [{"state": "pending", "slot": "other.example", "ahead": 0}],
        "delayed": [
            {"state": "delayed", "slot": "host.example", "at": "2033-05-18T03:33:20+00:00"}
        ],
        "never": [{"state": "never seen"}],
    }


def test_each_state_of_a_job_also_while_a_crawl_runs(disk: DiskKind) -> None:
    frontier = disk.open(FIFO)
    fill(frontier, encode)
    frontier.commit()
    check(ask(disk.path), str(disk.path), worker=False)
    text = altsched("explain", disk.path, *map(url_of, NAMES))
    for line in (
        "  pending in download slot 'host.example', next\n",
        "  pending in download slot 'host.example', behind 1 request\n",
        "  delayed until 2033-05-18 03:33:20 UTC\n",
        " UTC, after 3 tries: HTTP status 503\n    to crawl it again: scrapy altsched requeue",
        "  dead: it kills\n",
        "  in flight\n",
        "  never seen\n",
    ):
        assert line in text.stdout, line
    assert f"Without the rules of the spider: this project has no spider '{OWNER}'" in text.stderr


def test_each_state_of_a_shared_crawl(server: RedisServer, client: redis.Redis) -> None:
    frontier = SettledShared(FIFO, client)
    about = {"spider": OWNER, "order": str(FIFO.order)}
    note = json.dumps({"class": "scrapy.utils.request.RequestFingerprinter", "rules": ""})
    about["fingerprints"] = note + HASHED
    client.hset(Keys("test").meta, "about", json.dumps(about))
    fill(frontier, PortableCodec(SPIDER).encode)
    frontier.send()
    place = "--shared", "test", "-s", f"REDIS_PORT={server.port}"
    check(ask(*place), " ".join(place), worker=True)
    frontier.close()


def test_a_start_request_that_is_not_filtered_is_told_from_what_was_never_seen(
    tmp_path: Path, server: RedisServer
) -> None:
    with Site({"/0": Page()}) as site:
        crawl = Crawl(tmp_path, "starts", site.url, count=1)
        port = f"REDIS_PORT={server.port}"
        shared = {"JOBDIR": None, "ALTSCHED_SHARED": 1, "REDIS_PORT": server.port}
        for settings, place in (
            ({}, (crawl.jobdir,)),
            (shared, ("--shared", "starts", "-s", port)),
        ):
            assert crawl.run(**settings) == 0
            done = altsched("explain", *place, f"{site.url}/0", f"{site.url}/1")
            assert "  done: a start request; its page is not seen, and crawled" in done.stdout
            assert done.stdout.count("  never seen\n") == 1


def test_the_command_for_a_failed_request_requeues_it(disk: DiskKind) -> None:
    frontier = disk.open(FIFO)
    fill(frontier, encode)
    frontier.close()
    for name in ("failed", "dead"):
        ((place,),) = ask(disk.path, names=(name,)).values()
        assert altsched(*shlex.split(place["command"])[2:]).stdout.startswith(
            "1 request is pending"
        )
        ((place,),) = ask(disk.path, names=(name,)).values()
        assert place["state"] == "pending"


def test_a_stopped_job_is_not_changed_by_looking_into_it(disk: DiskKind) -> None:
    frontier = disk.open(FIFO)
    fill(frontier, encode)
    frontier.close()

    def content() -> dict[str, tuple[int, bytes]]:
        # Beside a store of SQLite the empty files of a log may stay.
        files = listing(disk.path).items()
        return {name: file for name, file in files if not name.endswith(("-wal", "-shm"))}

    before = content()
    ask(disk.path)
    for command in ("peek", "failed"):
        assert altsched(command, disk.path).returncode == 0
    assert content() == before


def test_a_job_with_ages_says_when_a_page_was_done_and_what_lives_in_memory_is_not_known(
    disk: DiskKind,
) -> None:
    clock = ManualClock()
    options = Options(clock=clock, records_ages=True)
    frontier = disk.open(options)
    frontier.add(entry_of("done", encode))
    frontier.commit()
    frontier.finish(take(frontier))
    memory_only = Request(url_of("never"))
    frontier.add(Entry(fingerprint(memory_only), "host.example", request=memory_only))
    frontier.commit()
    found = ask(disk.path, names=("done", "never"))
    # As it is after the process's death: it is found again then.
    assert found["never"] == [{"state": "never seen"}]
    (done,) = found["done"]
    assert done["state"] == "done"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT.+\+00:00", done["at"])


def test_the_rules_are_those_of_the_spider_whose_job_it_is(tmp_path: Path) -> None:
    spiders = """
from scrapy import Spider

class Shop(Spider):
    name = "shop"
    url_rules = [{"ignore_params": "sort"}]
"""
    settings = 'SPIDER_MODULES = ["spiders"]\nADDONS = {"scrapy_altsched.Addon": 500}\n'
    project = write_project(tmp_path, **{"settings.py": settings, "spiders.py": spiders})
    frontier = open_frontier(tmp_path / "job", "shop")
    frontier.add(entry_of("first", encode))
    frontier.close()
    url = f"{HOST}/first?sort=price"
    done = altsched("explain", tmp_path / "job", url, cwd=project)
    assert "  pending in download slot 'host.example', next\n" in done.stdout


@pytest.mark.parametrize("is_shared", [False, True])
def test_a_crawl_with_the_rules_of_its_spider(
    tmp_path: Path, server: RedisServer, is_shared: bool
) -> None:
    with Site({"/0": Page(["/1?b=2&a=1"]), "/1?b=2&a=1": Page()}) as site:
        crawl = Crawl(tmp_path, "pages", f"{site.url}/0")
        place = "-s", f"REDIS_PORT={server.port}"
        settings: dict[str, Any] = {"CLOSESPIDER_PAGECOUNT": 1, "CONCURRENT_REQUESTS": 1}
        rules = json.dumps([{"ignore_params": "b"}])
        settings["ALTSCHED_URL_RULES"] = rules
        if is_shared:
            settings |= {"JOBDIR": None, "ALTSCHED_SHARED": 1, "REDIS_PORT": server.port}
        crawl.run(**settings)
        words = ("--shared", "pages", *place) if is_shared else (crawl.jobdir,)
        urls = f"{site.url}/0", f"{site.url}/1?a=1", f"{site.url}/2"
        with_rules = "-s", f"ALTSCHED_URL_RULES={rules}"
        done = altsched("explain", *words, *urls, *with_rules, "--json")
        assert done.returncode == 0, done.stderr
        assert "Without the rules" not in done.stderr
        answer = json.loads(done.stdout)
        states = [[place["state"] for place in url["places"]] for url in answer["urls"]]
        assert states == [["done"], ["pending"], ["never seen"]]
        assert answer["fingerprints_differ"] == []
        other = altsched("explain", *words, *urls)
        assert "were made with other URL rules" in other.stdout
        assert "where URLs are cannot be told for sure" in other.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["{job}", "--links", "x"], 2, "a JOBDIR and --shared are for URLs"),
        (["{job}", "{url}", "--shared", "x"], 2, "not both"),
        (["{job}/nothing", "{url}"], 2, "and there is no such directory"),
        (["{job}/frontier", "{url}"], 1, "holds no job of scrapy_altsched"),
        (["{job}", "{url}", "--spider", "pages"], 2, "belongs to spider"),
    ],
)
def test_arguments_that_make_no_sense(
    one_disk: DiskKind, arguments: list[str], code: int, message: str
) -> None:
    one_disk.open().close()
    words = (word.format(job=one_disk.path, url=f"{HOST}/1") for word in arguments)
    done = altsched("explain", *words)
    assert done.returncode == code
    assert message in done.stderr
    assert "Traceback" not in done.stderr
