"""``scrapy altsched report``, of jobs that run, were stopped or killed, and of shared crawls."""

from __future__ import annotations

import html
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scrapy_altsched.frontier.shared.keys import Keys
from scrapy_altsched.frontier.store.status import read_status

from ..crawls import BY_SLOT, ONE_BY_ONE, PROJECT, PYTHONPATH, Crawl, altsched, listing, run_python
from ..processes import Process
from ..servers import RedisServer
from ..sites import Page, Site, held_pages

COUNT = 30
TWO = {"CONCURRENT_REQUESTS": 2, **BY_SLOT}
KEY = "pages"
REFRESH = 'http-equiv="refresh"'


@pytest.fixture
def held() -> threading.Event:
    """All pages but the first one wait for it."""
    return threading.Event()


@pytest.fixture
def crawl(tmp_path: Path, held: threading.Event) -> Iterator[Crawl]:
    pages = held_pages(COUNT, held)
    pages["/7"] = Page(status=503, held=held)
    with Site(pages) as site:
        yield Crawl(tmp_path, "pages", f"{site.url}/0", engine="auto")
        held.set()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "page.html"


def report(path: Path, *arguments: object) -> str:
    """The page's own part, without the library, as text."""
    done = altsched("report", *arguments, "-o", path)
    assert done.returncode == 0, done.stderr
    assert str(path) in done.stdout
    return text_of(path)


def text_of(path: Path) -> str:
    return html.unescape(re.sub(r"<script .+?</script>", "", path.read_text(), flags=re.DOTALL))


def chart(path: Path, name: str) -> dict[str, Any]:
    """The lines of a chart, by their names."""
    pattern = rf'const figure = (\{{.+?\}});\n[^\n]+\n    Plotly\.newPlot\("chart-{name}"'
    (figure,) = re.findall(pattern, path.read_text())
    return {trace.get("name", ""): trace for trace in json.loads(figure)["data"]}


def figure(text: str, name: str) -> str:
    (found,) = re.findall(rf"<dt>{name}</dt>\s*<dd class=\"number[^>]*>(.+?)</dd>", text)
    return found


def refusal(*arguments: object, code: int = 1) -> str:
    done = altsched("report", *arguments)
    assert done.returncode == code
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    return done.stderr


def start_to_done(crawl: Crawl, path: Path, **settings: Any) -> Process:
    """Start a crawl that is done with its first page."""
    process = crawl.start(**TWO, **settings)
    status = crawl.jobdir / "altsched.status"
    crawl.wait_until(process, lambda: status.exists() and b'"done": 1,' in status.read_bytes())
    return process


def test_the_page_of_a_job_that_is_killed_and_finished(
    crawl: Crawl, held: threading.Event, path: Path
) -> None:
    process = start_to_done(crawl, path)
    running = report(path, crawl.jobdir)
    assert "<title>pages: running</title>" in running
    assert (figure(running, "done"), figure(running, "in flight")) == ("1", "2")
    assert figure(running, "seen") == "30"
    assert REFRESH not in running
    assert "There are none." in running
    assert "death" not in chart(path, "requests")
    crawl.kill(process)
    assert "<title>pages: died</title>" in report(path, crawl.jobdir)
    assert chart(path, "requests")["death"]["text"][0] == "run 1 died"
    held.set()
    assert crawl.run(RETRY_ENABLED=False) == 0
    before = listing(crawl.jobdir)
    finished = report(path, crawl.jobdir)
    assert listing(crawl.jobdir).keys() == before.keys()
    assert "<title>pages: finished</title>" in finished
    assert (figure(finished, "done"), figure(finished, "failed")) == ("29", "1")
    lines = chart(path, "requests")
    assert lines["death"]["text"][0] == "run 1 died"
    assert lines["clean end"]["text"][0] == "run 2 finished"
    assert len(lines["start"]["x"]) == 2 * 3
    assert lines["accepted"]["y"][-1] == 30
    assert lines["duplicates"]["y"][-1] > 0
    assert "1 failed: status 503, 127.0.0.1" in finished
    # The command does what the page says.
    (command,) = re.findall(r"<code>scrapy (altsched requeue .+?)</code>", finished)
    words = command.split()
    assert words[2:] == [
        *[str(crawl.jobdir), "--failed", "--reason", "status", "--status", "503"],
        *["--slot", "127.0.0.1", "--all"],
    ]
    assert altsched(*words[1:]).returncode == 0
    assert altsched("failed", crawl.jobdir).stdout.startswith("There are no failed requests")


def test_it_is_written_again_until_the_crawl_ends(
    crawl: Crawl, held: threading.Event, path: Path
) -> None:
    process = start_to_done(crawl, path)
    follower = Process(
        ["altsched", "report", str(crawl.jobdir), "-o", str(path), "--follow"],
        PROJECT,
        {**os.environ, "PYTHONPATH": PYTHONPATH},
        crawl.directory / "errors",
    )
    crawl.wait_until(process, path.exists)
    assert REFRESH in text_of(path)
    held.set()
    assert process.wait(60) == 0
    output, _ = follower.communicate(timeout=60)
    assert follower.wait(10) == 0, output
    last = text_of(path)
    assert "<title>pages: finished</title>" in last
    assert REFRESH not in last
    assert "until the crawl ends or Ctrl-C" in output
    assert not path.with_name("page.html.partial").exists()


