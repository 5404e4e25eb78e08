"""Whose a job directory is, and that a refused open changes nothing in it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from scrapy_altsched.errors import (
    JobdirError,
    JobdirLockedError,
    JobdirLostError,
    JobdirMismatchError,
    StoreDamagedError,
    StoreError,
)
from scrapy_altsched.frontier import Options
from scrapy_altsched.frontier.local.frontier import LocalFrontier
from scrapy_altsched.frontier.store import directory
from scrapy_altsched.frontier.store.database import RowBatch
from scrapy_altsched.frontier.store.engines import database_at
from scrapy_altsched.frontier.store.holder import Holder
from scrapy_altsched.frontier.store.jobdir import FORMAT, ensure_directory
from scrapy_altsched.frontier.store.view import View
from scrapy_altsched.maintenance.audit import audit
from scrapy_altsched.maintenance.opening import open_frontier
from scrapy_altsched.maintenance.repair import repair

from ..frontiers import OWNER, page, problems_of, work_off

ROOT = Path(__file__).parents[2]
#: Says who holds the directory, or did last.
LOCK = "altsched.lock"
#: rocksdict writes this file again, with the same content, whenever it looks into a store.
REWRITTEN = "frontier/rocksdict-config.json"


@pytest.fixture
def jobdir(tmp_path: Path) -> Path:
    """The directory of a job with two requests pending."""
    path = tmp_path / "job"
    frontier = open_frontier(path, OWNER)
    frontier.add(page("a"))
    frontier.add(page("b"))
    frontier.close()
    return path


def listing(directory: Path) -> dict[str, tuple[int, bytes | None]]:
    """Everything in *directory*: when it was changed, and what is in it."""
    found: dict[str, tuple[int, bytes | None]] = {}
    for path in sorted(directory.rglob("*")):
        name = str(path.relative_to(directory))
        content = path.read_bytes() if path.is_file() else None
        # SQLite makes a log of nothing to read a store.
        if name.endswith("-shm") or (name.endswith("-wal") and not content):
            continue
        is_touched = name == REWRITTEN or (path / "store.sqlite").exists()
        found[name] = 0 if is_touched else path.stat().st_mtime_ns, content
    return found


def refused(
    path: Path, error: type[Exception], *words: str, owner: str = OWNER, looks: bool = False
) -> str:
    """Opening *path* raises exactly *error*, with *words*, and changes nothing; the message.

    :param looks: whether the store has to be looked into, for which the directory is locked.
    """
    before = listing(path)
    with pytest.raises(error) as caught:
        open_frontier(path, owner)
    assert caught.type is error
    message = str(caught.value)
    for word in (str(path), *words):
        assert word in message
    after = listing(path)
    if looks:
        before[LOCK] = after[LOCK]
    assert after == before
    return message


def edit(path: Path, **values: object) -> None:
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, **values}))


# One crawl at a time

HOLDER = """
import sys
from scrapy_altsched.maintenance.opening import open_frontier
from scrapy_altsched.maintenance.repair import repair
frontier = open_frontier(sys.argv[1], "spider")
print("open", flush=True)
sys.stdin.read()
frontier.close()
"""


@contextmanager
def held(path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the directory, until its standard input is closed."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        try:
            yield process
        finally:
            process.kill()


def test_a_directory_that_a_running_process_holds_is_refused(jobdir: Path) -> None:
    with held(jobdir) as process:
        message = refused(jobdir, JobdirLockedError, f"process {process.pid}")
        assert "Wait for it to end; another crawl needs another JOBDIR." in message


def test_this_process_too_may_open_a_directory_only_once(jobdir: Path) -> None:
    frontier = open_frontier(jobdir, OWNER)
    refused(jobdir, JobdirLockedError, f"process {os.getpid()}")
    frontier.add(page("c"))
    frontier.close()
    assert_opens(jobdir, 3)


def test_a_directory_is_free_after_its_holder_closed_it(jobdir: Path) -> None:
    with held(jobdir) as process:
        process.communicate("")
        assert process.returncode == 0
        assert_opens(jobdir, 2)


def test_a_directory_is_free_after_its_holder_died(jobdir: Path) -> None:
    with held(jobdir) as process:
        process.kill()
        assert process.wait() == -signal.SIGKILL
        assert_opens(jobdir, 2)


def test_a_child_process_does_not_hold_the_directory(jobdir: Path) -> None:
    frontier = open_frontier(jobdir, OWNER)
    # Started while the directory is held, and still there when it is not any more.
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, close_fds=False) as child:
        frontier.close()
        assert_opens(jobdir, 2)
        child.communicate(b"")


def assert_opens(path: Path, pending: int) -> None:
    frontier = open_frontier(path, OWNER)
    assert frontier.counts().pending == pending
    assert problems_of(frontier) == []
    frontier.close()


# A directory that is refused


def newer_format(path: Path) -> None:
    edit(path / "altsched.json", format=FORMAT + 1)


def much_newer_format(path: Path) -> None:
    edit(path / "altsched.json", format=FORMAT + 5, said_by_nobody_yet={"a": 1})


def test_a_newer_format_is_refused(jobdir: Path) -> None:
    newer_format(jobdir)
    message = refused(jobdir, JobdirMismatchError, f"format {FORMAT + 1}", f"up to {FORMAT}")
    assert "Upgrade scrapy_altsched" in message


def test_a_newer_format_is_told_from_damage_whatever_else_it_says(jobdir: Path) -> None:
    much_newer_format(jobdir)
    refused(jobdir, JobdirMismatchError, f"format {FORMAT + 5}")


def test_a_newer_format_may_keep_its_store_elsewhere(jobdir: Path) -> None:
    newer_format(jobdir)
    (jobdir / "frontier").rename(jobdir / "elsewhere")
    refused(jobdir, JobdirMismatchError, "Upgrade scrapy_altsched")


def test_another_spiders_directory_is_refused(jobdir: Path) -> None:
    message = refused(jobdir, JobdirMismatchError, "'spider'", "'another'", owner="another")
    assert "Set another JOBDIR" in message


def test_another_spiders_store_is_refused_though_its_identity_file_is_gone(jobdir: Path) -> None:
    (jobdir / "altsched.json").unlink()
    refused(jobdir, JobdirMismatchError, "'spider'", "'another'", owner="another", looks=True)


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"{", b"[]", b"1", b"null", b"{}", b"\xff\xfe"),
        b'{"format": 1, "owner": "spider"}',
        b'{"format": "1", "owner": "spider", "store_id": "00"}',
    ],
)
def test_a_damaged_identity_file_is_refused(jobdir: Path, content: bytes) -> None:
    (jobdir / "altsched.json").write_bytes(content)
    message = refused(jobdir, JobdirError, "altsched.json")
    assert "restore it from a copy, or delete it" in message
    # What the message says helps.
    (jobdir / "altsched.json").unlink()
    assert_opens(jobdir, 2)
    assert json.loads((jobdir / "altsched.json").read_text())["owner"] == OWNER


def test_a_job_whose_store_is_missing_is_refused(jobdir: Path) -> None:
    shutil.rmtree(jobdir / "frontier")
    message = refused(jobdir, JobdirLostError, "is not there")
    assert "Restore it from a copy, or delete the JOBDIR" in message


def test_a_job_with_the_store_of_another_job_is_refused(jobdir: Path, tmp_path: Path) -> None:
    open_frontier(tmp_path / "other", OWNER).close()
    shutil.rmtree(jobdir / "frontier")
    shutil.copytree(tmp_path / "other" / "frontier", jobdir / "frontier")
    message = refused(jobdir, JobdirLostError, "is not the one", looks=True)
    assert "Restore the JOBDIR as a whole" in message


def without_current(store: Path) -> None:
    (store / "CURRENT").unlink()


def without_tables(store: Path) -> None:
    for path in store.glob("*.sst"):
        path.unlink()


def short_manifest(store: Path) -> None:
    [path] = store.glob("MANIFEST-*")
    os.truncate(path, 20)


def empty_store(store: Path) -> None:
    shutil.rmtree(store)
    store.mkdir()


@pytest.mark.rocksdb
@pytest.mark.parametrize("cut", [without_current, without_tables, short_manifest, empty_store])
def test_a_store_that_was_cut_short_is_refused(tmp_path: Path, cut: Callable[[Path], None]) -> None:
    path = tmp_path / "job"
    open_frontier(path, OWNER, Options(store="rocksdb")).close()
    cut(path / "frontier")
    remedy = f"Run `scrapy altsched check {path} --repair` to keep what can be read of it"
    refused(path, StoreDamagedError, "frontier", remedy, looks=True)


def test_a_refused_directory_is_not_held(jobdir: Path) -> None:
    good = (jobdir / "altsched.json").read_bytes()
    newer_format(jobdir)
    refused(jobdir, JobdirMismatchError)
    (jobdir / "altsched.json").write_bytes(good)
    (jobdir / "frontier").rename(jobdir / "elsewhere")
    refused(jobdir, JobdirLostError)
    (jobdir / "elsewhere").rename(jobdir / "frontier")
    file = jobdir / "frontier" / database_at(jobdir / "frontier").FILE
    content = file.read_bytes()
    file.write_bytes(b"")
    refused(jobdir, StoreDamagedError, looks=True)
    file.write_bytes(content)
    assert_opens(jobdir, 2)


# An operating system without /proc


def test_a_job_is_kept_and_left_alone_where_no_path_leads_through_a_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory, "_DESCRIPTORS", tmp_path / "proc")
    path = tmp_path / "job"
    other = open_frontier(tmp_path / "other", OWNER)
    other.add(page("c"))
    other.close()
    frontier = open_frontier(path, OWNER)
    for name in "ab":
        frontier.add(page(name))
        frontier.commit()
    frontier.close()
    frontier = open_frontier(path, OWNER)
    frontier.add(page("d"))
    path.rename(tmp_path / "moved")
    (tmp_path / "other").rename(path)
    before = listing(path)
    with pytest.raises(JobdirLostError, match="unless the directory was only moved"):
        frontier.commit()
    frontier.abandon()
    assert listing(path) == before
    for job, pending in ((path, 1), (tmp_path / "moved", 2)):
        # This process never lets go of what it could not close.
        with View(job / "frontier") as view:
            assert audit(view) == []
            assert len(list(view.pending())) == pending


# A directory that cannot be made


@pytest.mark.parametrize("below", ["", "job", "a/b/job"])
def test_a_path_with_a_file_in_the_way_is_refused(tmp_path: Path, below: str) -> None:
    file = tmp_path / "file"
    file.write_text("somebody's")
    with pytest.raises(JobdirError) as caught:
        open_frontier(file / below, OWNER)
    assert f"JOBDIR cannot be used: {file}: Not a directory, but a file" in str(caught.value)
    assert ("JOBDIR is" in str(caught.value)) == bool(below)
    assert "Set JOBDIR to a directory that this user can write to" in str(caught.value)
    assert listing(tmp_path) == {"file": (file.stat().st_mtime_ns, b"somebody's")}


OPENER = """
import sys
from rocksdict import Options, Rdict
names = Rdict.list_cf(sys.argv[1])
held = Rdict(sys.argv[1], Options(raw_mode=True), {name: Options(raw_mode=True) for name in names})
print("held", flush=True)
sys.stdin.read()
"""


@pytest.mark.rocksdb
def test_a_store_that_another_program_has_open_is_not_said_to_have_no_space(jobdir: Path) -> None:
    command = [sys.executable, "-c", OPENER, jobdir / "frontier"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(StoreError, match="Another process has the store open") as caught:
            open_frontier(jobdir, OWNER)
        assert "space" not in str(caught.value)
        holder.communicate("")
    assert_opens(jobdir, 2)


FEW_FILES = """
import os, resource, sys
from scrapy_altsched.errors import AltschedError
from scrapy_altsched.maintenance.opening import open_frontier
from scrapy_altsched.maintenance.repair import repair
open_frontier(sys.argv[1], "spider").close()
most = len(os.listdir("/proc/self/fd"))
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
for left in range(20):
    resource.setrlimit(resource.RLIMIT_NOFILE, (most + left, hard))
    try:
        open_frontier(sys.argv[1], "spider").close()
    except AltschedError as error:
        print(" ".join(str(error).split()))
    else:
        break
