"""Subcommands that tell a crawl what to do: what they take, what they ask, what they answer."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import threading
import time
from datetime import datetime, timezone
from pathlib import Path

import pytest

from scrapy_altsched.feeds import archive
from scrapy_altsched.frontier import Options
from scrapy_altsched.frontier.store.engines import Choice
from scrapy_altsched.frontier.store.status import NAME, read_status
from scrapy_altsched.maintenance.opening import open_frontier

from ..crawls import BY_SLOT, LONG_DELAY, ONE_BY_ONE, Crawl, altsched, write_project
from ..frontiers import OWNER, page, take
from ..sites import Page, Site
from ..stores import BY_ENGINE
from ..terminals import Terminal

TRAP = "http://trap.example"
#: A page and links to two hosts that no server is needed for.
SITE = {
    "/0": Page(
        [
            *(f"{TRAP}/calendar/{number}" for number in range(5)),
            *(f"{TRAP}/about/{number}" for number in range(2)),
            "http://other.example/1",
        ]
    )
}


THREE = {"/0": Page(["/a/1", "/a/2"]), "/a/1": Page(), "/a/2": Page()}


@pytest.fixture(scope="module")
def jobdir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job that is finished, for what changes nothing."""
    directory = tmp_path_factory.mktemp("job")
    with Site({"/0": Page()}) as site:
        crawl = Crawl(directory, "pages", f"{site.url}/0")
        assert crawl.run(**BY_SLOT) == 0
    return crawl.jobdir


def stop_before(site: Site, directory: Path, engine: Choice = "auto") -> Crawl:
    """A job that was stopped when it had found eight links."""
    crawl = Crawl(directory, "pages", f"{site.url}/0", engine=engine)
    assert crawl.run(CLOSESPIDER_PAGECOUNT=1, DOWNLOAD_DELAY=LONG_DELAY, **BY_SLOT) == 0
    return crawl


def operate(*arguments: object) -> str:
    done = altsched(*arguments)
    assert "Traceback" not in done.stderr
    assert done.returncode == 0, done.stderr
    return done.stdout


def pending(crawl: Crawl) -> set[str]:
    lines = operate("peek", crawl.jobdir, "-n", "100", "--json").splitlines()
    return {json.loads(line)["url"] for line in lines}


# Arguments


VERBS = [
    *[("pause", []), ("resume", []), ("stop", []), ("push", ["http://a.example/"])],
    *[("defer", ["a.example", "--for", "10m"]), ("undefer", ["a.example"])],
    *[("forget", ["http://a.example/"]), ("discard", ["--slot", "a.example"])],
]


@pytest.mark.parametrize(("verb", "rest"), VERBS, ids=[verb for verb, _ in VERBS])
def test_a_job_that_is_not_there(tmp_path: Path, verb: str, rest: list[str]) -> None:
    done = altsched(verb, tmp_path / "none", *rest)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"scrapy altsched {verb}: {tmp_path / 'none'} holds no job of" in done.stderr


