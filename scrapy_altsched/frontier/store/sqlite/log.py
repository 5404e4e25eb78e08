"""The log of a SQLite store, which is written back into the tables in a thread.

SQLite would do so in whichever commit makes the log long, and force both to the disk there: with a
slow disk that is seconds, on the thread of the crawl.

A log that was written back wholly begins anew, and the first commit to it is forced to the disk:
the thread makes that one, too.  What checks whether a log was written back wholly must exclude
commits, at least up to SQLite 3.51.2: https://www.sqlite.org/wal.html#walresetbug.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ....background import Background
from ....disk import force, force_name, write_again
from ....errors import StoreStalledError

_MIB = 1024 * 1024
#: Bytes from which on a log is written back, and from which on commits wait for that.
LONG, TOO_LONG = 16 * _MIB, 64 * _MIB
#: Seconds for which one waits for the thread.
_PATIENCE = 60.0


class Log:
    """The log at *path*, which the database is open with.

    Methods raise sqlite3.Error and OSError, also for what the thread met since.

    :param connection: to the database, for the thread.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self._path = path
        self._connection = connection
        #: Bytes.
        self._write_back_at = LONG
        #: Held in each commit, and while the end of the log is written back.
        self._lock = threading.Lock()
        #: Whether nothing of the log was written back yet.
        self._is_fresh = False
        self._is_working = False
        # SQLite says nothing if it fails to.
        force_name(path)
        # SQLite looks at its own descriptor only, for errors of its own writes.
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        #: Whether the operating system may have forgotten what it could not write, in an earlier
        #: process, too.
        self._is_doubtful = self._size() > 0
        self._thread: Background[None, bool | Exception] = Background(
            "altsched-store", "writes back the log of the store", self._work
        )

    @contextmanager
    def writing(self, *, wait: bool) -> Iterator[None]:
        """Let nothing of the end of the log be written back meanwhile.

        :raises StoreStalledError: it is, and *wait* is false.
        """
        self._collect()
        is_behind = self._is_working and self._size() > TOO_LONG
        if is_behind and wait:
            self._collect(_PATIENCE)
        if (is_behind and not wait) or not self._lock.acquire(blocking=wait):
            raise StoreStalledError("The store writes back its log.")
        try:
            yield
        finally:
            self._lock.release()
        if not self._is_working and self._size() > self._write_back_at:
            self._is_working = True
            self._thread.give(None)

    def write_back(self, connection: sqlite3.Connection) -> None:
        """Write all of it into the tables, on this thread, if none reads it."""
        with self._lock:
            self._write_back(connection)

    def sync(self) -> None:
        """Force it to the disk; blocks."""
        try:
            if self._is_doubtful:
                with self._lock:
                    self._write_again()
            force(self._descriptor)
        except OSError:
            self._is_doubtful = True
            raise

    def close(self, connection: sqlite3.Connection) -> None:
        """Write all of it back, for the last time."""
        self.stop()
        self.write_back(connection)

    def stop(self) -> None:
        """End the thread."""
        self._thread.stop()
        self._thread.join(_PATIENCE)

    def free(self) -> None:
        self._connection.close()
        os.close(self._descriptor)

    def _size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def _collect(self, timeout: float = 0.0) -> None:
        answer = self._thread.take(timeout)
        if answer is not None:
            self._is_working = False
            if isinstance(answer, Exception):
                raise answer

    def _work(self, _: None) -> bool | Exception:
        try:
            # Commits go on beside the most of it.
            if self._is_fresh and not self._is_doubtful:
                self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
            self.write_back(self._connection)
        except (sqlite3.Error, OSError) as error:
            self._is_doubtful = True
            return error
        return True

    def _write_back(self, connection: sqlite3.Connection) -> None:
        if self._is_doubtful:
            self._write_again()
        [(is_read, _, _)] = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        self._is_fresh = not is_read
        if is_read:
            self._write_back_at = self._size() + LONG
        else:
            self._write_back_at = LONG
            # The first commit, which is forced to the disk.
            connection.execute("PRAGMA user_version = 1")

    def _write_again(self) -> None:
        write_again(self._path, 0)
        self._is_doubtful = False
