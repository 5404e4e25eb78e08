"""``scrapy altsched status``, of jobs that run, were stopped or killed, and of shared crawls."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scrapy.settings import Settings

from scrapy_altsched.command import standing as looks
from scrapy_altsched.command.job import Job
from scrapy_altsched.command.project import Project
from scrapy_altsched.command.status import lasting
from scrapy_altsched.frontier.shared.keys import Keys
from scrapy_altsched.frontier.store.holder import Holder
from scrapy_altsched.frontier.store.journal import Journal
from scrapy_altsched.frontier.store.records import Batch
from scrapy_altsched.frontier.store.sequence_times import NOTE as TIMES
from scrapy_altsched.frontier.store.status import read_status
from scrapy_altsched.maintenance.repair import accept_loss

from ..crawls import (
    BY_SLOT,
    LONG_DELAY,
    PROJECT,
    PYTHONPATH,
    Crawl,
    altsched,
    listing,
    run_python,
)
from ..processes import Process
from ..servers import RedisServer
from ..sites import Site, held_pages

#: Pages of the site.
COUNT = 30
TWO = {"CONCURRENT_REQUESTS": 2, **BY_SLOT}
KEY = "pages"


@pytest.fixture
def held() -> threading.Event:
    """All pages but the first one wait for it."""
    return threading.Event()


@pytest.fixture
def crawl(tmp_path: Path, held: threading.Event) -> Iterator[Crawl]:
    with Site(held_pages(COUNT, held)) as site:
        yield Crawl(tmp_path, "pages", f"{site.url}/0")
        held.set()


def status(*arguments: object) -> str:
    done = altsched("status", *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def answer(*arguments: object) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(status(*arguments, "--json"))
    return found


def refusal(*arguments: object, code: int = 1) -> str:
    done = altsched("status", *arguments)
    assert done.returncode == code
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    return done.stderr


def wait_for(
    crawl: Crawl, process: Process, reached: Callable[[dict[str, Any]], bool]
) -> dict[str, Any]:
    """What the command says of a running crawl, as soon as that is what is waited for."""
    last: dict[str, Any] = {}

    def look() -> bool:
        if not (crawl.jobdir / "altsched.status").exists():
            return False
        last.update(answer(crawl.jobdir))
        return reached(last)

    crawl.wait_until(process, look)
    return last


def test_a_crawl_that_runs_is_killed_and_is_finished(crawl: Crawl, held: threading.Event) -> None:
    process = crawl.start(**TWO)
    running = wait_for(crawl, process, lambda it: it["counts"]["done"] == 1)
    assert (running["state"], running["pid"], running["run"]) == ("running", process.pid, 1)
    assert running["counts"] == {
        "accepted": 30,
        "done": 1,
        "pending": 27,
        "in_flight": 2,
        "delayed": 0,
        "failed": 0,
        "dead": 0,
        "left": 29,
        "seen": 30,
    }
    assert running["bytes"] > 0
    text = status(crawl.jobdir)
    assert f"process {process.pid} on host" in text
    assert "30 accepted: 1 done, 27 pending, 2 in flight, 0 delayed" in text
    assert re.search(r"^seen +30 pages", text, re.MULTILINE)
    stored = answer(crawl.jobdir, "--slots", "5")
    # In the store, what is in flight is pending.
    assert stored["slots"] == [{"slot": "127.0.0.1", "stored": 29}]
    oldest = stored["oldest_pending"]
    assert abs(running["began"] - oldest["after"]) < 5
    assert oldest["before"] is None
    assert "was accepted after 20" in status(crawl.jobdir, "--slots")
    assert "oldest" not in status(crawl.jobdir)
    crawl.kill(process)
    died = answer(crawl.jobdir)
    assert (died["state"], died["counts"]["done"]) == ("died", 1)
    assert "died: process" in status(crawl.jobdir)
    held.set()
    assert crawl.run() == 0
    finished = answer(crawl.jobdir)
    assert (finished["state"], finished["ended"], finished["run"]) == ("finished", True, 2)
    assert (finished["counts"]["done"], finished["counts"]["left"]) == (30, 0)
    assert not finished["changed_since"]
    assert "finished at" in status(crawl.jobdir)
    for name in ("pending", "in_flight", "delayed", "failed", "dead", "done"):
        assert crawl.stat(f"altsched/{name}") == finished["counts"][name]


def test_a_crawl_that_is_stopped_says_so_and_nothing_is_changed_by_looking(
    crawl: Crawl, held: threading.Event
) -> None:
    held.set()
    assert crawl.run(CLOSESPIDER_PAGECOUNT=5, CONCURRENT_REQUESTS=1) == 0
    before = listing(crawl.jobdir)
    stopped = answer(crawl.jobdir)
    assert stopped["state"] == "stopped"
    assert stopped["counts"]["done"] == crawl.stat("altsched/done")
    assert "stopped cleanly at" in status(crawl.jobdir)
    assert listing(crawl.jobdir) == before
    # No store is opened, unless it is asked for.
    shutil.rmtree(crawl.jobdir / "frontier")
    assert answer(crawl.jobdir)["counts"] == stopped["counts"]
    assert "its store" in refusal(crawl.jobdir, "--slots")


def test_when_the_oldest_pending_request_was_accepted(
    crawl: Crawl, held: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    held.set()
    assert crawl.run(CLOSESPIDER_PAGECOUNT=5, CONCURRENT_REQUESTS=1) == 0
    for note, found, words in (
        (b"[]", (None, None), "at a time that no version has noted"),
        (b"[[1000, 1.7e9]]", (None, 1.7e9), "before 2023-11-14 22:13:20 (UTC)"),
        (b"[[0, 1.7e9]]", (1.7e9, None), "after 2023-11-14 22:13:20 (UTC)"),
        (
            b"[[0, 1.7e9], [1000, 1700000060]]",
            (1.7e9, 1_700_000_060),
            "after 2023-11-14 22:13:20 (UTC) and before 2023-11-14 22:14:20 (UTC)",
        ),
    ):
        with closing(Journal(crawl.jobdir, "pages")) as journal:
            journal.write(Batch(journal.counters(), notes={TIMES: note}))
        oldest = answer(crawl.jobdir, "--slots")["oldest_pending"]
        assert (oldest["after"], oldest["before"]) == found
        assert f"was accepted {words}" in status(crawl.jobdir, "--slots")
    job = Job(Project(Settings()), crawl.jobdir)
    monkeypatch.setattr(looks, "MOST_WALKED", 10)
    assert looks.look_at_job(job, 5)["oldest_pending"] is None


def test_what_a_command_has_changed_since_is_told(crawl: Crawl, held: threading.Event) -> None:
    held.set()
    assert crawl.run(CLOSESPIDER_PAGECOUNT=5, CONCURRENT_REQUESTS=1) == 0
    assert not answer(crawl.jobdir)["changed_since"]
    # As by a command that dies before it has told how the job stands then.
    accept_loss(crawl.jobdir, "pages")
    assert answer(crawl.jobdir)["changed_since"]
    assert "a command has changed the job since" in status(crawl.jobdir)
    assert altsched("check", crawl.jobdir, "--accept-loss").returncode == 0
    assert not answer(crawl.jobdir)["changed_since"]


def test_a_process_that_has_the_job_and_tells_nothing_is_named(
    crawl: Crawl, held: threading.Event
) -> None:
    held.set()
    assert crawl.run() == 0
    with closing(Journal(crawl.jobdir, "pages")):
        found = answer(crawl.jobdir)
        assert (found["state"], found["held_by"]) == ("finished", os.getpid())
        assert f"by process {os.getpid()}, which has not told how" in status(crawl.jobdir)


def test_slots_that_are_held_and_times_and_speed_are_told(crawl: Crawl) -> None:
    process = crawl.start(**TWO)
    wait_for(crawl, process, lambda it: it["counts"]["done"] == 1)
    crawl.kill(process)
    noted = read_status(crawl.jobdir)
    assert noted is not None
    now = time.time()
    standing = replace(noted.standing, at=now, began=now - 7_300, found_rate=1.0, ended_rate=3.0)
    standing = replace(standing, held=[(None, now + 100), ("a.example", now + 50), ("b", now - 1)])
    alive = replace(noted, standing=standing, holder=Holder.current().encode().decode())
    path = crawl.jobdir / "altsched.status"
    path.write_bytes(alive.encode())
    found = answer(crawl.jobdir)
    assert (found["state"], found["grows"], found["seconds_left"]) == ("running", False, 29 / 2)
    assert [it["slot"] for it in found["held"]] == [None, "a.example"]
    text = status(crawl.jobdir)
    for words in (
        *("for 2 h 1 min", "60 found and 180 done per minute", "30.0 : 1 so far"),
        *("0.3 : 1 in the last minute", "about 14 s, at this speed", "all slots until"),
    ):
        assert words in text
    path.write_bytes(replace(alive, standing=replace(standing, found_rate=4.0)).encode())
    assert answer(crawl.jobdir)["grows"]
    assert "the crawl finds more than it is done with" in status(crawl.jobdir)
    elsewhere = Holder(1, "there", "another place")
    path.write_bytes(replace(alive, holder=elsewhere.encode().decode()).encode())
    assert answer(crawl.jobdir)["lives"] is None
    assert "on host there" in status(crawl.jobdir)
    assert "whether it still runs cannot be told from here" in status(crawl.jobdir)


def test_a_job_of_which_no_run_has_told_anything(crawl: Crawl, held: threading.Event) -> None:
    held.set()
    assert crawl.run() == 0
    (crawl.jobdir / "altsched.status").unlink()
    silent = answer(crawl.jobdir)
    assert silent["state"] == "silent"
    assert silent["counts"] == {"accepted": 30, "done": 30}
    assert "not known: no run has written it yet" in status(crawl.jobdir)
    # One that another store has left, as of a copy that was put in place, is none.
    (crawl.jobdir / "altsched.status").write_bytes(b"x" * 8_192)
    assert "altsched.status cannot be read (it is damaged)" in refusal(crawl.jobdir)


def test_a_job_that_a_command_has_made_or_changed_says_how_it_stands(
    crawl: Crawl, held: threading.Event
) -> None:
    held.set()
    assert crawl.run(CLOSESPIDER_PAGECOUNT=1, DOWNLOAD_DELAY=LONG_DELAY, **BY_SLOT) == 0
    assert altsched("defer", crawl.jobdir, "a.example", "--for", "1h").returncode == 0
    moved, before = crawl.jobdir.parent / "moved", answer(crawl.jobdir)

    def bring(source: Path, place: Path) -> None:
        done = altsched("import", "pages", "--from", source, "-s", f"JOBDIR={place}")
        assert done.returncode == 0, done.stderr

    bring(crawl.jobdir, moved)
    found = answer(moved)
    assert (found["state"], found["changed_since"]) == ("stopped", False)
    for name in "counts", "slots", "held":
        assert found[name] == before[name]
    assert "stopped cleanly at" in status(moved)
    assert altsched("restart", moved, "--yes").returncode == 0
    found = answer(moved)
    assert (found["state"], found["changed_since"], found["slots"]) == ("stopped", False, [])
    assert set(found["counts"].values()) == {0}
    assert crawl.run(**BY_SLOT) == 0
    bring(crawl.jobdir, finished := moved.with_name("finished"))
    found = answer(finished)
    assert (found["state"], found["ended"], found["counts"]["done"]) == ("finished", True, COUNT)
    # Of what has no status, or a damaged one, a command says it anew.
    (finished / "altsched.status").write_bytes(b"x" * 8_192)
    assert altsched("refingerprint", finished).returncode == 0
    assert answer(finished)["counts"] == found["counts"]


def test_what_is_no_job_is_refused_in_a_sentence(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    assert "it is a file, not a directory" in refusal(file)
    assert "it does not exist" in refusal(tmp_path / "nothing")
    assert "it has no file altsched.json" in refusal(tmp_path)
    (tmp_path / "requests.seen").write_text("")
    message = refusal(tmp_path)
    assert "holds a crawl of Scrapy's own scheduler" in message
    assert "it is imported by the next run" in message


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "name a JOBDIR, or a crawl with --shared KEY"),
        (("job", "--shared", KEY), "not both"),
        (("job", "--slots", "0"), "--slots takes a number of slots, 1 or more"),
        (("job", "--slots", "many"), "invalid int value"),
        (("job", "--watch"), "--watch needs a terminal"),
        (("job", "more"), "unrecognized arguments: more"),
    ],
)
def test_arguments_that_make_no_sense(arguments: tuple[str, ...], words: str) -> None:
    assert words in refusal(*arguments, code=2)


#: Scrapy's command line, where Ctrl-C counts though this process may ignore it, as in a job that a
#: shell has put into the background.
_SCRAPY = """
import signal, sys
from scrapy.cmdline import execute
signal.signal(signal.SIGINT, signal.default_int_handler)
execute(["scrapy", *sys.argv[1:]])
"""


def test_it_is_watched_in_a_terminal(crawl: Crawl, held: threading.Event) -> None:
    held.set()
    assert crawl.run(CLOSESPIDER_PAGECOUNT=5, CONCURRENT_REQUESTS=1) == 0
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", _SCRAPY, "altsched", "status", str(crawl.jobdir), "--watch"]
    environment = {**os.environ, "PYTHONPATH": PYTHONPATH, "TERM": "xterm", "COLUMNS": "120"}
    with subprocess.Popen(
        command, cwd=PROJECT, env=environment, stdin=theirs, stdout=theirs, stderr=subprocess.PIPE
    ) as process:
        os.close(theirs)
        shown = b""
        while shown.count(b"stopped cleanly at") < 2:
            shown += os.read(ours, 65_536)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
        assert process.stderr is not None
        assert b"Traceback" not in process.stderr.read()
    os.close(ours)
    assert "\N{BOX DRAWINGS HEAVY HORIZONTAL}" in shown.decode()


def test_a_plain_call_of_scrapy_does_not_load_it() -> None:
    script = "import sys, scrapy_altsched.command as it; print(it.SUBCOMMANDS, *sys.modules)"
    output = run_python("-c", script).stdout
    assert "'status'" in output
    loaded = set(output.split())
    assert "scrapy_altsched.command" in loaded
    assert not loaded & {"scrapy_altsched.command.status", "rich.live", "rich.progress_bar"}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.04, "0.0 s"),
        (9.94, "9.9 s"),
        (59.4, "59 s"),
        (60, "1 min"),
        (3_599, "59 min"),
        (7_260, "2 h 1 min"),
        (48 * 3_600, "2 days"),
    ],
)
def test_how_long_something_takes_is_told_in_its_units(seconds: float, text: str) -> None:
    assert lasting(seconds) == text


# Shared crawls


def shared_settings(server: RedisServer, **settings: Any) -> dict[str, Any]:
    return {"ALTSCHED_SHARED": 1, "REDIS_PORT": server.port, **settings}


def test_a_shared_crawl(crawl: Crawl, server: RedisServer) -> None:
    on = ("--shared", KEY, "-s", f"REDIS_PORT={server.port}")
    assert "There is no shared crawl 'pages'" in refusal(*on)
    process = crawl.start(**shared_settings(server, **TWO))
    found: dict[str, Any] = {}

    def look() -> bool:
        if server.client().hget(Keys(KEY).meta, "done") != b"1":
            return False
        found.update(answer(*on))
        # All that is left is fetched ahead.
        return found["counts"]["in_flight"] == COUNT - 1

    crawl.wait_until(process, look)
    assert (found["state"], found["spider"], found["kind"]) == ("running", "pages", "shared crawl")
    counts = found["counts"]
    assert (counts["accepted"], counts["done"], counts["left"]) == (30, 1, 29)
    assert counts["seen"] == 30
    (worker,) = found["workers"]
    assert worker["leases"] == counts["in_flight"]
    assert worker["heard"] >= 0
    assert 0 < worker["expires"] <= 60
    assert "limits" not in found
    assert found["bytes"] > 1_000
    text = status(*on)
    assert "running, 1 worker, begun at" in text
    assert re.search(rf"{worker['token'][:8]} +\d+ +\d", text)
    message = refusal(crawl.jobdir)
    assert "belongs to a worker of the shared crawl pages" in message
    assert "--shared KEY" in message
    crawl.kill(process)
    # Its leases wait for it, or for others.
    assert answer(*on)["workers"][0]["leases"] == worker["leases"]


def test_the_slots_of_a_shared_crawl_and_its_oldest_pending_request(
    crawl: Crawl, server: RedisServer
) -> None:
    on = ("--shared", KEY, "-s", f"REDIS_PORT={server.port}")
    keys, client = Keys(KEY), server.client()
    process = crawl.start(**shared_settings(server, **TWO, ALTSCHED_SHARED_PREFETCH=1, JOBDIR=None))
    crawl.wait_until(process, lambda: client.llen(keys.samples) >= 3)
    pending = client.zcard(keys.pending)
    assert pending > 20
    found = answer(*on, "--slots")
    assert found["slots"] == [{"slot": "127.0.0.1", "pending": pending}]
    oldest = found["oldest_pending"]
    assert found["began"] <= oldest["after"] + 0.01
    assert oldest["after"] < oldest["before"] < time.time() + 1
    text = status(*on, "--slots", "1")
    assert re.search(r"oldest pending +was accepted after \d.+ and before \d", text)
    assert re.search(rf"127\.0\.0\.1 +{pending}\n", text)
    assert "oldest" not in status(*on)
    client.zremrangebyrank(keys.pending, 0, -1)
    assert answer(*on, "--slots")["oldest_pending"] is None
    assert "none, or not looked for" in status(*on, "--slots")
    crawl.kill(process)


def test_the_pace_of_a_shared_crawl(crawl: Crawl, server: RedisServer) -> None:
    on = ("--shared", KEY, "-s", f"REDIS_PORT={server.port}")
    slow = {"DOWNLOAD_DELAY": 60, "CONCURRENT_REQUESTS_PER_DOMAIN": 3, "JOBDIR": None}
    process = crawl.start(**shared_settings(server, **TWO, **slow))
    crawl.wait_until(process, lambda: server.client().hget(Keys(KEY).meta, "done") == b"1")
    found = answer(*on)
    assert found["limits"] == {"delay": 60.0, "jitter": 0.5, "cap": 3, "own": 0}
    assert found["resting"]["slots"] == 1
    assert 0 < found["resting"]["next"] <= 91
    assert "60 s between two downloads, at most 3 at once, in a slot" in status(*on)
    crawl.kill(process)


def test_a_shared_crawl_without_workers_and_a_server_that_is_gone(
    crawl: Crawl, server: RedisServer, held: threading.Event
) -> None:
    held.set()
    on = ("--shared", KEY, "-s", f"REDIS_PORT={server.port}")
    settings = shared_settings(server, JOBDIR=None)
    crawl.run(**settings, CLOSESPIDER_PAGECOUNT=3)
    stopped = answer(*on)
    assert (stopped["state"], stopped["workers"]) == ("stopped", [])
    assert "not finished, 0 workers" in status(*on)
    crawl.run(**settings)
    finished = answer(*on)
    assert (finished["state"], finished["counts"]["done"]) == ("finished", 30)
    assert "cannot be reached" in refusal("--shared", KEY, "-s", "REDIS_PORT=1")