@pytest.mark.parametrize(
    ("verb", "arguments", "message"),
    [
        ("pause", [], "name a JOBDIR, or a crawl with --shared KEY"),
        ("resume", ["JOB", "--shared", "a"], "name a JOBDIR, or a crawl with --shared KEY, not"),
        ("stop", ["JOB", "again"], "unrecognized arguments: again"),
        ("defer", ["JOB", "--for", "10m"], "name one download slot, not 0"),
        ("defer", ["JOB", "a", "b", "--for", "10m"], "name one download slot, not 2"),
        ("defer", ["JOB", "--for", "10m", "a", "b"], "name one download slot, not 2"),
        ("defer", ["JOB", "a"], "one of the arguments --for --until is required"),
        (
            "defer",
            ["JOB", "a", "--for", "1m", "--until", "2199-01-01"],
            "argument --until: not allowed with argument --for",
        ),
        (
            "defer",
            ["JOB", "a", "--for", "soon"],
            "--for 'soon' cannot be used: it must be a time, such as 10m",
        ),
        ("defer", ["JOB", "a", "--for", "day"], "--for 'day' cannot be used"),
        ("defer", ["JOB", "a", "--for", "-5"], "--for '-5' cannot be used"),
        ("defer", ["JOB", "a", "--for", "53w"], "a slot can be left alone for 365 days at the"),
        ("defer", ["JOB", "a", "--for", "9999999999w"], "a slot can be left alone for 365 days"),
        (
            "defer",
            ["JOB", "a", "--until", "tomorrow"],
            "--until 'tomorrow' cannot be used: it must be a time, such as 2026-12-01T08:00",
        ),
        ("defer", ["JOB", "a", "--until", "0001-01-01T00:00+14:00"], "--until '0001-01-01T00:00"),
        (
            "defer",
            ["JOB", "a", "--until", "2020-01-01T08:00+01:00"],
            "--until '2020-01-01T08:00+01:00' is over: it was 2020-01-01 07:00:00 (UTC)",
        ),
        ("defer", ["JOB", "a", "--until", "9999-12-31"], "a slot can be left alone for 365 days"),
        ("undefer", ["JOB"], "name one download slot, not 0"),
        ("undefer", ["--shared", "x"], "name one download slot, not 0"),
        ("forget", ["JOB"], "name URLs to forget, or a --pattern"),
        ("forget", ["JOB", "http://a/", "--pattern", "a"], "name URLs to forget, or a --pattern"),
        ("forget", ["JOB", "a.example"], "'a.example' cannot be forgotten: Missing scheme in"),
        (
            "forget",
            ["JOB", "--pattern", "*"],
            "--pattern '*' cannot be used: the include pattern '*' has a wildcard in its host",
        ),
        ("forget", ["JOB", "http://a/", "-a", "=x"], "-a takes NAME=VALUE, not '=x'"),
        ("discard", ["JOB"], "name what to discard, by --slot, --pattern or --depth-over"),
        ("discard", ["JOB", "--yes"], "name what to discard, by --slot, --pattern or --depth"),
        ("discard", ["JOB", "--depth-over", "-1"], "--depth-over must be 0 or more"),
        ("discard", ["JOB", "--depth-over", "x"], "argument --depth-over: invalid int value: 'x'"),
        ("discard", ["JOB", "--pattern", "/x"], "--pattern '/x' cannot be used: the include"),
    ],
)
def test_arguments_that_make_no_sense(
    jobdir: Path, verb: str, arguments: list[str], message: str
) -> None:
    done = altsched(verb, *[str(jobdir) if it == "JOB" else it for it in arguments])
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert "Traceback" not in done.stderr
    assert message in done.stderr


# Pausing, stopping


@BY_ENGINE
def test_a_job_that_does_not_run_is_paused_and_resumed(tmp_path: Path, engine: Choice) -> None:
    with Site(THREE) as site:
        crawl = stop_before(site, tmp_path, engine)
        resume = f"scrapy altsched resume {crawl.jobdir}"
        before = json.loads(operate("status", crawl.jobdir, "--json"))
        assert operate("pause", crawl.jobdir).startswith(
            "It is paused, also in later runs: no more requests are handed out. Go on with:"
            f" {resume}\n"
        )
        after = json.loads(operate("status", crawl.jobdir, "--json"))
        assert after["run_lasted"] == before["run_lasted"] == before["committed"]
        assert after["committed"] > before["committed"]
        process = crawl.start()
        crawl.wait_until(process, lambda: "paused" in crawl.log.lower())
        assert "paused" in operate("status", crawl.jobdir)
        assert site.order == ["/0"]
        assert operate("resume", crawl.jobdir) == "It is not paused: requests are handed out.\n"
        process.communicate(timeout=60)
        assert process.returncode == 0
        assert sorted(site.order) == sorted(THREE)


def test_a_status_that_is_damaged_keeps_no_command_from_its_work(
    tmp_path: Path, jobdir: Path
) -> None:
    shutil.copytree(jobdir, tmp_path / "job")
    (tmp_path / "job" / NAME).write_text("nonsense")
    assert "It is paused" in operate("pause", tmp_path / "job")
    assert "paused       since" in operate("status", tmp_path / "job")


def test_there_is_nothing_to_stop(jobdir: Path) -> None:
    answer = operate("stop", jobdir)
    assert answer == "There is nothing to stop.\nNo crawl of the job is running.\n"