#: Scrapy's command line, where Ctrl-C counts though this process may ignore it, as in a job that a
#: shell has put into the background.
_SCRAPY = """
import signal, sys
from scrapy.cmdline import execute
signal.signal(signal.SIGINT, signal.default_int_handler)
execute(["scrapy", *sys.argv[1:]])
"""


def test_ctrl_c_ends_it_with_a_page_that_is_not_loaded_again(crawl: Crawl, path: Path) -> None:
    process = start_to_done(crawl, path)
    command = ["altsched", "report", str(crawl.jobdir), "-o", str(path), "--follow"]
    with subprocess.Popen(
        [sys.executable, "-c", _SCRAPY, *command],
        cwd=PROJECT,
        env={**os.environ, "PYTHONPATH": PYTHONPATH},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as follower:
        crawl.wait_until(process, path.exists)
        follower.send_signal(signal.SIGINT)
        output, errors = follower.communicate(timeout=60)
    assert (follower.returncode, errors) == (0, "")
    assert "is written" in output
    assert "<title>pages: running</title>" in text_of(path)
    assert REFRESH not in text_of(path)
    crawl.kill(process)


def test_what_is_known_is_told_without_the_store_and_what_is_not_known_is_told_too(
    crawl: Crawl, held: threading.Event, path: Path
) -> None:
    held.set()
    assert crawl.run(CLOSESPIDER_PAGECOUNT=3, **ONE_BY_ONE, **BY_SLOT) == 0
    # Nothing has failed: its store is not opened.
    (crawl.jobdir / "frontier").rename(crawl.jobdir / "away")
    assert "There are none." in report(path, crawl.jobdir)
    (text,) = chart(path, "slots")[""]["text"]
    assert text.startswith("127.0.0.1: ")
    (crawl.jobdir / "away").rename(crawl.jobdir / "frontier")
    noted = read_status(crawl.jobdir)
    assert noted is not None
    held_slots = [("a.example", time.time() + 100), (None, time.time() + 50)]
    standing = replace(noted.standing, held=held_slots)
    (crawl.jobdir / "altsched.status").write_bytes(replace(noted, standing=standing).encode())
    shown = report(path, crawl.jobdir)
    assert re.findall(r'<td data-name="slot"><bdi>(.+?)</bdi>', shown) == ["a.example", "all slots"]
    for name in ("altsched.status", "altsched.samples"):
        (crawl.jobdir / name).unlink()
    silent = report(path, crawl.jobdir)
    assert "<title>pages: silent</title>" in silent
    assert "No run has kept samples of how the job stood yet: the next one does." in silent
    (crawl.jobdir / "altsched.samples").mkdir()
    assert "altsched.samples cannot be read (Is a directory)" in refusal(crawl.jobdir, "-o", path)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "name a JOBDIR, or a crawl with --shared KEY"),
        (("job", "--shared", KEY), "not both"),
        (("job", "more"), "unrecognized arguments: more"),
        (("job", "--json"), "unrecognized arguments: --json"),
    ],
)
def test_arguments_that_make_no_sense(arguments: tuple[str, ...], words: str) -> None:
    assert words in refusal(*arguments, code=2)


def test_only_a_page_is_overwritten(tmp_path: Path, crawl: Crawl, held: threading.Event) -> None:
    own = tmp_path / "own.html"
    own.write_text("<title>mine</title>")
    message = refusal("job", "-o", own, code=2)
    assert "own.html is there already, and is no page of this command" in message
    assert own.read_text() == "<title>mine</title>"
    assert "cannot be written: Is a directory" in refusal("job", "-o", tmp_path)
    held.set()
    assert crawl.run(CLOSESPIDER_PAGECOUNT=3) == 0
    message = refusal(crawl.jobdir, "-o", tmp_path / "nowhere" / "page.html")
    assert "page.html cannot be written: No such file or directory" in message
    # By default it is in the current directory.
    for _ in range(2):
        done = altsched("report", crawl.jobdir, cwd=tmp_path)
        assert done.stdout.startswith("report.html is written, 4"), done.stderr


def test_what_is_no_job_is_refused_in_a_sentence(tmp_path: Path, path: Path) -> None:
    assert "it does not exist" in refusal(tmp_path / "nothing", "-o", path)
    assert "it has no file altsched.json" in refusal(tmp_path, "-o", path)
    assert not path.exists()


