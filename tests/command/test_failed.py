"""Failed requests and dead letters in groups, and the commands that requeue these."""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from scrapy import Request, Spider
from scrapy.settings import Settings

from scrapy_altsched.command.failed import add_arguments, run
from scrapy_altsched.command.project import Project
from scrapy_altsched.command.selection import Selection, add_selection
from scrapy_altsched.frontier import Entry, Options
from scrapy_altsched.frontier.entry import Cause, DeadLetter, PageFailure, Reason
from scrapy_altsched.frontier.shared.keys import Keys
from scrapy_altsched.frontier.store.journal import Journal
from scrapy_altsched.frontier.store.records import Batch
from scrapy_altsched.frontier.store.states import FAILED, encode_failed_key, encode_value
from scrapy_altsched.requests.codec import encode_request
from scrapy_altsched.requests.portable import PortableCodec

from ..crawls import altsched
from ..frontiers import OWNER, DiskKind, journal_of, take_all
from ..servers import RedisServer
from ..shared import SettledShared

SPIDER = Spider(OWNER)
DOWN = PageFailure(Reason.STATUS, "HTTP status 503", 503, 3)
LIMITED = PageFailure(Reason.STATUS, "HTTP status 429", 429, 1)
SLOW = PageFailure(Reason.DOWNLOAD, "TimeoutError: took longer than 180 s", 0, 3)
UNKNOWN = PageFailure(Reason.DOWNLOAD, "DNSLookupError: no such host", 0, 3)
LATE = PageFailure(Reason.CALLBACK, "TimeoutError: no answer from the database", 200, 1)
ODD = PageFailure(Reason.DOWNLOAD, "it was no good", 0, 1)
#: By which page they have failed, or are dead; all others are done.
ENDS: dict[str, PageFailure | DeadLetter] = {
    "http://a.example/1": DOWN,
    "http://a.example/2": DOWN,
    "http://a.example/3": LIMITED,
    "http://a.example/4": SLOW,
    "http://a.example/5": LATE,
    "http://a.example/6": UNKNOWN,
    "http://b.example/1": DOWN,
    "http://b.example/2": ODD,
    "http://b.example/4": DeadLetter("it has no method 'parse_x'", Cause.UNRESTORABLE),
    "http://b.example/5": DeadLetter("the process died 3 times"),
}
#: What all of them are requested with.
SLOTS = {"http://b.example/1": "it's -slow"}


def request_of(url: str) -> Request:
    return Request(url, meta={"download_slot": SLOTS[url]} if url in SLOTS else {})


def end(frontier: Any, encode: Callable[[Request], bytes]) -> None:
    """Have each page end as :data:`ENDS` says."""
    for url in (*ENDS, "http://a.example/done"):
        frontier.add(Entry(url.encode(), "slot", payload=encode(request_of(url))))
    for lease in take_all(frontier):
        match ENDS.get(lease.entry.fingerprint.decode()):
            case PageFailure() as why:
                lease.failure = why
                frontier.finish(lease)
            case DeadLetter() as why:
                frontier.dead_letter(lease, why)
            case None:
                frontier.finish(lease)


@pytest.fixture
def job(disk: DiskKind) -> Path:
    frontier = disk.open()
    end(frontier, lambda request: encode_request(request, SPIDER))
    frontier.close()
    return disk.path


@pytest.fixture
def crawl(server: RedisServer, client: redis.Redis) -> Iterator[None]:
    """The shared crawl "test"."""
    frontier = SettledShared(Options(), client)
    end(frontier, PortableCodec(SPIDER).encode)
    frontier.send()
    client.hset(
        Keys("test").meta, "about", json.dumps({"spider": OWNER, "order": "slots/lifo/fifo"})
    )
    yield
    frontier.close()


def ask(*arguments: object) -> str:
    done = altsched(*arguments)
    assert "Traceback" not in done.stderr
    assert done.returncode == 0, done.stderr
    return done.stdout


def groups_of(*arguments: object) -> dict[tuple[str, object, object, str], dict[str, Any]]:
    answer = json.loads(ask("failed", *arguments, "--json"))
    return {
        (it["reason"], it["status"], it["exception"], it["slot"]): it for it in answer["groups"]
    }


EXPECTED = {
    ("status", 503, None, "a.example"): 2,
    ("status", 503, None, "it's -slow"): 1,
    ("status", 429, None, "a.example"): 1,
    ("download", None, "TimeoutError", "a.example"): 1,
    ("download", None, "DNSLookupError", "a.example"): 1,
    ("callback", None, "TimeoutError", "a.example"): 1,
    ("download", None, "", "b.example"): 1,
}
DEAD = {
    ("unrestorable", None, None, "b.example"): 1,
    ("other", None, None, "b.example"): 1,
}


def check_commands(place: tuple[object, ...], arguments: tuple[object, ...]) -> None:
    """Each group's command makes that group pending, and no other."""
    left = groups_of(*place, "--dead")
    assert {key: group["count"] for key, group in left.items()} == EXPECTED | DEAD
    for key in list(left):
        group = left.pop(key)
        program, command, *words = shlex.split(group["command"])
        assert (program, command) == ("scrapy", "altsched")
        are = "1 request is" if group["count"] == 1 else f"{group['count']} requests are"
        assert ask(*words, *arguments).startswith(f"{are} pending again")
        assert groups_of(*place, "--dead").keys() == left.keys()


def test_each_group_of_a_job_has_the_command_that_requeues_it(job: Path) -> None:
    check_commands((job,), ())
    assert altsched("check", job).returncode == 0


