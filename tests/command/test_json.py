"""Answers in JSON: all that ``check``, and the list of ``requeue``, say as text."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import redis
from scrapy import Request, Spider

from scrapy_altsched.frontier import Entry, Options
from scrapy_altsched.frontier.entry import Cause, DeadLetter, PageFailure, Reason
from scrapy_altsched.frontier.shared.keys import Keys
from scrapy_altsched.requests.codec import encode_request
from scrapy_altsched.requests.portable import PortableCodec

from ..crawls import altsched
from ..frontiers import OWNER, DiskKind, journal_of, stored, take_all
from ..servers import RedisServer
from ..shared import SettledShared

SPIDER = Spider(OWNER)
HOST = "a.example"
FAILURE = PageFailure(Reason.STATUS, "HTTP status 503", 503, 3)
LETTER = DeadLetter("it has no method 'parse_x'", Cause.UNRESTORABLE)


def url_of(name: str) -> str:
    return f"http://{HOST}/{name}"


def entry(name: str, encode: Callable[[Request], bytes]) -> Entry:
    return Entry(name.encode(), HOST, payload=encode(Request(url_of(name))))


def encode(request: Request) -> bytes:
    return encode_request(request, SPIDER)


def fill(frontier: Any, encode: Callable[[Request], bytes]) -> None:
    """One page is done, one has failed, one is a dead letter, and one is pending."""
    for name in ("done", "failed", "dead"):
        frontier.add(entry(name, encode))
    for lease in take_all(frontier):
        match lease.entry.fingerprint:
            case b"dead":
                frontier.dead_letter(lease, LETTER)
            case b"failed":
                lease.failure = FAILURE
                frontier.finish(lease)
            case _:
                frontier.finish(lease)
    frontier.add(entry("pending", encode))


def answer(*arguments: object, code: int = 0) -> dict[str, Any]:
    done = altsched(*arguments, "--json")
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def said_in(text: str, found: dict[str, Any]) -> None:
    """All lines of a text answer are in the other one."""
    known = json.dumps(found, ensure_ascii=False)
    for line in text.splitlines():
        words = line.removeprefix("- ").strip()
        name, gap, rest = words.partition("  ")
        told = (name, rest.strip()) if gap else (words,)
        for part in told:
            # Those two have keys of their own.
            if part not in ("job", "crawl"):
                assert json.dumps(part)[1:-1] in known, part


def test_check_says_the_same_of_a_job_that_is_all_right(disk: DiskKind) -> None:
    frontier = disk.open()
    frontier.add(entry("pending", encode))
    frontier.close()
    found = answer("check", disk.path)
    said_in(altsched("check", disk.path).stdout, found)
    assert (found["target"], found["kind"], found["spider"]) == (str(disk.path), "job", OWNER)
    assert (found["result"], found["problems"], found["advice"]) == ("good", [], [])
    assert (found["repair"], found["given_up"], found["outcome"]) == (None, None, "not_finished")
    assert found["counts"]["pending"] == found["counts"]["left"] == 1
    assert answer("check", disk.path, "--finished", code=4) == found
    repaired = answer("check", disk.path, "--repair")
    assert (repaired["repair"], repaired["advice"]) == (None, ["No repair is needed."])


def test_check_says_the_same_of_what_is_wrong(disk: DiskKind) -> None:
    frontier = disk.open()
    fill(frontier, encode)
    frontier.close()
    found = answer("check", disk.path, code=1)
    text = altsched("check", disk.path).stdout
    said_in(text, found)
    (problem,) = found["problems"]
    assert problem["sentence"].startswith("Dead letters that could not be restored: 1")
    assert problem["remedy"] == "requeue"
    assert found["outcome"] is None
    assert found["advice"] == [text.splitlines()[-1]]
    given = answer("check", disk.path, "--accept-loss")
    assert (given["given_up"], given["problems"], given["outcome"]) == (1, [], "not_finished")
    assert given["advice"] == ["Next: run the crawl again; it continues from there."]


def test_check_says_what_was_repaired(disk: DiskKind) -> None:
    frontier = disk.open()
    frontier.add(entry("pending", encode))
    frontier.commit()
    journal = journal_of(frontier)
    ((key, _),) = journal.pending()
    # A second request, cut short.
    counters = replace(journal.counters(), accepted=2)
    journal.write(stored(counters, (key[:-1] + b"x", b"")))
    disk.crash(frontier)
    broken = answer("check", disk.path, code=1)
    assert broken["problems"][0]["remedy"] == "repair"
    found = answer("check", disk.path, "--repair", code=1)
    repair = found["repair"]
    assert repair["problems"] == broken["problems"]
    assert repair["kept"]["pending"] == 1
    assert repair["damaged"] == str(disk.path / "frontier.damaged-1")
    assert repair["not_kept"]
    assert repair["losses"]
    assert found["problems"][0]["remedy"] == "accept-loss"
    assert "--accept-loss` gives up" in found["advice"][0]
    assert answer("check", disk.path, "--accept-loss")["result"] == "good"


def test_a_job_and_its_list_in_json(disk: DiskKind) -> None:
    frontier = disk.open()
    fill(frontier, encode)
    frontier.close()
    check_list(disk.path)
    requeued = altsched("requeue", disk.path, "--all", "--json")
    assert requeued.returncode == 2
    assert "--json is for the list" in requeued.stderr
    altsched("requeue", disk.path, "--all")
    assert altsched("requeue", disk.path, "--json").stdout == ""


def test_check_says_the_same_of_a_shared_crawl(server: RedisServer, client: redis.Redis) -> None:
    frontier = SettledShared(Options(), client)
    fill(frontier, PortableCodec(SPIDER).encode)
    frontier.send()
    client.hset(Keys("test").meta, "about", json.dumps({"spider": OWNER}))
    where = "--shared", "test", "-s", f"REDIS_PORT={server.port}"
    found = answer("check", *where)
    said_in(altsched("check", *where).stdout, found)
    assert (found["kind"], found["spider"]) == ("shared crawl", OWNER)
    assert (found["counts"]["done"], found["counts"]["dead"]) == (1, 1)
    check_list(*where)
    frontier.close()


def check_list(*where: object) -> None:
    """Dead letters and failed requests, as :func:`fill` has left them, are listed."""
    words = " ".join(map(str, ("scrapy altsched requeue", *where)))
    dead = {
        "url": url_of("dead"),
        "fingerprint": b"dead".hex(),
        "state": "dead",
        "reason": "unrestorable",
        "status": None,
        "exception": None,
        "slot": HOST,
        "text": f"it cannot be restored: {LETTER.text}",
        "at": None,
        "tries": None,
        "found_on": None,
        "command": f"{words} {b'dead'.hex()}",
    }
    assert answer("requeue", *where) == answer("requeue", *where, "--dead") == dead
    failed = answer("requeue", *where, "--failed")
    assert failed["at"].endswith("+00:00")
    assert failed == dead | {
        "url": url_of("failed"),
        "fingerprint": b"failed".hex(),
        "state": "failed",
        "reason": "status",
        "status": 503,
        "text": "HTTP status 503",
        "tries": 3,
        "command": f"{words} --failed {b'failed'.hex()}",
        "at": failed["at"],
    }
