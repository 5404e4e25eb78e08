"""RocksDB, through ``rocksdict``: opening, reading, writing, and what it calls its errors.

rocksdict raises bare exceptions with a text: they become :class:`StoreError` here, and nowhere
else.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from ...errors import StoreDamagedError, StoreError, StoreStalledError
from ..forks import close_in_child
from .rocksdb import READ_WRITE, Access, Recovery, options_for, options_of_families, require
from .states import FAMILIES

if TYPE_CHECKING:
    from rocksdict import ColumnFamily, Rdict, RdictIter, WriteBatch


class translated:  # noqa: N801  (reads as a verb; a class, as generators cost 1 us on hot paths)
    """Every error of rocksdict as a :class:`StoreError` that says what was tried, and where.

    :param place: where RocksDB believes the store at *path* to be.
    """

    __slots__ = ("_path", "_place", "_what")

    def __init__(self, what: str, path: Path, place: Path) -> None:
        self._what = what
        self._path = path
        self._place = place

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: object
    ) -> None:
        # rocksdict raises nothing narrower than Exception.
        if not isinstance(error, Exception) or isinstance(error, StoreError):
            return
        text = "it is closed, and could not be opened again" if kind is KeyError else str(error)
        text = " ".join(text.split()).rstrip(".").replace(str(self._place), str(self._path))
        message = f"{self._what} the store {self._path} failed: {text}."
        if "Corruption" in text or "No such file" in text:
            raise StoreDamagedError(message, remedy(self._path)) from error
        refined = StoreStalledError if "Result incomplete" in text else StoreError
        raise refined(f"{message} {advise(text)}") from error


def advise(error: str | None) -> str:
    """What to do about an error of the operating system, by its text."""
    text = (error or "").lower()
    if "too many open files" in text:
        return (
            "This process, or the machine, has too many files open: raise the limit (`ulimit -n`),"
            " or have the crawl open fewer."
        )
    if "lock" in text and ("temporarily unavailable" in text or "current process" in text):
        return (
            "Another process has the store open, such as a tool that looks into it: end that one"
            " (`fuser` on its file LOCK finds it), and run the same command again."
        )
    return "Check that its disk has space and can be written to."


def remedy(store: Path) -> str:
    """What to do about a store that is damaged."""
    return (
        f"Run `scrapy altsched check {quote(str(store.parent))} --repair` to keep what can be read"
        " of it (without --repair: to see what is wrong); or restore the JOBDIR from a copy, or"
        " delete it to start the crawl over."
    )


def _never_free(value: object) -> None:
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))


class Database:
    """A database of RocksDB, with families of rows: keys and values are bytes.

    Each method raises StoreError if it fails; ConfigError: rocksdict is missing.

    :param path: its directory, as messages name it.
    :ivar families: name -> family, to ask for single keys; empty while it is closed.
    :ivar handles: name -> what a ``WriteBatch`` calls the family.
    :ivar absent: families that are not there: it is read only, and was last written before there
        were such rows.
    :ivar reading: turns the errors of a read into ours: for those who read *families* themselves.
    """

    def __init__(self, path: Path) -> None:
        require()
        from rocksdict import WriteOptions

        self.path = path
        self.families: dict[str, Rdict] = {}
        self.handles: dict[str, ColumnFamily] = {}
        self.absent: frozenset[str] = frozenset()
        # A write that would wait for a flush is refused: the reactor is never blocked.
        self._prompt = WriteOptions()
        self._prompt.no_slowdown = True
        self._rdict: Rdict | None = None
        #: What :meth:`read` reads with.
        self._cursors: dict[str, RdictIter] = {}
        self._name(path)
        close_in_child(self._leave_alone)

    def _name(self, place: Path) -> None:
        self._place = place
        self.reading = translated("Reading", self.path, place)
        self._writing = translated("Writing to", self.path, place)

    def open(
        self,
        place: Path,
        access: Access = READ_WRITE,
        recovery: Recovery = Recovery.STRICT,
        *,
        create: bool = False,
        families: Sequence[str] = FAMILIES,
    ) -> None:
        """Open the database, whose files, or links to them, are at *place*.

        :param families: those that are asked for; to be written, all, and what is missing is made.
        """
        from rocksdict import AccessType, Rdict

        self._name(place)
        options = options_for(recovery)
        options.create_if_missing(create)
        with translated("Opening", self.path, place):
            if access != READ_WRITE:  # which could not make those that are not there
                self.absent = frozenset(families).difference(Rdict.list_cf(str(place), options))
                families = [name for name in families if name not in self.absent]
            by_name = options_of_families(families, recovery)
            kind, *arguments = access
            how = getattr(AccessType, kind)(*arguments)
            rdict = self._rdict = Rdict(str(place), options, by_name, how)
            for name in families:
                self.families[name] = rdict.get_column_family(name)
                self.handles[name] = rdict.get_column_family_handle(name)

    @property
    def is_open(self) -> bool:
        return self._rdict is not None

    def close(self) -> None:
        if self._rdict is None:
            return
        rdict, self._rdict = self._rdict, None
        # Each of these keeps the database's own lock until it is gone.
        self._forget()
        with translated("Closing", self.path, self._place):
            rdict.close()

    def abandon(self) -> None:
        """Leave everything as if the process had died now; it counts as closed.

        A close, which freeing is, flushes, and deletes files there that are unknown to it.
        """
        if self._rdict is None:
            return
        with suppress(Exception):  # rocksdict raises nothing narrower
            self._rdict.cancel_all_background(True)
        _never_free((self._rdict, {**self.families}, {**self.handles}, {**self._cursors}))
        self._rdict = None
        self._forget()

    def _leave_alone(self) -> None:
        """Have nothing freed in a forked child, not even when its interpreter ends.

        That flushes the store: to its parent's files, by RocksDB's threads, of which it has none.
        """
        _never_free(self)

    def _forget(self) -> None:
        self._cursors.clear()
        self.families.clear()
        self.handles.clear()

    def get(self, family: str, key: bytes) -> bytes | None:
        with self.reading:
            value: bytes | None = self.families[family].get(key)
        return value

    def read(
        self, family: str, prefix: bytes, start: bytes, limit: int, most_bytes: int
    ) -> list[tuple[bytes, bytes]]:
        """At most *limit* rows whose keys start with *prefix*, from key *start* on.

        It stops at the one with which the values come to *most_bytes*, too.
        """
        found: list[tuple[bytes, bytes]] = []
        size = 0
        with self.reading:
            # One serves all reads between two writes: creating one costs more than a seek.
            if family not in self._cursors:
                self._cursors[family] = self.families[family].iter()
            for key, value in _walk(self._cursors[family], start):
                if not key.startswith(prefix):
                    break
                size += len(value)
                found.append((key, value))
                # The next one may be far away, behind rows that were deleted.
                if len(found) >= limit or size >= most_bytes:
                    break
        return found

    def iterate(
        self, family: str, prefix: bytes = b"", start: bytes = b""
    ) -> Iterator[tuple[bytes, bytes]]:
        """Rows of a family in key order, from key *start* on."""
        from rocksdict import ReadOptions

        if family in self.absent:
            return
        with self.reading:
            read_options = ReadOptions()
            if (end := after(prefix)) is not None:
                read_options.set_iterate_upper_bound(end)
            yield from _walk(self.families[family].iter(read_options), start or prefix)

    def new_batch(self) -> WriteBatch:
        from rocksdict import WriteBatch

        with self._writing:
            assert self._opened is not None
        return WriteBatch(raw_mode=True)

    def write(self, rows: WriteBatch, *, wait: bool) -> None:
        """Write all of *rows* or none.

        :raises StoreStalledError: RocksDB is behind with its own work, and *wait* is false.
        """
        with self._writing:
            self._opened.write(rows, None if wait else self._prompt)
        # They would go on to see, and to keep from being deleted, what was there before.
        self._cursors.clear()

    def sync(self) -> None:
        """Make the operating system write everything to the disk; blocks.

        It has failed, too, if RocksDB could not force a directory to the disk in the background.
        """
        with translated("Syncing", self.path, self._place):
            rdict = self._opened
            rdict.flush_wal(True)
            failed = rdict.property_int_value("rocksdb.background-errors")
        if failed:
            raise StoreError(
                f"Syncing the store {self.path} failed: RocksDB met an error in the background."
                f" {advise(None)}"
            )

    def flush(self) -> None:
        """Move everything from the log into tables."""
        with self._writing:
            for family in self.families.values():
                family.flush()

    @property
    def _opened(self) -> Rdict:
        if self._rdict is None:
            raise KeyError("closed")
        return self._rdict


def _walk(rows: RdictIter, start: bytes) -> Iterator[tuple[bytes, bytes]]:
    try:
        rows.seek(start)
        while rows.valid():
            yield rows.key(), rows.value()
            rows.next()
        # A damaged block looks like the end; only the status tells the two apart.
        rows.status()
    finally:
        # An error keeps this frame, and an iterator the database's lock.
        del rows


def open_up_to_damage(open_store: Callable[[Recovery], object]) -> StoreDamagedError | None:
    """Open a store; what is wrong with its log, if it can be read up to that only."""
    try:
        open_store(Recovery.STRICT)
    except StoreDamagedError as error:
        try:
            open_store(Recovery.UP_TO_DAMAGE)
        except StoreDamagedError:
            raise error from None
        return error
    return None


def after(prefix: bytes) -> bytes | None:
    """The first key past all that start with *prefix*; ``None``: there is no end."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes((stripped[-1] + 1,)) if stripped else None