def test_each_group_of_a_shared_crawl_has_the_command_that_requeues_it(
    server: RedisServer, crawl: None
) -> None:
    arguments = "-s", f"REDIS_PORT={server.port}"
    check_commands(("--shared", "test", *arguments), arguments)
    assert altsched("check", "--shared", "test", *arguments).returncode == 0


def test_a_group_is_told_with_its_last_request_and_an_example(job: Path) -> None:
    text = ask("failed", job)
    assert text.startswith("8 failed requests, in 7 groups.\n\n2 failed: status 503, a.example\n")
    block = text.split("\n\n")[1].splitlines()
    assert block[1] == "  HTTP status 503"
    assert block[2].startswith("  last at 20")
    assert block[3] == "  for example http://a.example/1" or block[3].endswith("example/2")
    assert block[4].endswith(
        f"requeue {job} --failed --reason status --status 503 --slot a.example --all"
    )
    assert "dead" not in text
    dead = ask("failed", job, "--dead", "--limit", "1")
    assert dead.startswith("8 failed requests and 2 dead letters, in 9 groups.")
    assert dead.endswith("\nAnd 8 more groups; --limit 0 shows all.\n")
    assert "it cannot be restored: it has no method 'parse_x'" in ask("failed", job, "--dead")


def test_a_running_crawl_is_read_and_what_lived_in_memory_only_has_no_command(
    disk: DiskKind,
) -> None:
    frontier = disk.open()
    frontier.add(Entry(b"in memory", "host.example", request="an object"))
    for lease in take_all(frontier):
        frontier.dead_letter(lease, DeadLetter("why"))
    frontier.commit()
    assert ask("failed", disk.path) == "There are no failed requests.\n"
    (group,) = groups_of(disk.path, "--dead").values()
    assert (group["count"], group["command"], group["example"], group["slot"]) == (
        1,
        None,
        None,
        "",
    )
    assert "they cannot be crawled again" in ask("failed", disk.path, "--dead")


def test_with_nothing_failed_it_says_so(disk: DiskKind) -> None:
    disk.open().close()
    assert ask("failed", disk.path) == "There are no failed requests.\n"
    both = "There are no failed requests and no dead letters.\n"
    assert ask("failed", disk.path, "--dead") == both
    assert json.loads(ask("failed", disk.path, "--json")) == {"failed": 0, "groups": []}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["failed"], "name a JOBDIR, or a crawl with --shared KEY"),
        (["failed", "{job}", "--shared", "x"], "not both"),
        (["failed", "{job}", "--limit", "-1"], "--limit must be 0 or more"),
        (["requeue", "{job}", "--status", "503"], "--status and --exception are for --failed"),
        (["requeue", "{job}", "--reason", "status"], "--reason status is for --failed"),
        (["requeue", "{job}", "--failed", "--reason", "other"], "is of dead letters: leave out"),
        (["requeue", "{job}", "--failed", "--status", "x"], "invalid int value: 'x'"),
        (["requeue", "{job}", "--failed", "--dead"], "not allowed with argument --failed"),
    ],
)
def test_arguments_that_make_no_sense(
    one_disk: DiskKind, arguments: list[str], message: str
) -> None:
    one_disk.open().close()
    done = altsched(*(word.format(job=one_disk.path) for word in arguments))
    assert done.returncode == 2
    assert message in done.stderr


def test_a_row_that_is_damaged_is_a_sentence_with_the_next_command(disk: DiskKind) -> None:
    frontier = disk.open()
    batch = Batch(journal_of(frontier).counters())
    frontier.close()
    journal = Journal(disk.path, OWNER)
    batch.stored[FAILED].append((encode_failed_key(1, bytes(17)), b"\1"))
    journal.write(batch)
    journal.close()
    done: subprocess.CompletedProcess[str] = altsched("failed", disk.path)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert f"Run `scrapy altsched check {disk.path} --repair`" in done.stderr
    assert altsched("check", disk.path, "--repair").returncode == 0


def test_no_request_of_many_is_kept(one_disk: DiskKind, capsys: pytest.CaptureFixture[str]) -> None:
    one_disk.open().close()
    journal = Journal(one_disk.path, OWNER)
    batch = Batch(journal.counters())
    body = "x" * 1_000
    for number in range(10_000):
        entry = Entry(
            b"%020d" % number,
            payload=encode_request(Request(f"http://a.example/{number}", body=body), SPIDER),
        )
        row = FAILED.join(DOWN, encode_value(entry))
        batch.stored[FAILED].append((encode_failed_key(1, number.to_bytes(17, "big")), row))
    batch.counters.accepted = batch.counters.failed = 10_000
    journal.write(batch)
    journal.close()
    del batch, journal
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    arguments = parser.parse_args([str(one_disk.path)])
    tracemalloc.start()
    try:
        assert run(arguments, Project(Settings())) == 0
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert "10,000 failed: status 503, a.example" in capsys.readouterr().out
    assert peak < 5_000_000


def test_what_names_a_selection_is_read_as_that_selection() -> None:
    parser = argparse.ArgumentParser()
    add_selection(parser)
    for chosen in (
        Selection(True, "download", exception="", slot="--x y"),
        Selection(True, "status", status=503, slot="", pattern="a.example/*'"),
        Selection(False, "given-up", slot="$(echo x)"),
        Selection(False),
    ):
        assert Selection.of(parser.parse_args(shlex.split(chosen.words))) == chosen
