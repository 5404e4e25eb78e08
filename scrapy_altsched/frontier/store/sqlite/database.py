"""A database of SQLite: opening, reading, writing, and what it calls its errors.

A family is a table without row ids, of keys and values.  SQLite believes what it finds on the disk:
a checksum follows each value, of it, its key and the name of its family.

https://www.sqlite.org/wal.html, https://www.sqlite.org/withoutrowid.html
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from shlex import quote as quote_for_shell
from typing import Any
from urllib.parse import quote
from zlib import crc32

from ....errors import StoreDamagedError, StoreError, StoreStalledError
from ...forks import close_in_child, never_free
from ..database import (
    NEEDS_LOCKS,
    Database,
    Operation,
    Row,
    RowBatch,
    advise,
    after,
    held_elsewhere,
    remedy,
    translated,
)
from ..states import FAMILIES
from .log import Log

#: The first version that reads a log which it may not write.
_OLDEST = (3, 22, 0)
if sqlite3.sqlite_version_info < _OLDEST:
    raise ImportError(f"it has SQLite {sqlite3.sqlite_version}, and 3.22 is needed")

_FILE = "store.sqlite"
#: Bytes; see docs/dependencies.rst.
PAGE = 4096
_CACHE = 32 * 1024 * 1024
#: Seconds for which one who only looks waits for a lock.
_PATIENCE = 10.0
#: At most so many rows, and bytes of values, are read at once.
_PORTION = 1_000, 1024 * 1024
_CRC = 4

#: What SQLite says, in lower case, of files that are damaged, and of a lock that another has.
_DAMAGED = ("malformed", "not a database", "no such table", "unsupported file format", "not decode")
_LOCKED = ("locked", "busy")
#: What names of its errors end with if the file system cannot do what it needs.
_NO_LOCKS = ("_IOERR_LOCK", "_SHMLOCK", "_SHMMAP", "_SHMOPEN")
_CLOSED = "it is closed, and could not be opened again"


def _explain(path: Path, what: str, error: Exception) -> StoreError | None:
    if not isinstance(error, sqlite3.Error | OSError | KeyError):
        return None
    text = _CLOSED if isinstance(error, KeyError) else str(error)
    if isinstance(error, OSError):
        text = error.strerror or text
    text = " ".join(text.split()).rstrip(".")
    message, lower = f"{what} the store {path} failed: {text}.", text.lower()
    if any(word in lower for word in _DAMAGED):
        return StoreDamagedError(message, remedy(path))
    advice = held_elsewhere(_FILE) if any(word in lower for word in _LOCKED) else advise(text)
    name = getattr(error, "sqlite_errorname", None)
    if "protocol" in lower or (name or "").endswith(_NO_LOCKS):
        advice = NEEDS_LOCKS
    elif name is None and "disk i/o" in lower:  # Python 3.10 does not tell which
        advice = f"{advice} {NEEDS_LOCKS}"
    return StoreError(f"{message} {advice}")


class _Family:
    """The statements of a table, one of which tells whether it has a key.

    :ivar seed: what the checksums of its rows begin with.
    """

    __slots__ = (
        "_cursor",
        "_has",
        "delete",
        "delete_range",
        "get",
        "put",
        "read",
        "seed",
        "verify",
    )

    def __init__(self, connection: sqlite3.Connection, name: str) -> None:
        # Kept: the connection would make one for each look-up.
        self._cursor = connection.cursor()
        self._has = f'SELECT 1 FROM "{name}" WHERE key = ?'
        self.get = f'SELECT value FROM "{name}" WHERE key = ?'
        self.put = f'REPLACE INTO "{name}" VALUES (?, ?)'
        self.delete = f'DELETE FROM "{name}" WHERE key = ?'
        self.delete_range = f'DELETE FROM "{name}" WHERE key >= ? AND key < ?'
        self.read = f'SELECT key, value FROM "{name}" WHERE key >= ? AND key < ? ORDER BY key'
        self.verify = f'PRAGMA quick_check("{name}")'
        self.seed = seed_of(name)

    def has(self, key: bytes) -> bool:
        # All rows: a statement that was not read to its end would keep the log from being cut.
        return bool(self._cursor.execute(self._has, (key,)).fetchall())

    def sign(self, rows: Iterable[Row]) -> Iterator[Row]:
        """The rows as they are stored: with checksums."""
        seed = self.seed
        for key, value in rows:
            yield key, value + crc32(value, crc32(key, seed)).to_bytes(_CRC, "big")


def seed_of(family: str) -> int:
    """What the checksums of a family's rows begin with."""
    return crc32(family.encode())