# Leaving a slot alone


@BY_ENGINE
def test_a_slot_is_left_alone_by_the_next_run(tmp_path: Path, engine: Choice) -> None:
    def answer(path: str, _: int) -> Page:
        return Page(["/a", f"{site.url.replace('127.0.0.1', 'localhost')}/b"] * (path == "/0"))

    with Site(answer) as site:
        crawl = stop_before(site, tmp_path, engine)
        before = time.time()
        said = operate("defer", crawl.jobdir, "localhost", "--for", "2h")
        until = said.removeprefix("The slot 'localhost' is left alone at least until ")[:19]
        seconds = datetime.fromisoformat(until).replace(tzinfo=timezone.utc).timestamp()
        assert int(before) + 7_200 <= seconds <= time.time() + 7_200
        undo = f"scrapy altsched undefer {crawl.jobdir} localhost"
        assert said[said.index(" (UTC)") :].startswith(f" (UTC). Earlier with: {undo}\n")
        process = crawl.start(**BY_SLOT)
        crawl.wait_until(process, lambda: "/a" in crawl.item_paths())
        held = json.loads(operate("status", crawl.jobdir, "--json"))["held"]
        assert [it["slot"] for it in held] == ["localhost"]
        assert site.order == ["/0", "/a"]
        answered = operate("undefer", crawl.jobdir, "localhost")
        assert answered.startswith("The slot 'localhost' is asked again.\n")
        process.communicate(timeout=60)
        assert process.returncode == 0
        assert site.order == ["/0", "/a", "/b"]


def test_a_crawl_that_has_no_slots(tmp_path: Path) -> None:
    with Site(SITE) as site:
        crawl = Crawl(tmp_path, "pages", f"{site.url}/0")
        one_queue = {"SCHEDULER_PRIORITY_QUEUE": "scrapy.pqueues.ScrapyPriorityQueue"}
        assert crawl.run(CLOSESPIDER_PAGECOUNT=1, DOWNLOAD_DELAY=LONG_DELAY, **one_queue) == 0
    done = altsched("defer", crawl.jobdir, "trap.example", "--for", "2h")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines()[-1] == (
        "scrapy altsched defer: This crawl has one queue for all requests"
        " (SCHEDULER_PRIORITY_QUEUE), and cannot leave a slot alone. All of it waits with: scrapy"
        f" altsched pause {crawl.jobdir}"
    )


@pytest.mark.parametrize("text", ["{}T08:00", "{}T08:00Z", "{}T09:00+01:00"])
def test_a_time_without_an_offset_is_utc(jobdir: Path, text: str) -> None:
    day = datetime.fromtimestamp(time.time() + 3 * 86_400, timezone.utc).strftime("%Y-%m-%d")
    answer = operate("defer", jobdir, "a.example", "--until", text.format(day))
    assert f"is left alone at least until {day} 08:00:00 (UTC)" in answer


# Forgetting


def archived(directory: Path, site: Site) -> Crawl:
    """A crawl of three pages, in an archive of two parts, of which one is compressed."""
    crawl = Crawl(directory, "pages", f"{site.url}/0")
    settings = {"ALTSCHED_ARCHIVE": directory / "done.jsonl", "ALTSCHED_ARCHIVE_SIZE": 1}
    assert crawl.run(**settings) == 0
    assert (directory / "done.jsonl.gz").exists()
    assert len(list(archive.read_urls(directory / "done.jsonl"))) == 3
    return crawl


def host(site: Site) -> str:
    return site.url.removeprefix("http://")


def test_pages_that_are_forgotten_are_crawled_again(tmp_path: Path) -> None:
    with Site(THREE) as site:
        crawl = Crawl(tmp_path, "pages", f"{site.url}/0")
        assert crawl.run() == 0
        one = f"{site.url}/a/1"
        answer = operate("forget", crawl.jobdir, one, f"{site.url}/never", "-a", f"url={one}")
        assert answer.startswith("1 page is forgotten; 1 had not been seen.\n")
        answer = operate("push", crawl.jobdir, one, f"{site.url}/a/2", "-a", f"url={one}")
        assert answer.startswith("1 accepted, 1 seen before.\n")
        answer = operate("forget", crawl.jobdir, one, "-a", f"url={one}")
        left = "1 page is still to be crawled, and left as it is."
        assert answer.startswith(f"0 pages are forgotten; 0 had not been seen. {left}\n")
        assert crawl.run() == 0
        assert sorted(crawl.item_paths()) == ["/0", "/a/1", "/a/1", "/a/2"]


