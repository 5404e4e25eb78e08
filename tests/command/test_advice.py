"""Whoever follows what the commands advise, word by word, ends with a job that is good."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from scrapy_altsched.frontier.store.jobdir import REPAIRED
from scrapy_altsched.frontier.store.journal import Journal
from scrapy_altsched.frontier.store.records import Batch
from scrapy_altsched.frontier.store.view import View
from scrapy_altsched.maintenance.audit import audit

from ..crawls import altsched
from ..damage import overwrite_requests
from ..frontiers import OWNER, work_off
from ..maintenance.test_repair import (
    Job,
    deaths,  # noqa: F401  (a fixture)
    died,  # noqa: F401  (a fixture)
    job,  # noqa: F401  (a fixture)
    open_job,
)

RESUME = "run the crawl again"
pytestmark = pytest.mark.rocksdb


@pytest.fixture
def engine() -> str:
    """That of the jobs here, in whose files the damage is."""
    return "rocksdb"


def advice_in(text: str) -> str | None:
    """The arguments of the command that is named first."""
    found = re.search(r"`scrapy altsched ([^`]*)`", text)
    return found[1] if found else None


def follow(first: str, path: Path) -> list[str]:
    """Run *first*, then what that advises, and so on, until a check finds nothing wrong.

    :return: the options of each command.
    """
    trail, advice = [], first
    while len(trail) < 6:
        arguments = shlex.split(advice)
        trail.append(" ".join(word for word in arguments if word not in ("check", str(path))))
        run = altsched(*arguments)
        assert "Traceback" not in run.stderr, run.stderr
        if run.returncode == 0:
            assert "good" in run.stdout
            return trail
        found = advice_in(run.stdout)
        if found is None:
            assert RESUME in run.stdout, run.stdout + run.stderr
            open_job(path).close()
            found = advice
        advice = found
    raise AssertionError(f"the advice leads nowhere: {trail}")


def without_current(path: Path) -> None:
    (path / "frontier" / "CURRENT").unlink()


def without_log(path: Path) -> None:
    for log in (path / "frontier").glob("*.log"):
        log.unlink()


def with_damaged_requests(path: Path) -> None:
    tables = (path / "frontier").glob("*.sst")
    overwrite_requests(max(tables, key=lambda table: table.stat().st_size))


def with_two_slots_of_one_name(path: Path) -> None:
    journal = Journal(path, OWNER)
    (first, count, _), (_, _, name), *_ = journal.slots()
    journal.write(
        Batch(journal.counters(), slots=[(first.to_bytes(8, "big"), count, name)]), wait=True
    )
    journal.close()


def with_wrong_counts(path: Path) -> None:
    journal = Journal(path, OWNER)
    counters = journal.counters()
    journal.write(Batch(replace(counters, accepted=counters.accepted + 3)), wait=True)
    journal.close()


def with_the_store_of_another_copy(path: Path) -> None:
    other = path.with_name("other")
    open_job(other).close()
    shutil.rmtree(path / "frontier")
    (other / "frontier").rename(path / "frontier")


def with_a_repair_cut_short(path: Path) -> None:
    (path / "frontier").rename(path / REPAIRED)


REPAIR = ["", "--repair"]
ACCEPT = [*REPAIR, "--accept-loss"]


@pytest.mark.parametrize(
    ("damage", "trail"),
    [
        (without_current, REPAIR),
        (without_log, ["", ""]),
        (with_damaged_requests, ACCEPT),
        (with_two_slots_of_one_name, REPAIR),
        (with_wrong_counts, ACCEPT),
        (with_the_store_of_another_copy, REPAIR),
        (with_a_repair_cut_short, [""]),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_the_check_advises_makes_the_job_good(
    job: Job,  # noqa: F811
    damage: Callable[[Path], None],
    trail: list[str],
) -> None:
    path = job.path.with_name("a job's directory")  # to be quoted
    job.path.rename(path)
    damage(path)
    assert follow(f"check {shlex.quote(str(path))}", path) == trail
    frontier = open_job(path)
    pending = frontier.pending
    assert len(work_off(frontier)) == pending
    assert frontier.job.damage is None
    assert frontier.counts().unaccounted == 0
    frontier.close(finished=True)


def test_the_advice_goes_on_with_the_name_of_the_spider(job: Job) -> None:  # noqa: F811
    without_current(job.path)
    (job.path / "altsched.json").unlink()
    assert "--spider NAME --repair" in altsched("check", job.path).stderr
    first = f"check {job.path} --spider {OWNER}"
    assert follow(first, job.path) == [f"--spider {OWNER}", f"--spider {OWNER} --repair"]


def test_a_repair_that_does_not_help_is_not_made_and_does_not_advise_itself(
    job: Job,  # noqa: F811
) -> None:
    with_damaged_requests(job.path)
    altsched("check", "--repair", job.path)
    run = altsched("check", "--repair", job.path)
    assert run.returncode == 1
    assert advice_in(run.stdout) == f"check {job.path} --accept-loss"
    assert not (job.path / "frontier.damaged-2").exists()


@pytest.mark.parametrize("subcommand", ["check", "requeue", "refingerprint"])
def test_what_is_no_job_directory_is_said_to_be_none(
    job: Job,  # noqa: F811
    subcommand: str,
    tmp_path: Path,
) -> None:
    file = tmp_path / "items.jsonl"
    file.write_text("{}\n")
    for path, why in {
        file: "it is a file, not a directory. Name the directory that the crawl has as its JOBDIR",
        tmp_path / "nothing": "it does not exist",
        tmp_path / ("x" * 300): "File name too long. Set JOBDIR to a directory",
        tmp_path: "it has no file altsched.json",
        job.path / "altsched.json": f"Name its parent, {job.path}, which does",
        job.path / "frontier": f"Name its parent, {job.path}, which does",
    }.items():
        run = altsched(subcommand, path)
        assert run.returncode == 1
        assert why in run.stderr
        assert "delete" not in run.stderr
        assert "Traceback" not in run.stderr
    shutil.rmtree(job.path / "frontier")
    run = altsched("check", job.path)
    assert run.returncode == 1
    assert "its store" in run.stderr
    assert "is not there" in run.stderr
    assert "Traceback" not in run.stderr


class Name(str):
    """A slot's name that counts what it is compared with."""

    compared = 0
    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        Name.compared += 1
        return str.__eq__(self, other)


def test_a_check_compares_no_slot_with_all_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_job(tmp_path / "job").close()
    count = 5_000

    def slots(_: View) -> Iterator[tuple[int, int, str]]:
        return ((number, 0, Name(number)) for number in range(count))

    monkeypatch.setattr(View, "slots", slots)
    with View(tmp_path / "job" / "frontier") as view:
        assert audit(view) == []
    assert Name.compared <= count
