"""A job whose store is written again with another engine."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from scrapy_altsched.errors import AltschedError, JobdirError, JobdirLockedError
from scrapy_altsched.frontier import Options
from scrapy_altsched.frontier.entry import DeadLetter
from scrapy_altsched.frontier.local.frontier import LocalFrontier
from scrapy_altsched.frontier.store import engines
from scrapy_altsched.frontier.store.engines import engine_of
from scrapy_altsched.frontier.store.states import FAMILIES
from scrapy_altsched.frontier.store.view import View
from scrapy_altsched.maintenance import convert as module
from scrapy_altsched.maintenance.convert import convert
from scrapy_altsched.maintenance.opening import open_frontier

from ..crash.test_kill_points import died, kills
from ..crawls import altsched
from ..frontiers import OWNER, page, problems_of, take, work_off
from ..scenarios import ALL, FIFO, finish

pytestmark = pytest.mark.rocksdb

BOTH_WAYS = pytest.mark.parametrize(
    ("before", "after"), [("rocksdb", "sqlite"), ("sqlite", "rocksdb")]
)


def make_job(path: Path, engine: engines.Choice) -> LocalFrontier:
    """A job with requests in every state, some of which were leased when its process died."""
    frontier = open_frontier(path, OWNER, Options(store=engine))
    assert isinstance(frontier, LocalFrontier)
    for number in range(60):
        frontier.add(page(f"page {number}", str(number % 7), number % 3, from_start=number < 5))
    for _ in range(10):
        frontier.finish(take(frontier))
    frontier.dead_letter(take(frontier), DeadLetter("it is not wanted"))
    frontier.commit({"state": b"of others"})
    take(frontier)
    return frontier


def rows_of(path: Path) -> dict[str, list[tuple[bytes, bytes]]]:
    with View(path / "frontier") as view:
        return {family: list(view.database.iterate(family)) for family in FAMILIES}


def files_of(path: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(path)): file.read_bytes()
        for file in path.rglob("*")
        if file.is_file() and file.name != "altsched.lock"
    }


@BOTH_WAYS
def test_a_job_has_the_same_rows_after_it(
    tmp_path: Path, before: engines.Choice, after: engines.Choice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHUNK", 7)
    path = tmp_path / "job"
    make_job(path, before).abandon()
    rows = rows_of(path)
    assert all(rows[family] for family in ("seen", "slots", "started", "meta", "pending", "dead"))
    assert convert(path, OWNER, after) == before
    assert engine_of(path / "frontier") == after
    assert rows_of(path) == rows
    left = {file.name for file in path.iterdir()}
    assert left <= {
        *("altsched.commit", "altsched.json", "altsched.leases.0", "altsched.leases.1"),
        *("altsched.lock", "frontier"),
    }


@BOTH_WAYS
def test_the_crawl_goes_on_as_it_would_have(
    tmp_path: Path, before: engines.Choice, after: engines.Choice
) -> None:
    make_job(tmp_path / "job", before).abandon()
    shutil.copytree(tmp_path / "job", tmp_path / "other")
    convert(tmp_path / "other", OWNER, after)
    orders = []
    for path in (tmp_path / "job", tmp_path / "other"):
        # Whatever the setting says: a job keeps its engine.
        frontier = open_frontier(path, OWNER, Options(store=after))
        assert isinstance(frontier, LocalFrontier)
        assert frontier.run.note("state") == b"of others"
        orders.append(work_off(frontier))
        assert problems_of(frontier) == []
        frontier.close(finished=True)
    assert orders[0] == orders[1]
    assert len(orders[0]) == 49
    assert engine_of(tmp_path / "job" / "frontier") == before


def test_a_job_that_is_stored_so_already_stays_as_it_is(tmp_path: Path) -> None:
    make_job(tmp_path, "sqlite").close()
    for _ in range(2):
        run = altsched("convert", tmp_path, "--store", "sqlite")
        assert run.returncode == 0, run.stderr
        assert "The job is stored in SQLite already." in run.stdout


def test_the_command_says_what_it_did_and_what_is_next(tmp_path: Path) -> None:
    make_job(tmp_path, "rocksdb").close()
    run = altsched("convert", tmp_path, "--store", "sqlite")
    assert run.returncode == 0, run.stderr
    assert "The job is stored in SQLite now; before, in RocksDB." in run.stdout
    assert "Next: run the crawl again; it continues from there." in run.stdout
    run = altsched("check", tmp_path)
    assert "SQLite" in run.stdout


def test_a_job_in_use_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    frontier = make_job(tmp_path, "rocksdb")
    with pytest.raises(JobdirLockedError):
        convert(tmp_path, OWNER, "sqlite")
    frontier.close()
    assert engine_of(tmp_path / "frontier") == "rocksdb"


def test_what_cannot_be_written_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_job(tmp_path, "rocksdb").close()
    rows, identity = rows_of(tmp_path), json.loads((tmp_path / "altsched.json").read_text())
    with monkeypatch.context() as patched:
        # What a store needs before it can be made.
        patched.setattr(Path, "mkdir", no_space)
        with pytest.raises(AltschedError, match="No space left on device"):
            convert(tmp_path, OWNER, "sqlite")
    assert rows_of(tmp_path) == rows
    assert json.loads((tmp_path / "altsched.json").read_text()) == identity
    assert not list(tmp_path.glob("frontier.*"))


def test_a_disk_that_is_full_half_way_is_left_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_job(tmp_path, "rocksdb").close()
    rows = rows_of(tmp_path)

    def fill_disk(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(module, "follow", fill_disk)
        with pytest.raises(JobdirError, match="Nothing was changed; check that the disk has space"):
            convert(tmp_path, OWNER, "sqlite")
    assert not list(tmp_path.glob("frontier.*"))
    assert rows_of(tmp_path) == rows


def no_space(self: Path, *_: object, **__: object) -> None:
    if self.name == "frontier.partial":
        raise OSError(28, "No space left on device")


def test_what_is_no_job_is_refused(tmp_path: Path) -> None:
    run = altsched("convert", tmp_path, "--store", "sqlite")
    assert run.returncode == 1
    assert "holds no job of scrapy_altsched" in run.stderr
    run = altsched("convert", tmp_path, "--store", "mysql")
    assert run.returncode == 2


def test_a_kill_before_the_new_store_was_renamed_leaves_nothing_behind(tmp_path: Path) -> None:
    make_job(tmp_path, "rocksdb").close()
    for name in ("frontier.partial", "frontier.repaired", "frontier.replaced"):
        shutil.copytree(tmp_path / "frontier", tmp_path / name)
    open_frontier(tmp_path, OWNER).close()
    assert not list(tmp_path.glob("frontier.*"))


@pytest.mark.timeout(1200)
@BOTH_WAYS
def test_a_kill_at_any_step_leaves_the_job_in_one_engine_or_the_other(
    tmp_path: Path, before: engines.Choice, after: engines.Choice
) -> None:
    image = died(tmp_path, before)
    rows = rows_of(image)
    into = tmp_path / "killed"
    into.mkdir()
    reached = kills("change_engine", after, image, into, "convert")
    found = set()
    for kill in reached:
        present = engines.engine_of(kill.path / "frontier")
        store = kill.path / "frontier"
        if not store.exists():
            (kill.path / "frontier.repaired").rename(store)
            present = engines.engine_of(store)
        assert rows_of(kill.path).keys() == rows.keys()
        assert {name: rows_of(kill.path)[name] for name in ("seen", "pending", "dead")} == {
            name: rows[name] for name in ("seen", "pending", "dead")
        }
        frontier = finish(kill.path, FIFO)
        assert problems_of(frontier) == []
        counts = frontier.counts()
        assert counts.done + counts.failed == len(ALL)
        frontier.close(finished=True)
        assert not list(kill.path.glob("frontier.*"))
        assert engine_of(store) == present
        found.add(present)
        shutil.rmtree(kill.path)
    print(f"convert to {after}: {len(reached)} kills")
    assert found == {before, after}
    assert {("rename", "frontier.partial"), ("rename", "frontier")} <= {
        kill.point[1:] for kill in reached
    }


def test_a_directory_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "job").write_text("a file")
    with pytest.raises(JobdirError, match="Not a directory"):
        convert(tmp_path / "job", OWNER, "sqlite")