"""


def test_too_many_open_files_are_not_said_to_be_a_lack_of_space(jobdir: Path) -> None:
    command = [sys.executable, "-c", FEW_FILES, jobdir]
    run = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    messages = run.stdout.splitlines()
    assert len(messages) > 3
    assert {"raise the limit (`ulimit -n`)" in message for message in messages} == {True}, messages
    assert "space" not in run.stdout


@pytest.mark.rocksdb
def test_a_backup_of_hard_links_has_lost_nothing(
    jobdir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    backup = jobdir.with_name("backup")
    shutil.copytree(jobdir, backup, copy_function=os.link)
    frontier = open_frontier(jobdir, OWNER)
    for name in "cdef":
        frontier.add(page(name))
        frontier.commit()
    frontier.close()
    assert_opens(backup, 2)
    assert "has lost" not in caplog.text


def test_a_directory_in_the_place_of_the_lock_is_refused(jobdir: Path) -> None:
    (jobdir / LOCK).unlink()
    (jobdir / LOCK).mkdir()
    refused(jobdir, JobdirError, LOCK)


def test_a_directory_is_made_with_its_parents(tmp_path: Path) -> None:
    open_frontier(tmp_path / "a" / "b" / "job", OWNER).close()
    assert (tmp_path / "a" / "b" / "job" / "frontier").is_dir()


def test_a_relative_path_means_the_directory_at_the_time_of_the_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    frontier = open_frontier("job", OWNER)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    frontier.add(page("a"))
    frontier.close()
    assert_opens(tmp_path / "job", 1)


# Creation cut short


def test_what_a_creation_that_was_cut_short_left_is_in_nobodys_way(tmp_path: Path) -> None:
    path = tmp_path / "job"
    partial = path / "frontier.partial"
    partial.mkdir(parents=True)
    (partial / "CURRENT").write_text("MANIFEST-000")
    (partial / "000004.log").write_bytes(b"\0" * 100)
    (path / "altsched.json.partial").write_text('{"form')
    assert_opens(path, 0)
    assert not partial.exists()


def test_a_store_that_was_made_but_not_yet_named_is_taken_up(jobdir: Path) -> None:
    name = jobdir / "altsched.json"
    before = name.read_bytes()
    name.unlink()
    assert_opens(jobdir, 2)
    assert name.read_bytes() == before


KILLED_AT_CREATION = """
import os, signal, sys
from pathlib import Path
from scrapy_altsched.maintenance.opening import open_frontier
from scrapy_altsched.maintenance.repair import repair