def test_pages_are_forgotten_by_a_pattern(tmp_path: Path) -> None:
    with Site(THREE) as site:
        crawl = archived(tmp_path, site)
        first = tmp_path / "done.jsonl"
        options = ["-s", f"ALTSCHED_ARCHIVE={first}", "-a", f"url={site.url}/0"]
        command = ["forget", crawl.jobdir, *options, "--pattern"]
        found = f"2 of 3 requests in {first} match.\n"
        done = altsched(*command, f"{host(site)}/a/")
        assert (done.returncode, done.stdout) == (2, found)
        no_terminal = "there is no terminal to ask on, so nothing was changed; --yes does it"
        assert no_terminal in done.stderr
        with Terminal(*command, f"{host(site)}/a/") as terminal:
            terminal.wait_for("Forget them? [y/N] ")
            assert found in terminal.shown
            terminal.type("n\n")
            assert terminal.finish() == 1
            assert terminal.shown.endswith("Nothing is forgotten.\n")
        assert operate(*command, f"{host(site)}/b/") == (
            f"No URL of 3 requests in {first} matches: nothing is forgotten.\n"
        )
        done = altsched(*command, host(site))
        assert (done.returncode, done.stdout) == (2, f"3 of 3 requests in {first} match.\n")
        assert "the pattern matches all that is in the archive; --yes forgets" in done.stderr
        answer = operate(*command, f"{host(site)}/a/", "--yes")
        assert answer.startswith(f"{found}2 pages are forgotten; 0 had not been seen.\n")
        answer = operate(*command, host(site), "--yes")
        forgotten = "1 page is forgotten; 2 had not been seen.\n"
        assert answer.startswith(f"3 of 3 requests in {first} match.\n{forgotten}")


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ([], "and ALTSCHED_ARCHIVE is not set. Name the URLs instead; or set it, for what is"),
        (["-s", "ALTSCHED_ARCHIVE=/none/x"], "and there is none in /none/x. Name the file of this"),
    ],
)
def test_a_crawl_without_an_archive(jobdir: Path, setting: list[str], sentence: str) -> None:
    done = altsched("forget", jobdir, "--pattern", "a.example", *setting)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"only in an archive a pattern finds any, {sentence}" in done.stderr


# Discarding


@BY_ENGINE
def test_a_spider_trap_is_discarded(tmp_path: Path, engine: Choice) -> None:
    with Site(SITE) as site:
        crawl = stop_before(site, tmp_path, engine)
    command = ["discard", crawl.jobdir, "--pattern", "trap.example/calendar/"]
    found = "5 of 8 pending and delayed requests are meant.\n  for example http://trap.example/cal"
    done = altsched(*command)
    assert done.returncode == 2
    assert done.stdout.startswith(found)
    assert done.stdout.count("for example") == 3
    assert "there is no terminal to ask on, so nothing was changed; --yes does it" in done.stderr
    for answer in ("\n", "\x04"):
        with Terminal(*command) as terminal:
            terminal.wait_for("Discard them? [y/N] ")
            assert found in terminal.shown
            terminal.type(answer)
            assert terminal.finish() == 1
            assert terminal.shown.endswith("Nothing is discarded.\n")
    assert len(pending(crawl)) == 8
    with Terminal(*command) as terminal:
        terminal.wait_for("Discard them? [y/N] ")
        terminal.type("y\n")
        assert terminal.finish() == 0
        assert "\n5 requests are discarded.\n" in terminal.shown
    assert not any("calendar" in url for url in pending(crawl))
    assert operate(*command, "--yes") == (
        "None of 3 pending and delayed requests is meant: nothing is discarded.\n"
    )
    rest = ["discard", crawl.jobdir, "--slot", "other.example", "--depth-over", "0", "--yes"]
    assert operate(*rest).splitlines() == [
        "1 of 3 pending and delayed requests are meant.",
        "  for example http://other.example/1",
        "1 request is discarded.",
        "No crawl of the job is running. It holds from the next one on.",
    ]
    answer = operate("discard", crawl.jobdir, "--depth-over", "0", "--yes")
    assert answer.startswith("These are all 2 pending and delayed requests.\n")
    assert pending(crawl) == set()


