"""The benchmarks run, call as a real engine does, and do the same work with every scheduler."""

from __future__ import annotations

import fcntl
import inspect
import json
import os
import pickle
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

import pytest
from rich.console import Console
from scrapy import Request
from scrapy.core.downloader import Downloader

from benchmarks import plot, report
from benchmarks.__main__ import _plan, parser
from benchmarks.contenders import CONTENDERS, OURS, SHARED, STORES, Contender
from benchmarks.engine import CONCURRENCY, BudgetExceeded, Clock, Crawl, link, start_request
from benchmarks.goals import goals
from benchmarks.runner import FailedError, Task, run
from benchmarks.summary import Results, Summary, disagreements
from benchmarks.workloads import WORKLOADS, Outcome

from ..calls import RecordingScheduler
from ..sites import random_graph

ROOT = Path(__file__).parents[2]
TINY = ["--rounds", "1", "--scale", "0.002", "--grow", "1000000"]
#: Two sites' first pages have hundreds of links each.
STOCK = ["stock-memory", "stock-disk", "stock-disk-one", "stock-sqlite"]
WITHOUT_PEERS = {"backlog", "delayed", "slow_hosts", "trap", "status"}
WITHOUT_PEERS |= {"shared_workers", "shared_pace", "shared_budget"}
#: Of which nothing but figures comes.
WITHOUT_WORK = {"slow_hosts", "status", "shared_memory", "shared_workers"}
LOCAL = [*STOCK, "altsched-memory", *STORES]
#: The first one that wants the results waits for all workloads.
pytestmark = pytest.mark.timeout(900)


def measure() -> Results:
    found: Results = {}
    options = parser().parse_args(TINY)
    for workload, case, names, _ in _plan(options, [*LOCAL, *SHARED]):
        if workload in found and workload != "grow":
            continue  # one size will do, but growing has one for all and one for ours
        # All of them once; whether they do the same work needs two.
        measured = {"stock-disk", *STORES, *(SHARED if workload.startswith("shared") else ())}
        for name in LOCAL if workload == "unique" else measured & set(names):
            summary = Summary([run(Task(workload, name, case.parameters), None, 120)])
            found.setdefault(workload, {}).setdefault(case.title, {})[name] = summary
    return found


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory, worker_id: str, testrun_uid: str) -> Results:
    """Every workload, tiny; of several processes that test, the first one runs them for all."""
    base = tmp_path_factory.getbasetemp()
    path = (base if worker_id == "master" else base.parent) / f"results of {testrun_uid}"
    with path.open("ab+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if not path.stat().st_size:
            pickle.dump(measure(), file)
            file.flush()
        file.seek(0)
        found: Results = pickle.load(file)
        return found


# As a real engine


def in_the_real_engine(graph: dict[str, list[str]]) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "tests.calls", json.dumps(graph)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def in_the_stand_in(graph: dict[str, list[str]]) -> list[dict[str, Any]]:
    def scrape(page: Request) -> list[Request]:
        return [link(urljoin(page.url, path), page) for path in graph[urlsplit(page.url).path]]

    crawl = Crawl({"SCHEDULER": RecordingScheduler})
    crawl.enqueue([start_request("http://127.0.0.1:8000/0")])
    crawl.run(scrape)
    crawl.close()
    return crawl.crawler.calls  # type: ignore[attr-defined]


def test_the_stand_in_calls_as_the_real_engine_does() -> None:
    pages = random_graph(120, 8, seed=5)
    graph = {path: page.links for path, page in pages.items()}
    both = in_the_real_engine(graph), in_the_stand_in(graph)
    for calls in both:
        start, *enqueued = [call for call in calls if call["call"] == "enqueue"]
        taken = [call for call in calls if call["call"] == "next"]
        assert (start["meta"], start["headers"]) == (["is_start_request"], [])
        for call in enqueued:
            # What the spider middlewares and the offsite middleware have left on it.
            assert (call["meta"], call["headers"]) == (["depth"], ["Referer"])
            assert call["is_parsed"]
            assert not call["callback"]
            assert call["page_in_progress"], "a page was done before its links were enqueued"
        for call in taken:
            assert call["downloads"] < CONCURRENCY
            assert call["downloads"] <= call["in_progress"]
            assert call["are_in_progress"]
            assert call["url"] is not None or call["requests"] == 0
        # More is under way than is downloaded: pages wait for their callbacks.
        assert max(call["in_progress"] for call in taken) > CONCURRENCY
    # What was just taken has no slot yet, where middlewares are awaited.
    real, stand_in = (
        {call["downloads"] - call["downloads_in_slots"] for call in calls if call["call"] == "next"}
        for calls in both
    )
    assert stand_in >= {0, 1, 2, 3}
    if inspect.iscoroutinefunction(Downloader._enqueue_request):
        assert real >= {0, 1, 2, 3}
    real, stand_in = (
        Counter(urlsplit(call["url"]).path for call in calls if call["call"] == "enqueue")
        for calls in both
    )
    assert real == stand_in
    real, stand_in = (
        Counter(
            urlsplit(call["url"]).path for call in calls if call["call"] == "next" and call["url"]
        )
        for calls in both
    )
    assert real == stand_in


# The workloads


@pytest.mark.long
@pytest.mark.rocksdb
def test_every_workload_runs(results: Results) -> None:
    assert list(results) == list(WORKLOADS)
    for workload, cases in results.items():
        measured = {name for summaries in cases.values() for name in summaries}
        assert measured & {OURS, SHARED[1]}
        assert measured & {"stock-disk", SHARED[0]} or workload in WITHOUT_PEERS


@pytest.mark.long
@pytest.mark.rocksdb
def test_every_scheduler_did_the_same_work(results: Results) -> None:
    assert disagreements(results) == []
    for workload, cases in results.items():
        for summaries in cases.values():
            does_work = workload not in WITHOUT_WORK
            assert all(bool(found.outcomes[0].work) == does_work for found in summaries.values())


def test_other_work_is_told() -> None:
    same, other = Outcome({}, {"all": "7 taken"}), Outcome({}, {"all": "8 taken"})
    results = {"unique": {"8": {"stock-disk": Summary([same]), OURS: Summary([same, other])}}}
    (sentence,) = disagreements(results)
    assert "altsched-disk did something else (8 taken) than stock-disk (7 taken)" in sentence


@pytest.mark.long
@pytest.mark.rocksdb
def test_the_tables_have_every_figure(results: Results) -> None:
    sheets = {sheet.title: sheet for sheet in report.sheets(results)}
    assert list(sheets)[1:] == list(WORKLOADS)
    for sheet in sheets.values():
        for row in sheet.rows:
            assert len(row) == len(sheet.headings)
    for row in sheets["stream"].rows:
        assert all(row), row
    ratios = [row for row in sheets["unique"].rows if row[1] == "times ours"]
    assert [row[2 + LOCAL.index(OURS)] for row in ratios] == ["1.00"]


@pytest.mark.long
@pytest.mark.rocksdb
def test_the_goals_are_held_against_the_figures(results: Results) -> None:
    assert [goal.what for goal in goals(results) if goal.what.startswith("grow")]
    ours, theirs = Summary([Outcome({"cost": 2.0})]), Summary([Outcome({"cost": 15.0})])
    cases = {"200,000": {OURS: ours, "stock-disk": theirs}}
    (goal,) = goals({"unique": cases})
    assert (goal.value, goal.bound, goal.is_reached) == (7.5, 6, True)
    assert not goals({"unique": {"200,000": {OURS: theirs, "stock-disk": ours}}})[0].is_reached


def test_ours_on_sqlite_is_to_be_faster_than_scrapys_own() -> None:
    ours, theirs = Summary([Outcome({"take": 2.0})]), Summary([Outcome({"take": 15.0})])
    cases = {"10 hosts": {"altsched-sqlite": ours, "stock-sqlite": theirs}}
    (goal,) = goals({"hosts": cases})
    assert (goal.value, goal.is_reached) == (7.5, True)


@pytest.mark.parametrize(
    ("grow", "full"), [("1000000", [*STORES]), ("1000001", [OURS])], ids=["suits", "too large"]
)
def test_sqlite_grows_as_far_as_it_suits(grow: str, full: list[str]) -> None:
    options = parser().parse_args(["--only", "grow", "--grow", grow])
    planned = {case.title: names for _, case, names, _ in _plan(options, LOCAL)}
    assert planned == {"100,000": LOCAL, f"{int(grow):,}": full}


@pytest.mark.long
@pytest.mark.rocksdb
def test_all_of_it_is_written(results: Results, tmp_path: Path) -> None:
    report.write(tmp_path, results, {"machine": "a machine"}, 1)
    written = json.loads((tmp_path / "benchmarks.json").read_text())
    assert written["machine"] == {"machine": "a machine"}
    assert set(written["results"]) == set(WORKLOADS)
    assert "a machine" in (tmp_path / "benchmarks.rst").read_text()
    names = {path.name for path in plot.draw(tmp_path, results)}
    assert names == {"hosts.png", "hosts.svg", "grow.png", "grow.svg"}


def test_the_command_prints_a_table() -> None:
    command = [sys.executable, "-m", "benchmarks", *TINY, "--only", "unique"]
    command += ["--contenders", "stock-memory", "altsched-disk"]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "COLUMNS": "200"}
    )
    assert done.returncode == 0, done.stderr
    assert "altsched-disk" in done.stdout
    assert "times ours" in done.stdout