calls = int(sys.argv[2])

def count(event, arguments):
    global calls
    if event in ("open", "os.rename", "os.mkdir", "os.truncate"):
        calls -= 1
        if not calls:
            os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(count)
open_frontier(sys.argv[1], "spider")
"""


def test_a_kill_at_any_step_of_the_creation_is_got_over(tmp_path: Path) -> None:
    killed = 0
    for step in range(1, 100):
        path = tmp_path / str(step)
        command = [sys.executable, "-c", KILLED_AT_CREATION, path, str(step)]
        if subprocess.run(command, check=False).returncode != -signal.SIGKILL:
            break
        killed += 1
        assert_opens(path, 0)
    assert 5 <= killed < 99


# A directory that vanishes under the crawl


@pytest.fixture
def crawl(jobdir: Path) -> Iterator[LocalFrontier]:
    frontier = open_frontier(jobdir, OWNER)
    frontier.add(page("c"))
    yield frontier
    frontier.abandon()


def test_a_commit_into_a_deleted_directory_is_refused(jobdir: Path, crawl: LocalFrontier) -> None:
    shutil.rmtree(jobdir)
    with pytest.raises(JobdirLostError, match="deleted or replaced"):
        crawl.commit()
    with pytest.raises(JobdirLostError):
        crawl.run.recover()
    assert not jobdir.exists()
    assert crawl.pressure.changes == 1


def test_a_commit_into_a_replaced_directory_is_refused(jobdir: Path, crawl: LocalFrontier) -> None:
    jobdir.rename(jobdir.with_name("moved"))
    shutil.copytree(jobdir.with_name("moved"), jobdir)
    before = listing(jobdir)
    with pytest.raises(JobdirLostError, match=str(jobdir)):
        crawl.commit()
    with pytest.raises(JobdirLostError):
        crawl.run.recover()
    assert listing(jobdir) == before


def test_work_goes_on_in_memory_without_the_directory(jobdir: Path, crawl: LocalFrontier) -> None:
    jobdir.rename(jobdir.with_name("moved"))
    assert sorted(work_off(crawl)) == ["a", "b", "c"]
    jobdir.with_name("moved").rename(jobdir)
    assert crawl.commit()


OUT_OF_REACH = """
import os, sys
from scrapy_altsched.errors import StoreError
from scrapy_altsched.maintenance.opening import open_frontier
from scrapy_altsched.maintenance.repair import repair
from tests.frontiers import page

