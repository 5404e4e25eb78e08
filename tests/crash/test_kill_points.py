"""A SIGKILL at every step that a job takes on its disk, and at every step of a crawl."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from scrapy_altsched.frontier.entry import DeadLetter
from scrapy_altsched.frontier.local.frontier import LocalFrontier
from scrapy_altsched.frontier.store.engines import Choice
from scrapy_altsched.frontier.store.view import View
from scrapy_altsched.maintenance.audit import audit
from scrapy_altsched.maintenance.opening import open_frontier, visit
from scrapy_altsched.maintenance.requeue import dead_requests, requeue

from ..crawls import KILLED, Crawl
from ..crawls import assert_complete as assert_crawl_complete
from ..frontiers import OWNER, DiskKind, name_of, page, problems_of, take
from ..killing import BESIDE
from ..project.crashsite.killpoints import STEPS
from ..scenarios import ALL, FIFO, OTHER, Foreign, crawl, fifo, finish, next_lease, start
from ..sites import Site, random_graph
from ..stores import BY_ENGINE


def silent(_: str) -> None:
    pass


@dataclass(frozen=True)
class Kill:
    """A death of the process.

    :ivar path: what was left of the job directory.
    :ivar point: phase of the scenario, call, kind of the file.
    :ivar part: how much of its data a write had written, from 0 to 1.
    """

    path: Path
    point: tuple[str, str, str]
    part: float


def kills(
    scenario: str, engine: Choice, image: Path, into: Path, *phase: str, most: int = 1_000
) -> list[Kill]:
    """Kill the scenario before and inside of each of its steps, or of those of a phase.

    :param most: of how many steps of a kind.
    """
    name = f"tests.scenarios:{scenario}"
    command = [sys.executable, "-m", "tests.killing", name, engine, image, into, str(most), *phase]
    run = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, check=True)
    lines = [json.loads(line) for line in run.stdout.splitlines()]
    return [
        Kill(into / line["path"], (line["phase"], line["call"], line["file"]), line["part"])
        for line in lines
    ]


def assert_complete(frontier: LocalFrontier) -> None:
    """Every page is done, and nothing else is there."""
    assert problems_of(frontier) == []
    counts = frontier.counts()
    assert (counts.left, counts.dead, counts.unaccounted) == (0, 0, 0)
    assert counts.done + counts.failed == len(ALL)
    assert all(frontier.mark_seen(name.encode()) for name in ALL)
    frontier.close(finished=True)


# What a job is before the process is killed


def nothing(tmp_path: Path, engine: Choice) -> Path:
    return tmp_path / "nothing"


def died(tmp_path: Path, engine: Choice) -> Path:
    """A job whose process died: tables, a log, suspects, one of which died alone."""
    disk = DiskKind(tmp_path, engine)
    frontier = disk.open(FIFO)
    start(frontier)
    frontier.commit()
    crawl(frontier, silent, 2)
    for _ in range(2):
        frontier.commit()
        take(frontier)
        disk.crash(frontier)
        frontier = disk.open(FIFO)
    take(frontier)
    image = disk.image()
    frontier.abandon()
    return image


def stopped(tmp_path: Path, engine: Choice) -> Path:
    """A job that was closed, with requests in several slots."""
    frontier = open_frontier(tmp_path / "job", OWNER, fifo(engine))
    start(frontier)
    crawl(frontier, silent, 3)
    frontier.close()
    return tmp_path / "job"


def with_dead(tmp_path: Path, engine: Choice) -> Path:
    """A job that has nothing but dead letters left."""
    frontier = open_frontier(tmp_path / "job", OWNER, fifo(engine))
    start(frontier)
    crawl(frontier, silent, 1)
    while (lease := next_lease(frontier)) is not None:
        frontier.dead_letter(lease, DeadLetter(f"{name_of(lease)} cannot be crawled"))
    frontier.close()
    return tmp_path / "job"


# How it goes on


def go_on(path: Path, engine: Choice) -> LocalFrontier:
    return finish(path, fifo(engine))


def go_on_in_either_order(path: Path, engine: Choice) -> LocalFrontier:
    other = path.with_name(f"{path.name} in the old order")
    shutil.copytree(path, other)
    assert_complete(finish(other, FIFO))
    return finish(path, OTHER)


def requeue_again(path: Path, engine: Choice) -> LocalFrontier:
    frontier = visit(path, OWNER, FIFO)
    dead = list(dead_requests(frontier.dead()))
    assert len(dead) <= 5
    requeue(frontier, dead, lambda _: ("elsewhere", False))
    frontier.close()
    return finish(path, FIFO)


def take_over_again(path: Path, engine: Choice) -> LocalFrontier:
    return finish(path, fifo(engine), source=Foreign())


_WRITING_BACK = [
    *[("fdatasync", "store.sqlite-wal"), ("pwrite64", "store.sqlite")],
    *[("fdatasync", "store.sqlite"), ("ftruncate", "store.sqlite-wal")],
    ("pwrite64", "store.sqlite-wal"),  # the first commit of the new log
]
#: Engine -> what a job does -> calls, and kinds of files, that it must be killed at meanwhile.
POINTS = {
    "rocksdb": {
        "open": [
            *[("openat", "#.log"), ("write", "MANIFEST-#"), ("fdatasync", "MANIFEST-#")],
            *[("write", "#.dbtmp"), ("rename", "#.dbtmp")],
        ],
        "recover": [("write", "#.sst"), ("unlink", "#.log")],
        "commit": [("write", "#.log"), ("pwrite64", "altsched.commit")],
        "close": [("fdatasync", "#.log"), ("write", "#.sst"), ("unlink", "#.log")],
    },
    "sqlite": {
        "create": [
            *[("pwrite64", "store.sqlite-journal"), ("fdatasync", "store.sqlite-journal")],
            *[("pwrite64", "store.sqlite"), ("unlink", "store.sqlite-journal")],
        ],
        "open": [("openat", "store.sqlite"), ("openat", "store.sqlite-wal")],
        "commit": [("pwrite64", "store.sqlite-wal"), ("pwrite64", "altsched.commit")],
        "write back": _WRITING_BACK,
        "close": [*_WRITING_BACK, ("unlink", "store.sqlite-wal")],
    },
}
LEASE = ("pwrite64", "altsched.leases.#")
#: Engine -> of how many steps of a kind a process is killed in a commit of thousands.
MOST = {"rocksdb": 1_000, "sqlite": 10}


@pytest.mark.timeout(1200)  # several hundred processes
@BY_ENGINE
@pytest.mark.parametrize(
    ("scenario", "before", "after", "expected"),
    [
        pytest.param(
            "first_run",
            nothing,
            go_on,
            {
                "create": [
                    *["create", "open", ("mkdir", "frontier.partial")],
                    *[("rename", "frontier.partial"), ("fsync", "altsched.json.partial")],
                    *[("rename", "altsched.json.partial"), ("openat", "altsched.lock")],
                ],
                "commit": ["commit", LEASE],
                "lease": [LEASE],
                "close": ["commit", "close"],
            },
            marks=pytest.mark.slow,
        ),
        # With the oldest versions, too: it reads what a death has left.
        (
            "later_run",
            died,
            go_on,
            {
                "open": ["open", "recover", "commit"],
                "commit": ["commit", LEASE],
                "lease": [LEASE],
                BESIDE: ["write back"],
                "close": ["commit", "close"],
            },
        ),
        pytest.param(
            "other_order",
            stopped,
            go_on_in_either_order,
            {"reorder": ["open", "commit"]},
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "second_chance",
            with_dead,
            requeue_again,
            {"requeue": ["open", "commit"], "close": ["close"]},
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "import_job",
            nothing,
            take_over_again,
            {"import": ["open", "commit", ("rename", "frontier.partial")], "close": ["close"]},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_kill_at_any_step_on_the_disk_loses_nothing(
    tmp_path: Path,
    engine: Choice,
    scenario: str,
    before: Callable[[Path, Choice], Path],
    after: Callable[[Path, Choice], LocalFrontier],
    expected: dict[str, list[str | tuple[str, str]]],
) -> None:
    wanted = {
        (phase, *point)
        for phase, doings in expected.items()
        for doing in doings
        for point in (POINTS[engine].get(doing, ()) if isinstance(doing, str) else [doing])
    }
    image = before(tmp_path, engine)
    into = tmp_path / "killed"
    into.mkdir()
    reached = kills(scenario, engine, image, into)
    inside = sum(kill.part > 0 for kill in reached)
    print(f"{scenario}, {engine}: {len(reached)} kills, {inside} of them inside of a write")
    assert wanted <= {kill.point for kill in reached}
    assert {kill.point[0] for kill in reached if kill.part} >= {phase for phase, *_ in wanted}
    for kill in reached:
        frontier = after(kill.path, engine)
        try:
            assert_complete(frontier)
        except AssertionError as error:
            raise AssertionError(f"killed at {kill.point}, {kill.part} of it done") from error
        finally:
            frontier.abandon()
        shutil.rmtree(kill.path)


@pytest.mark.timeout(1800)
@BY_ENGINE
@pytest.mark.parametrize(
    ("scenario", "done", "added"),
    [
        ("commit_of_some", 5, 20),
        pytest.param("commit_of_thousands", 5_000, 20_000, marks=pytest.mark.slow),
    ],
)
def test_a_kill_at_any_step_of_a_commit_parts_no_note_from_the_ends_that_it_tells_of(
    tmp_path: Path, engine: Choice, scenario: str, done: int, added: int
) -> None:
    image = tmp_path / "job"
    frontier = open_frontier(image, OWNER, fifo(engine))
    for number in range(done):
        frontier.add(page(f"page {number}", str(number % 5)))
    frontier.close()
    into = tmp_path / "killed"
    into.mkdir()
    reached = kills(scenario, engine, image, into, "commit", most=MOST[engine])
    found = set()
    for kill in reached:
        frontier = open_frontier(kill.path, OWNER, FIFO)
        counts = frontier.counts()
        found.add((frontier.run.note("done"), counts.done))
        assert counts.unaccounted == 0
        if counts.done:
            assert counts.pending >= added
        frontier.abandon()
        shutil.rmtree(kill.path)
    print(f"{scenario}, {engine}: {len(reached)} kills")
    assert found == {(None, 0), (str(done).encode(), done)}


@pytest.mark.timeout(1200)  # more than sixty crawls
@BY_ENGINE
def test_a_crawl_killed_before_and_after_each_of_its_steps_loses_nothing(
    tmp_path: Path, engine: Choice
) -> None:
    rng = random.Random(1)
    graph = random_graph(1_500, 2, 1)
    points = [f"{when} {step}" for step in STEPS for when in ("before", "after")]
    rng.shuffle(points)
    with Site(graph) as site:
        job = Crawl(tmp_path, "pages", f"{site.url}/0", engine=engine)
        # A first one, so that there is something to resume.
        assert job.run(CLOSESPIDER_ITEMCOUNT=4) == 0
        for point in points:
            # At one of the first times that it comes there, if it does so more than once; a page
            # may come by a step just once, or share it with others.
            time = 1 if STEPS[point.partition(" ")[2]].once else rng.randrange(1, 6)
            settings = {
                "KILL_POINT": point,
                "KILL_TIME": time,
                # On a busy machine several pages share a commit.
                "CLOSESPIDER_ITEMCOUNT": 5 * (time - 1) + rng.randrange(4, 8),
                # The same page may well be under way again and again.
                "ALTSCHED_MAX_CRASHES": 1_000,
                "ALTSCHED_COMMIT_EVERY": 1,
                # With less, Scrapy 2.13 may fetch a hundred pages ahead of the callbacks.
                "SCRAPER_SLOT_MAX_ACTIVE_SIZE": 20_000,
            }
            assert job.run(**settings) == KILLED, f"{point} was not reached, with {settings}"
            with View(job.jobdir / "frontier") as view:
                assert audit(view) == [], f"killed {point}, with {settings}"
        assert len(site.hits) < len(graph), "it was at its end before all points were visited"
        assert job.run() == 0
        assert_crawl_complete(job, site, set(graph))