def test_a_run_that_fails_says_why() -> None:
    with pytest.raises(FailedError, match="unexpected keyword argument 'nonsense'"):
        run(Task("unique", OURS, {"nonsense": 1}), None, 60)


def test_a_failure_is_in_the_table() -> None:
    failed = Summary(failure="OSError: Too many open files")
    results = {"hosts": {"100 hosts": {"stock-disk": failed}}}
    (sheet,) = report.sheets(results)
    assert sheet.notes == ["100 hosts: stock-disk failed: OSError: Too many open files."]
    report.show(Console(quiet=True), results, {})


def test_a_slow_scheduler_is_stopped() -> None:
    crawl = Crawl({"ADDONS": {}}, Clock(), budget=0)
    crawl.enqueue([start_request("https://a.example/")])
    with pytest.raises(BudgetExceeded):
        crawl.run(lambda page: [link(page.url + "x", page)])


@pytest.mark.long
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.rocksdb if name == OURS else ()) for name in LOCAL],
)
def test_a_contender_is_what_it_is_called(name: str, tmp_path: Path) -> None:
    contender: Contender = CONTENDERS[name]
    crawl = Crawl(contender.settings_in(tmp_path, None))
    page = start_request("https://a.example/")
    crawl.enqueue([page, *(link(f"https://a.example/{n}", page) for n in range(3))])
    stats: dict[str, Any] = crawl.crawler.stats.get_stats()  # type: ignore[union-attr]
    assert stats.get("scheduler/enqueued/disk", 0) == (4 if contender.on_disk else 0)
    assert type(crawl.scheduler).__module__.startswith(
        "scrapy_altsched" if name.startswith("altsched") else "scrapy."
    )
    files = [path.name for path in tmp_path.rglob("*") if path.is_file()]
    assert ("altsched.json" in files) == (name in STORES)
    assert ("store.sqlite" in files) == (name == "altsched-sqlite")
    crawl.close()