def attempt(verb):
    os.chmod(sys.argv[1], 0)
    if not os.getuid():
        os.seteuid(65534)
    try:
        verb()
    except StoreError as error:
        print(type(error).__name__, error)
    os.seteuid(os.getuid())
    os.chmod(sys.argv[1], 0o755)

frontier = open_frontier(sys.argv[1], "spider")
frontier.add(page("c"))
attempt(frontier.commit)
attempt(frontier.run.recover)
assert frontier.commit()
assert frontier.counts().pending == 3
frontier.close()
"""


def test_a_directory_that_is_out_of_reach_for_a_while_is_not_taken_for_deleted(
    jobdir: Path,
) -> None:
    command = [sys.executable, "-c", OUT_OF_REACH, jobdir]
    run = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    sentence = f"StoreError {jobdir / 'frontier'} cannot be reached: Permission denied. Check that"
    assert [line[: len(sentence)] for line in run.stdout.splitlines()] == [sentence] * 2
    assert_opens(jobdir, 3)


# Children that outlive the crawl

FORKS = """
import ctypes, os, sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from scrapy_altsched.maintenance.opening import open_frontier
from scrapy_altsched.maintenance.repair import repair
from tests.frontiers import lease_from, page

def fork_by_python():
    workers = ProcessPoolExecutor(1, get_context("fork"))
    return workers, workers.submit(os.getpid).result()

