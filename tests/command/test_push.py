"""Requests that are pushed into a crawl: what is taken, and what is refused and why."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..crawls import PROJECT, PYTHONPATH, Crawl, altsched
from ..sites import Page, Site

SITE = {"/0": Page(["/1"]), "/1": Page(), "/new": Page(["/linked"]), "/linked": Page()}


@pytest.fixture
def site() -> Iterator[Site]:
    with Site(SITE) as site:
        yield site


@pytest.fixture(scope="module")
def jobdir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job that is finished, for what changes nothing."""
    with Site({"/0": Page()}) as site:
        crawl = Crawl(tmp_path_factory.mktemp("job"), "pages", f"{site.url}/0")
        assert crawl.run() == 0
    return crawl.jobdir


@pytest.fixture
def crawl(tmp_path: Path, site: Site) -> Crawl:
    """One that has finished two pages."""
    crawl = Crawl(tmp_path, "pages", f"{site.url}/0")
    assert crawl.run() == 0
    return crawl


def push(jobdir: Path, *arguments: str, text: str | bytes = "") -> subprocess.CompletedProcess[str]:
    """Push what is on standard input."""
    done = subprocess.run(
        [sys.executable, "-m", "scrapy", "altsched", "push", str(jobdir), "-", *arguments],
        cwd=PROJECT,
        env={**os.environ, "PYTHONPATH": PYTHONPATH},
        input=text if isinstance(text, bytes) else text.encode(),
        capture_output=True,
        timeout=120,
        check=False,
    )
    output, errors = done.stdout.decode(), done.stderr.decode()
    assert "Traceback" not in errors
    return subprocess.CompletedProcess(done.args, done.returncode, output, errors)


def test_the_next_run_crawls_what_was_pushed(crawl: Crawl, site: Site) -> None:
    done = altsched("push", crawl.jobdir, f"{site.url}/new", f"{site.url}/1", "-a", "url=x")
    assert done.returncode == 0, done.stderr
    forget = f"scrapy altsched forget {crawl.jobdir} URL ..."
    assert done.stdout.startswith(
        "1 accepted, 1 seen before.\nTo have a page crawled again that was seen, push it with"
        f" --dont-filter, or after: {forget}\n"
    )
    assert crawl.run() == 0
    assert crawl.item_paths() == ["/0", "/1", "/new", "/linked"]


def test_lines_are_urls_and_objects(crawl: Crawl, site: Site) -> None:
    again = json.dumps({"url": f"{site.url}/0", "dont_filter": True, "priority": -1})
    lines = f"{site.url}/new\n\n  {again}\r\n{site.url}/linked"
    done = push(crawl.jobdir, "--priority", "3", "-a", "url=x", text=lines)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("3 accepted, 0 seen before.\n")
    shown = [json.loads(it) for it in altsched("peek", crawl.jobdir, "--json").stdout.splitlines()]
    paths = {it["url"].removeprefix(site.url): it["priority"] for it in shown}
    assert paths == {"/new": 3, "/linked": 3, "/0": -1}


def test_one_bad_line_and_nothing_is_taken(crawl: Crawl, site: Site) -> None:
    lines = f"{site.url}/new\n\nnot a URL\n{{\n"
    done = push(crawl.jobdir, text=lines)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.splitlines()[-1] == (
        "scrapy altsched push: Line 3 of standard input is no request: 'not a URL' is no URL: it"
        " does not begin with a scheme, as https:// is. Nothing was pushed; --skip-bad leaves out"
        " what is no request."
    )
    assert altsched("peek", crawl.jobdir).stdout == "Nothing is pending.\n"
    done = push(crawl.jobdir, "--skip-bad", "-a", "url=x", text=lines)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(
        "2 lines were left out. Line 3 of standard input is no request: 'not a URL' is no URL: it"
        " does not begin with a scheme, as https:// is.\n1 accepted, 0 seen before.\n"
    )


@pytest.mark.parametrize("text", ["", "\n \r\n"])
def test_no_lines_are_no_mistake(jobdir: Path, text: str) -> None:
    done = push(jobdir, text=text)
    assert (done.returncode, done.stdout) == (0, "There was nothing to push.\n")


def test_nothing_is_left_of_bad_lines(jobdir: Path) -> None:
    done = push(jobdir, "--skip-bad", text=b"\xff\n")
    assert done.returncode == 0
    assert done.stdout.startswith("1 line was left out. Line 1 of standard input is no request: it")
    assert done.stdout.endswith("\nThere was nothing to push.\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name URLs to push, or - for those on standard input"),
        (["-", "http://a.example/"], "- stands alone: push what is on standard input, or URLs"),
        (
            ["a.example"],
            (
                "'a.example' is no request: 'a.example' is no URL: it does not begin with a scheme,"
                " as https:// is. Nothing was pushed; --skip-bad leaves out what is no request."
            ),
        ),
        (
            ["http://a.example/", "--callback", "parse_x"],
            "URLs cannot be pushed so: the spider 'pages' has no method 'parse_x'",
        ),
        (
            ["http://a.example/", "--priority", str(2**64)],
            "URLs cannot be pushed so: its field 'priority' must be a whole number of 64 bits",
        ),
        (["http://a.example/", "--priority", "high"], "argument --priority: invalid int value"),
        (["http://a.example/", "-a", "url"], "-a takes NAME=VALUE, not 'url'"),
        (["s3://bucket/x", "-s", 'DOWNLOAD_HANDLERS={"s3": null}'], "nothing downloads s3: URLs"),
        (["http://a.example/", "--shared", "pages", "--nothing"], "unrecognized arguments"),
    ],
)
def test_arguments_that_make_no_sense(jobdir: Path, arguments: list[str], message: str) -> None:
    done = altsched("push", jobdir, *arguments)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert "Traceback" not in done.stderr
    assert message in done.stderr


def test_a_temporary_directory_that_is_full(jobdir: Path) -> None:
    """The limit of a process on the size of its files stands for it."""
    program = (
        "import resource, signal, sys\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "from scrapy.cmdline import execute\n"
        f"execute(['scrapy', 'altsched', 'push', {str(jobdir)!r}, '-'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=PROJECT,
        env={**os.environ, "PYTHONPATH": PYTHONPATH},
        input="http://a.example/\n" * 10_000,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert "until all are checked, and could not be (File too large). Set TMPDIR" in done.stderr