def test_a_plain_call_of_scrapy_loads_neither_it_nor_what_draws_charts() -> None:
    script = "import sys, scrapy_altsched.command as it; print(it.SUBCOMMANDS, *sys.modules)"
    output = run_python("-c", script).stdout
    assert "'report'" in output
    assert not set(output.split()) & {"scrapy_altsched.command.report", "jinja2", "plotly"}
    # Nor do other subcommands.
    script = "import sys, scrapy_altsched.command.report as it; print(*sys.modules)"
    loaded = set(run_python("-c", script).stdout.split())
    assert "scrapy_altsched.command.report" in loaded
    assert not loaded & {"jinja2", "plotly"}


# Shared crawls


def test_a_shared_crawl(
    crawl: Crawl, server: RedisServer, held: threading.Event, path: Path
) -> None:
    on = ("--shared", KEY, "-s", f"REDIS_PORT={server.port}")
    shared: dict[str, Any] = {"ALTSCHED_SHARED": 1, "REDIS_PORT": server.port, **TWO}
    process = crawl.start(**shared)
    meta = Keys(KEY).meta
    crawl.wait_until(process, lambda: server.client().hget(meta, "done") == b"1")
    running = report(path, *on)
    assert "<title>pages: running</title>" in running
    assert figure(running, "workers") == "1"
    (heard,) = re.findall(r'<td data-name="last heard of"><bdi>(.+?)</bdi>', running)
    assert heard.endswith(" ago")
    assert "A server knows download slots by digests only" in running
    assert chart(path, "requests")["start"]["text"][0] == "1 worker began"
    # What its workers keep on their own is no history of it.
    assert not (crawl.jobdir / "altsched.samples").exists()
    assert "belongs to a worker of the shared crawl" in refusal(crawl.jobdir, "-o", path)
    held.set()
    assert process.wait(60) == 0
    finished = report(path, *on)
    assert "<title>pages: finished</title>" in finished
    assert "1 failed: status 503, 127.0.0.1" in finished
    requeue = f"scrapy altsched requeue --shared {KEY} -s REDIS_PORT={server.port} --failed"
    assert requeue in finished
    lines = chart(path, "requests")
    names = ["seen", "accepted", "done", "left", "duplicates", "start", "clean end"]
    assert list(lines) == names
    assert lines["clean end"]["text"][0] == "1 worker ended"
    # All that it has had since it began, to its end, though nothing has looked at it meanwhile.
    assert lines["done"]["y"][0] == 0
    assert (lines["accepted"]["y"][-1], lines["done"]["y"][-1]) == (30, 29)
    assert lines["duplicates"]["y"][-1] > 0
    server.client().unlink(Keys(KEY).samples)
    assert "No worker has noted yet how the crawl stood" in report(path, *on)


def test_the_history_of_a_shared_crawl_survives_workers_that_die(
    crawl: Crawl, server: RedisServer, held: threading.Event, path: Path
) -> None:
    shared: dict[str, Any] = {"ALTSCHED_SHARED": 1, "REDIS_PORT": server.port, **TWO}
    process = crawl.start(**shared, JOBDIR=None)
    keys, client = Keys(KEY), server.client()
    crawl.wait_until(process, lambda: client.llen(keys.samples) >= 2)
    crawl.kill(process)
    (token,) = client.zrange(keys.deadlines, 0, -1)
    for key in (keys.deadlines, keys.heard):  # as if that were long ago
        client.zadd(key, {token: 1})
    held.set()
    assert crawl.run(**shared, JOBDIR=None) == 0
    report(path, "--shared", KEY, "-s", f"REDIS_PORT={server.port}")
    lines = chart(path, "requests")
    assert lines["start"]["text"][::3] == ["1 worker began", "1 worker began"]
    assert lines["death"]["text"][::3] == ["1 worker died"]
    assert lines["start"]["x"][0] < lines["death"]["x"][0] < lines["start"]["x"][3]
    assert lines["done"]["y"][-1] == 29


def test_the_page_of_a_shared_crawl_is_written_again_until_it_ends(
    crawl: Crawl, server: RedisServer, held: threading.Event, path: Path
) -> None:
    shared: dict[str, Any] = {"ALTSCHED_SHARED": 1, "REDIS_PORT": server.port, **TWO}
    process = crawl.start(**shared, JOBDIR=None)
    meta = Keys(KEY).meta
    crawl.wait_until(process, lambda: server.client().hget(meta, "done") == b"1")
    on = ["--shared", KEY, "-s", f"REDIS_PORT={server.port}"]
    follower = Process(
        ["altsched", "report", *on, "-o", str(path), "--follow"],
        PROJECT,
        {**os.environ, "PYTHONPATH": PYTHONPATH},
        crawl.directory / "errors",
    )
    crawl.wait_until(process, path.exists)
    held.set()
    assert process.wait(60) == 0
    follower.communicate(timeout=60)
    assert follower.wait(10) == 0
    assert "<title>pages: finished</title>" in text_of(path)
    lines = chart(path, "requests")
    assert REFRESH not in text_of(path)
    assert lines["done"]["y"][0] == 0
    assert lines["done"]["y"][-1] == 29
