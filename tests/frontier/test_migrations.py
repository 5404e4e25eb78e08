"""An older format of a job is brought up to date, in one go or not at all."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from scrapy_altsched.errors import JobdirMismatchError
from scrapy_altsched.frontier import Options
from scrapy_altsched.frontier.entry import Cause, DeadLetter
from scrapy_altsched.frontier.store import jobdir as jobdir_module
from scrapy_altsched.frontier.store import migrations
from scrapy_altsched.frontier.store.database import RowBatch
from scrapy_altsched.frontier.store.engines import Choice
from scrapy_altsched.frontier.store.jobdir import FORMAT, Identity, Jobdir
from scrapy_altsched.frontier.store.journal import Journal
from scrapy_altsched.frontier.store.records import Batch
from scrapy_altsched.frontier.store.states import DEAD, PENDING, decode_value
from scrapy_altsched.frontier.store.store import Store
from scrapy_altsched.frontier.store.view import View
from scrapy_altsched.maintenance.audit import audit
from scrapy_altsched.maintenance.opening import open_frontier

from ..frontiers import OWNER, journal_of, lease_from, page, problems_of, stored, work_off
from ..stores import BY_ENGINE

Step = Callable[[Store], Batch]


class Death(BaseException):
    """What cannot be caught."""


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """A job of the format that is the newest one now."""
    frontier = open_frontier(tmp_path / "job", OWNER)
    frontier.add(page("a"))
    frontier.add(page("b"))
    frontier.close()
    return tmp_path / "job"


def set_format(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    for module in (jobdir_module, migrations):
        monkeypatch.setattr(module, "FORMAT", number)


@pytest.fixture
def add_format(monkeypatch: pytest.MonkeyPatch) -> Callable[[Step], None]:
    """Makes the present formats older ones, with a step to one that is newer."""
    monkeypatch.setattr(migrations, "STEPS", dict(migrations.STEPS))

    def add(step: Step) -> None:
        migrations.STEPS[jobdir_module.FORMAT] = step
        set_format(monkeypatch, jobdir_module.FORMAT + 1)

    return add


def upper(store: Store) -> Batch:
    """The made-up newer format has its payloads in capitals."""
    batch = Batch(store.counters())
    batch.stored[PENDING] += [(key, value.upper()) for key, value in store.pending()]
    return batch


def noting(text: bytes) -> Step:
    def step(store: Store) -> Batch:
        before = store.note("steps") or b""
        return Batch(store.counters(), notes={"steps": before + text})

    return step


def stated_format(path: Path) -> int:
    return int(json.loads((path / "altsched.json").read_text())["format"])


REASONS = {
    "a": "it cannot be restored: its callback is gone",
    "b": "given up, since it cannot be restored: its callback is gone",
    "c": "it ended the process",
}


@pytest.fixture
def job_of_format_2(tmp_path: Path) -> Path:
    """A job with three dead letters as format 2 has them, and a pending request."""
    path = tmp_path / "of format 2"
    frontier = open_frontier(path, OWNER)
    for name in ("d", *reversed(REASONS)):
        frontier.add(page(name))
    for _ in REASONS:
        lease = lease_from(frontier)
        assert lease is not None
        frontier.dead_letter(lease, DeadLetter(""))
    frontier.close()
    journal = Journal(path, OWNER)
    identity = replace(Identity.parse(journal.identity() or b""), format=2)
    batch = Batch(journal.counters(), identity=identity.encode())
    for key, _, value in journal.dead():
        reason = REASONS[decode_value(value).fingerprint.decode()].encode()
        batch.stored[DEAD].append((key, len(reason).to_bytes(4, "big") + reason + value))
    journal.write(batch, wait=True)
    journal.close()
    jobdir = Jobdir(path, OWNER)
    jobdir.write_identity(identity)
    jobdir.release()
    return path


def test_causes_of_dead_letters_are_told_apart_from_format_3_on(job_of_format_2: Path) -> None:
    letters = {
        "a": DeadLetter("its callback is gone", Cause.UNRESTORABLE),
        "b": DeadLetter("its callback is gone", Cause.GIVEN_UP),
        "c": DeadLetter("it ended the process"),
    }
    for _ in range(2):
        frontier = open_frontier(job_of_format_2, OWNER)
        found = {decode_value(value).fingerprint.decode(): why for _, why, value in frontier.dead()}
        assert found == letters
        assert {name: str(why) for name, why in found.items()} == REASONS
        causes = sorted(row[0] for _, row in journal_of(frontier).requests(DEAD))
        assert causes == sorted(Cause)
        assert problems_of(frontier) == []
        frontier.close()
    assert stated_format(job_of_format_2) == FORMAT
    frontier = open_frontier(job_of_format_2, OWNER)
    assert work_off(frontier) == ["d"]
    frontier.close()


def test_the_step_to_causes_is_repeated_after_a_death(
    job_of_format_2: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = migrations.STEPS[2]

    def dying(store: Store) -> Batch:
        step(store)
        raise Death

    with monkeypatch.context() as patch:
        patch.setitem(migrations.STEPS, 2, dying)
        with pytest.raises(Death):
            open_frontier(job_of_format_2, OWNER)
    assert stated_format(job_of_format_2) == 2
    jobdir = Jobdir(job_of_format_2, OWNER)
    jobdir.release()
    with View(jobdir.store) as view:  # which migrates nothing
        assert {str(why) for _, why, _ in view.dead()} == set(REASONS.values())
    frontier = open_frontier(job_of_format_2, OWNER)
    assert {str(why) for _, why, _ in frontier.dead()} == set(REASONS.values())
    assert problems_of(frontier) == []
    frontier.close()


@BY_ENGINE
def test_what_was_seen_is_counted_from_format_8_on(tmp_path: Path, engine: Choice) -> None:
    options = Options(store=engine)
    frontier = open_frontier(tmp_path, OWNER, options)
    for name in "abc":
        frontier.add(page(name))
    frontier.close()
    journal = Journal(tmp_path, OWNER)
    identity = replace(Identity.parse(journal.identity() or b""), format=7)
    counters = asdict(journal.counters())
    assert counters.pop("seen") == 3
    rows = RowBatch()
    rows.put(
        "meta", [(b"counters", json.dumps(counters).encode()), (b"identity", identity.encode())]
    )
    journal.database.write(rows, wait=True)
    journal.close()
    jobdir = Jobdir(tmp_path, OWNER)
    jobdir.write_identity(identity)
    jobdir.release()
    with View(jobdir.store) as view:
        assert view.counters().seen is None
        assert audit(view) == []
    for _ in range(2):
        frontier = open_frontier(tmp_path, OWNER, options)
        assert frontier.counts().seen == journal_of(frontier).counters().seen == 3
        assert problems_of(frontier) == []
        frontier.close()


def test_there_is_a_step_from_each_older_format() -> None:
    assert migrations.STEPS.keys() == set(range(jobdir_module.OLDEST, jobdir_module.FORMAT))


def test_an_older_format_is_brought_up_to_date_once(
    job: Path, add_format: Any, caplog: Any
) -> None:
    caplog.set_level(logging.INFO)
    newest = jobdir_module.FORMAT
    add_format(upper)
    frontier = open_frontier(job, OWNER)
    assert f"is of format {newest + 1} now" in caplog.text
    assert stated_format(job) == newest + 1
    lease = lease_from(frontier)
    assert lease is not None
    assert lease.entry.payload is not None
    assert lease.entry.payload.isupper()
    frontier.release(lease)
    frontier.close()
    caplog.clear()
    frontier = open_frontier(job, OWNER)
    assert not caplog.text
    assert frontier.counts().pending == 2
    frontier.close()


def test_a_job_goes_through_all_steps_from_its_format_on(job: Path, add_format: Any) -> None:
    add_format(noting(b"first "))
    add_format(noting(b"second "))
    add_format(noting(b"third"))
    frontier = open_frontier(job, OWNER)
    assert frontier.run.note("steps") == b"first second third"
    assert problems_of(frontier) == []
    assert sorted(work_off(frontier)) == ["a", "b"]
    frontier.close()


def test_a_new_job_is_of_the_newest_format(tmp_path: Path, add_format: Any) -> None:
    add_format(noting(b"first"))
    frontier = open_frontier(tmp_path / "new", OWNER)
    assert frontier.run.note("steps") is None
    assert stated_format(tmp_path / "new") == jobdir_module.FORMAT
    frontier.close()


def test_a_step_that_was_cut_short_begins_anew(job: Path, add_format: Any) -> None:
    deaths = 2

    def dying(store: Store) -> Batch:
        nonlocal deaths
        # A row under the id of a slot that no batch names.
        row = (store.counters().next_slot.to_bytes(8, "big") + b"x", b"new form")
        store.write(stored(store.counters(), row), wait=True)
        deaths -= 1
        if deaths >= 0:
            raise Death
        return noting(b"done")(store)

    old = jobdir_module.FORMAT
    add_format(dying)
    for _ in range(2):
        with pytest.raises(Death):
            open_frontier(job, OWNER)
        assert stated_format(job) == old
    frontier = open_frontier(job, OWNER)
    assert frontier.run.note("steps") == b"done"
    assert problems_of(frontier) == []
    assert sorted(work_off(frontier)) == ["a", "b"]
    frontier.close()


def test_a_death_before_the_directory_says_the_new_format_is_got_over(
    job: Path, add_format: Any
) -> None:
    before = (job / "altsched.json").read_bytes()
    add_format(noting(b"once"))
    open_frontier(job, OWNER).close()
    (job / "altsched.json").write_bytes(before)
    frontier = open_frontier(job, OWNER)
    assert frontier.run.note("steps") == b"once"
    assert stated_format(job) == jobdir_module.FORMAT
    frontier.close()


def test_a_version_that_knows_only_the_older_format_refuses_the_newer_one(
    job: Path, add_format: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = (job / "altsched.json").read_bytes()
    old = jobdir_module.FORMAT
    add_format(noting(b"once"))
    open_frontier(job, OWNER).close()
    set_format(monkeypatch, old)
    for _ in range(2):
        with pytest.raises(JobdirMismatchError, match="Upgrade scrapy_altsched"):
            open_frontier(job, OWNER)
        # The store says so, too, if the death came before the directory did.
        (job / "altsched.json").write_bytes(before)


def test_a_format_that_is_too_old_is_refused_and_nothing_changes(job: Path) -> None:
    identity = json.loads((job / "altsched.json").read_text())
    identity["format"] = jobdir_module.OLDEST - 1
    (job / "altsched.json").write_text(json.dumps(identity))
    shutil.copytree(job, job.with_name("copy"))
    with pytest.raises(JobdirMismatchError, match=r"too old \(format 0") as caught:
        open_frontier(job, OWNER)
    assert "Finish this job with that version" in str(caught.value)
    for path in job.rglob("*"):
        copy = job.with_name("copy") / path.relative_to(job)
        assert path.is_dir() or path.read_bytes() == copy.read_bytes()
