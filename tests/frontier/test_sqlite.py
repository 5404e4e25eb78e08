"""A store of SQLite: what its database does beyond the contract of all stores."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import sqlite3
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from scrapy_altsched.errors import StoreDamagedError, StoreError, StoreStalledError
from scrapy_altsched.frontier import Options
from scrapy_altsched.frontier.local.draft import BATCH
from scrapy_altsched.frontier.store.database import RowBatch
from scrapy_altsched.frontier.store.sqlite import log as log_module
from scrapy_altsched.frontier.store.sqlite.database import SqliteDatabase
from scrapy_altsched.frontier.store.view import View
from scrapy_altsched.maintenance.audit import audit
from scrapy_altsched.maintenance.opening import open_frontier

from ..frontiers import OWNER, DiskKind, page, problems_of, take, work_off
from ..stores import files_of

FILE, LOG = "store.sqlite", "store.sqlite-wal"


@pytest.fixture
def database(tmp_path: Path) -> Iterator[SqliteDatabase]:
    database = SqliteDatabase(tmp_path / "frontier")
    database.open(database.path, create=True)
    yield database
    database.close()


def put(database: SqliteDatabase, *keys: bytes, value: bytes = b"value", wait: bool = True) -> None:
    batch = RowBatch()
    batch.put("pending", [(key, value) for key in keys])
    database.write(batch, wait=wait)


def keys_of(database: SqliteDatabase) -> list[bytes]:
    return [key for key, _ in database.iterate("pending")]


def wait_for(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < deadline
        os.sched_yield()


# Rows


def test_a_batch_that_fails_half_way_leaves_nothing(database: SqliteDatabase) -> None:
    put(database, b"a")

    def rows() -> Iterator[tuple[bytes, bytes]]:
        yield b"b", b""
        raise ZeroDivisionError

    batch = RowBatch()
    batch.delete("pending", [b"a"])
    batch.put("pending", rows())
    with pytest.raises(ZeroDivisionError):
        database.write(batch, wait=True)
    assert keys_of(database) == [b"a"]
    put(database, b"c")
    assert keys_of(database) == [b"a", b"c"]


def test_changes_of_a_batch_are_made_in_their_order(database: SqliteDatabase) -> None:
    batch = RowBatch()
    batch.put("pending", [(bytes((number,)), b"") for number in range(10)])
    batch.delete_range("pending", b"\x02", b"\x05")
    batch.delete("pending", [b"\x07"])
    batch.put("pending", [(b"\x03", b"again")])
    database.write(batch, wait=True)
    assert keys_of(database) == [bytes((number,)) for number in (0, 1, 3, 5, 6, 8, 9)]
    assert database.get("pending", b"\x03") == b"again"
    assert database.get("pending", b"\x02") is None


def test_rows_written_while_others_are_read_are_no_trouble(database: SqliteDatabase) -> None:
    put(database, *(b"%05d" % number for number in range(5_000)))
    read = []
    for key, _ in database.iterate("pending"):
        read.append(key)
        if len(read) % 1_000 == 1:
            put(database, b"a%05d" % len(read))
    assert read[:5_000] == [b"%05d" % number for number in range(5_000)]


def test_a_row_that_is_not_what_was_written_is_damage(database: SqliteDatabase) -> None:
    put(database, b"a", b"b", b"c")
    database.close()
    with sqlite3.connect(database.path / FILE) as connection:
        connection.execute("UPDATE pending SET value = ? WHERE key = ?", (b"valuf1234", b"b"))
    connection.close()
    database.open(database.path)
    assert database.get("pending", b"a") == b"value"
    for read in (
        lambda: database.get("pending", b"b"),
        lambda: keys_of(database),
        lambda: database.read("pending", b"", b"b", 1, 1),
    ):
        with pytest.raises(StoreDamagedError, match="62, is not what was written"):
            read()


# The log


def test_the_log_is_written_back_in_the_thread_and_stays_short(
    database: SqliteDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_module, "LONG", 100_000)
    monkeypatch.setattr(log_module, "TOO_LONG", 500_000)
    database.flush()
    longest = 0
    for number in range(400):
        put(database, b"%05d" % number, value=b"x" * 5_000)
        longest = max(longest, (database.path / LOG).stat().st_size)
    assert longest < 600_000
    wait_for(lambda: (database.path / LOG).stat().st_size < 200_000)
    assert len(keys_of(database)) == 400


def test_a_commit_beside_the_thread_is_stalled_and_no_failure(database: SqliteDatabase) -> None:
    assert database._log is not None
    with database._log._lock, pytest.raises(StoreStalledError):
        put(database, b"a", wait=False)
    put(database, b"b", wait=False)
    assert keys_of(database) == [b"b"]


def test_what_the_thread_meets_is_told_by_the_next_commit(
    database: SqliteDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_module, "LONG", 0)
    log = database._log
    assert log is not None
    log._connection.close()
    log._write_back_at = 0
    put(database, b"a")
    wait_for(lambda: not log._thread._answers.empty())
    with pytest.raises(StoreError, match=f"Writing to the store {database.path} failed"):
        put(database, b"b")
    # As the journal does after any failure.
    database.close()
    database.open(database.path)
    put(database, b"c")
    assert keys_of(database) == [b"a", b"c"]


def test_a_view_is_of_one_moment_and_keeps_no_commit_waiting(
    database: SqliteDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_module, "LONG", 50_000)
    database.flush()
    put(database, b"a")
    view = SqliteDatabase(database.path)
    view.open_view()
    for number in range(100):
        put(database, b"b%05d" % number, value=b"x" * 5_000)
    assert keys_of(view) == [b"a"]
    # What is read cannot be overwritten.
    assert (database.path / LOG).stat().st_size > 400_000
    view.close()
    for number in range(100):
        put(database, b"c%05d" % number, value=b"x" * 5_000)
    wait_for(lambda: (database.path / LOG).stat().st_size < 400_000)
    assert len(keys_of(database)) == 201


def test_a_job_that_has_ended_can_be_looked_into(tmp_path: Path) -> None:
    frontier = open_frontier(tmp_path, OWNER, Options(store="sqlite"))
    frontier.add(page("a"))
    frontier.close()
    content = (tmp_path / "frontier" / FILE).read_bytes()
    with View(tmp_path / "frontier") as view:
        assert audit(view) == []
    assert (tmp_path / "frontier" / FILE).read_bytes() == content


def test_a_store_that_is_closed_says_so(tmp_path: Path) -> None:
    database = SqliteDatabase(tmp_path / "frontier")
    database.open(database.path, create=True)
    database.close()
    for use in (
        lambda: put(database, b"a"),
        lambda: database.get("pending", b"a"),
        lambda: keys_of(database),
        database.sync,
        database.flush,
    ):
        with pytest.raises(StoreError, match="it is closed, and could not be opened again"):
            use()
    database.close()
    database.abandon()


def test_a_forked_child_that_ends_leaves_the_store_as_it_is(tmp_path: Path) -> None:
    disk = DiskKind(tmp_path, "sqlite")
    frontier = disk.open()
    for number in range(50):
        frontier.add(page(f"page {number}"))
    frontier.commit()
    child = os.fork()
    if not child:
        try:
            # What an interpreter frees when it ends.
            del frontier
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    frontier.finish(take(frontier))
    frontier.commit()
    assert len(work_off(frontier)) == 49
    frontier.commit()
    assert problems_of(frontier) == []
    frontier.close()


def test_batches_are_smaller_than_those_of_other_stores(tmp_path: Path) -> None:
    frontier = open_frontier(tmp_path, OWNER, Options(store="sqlite"))
    count = 5 * SqliteDatabase.BATCH // 2
    assert count < BATCH
    for number in range(count):
        frontier.add(page(f"page {number}"))
    assert [frontier.commit() for _ in range(3)] == [False, False, True]
    assert frontier.counts().pending == count
    frontier.close()


def test_a_job_that_grows_past_what_suits_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(SqliteDatabase, "SUITS", 5)
    frontier = open_frontier(tmp_path, OWNER, Options(store="sqlite"))
    for number in range(8):
        assert ("has passed 5 requests" in caplog.text) == (number >= 5)
        frontier.add(page(f"page {number}"))
        frontier.commit()
    frontier.close()
    open_frontier(tmp_path, OWNER).close()
    assert caplog.text.count("has passed 5 requests") == 1
    assert f"`scrapy altsched convert {tmp_path} --store rocksdb`" in caplog.text


# Another program


HOLD = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute(sys.argv[2])
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def hold() -> Iterator[Callable[[Path, str], subprocess.Popen[str]]]:
    """Has another program hold a lock on a store; it is let go when its input is closed."""
    running: list[subprocess.Popen[str]] = []

    def start(store: Path, statement: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", HOLD, str(store / FILE), statement],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        running.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        return process

    yield start
    for process in running:
        process.communicate()


def test_a_commit_beside_another_program_is_stalled_and_then_fails(
    database: SqliteDatabase, hold: Callable[[Path, str], subprocess.Popen[str]]
) -> None:
    put(database, b"a")
    process = hold(database.path, "BEGIN IMMEDIATE")
    with pytest.raises(StoreStalledError):
        put(database, b"b", wait=False)
    # The crawl asks so when it has waited for a while.
    with pytest.raises(StoreError, match=r"`fuser` on its file store\.sqlite finds it") as raised:
        put(database, b"b", wait=True)
    assert not isinstance(raised.value, StoreStalledError)
    assert keys_of(database) == [b"a"]
    process.communicate()
    put(database, b"b")
    assert keys_of(database) == [b"a", b"b"]


def test_a_store_that_another_program_locks_is_refused(
    tmp_path: Path, hold: Callable[[Path, str], subprocess.Popen[str]]
) -> None:
    open_frontier(tmp_path, OWNER, Options(store="sqlite")).close()
    process = hold(tmp_path / "frontier", "BEGIN IMMEDIATE")
    with pytest.raises(StoreError, match=r"`fuser` on its file store\.sqlite finds it"):
        open_frontier(tmp_path, OWNER)
    process.communicate()
    open_frontier(tmp_path, OWNER).close()


# Files that are no store of ours


@pytest.mark.parametrize(
    "content", [b"", b"\0", b"half a page" * 100, b"SQLite format 3\0", b"\0" * 10_000]
)
def test_a_file_that_is_cut_or_overwritten_is_refused_and_stays(
    tmp_path: Path, content: bytes
) -> None:
    open_frontier(tmp_path, OWNER, Options(store="sqlite")).close()
    (tmp_path / "frontier" / FILE).write_bytes(content)
    with pytest.raises(StoreDamagedError, match=f"scrapy altsched check {tmp_path} --repair"):
        open_frontier(tmp_path, OWNER)
    assert files_of(tmp_path / "frontier")[FILE] == content


FCNTL, FLOCK = {"x86_64": (72, 73), "aarch64": (25, 32)}[os.uname().machine]
#: System call, its second argument if it counts, and the error it is to end with.
FAULTS = {
    "no locks on ranges": (FCNTL, fcntl.F_SETLK, errno.EOPNOTSUPP),
    "no locks at all": (FLOCK, None, errno.ENOLCK),
}
WITHOUT_LOCKS = """
import sys
from tests.frontier.test_sqlite import FAULTS, refuse_calls
from scrapy_altsched.errors import AltschedError
from scrapy_altsched.frontier import Options
from scrapy_altsched.maintenance.opening import open_frontier
refuse_calls(*FAULTS[sys.argv[2]])
try:
    open_frontier(sys.argv[1], "spider", Options(store="sqlite"))