def checked(seed: int, key: bytes, stored: bytes) -> bytes | None:
    """The value of a row as it is stored; ``None``: it is not what was written."""
    try:
        value = stored[:-_CRC]
        right = crc32(value, crc32(key, seed)).to_bytes(_CRC, "big")
    except TypeError:  # a damaged row says that it has numbers, texts or nothing
        return None
    return value if stored[-_CRC:] == right else None


class SqliteDatabase(Database):
    """See :class:`~..database.Database`."""

    FILE = _FILE
    # With a million seen each new one is in another page: 200 take some 10 ms.
    BATCH = 200
    SUITS = 1_000_000

    families: dict[str, _Family]

    def __init__(self, path: Path) -> None:
        self.path = path
        self.families = {}
        self.absent = frozenset()
        self._explain = partial(_explain, path)
        self.reading = translated("Reading", self._explain)
        self._writing = translated("Writing to", self._explain)
        self._connection: sqlite3.Connection | None = None
        self._log: Log | None = None
        close_in_child(self._leave_alone)

    def open(self, place: Path, *, create: bool = False) -> None:
        with translated("Opening", self._explain):
            try:
                if create:
                    place.mkdir(exist_ok=True)
                connection = self._connect(place, "rwc" if create else "rw")
                self._make_families(connection)
                self._log = Log(place / f"{_FILE}-wal", _connect(place, "rw"))
            except BaseException:  # what is half open would keep its locks
                self._close()
                raise

    def _make_families(self, connection: sqlite3.Connection) -> None:
        connection.execute(f"PRAGMA page_size = {PAGE}")
        [(mode,)] = connection.execute("PRAGMA journal_mode = WAL")
        if mode != "wal":
            raise sqlite3.OperationalError("locking protocol")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        there = _tables(connection)
        if missing := [name for name in FAMILIES if name not in there]:
            connection.execute("BEGIN IMMEDIATE")
            for name in missing:
                connection.execute(
                    f'CREATE TABLE "{name}"'
                    " (key BLOB PRIMARY KEY NOT NULL, value BLOB NOT NULL) WITHOUT ROWID"
                )
            connection.execute("COMMIT")
        self._note_families(connection, FAMILIES)

    def _note_families(self, connection: sqlite3.Connection, names: Iterable[str]) -> None:
        self.families.update((name, _Family(connection, name)) for name in names)

    def open_read_only(
        self, place: Path, families: Sequence[str] | None = None
    ) -> StoreDamagedError | None:
        wanted = FAMILIES if families is None else families
        self._check_file(place)
        with translated("Opening", self._explain):
            try:
                connection = self._connect(place, "ro")
                # It is read as it is now until it is closed.
                connection.execute("PRAGMA cell_size_check = ON")
                connection.execute("BEGIN")
                there = _tables(connection)
                self.absent = frozenset(wanted) - there
                self._note_families(connection, there.intersection(wanted))
            except BaseException:  # what is half open would keep its locks
                self._close()
                raise
        # A log ends at the first record that is not whole: that is where it was torn off.
        return None

    def open_view(self) -> StoreDamagedError | None:
        return self.open_read_only(self.path)

    def _connect(self, place: Path, mode: str) -> sqlite3.Connection:
        # SQLite would delete the log, which is all that is left, and make the tables anew.
        if mode != "rwc" and not (place / _FILE).stat().st_size:
            problem = f"The file {_FILE} of the store {self.path} is empty."
            raise StoreDamagedError(problem, remedy(self.path))
        self._connection = connection = _connect(place, mode)
        connection.execute(f"PRAGMA cache_size = {-_CACHE // 1024}")
        return connection

    @property
    def is_open(self) -> bool:
        return self._connection is not None

    def close(self) -> None:
        if self._connection is None:
            return
        try:
            if self._log is not None:
                with translated("Closing", self._explain):
                    self._log.close(self._connection)
        finally:
            self._close()

    def _close(self) -> None:
        self.families.clear()
        connection, self._connection = self._connection, None
        log, self._log = self._log, None
        with translated("Closing", self._explain):
            if log is not None:
                log.stop()
                log.free()
            if connection is not None:
                connection.close()

    def abandon(self) -> None:
        if self._connection is None:
            return
        if self._log is not None:
            self._log.stop()
        # A connection that is freed writes the log back, and deletes it.
        never_free((self._connection, self._log))
        self._connection = self._log = None
        self.families.clear()

    def _leave_alone(self) -> None:
        """Have nothing freed in a forked child: its parent's locks are not its own."""
        never_free(self)

    def has(self, family: str, key: bytes) -> bool:
        return self.families[family].has(key)

    def get(self, family: str, key: bytes) -> bytes | None:
        if family in self.absent:
            return None
        with self.reading:
            found = self._opened.execute(self.families[family].get, (key,)).fetchall()
        return self._checked(family, key, found[0][0]) if found else None

    def _checked(self, family: str, key: bytes, stored: bytes) -> bytes:
        value = checked(self.families[family].seed, key, stored)
        if value is None:
            raise self._damaged(family, key)
        return value

    def _damaged(self, family: str, key: object) -> StoreDamagedError:
        name = key.hex() if isinstance(key, bytes) else repr(key)
        return StoreDamagedError(
            f"Reading the store {self.path} failed: a row of {family!r}, {name}, is not what was"
            " written.",
            remedy(self.path),
        )

    def read(
        self, family: str, prefix: bytes, start: bytes, limit: int, most_bytes: int
    ) -> list[Row]:
        found: list[Row] = []
        size = 0
        least, end = max(start, prefix), after(prefix) or b"\xff" * 300
        with (
            self.reading,
            closing(self._opened.execute(self.families[family].read, (least, end))) as rows,
        ):
            for key, stored in rows:
                value = self._checked(family, key, stored)
                if key < least:  # a damaged page leads back
                    raise self._damaged(family, key)
                least = key
                size += len(value)
                found.append((key, value))
                if len(found) >= limit or size >= most_bytes:
                    break
        return found

    def iterate(self, family: str, prefix: bytes = b"", start: bytes = b"") -> Iterator[Row]:
        if family in self.absent:
            return
        if self._log is None and not prefix and not start:
            self._verify(family)
        # In portions: a statement that was not read to its end would keep the log from being cut.
        while rows := self.read(family, prefix, start, *_PORTION):
            yield from rows
            start = rows[-1][0] + b"\0"

    def _verify(self, family: str) -> None:
        """Have the pages of a family compared with each other: rows may be missing from them."""
        with self.reading:
            [(found,), *_] = self._opened.execute(self.families[family].verify).fetchall()
            if found != "ok":
                text = found.removeprefix("*** in database main ***\n").partition("\n")[0]
                raise sqlite3.DatabaseError(f"malformed: {text}")

    def write(self, batch: RowBatch, *, wait: bool) -> None:
        with self._writing:
            connection = self._opened
            with self._opened_log.writing(wait=wait):
                try:
                    connection.execute("BEGIN IMMEDIATE")
                except sqlite3.OperationalError as error:
                    if wait or "locked" not in str(error):
                        raise
                    file = quote_for_shell(str(self.path / _FILE))
                    problem = f"Another process writes to the store: `fuser {file}` finds it."
                    raise StoreStalledError(problem) from error
                try:
                    for operation, family, changed in batch.changes:
                        self._apply(connection, operation, self.families[family], changed)
                    connection.execute("COMMIT")
                except BaseException:  # an interrupt, too, may leave no transaction open
                    if connection.in_transaction:
                        with suppress(sqlite3.Error):  # what came first is what must be heard of
                            connection.execute("ROLLBACK")
                    raise

    @staticmethod
    def _apply(
        connection: sqlite3.Connection,
        operation: Operation,
        family: _Family,
        changed: Iterable[Any],
    ) -> None:
        if operation is Operation.PUT:
            connection.executemany(family.put, family.sign(changed))
        elif operation is Operation.DELETE:
            connection.executemany(family.delete, ((key,) for key in changed))
        else:
            connection.execute(family.delete_range, tuple(changed))

    def sync(self) -> None:
        with translated("Syncing", self._explain):
            self._opened_log.sync()

    def flush(self) -> None:
        with self._writing:
            self._opened_log.write_back(self._opened)

    @property
    def _opened(self) -> sqlite3.Connection:
        if self._connection is None:
            raise sqlite3.ProgrammingError(_CLOSED)
        return self._connection

    @property
    def _opened_log(self) -> Log:
        if self._log is None:
            raise sqlite3.ProgrammingError(_CLOSED)
        return self._log


def _connect(place: Path, mode: str) -> sqlite3.Connection:
    timeout = _PATIENCE if mode == "ro" else 0.0
    return sqlite3.connect(
        f"file:{quote(str(place / _FILE))}?mode={mode}",
        timeout,
        isolation_level=None,
        check_same_thread=False,
        uri=True,
    )


def _tables(connection: sqlite3.Connection) -> set[str]:
    return {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}


ENGINE = SqliteDatabase