@BY_ENGINE
def test_what_is_in_flight_and_not_stored_yet_is_not_among_those_that_wait(
    tmp_path: Path, engine: Choice
) -> None:
    frontier = open_frontier(tmp_path, OWNER, Options(store=engine))
    for number in range(5):
        frontier.add(page(f"stored {number}"))
    frontier.commit()
    for number in range(5):
        frontier.add(page(f"new {number}"))
    leased = [take(frontier).entry.fingerprint for _ in range(8)]
    assert leased[0] == b"new 4"
    frontier.abandon()
    assert operate("discard", tmp_path, "--slot", "other.example", "--yes") == (
        "None of 2 pending and delayed requests is meant: nothing is discarded.\n"
    )


def test_a_job_that_does_not_run_has_the_settings_of_its_spider_if_that_can_be_loaded(
    tmp_path: Path,
) -> None:
    spiders = """
from scrapy import Spider

class Shop(Spider):
    name = "shop"
    custom_settings = {"ALTSCHED_SLOT_BUDGET": 1}
"""
    settings = 'SPIDER_MODULES = ["spiders"]\nADDONS = {"scrapy_altsched.Addon": 500}\n'
    # The job has a queue for each slot nevertheless.
    settings += 'SCHEDULER_PRIORITY_QUEUE = "scrapy.pqueues.ScrapyPriorityQueue"\n'
    project = write_project(tmp_path, **{"settings.py": settings, "spiders.py": spiders})
    job = tmp_path / "job"
    open_frontier(job, "shop").close()

    def push(name: str) -> str:
        return altsched("push", job, f"http://a.example/{name}", cwd=project).stdout

    assert push("first").startswith("1 accepted")
    assert "ALTSCHED_SLOT_BUDGET permits" in push("second")
    assert (
        "1 request is discarded"
        in altsched("discard", job, "--slot", "a.example", "--yes", cwd=project).stdout
    )
    # There is room again.
    assert push("second").startswith("1 accepted")
    (project / "spiders.py").write_text("def (\n")
    assert "It is paused" in altsched("pause", job, cwd=project).stdout
    done = altsched("push", job, "http://a.example/third", cwd=project)
    assert done.returncode == 2
    assert "the spiders of this project cannot be loaded (SyntaxError: " in done.stderr
    assert "Traceback" not in done.stderr
    (project / "spiders.py").write_text("import nowhere\n")
    done = altsched("push", job, "http://a.example/third", cwd=project)
    assert done.returncode == 1
    assert "need the module 'nowhere', which cannot be found: install" in done.stderr
    assert "Traceback" not in done.stderr
    # What needs no spider goes on without it.
    assert "It is not paused" in altsched("resume", job, cwd=project).stdout
    answer = " ".join(altsched("check", job, cwd=project).stdout.split())
    assert "not checked: the spiders of this project cannot be loaded" in answer


@BY_ENGINE
def test_requests_of_a_running_crawl(tmp_path: Path, engine: Choice) -> None:
    """Those of a trap are discarded, and one that has failed is made again."""
    go = threading.Event()
    links = [*(f"/trap/{number}" for number in range(5)), "/held", "/down"]

    def answer(path: str, before: int) -> Page:
        if path == "/down" and not before:
            return Page(status=503)
        return Page(links if path == "/0" else [], held=go if path == "/held" else None)

    with Site(answer) as site:
        crawl = Crawl(tmp_path, "pages", f"{site.url}/0", engine=engine)
        process = crawl.start(**ONE_BY_ONE)

        def has_failed() -> bool:
            answer = json.loads(operate("status", crawl.jobdir, "--json"))
            return bool(answer.get("counts", {}).get("failed"))

        site.wait_for(lambda it: it.order == ["/0", "/down", "/held"])
        crawl.wait_until(process, has_failed)
        assert operate("discard", crawl.jobdir, "--pattern", f"{host(site)}/trap/", "--yes") == (
            "These are all 5 pending and delayed requests.\n"
            + "".join(f"  for example {site.url}/trap/{number}\n" for number in (4, 3, 2))
            + "5 requests are discarded.\n"
        )
        again = ["requeue", crawl.jobdir, "--failed", f"{site.url}/down"]
        assert operate(*again) == "1 request is pending again; failed: 0.\n"
        go.set()
        process.communicate(timeout=60)
        assert process.returncode == 0
        assert site.order == ["/0", "/down", "/held", "/down"]