except AltschedError as error:
    print(error)
"""


def refuse_calls(number: int, second: int | None, error: int) -> None:
    """Have a system call of this process fail from now on, by a seccomp filter.

    https://man7.org/linux/man-pages/man2/seccomp.2.html
    """
    load, if_equal, end = 0x20, 0x15, 0x06
    allow, fail = 0x7FFF0000, 0x00050000 | error
    # The offsets are those of the number and of the second argument in struct seccomp_data.
    steps = [(load, 0, 0, 0), (if_equal, 0, 3 if second is not None else 1, number)]
    if second is not None:
        steps += [(load, 0, 0, 24), (if_equal, 0, 1, second)]
    steps += [(end, 0, 0, fail), (end, 0, 0, allow)]
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    header = struct.pack("HxxxxxxQ", len(steps), ctypes.addressof(program))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS
    assert libc.prctl(22, 2, ctypes.create_string_buffer(header)) == 0  # PR_SET_SECCOMP, filter


@pytest.mark.parametrize("fault", FAULTS)
def test_a_file_system_without_locks_is_named(tmp_path: Path, fault: str) -> None:
    run = subprocess.run(
        [sys.executable, "-c", WITHOUT_LOCKS, tmp_path / "job", fault],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "A file system without locks or shared memory, as those of networks may be" in run.stdout
    assert "set JOBDIR to a directory on a local disk" in run.stdout
    assert not (tmp_path / "job" / "frontier").exists()