def fork_by_a_library():
    # Python does not know of this child, which runs nothing of ours.
    libc = ctypes.PyDLL(None)
    child = libc.fork()
    if not child:
        libc.pause()
    return None, child

frontier = open_frontier(sys.argv[1], "spider")
frontier.add(page("c"))
frontier.commit()
lease_from(frontier)
workers, child = globals()[sys.argv[2]]()
frontier.add(page("d"))
frontier.commit()
print(child, flush=True)
sys.stdin.read()
"""


@contextmanager
def survived(jobdir: Path, how: str) -> Iterator[int]:
    """A child that outlives the process that held *jobdir*, which was killed; the latter's id."""
    with subprocess.Popen(
        [sys.executable, "-c", FORKS, jobdir, how],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    ) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        try:
            refused(jobdir, JobdirLockedError, f"in use by a running crawl (process {process.pid})")
            process.kill()
            assert process.wait() == -signal.SIGKILL
            os.kill(child, 0)
            yield process.pid
            os.kill(child, 0)
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_forked_worker_that_outlives_its_crawl_does_not_hold_the_directory(jobdir: Path) -> None:
    with survived(jobdir, "fork_by_python"):
        assert_opens(jobdir, 4)


def test_a_refusal_says_if_the_process_that_held_the_directory_has_ended(jobdir: Path) -> None:
    with survived(jobdir, "fork_by_a_library") as pid:
        message = refused(jobdir, JobdirLockedError, f"process {pid}", "has ended")
        assert f"with `fuser {jobdir / LOCK}` and end it, then run this command" in message


@pytest.mark.parametrize(
    ("change", "words"),
    [
        # Another process has this number now.
        ({"born": "1"}, "has ended: a process that it started still has"),
        (
            {"place": "elsewhere", "host": "far"},
            "on host far); whether that process is still running",
        ),
    ],
)
def test_a_refusal_knows_one_process_from_another(
    jobdir: Path, change: dict[str, str], words: str
) -> None:
    with held(jobdir) as process:
        (jobdir / LOCK).write_bytes(replace(Holder.current(), pid=process.pid, **change).encode())
        refused(jobdir, JobdirLockedError, f"process {process.pid}", words)


@pytest.mark.parametrize(("content", "name"), [(b"1\n", "(process 1)"), (b"", "unknown")])
def test_a_lock_that_tells_less_is_refused_too(jobdir: Path, content: bytes, name: str) -> None:
    with held(jobdir):
        (jobdir / LOCK).write_bytes(content)
        refused(jobdir, JobdirLockedError, name, "Wait for it to end")


def test_a_store_that_lacks_commits_before_its_last_one_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "job"
    frontier = open_frontier(path, OWNER)
    for name in "abc":
        frontier.add(page(name))
        frontier.commit()
    number = frontier.run.commit_number
    frontier.close()
    assert number > 2
    database = database_at(path / "frontier")
    database.open(path / "frontier")
    rows = RowBatch()
    # What the log that was lost would have written.
    rows.delete("meta", [b"commit:%d" % (number - 1)])
    database.write(rows, wait=True)
    database.close()
    lost = f"lacks commits {number - 1} to {number - 1}, though it has later ones"
    with pytest.raises(StoreDamagedError, match=lost):
        open_frontier(path, OWNER)
    with View(path / "frontier") as view:
        assert lost in audit(view)[0].sentence
    repair(path, OWNER, lambda payload: True)
    frontier = open_frontier(path, OWNER)
    assert frontier.counts().pending == 3
    frontier.close()


def test_a_path_that_cannot_be_looked_at_is_refused(tmp_path: Path) -> None:
    with pytest.raises(JobdirError, match="File name too long"):
        ensure_directory(tmp_path / ("x" * 300) / "job")