# Deaths


@BY_ENGINE
@pytest.mark.parametrize("who", ["crawl", "both"])
def test_a_push_in_the_midst_of_which_processes_die_is_taken_in_once(
    tmp_path: Path, engine: Choice, who: str
) -> None:
    """The command goes on where the crawl died, and the next run where both did."""
    lines = 20_000
    with Site({"/0": Page()}) as site:
        crawl = Crawl(tmp_path, "pages", f"{site.url}/0", engine=engine)
        assert crawl.run(**BY_SLOT) == 0
        operate("pause", crawl.jobdir)
        process = crawl.start(**BY_SLOT)
        crawl.wait_for_log(process, "The crawl is paused since")
        urls = tmp_path / "urls"
        urls.write_text(
            "".join(f"{json.dumps({'url': site.url, 'dont_filter': True})}\n" for _ in range(lines))
        )
        command = [sys.executable, "-m", "scrapy", "altsched", "push", crawl.jobdir, "-"]
        with urls.open() as given:
            push = subprocess.Popen(
                command, stdin=given, stdout=subprocess.PIPE, text=True, cwd=crawl.project
            )

        def accepted() -> int:
            status = read_status(crawl.jobdir)
            return 0 if status is None else status.standing.counts.accepted

        crawl.wait_until(process, lambda: accepted() > 1_000)
        if who == "both":
            push.kill()
        crawl.kill(process)
        output, _ = push.communicate(timeout=120)
        if who == "both":
            process = crawl.start(**BY_SLOT)
            crawl.wait_until(process, lambda: accepted() > lines)
            operate("stop", crawl.jobdir)
            process.communicate(timeout=60)
        else:
            assert f"{lines:,} accepted, 0 seen before." in output
        # The page of the first run, and each line once.
        assert f"requests  {lines + 1:,} accepted: 1 done" in operate("check", crawl.jobdir)


def test_a_request_that_cannot_be_stored_is_not_pushed(tmp_path: Path) -> None:
    """It would end with the process, and no page would bring it again."""
    with Site({"/0": Page()}) as site:
        crawl = Crawl(tmp_path, "pages", f"{site.url}/0")
        assert crawl.run(**BY_SLOT) == 0
        done = altsched("push", crawl.jobdir, f"{site.url}/1", "--callback", "__class__")
    assert "Traceback" not in done.stderr
    assert "0 accepted, 1 refused" in done.stdout
    assert "/1 cannot be stored: " in done.stdout
    assert "requests  1 accepted: 1 done" in operate("check", crawl.jobdir)


def test_an_action_whose_file_is_deleted_is_not_waited_for(tmp_path: Path) -> None:
    with Site({"/0": Page()}) as site:
        crawl = Crawl(tmp_path, "pages", f"{site.url}/0")
        assert crawl.run(**BY_SLOT) == 0
        operate("pause", crawl.jobdir)
        process = crawl.start(**BY_SLOT)
        crawl.wait_for_log(process, "The crawl is paused since")
        process.send_signal(signal.SIGSTOP)
        command = [sys.executable, "-m", "scrapy", "altsched", "resume", crawl.jobdir]
        resume = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=crawl.project)
        spool = crawl.jobdir / "altsched.actions"
        crawl.wait_until(process, lambda: any(spool.glob("*.action")))
        shutil.rmtree(spool)
        _, errors = resume.communicate(timeout=60)
        assert resume.returncode == 1
        assert "is gone from" in errors
        process.send_signal(signal.SIGCONT)
        operate("stop", crawl.jobdir)
        process.communicate(timeout=60)
