"""A database of RocksDB: opening, reading, writing, and what it calls its errors.

rocksdict raises bare exceptions with a text: they become :class:`StoreError` here, and nowhere
else.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from rocksdict import (
    AccessType,
    ColumnFamily,
    Rdict,
    RdictIter,
    ReadOptions,
    WriteBatch,
    WriteOptions,
)

from ....errors import StoreDamagedError, StoreError, StoreStalledError
from ...forks import close_in_child, never_free
from ..database import (
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
from .options import READ_ONLY, READ_WRITE, Access, Recovery, options_for, options_of_families

#: A crawl deletes files when it has merged them: seconds for which to look for a whole set.
_PATIENCE = 10.0


def explain(path: Path, place: Path, what: str, error: Exception) -> StoreError:
    """An error of rocksdict, which raises nothing narrower than Exception, as one of ours.

    :param place: where RocksDB believes the store at *path* to be.
    """
    is_closed = isinstance(error, KeyError)
    text = "it is closed, and could not be opened again" if is_closed else str(error)
    text = " ".join(text.split()).rstrip(".").replace(str(place), str(path))
    message = f"{what} the store {path} failed: {text}."
    if "Corruption" in text or "No such file" in text:
        return StoreDamagedError(message, remedy(path))
    refined = StoreStalledError if "Result incomplete" in text else StoreError
    return refined(f"{message} {_advise(text)}")


def _advise(text: str) -> str:
    lower = text.lower()
    if "lock" in lower and ("temporarily unavailable" in lower or "current process" in lower):
        return held_elsewhere("LOCK")
    return advise(text)


class RocksDatabase(Database):
    """See :class:`~..database.Database`."""

    FILE = "CURRENT"

    families: dict[str, Any]  # of Rdict, which has no type that says what it contains

    def __init__(self, path: Path) -> None:
        self.path = path
        self.families = {}
        self.absent = frozenset()
        #: Name -> what a ``WriteBatch`` calls the family.
        self._handles: dict[str, ColumnFamily] = {}
        # A write that would wait for a flush is refused: the reactor is never blocked.
        self._prompt = WriteOptions()
        self._prompt.no_slowdown = True
        self._rdict: Rdict | None = None
        #: What :meth:`read` reads with.
        self._cursors: dict[str, RdictIter] = {}
        #: Of a view: links to its files.
        self._links: tempfile.TemporaryDirectory[str] | None = None
        self._name(path)
        close_in_child(self._leave_alone)

    def _name(self, place: Path) -> None:
        self._explain = partial(explain, self.path, place)
        self.reading = translated("Reading", self._explain)
        self._writing = translated("Writing to", self._explain)

    def open(self, place: Path, *, create: bool = False) -> None:
        # Also past an end that was torn off, where another log may follow it.
        self.open_as(place, READ_WRITE, Recovery.UP_TO_DAMAGE, create=create)

    def open_read_only(
        self, place: Path, families: Sequence[str] | None = None
    ) -> StoreDamagedError | None:
        self._check_file(place)
        try:
            self.open_as(place, READ_ONLY, Recovery.STRICT, families=families)
        except StoreDamagedError as error:
            try:
                self.open_as(place, READ_ONLY, Recovery.UP_TO_DAMAGE, families=families)
            except StoreDamagedError:
                raise error from None
            return error
        return None

    def open_undamaged(self, place: Path, families: Sequence[str] | None = None) -> None:
        # Read strictly, a torn end of a log is passed over, and what is in a later one follows it.
        self.open_as(place, READ_ONLY, Recovery.UP_TO_DAMAGE, families=families)

    def open_view(self) -> StoreDamagedError | None:
        # RocksDB writes files of its own even into a store that it only reads.
        deadline = time.monotonic() + _PATIENCE
        while True:
            self._links = tempfile.TemporaryDirectory(prefix="altsched-view-")
            try:
                sizes = _sizes_of(self.path)
                link_files(self.path, Path(self._links.name))
                return self.open_read_only(Path(self._links.name))
            except StoreDamagedError:
                self.close()
                if sizes == _sizes_of(self.path) or time.monotonic() >= deadline:
                    raise
            except BaseException:  # nothing else would delete the links
                self.close()
                raise

    def open_as(
        self,
        place: Path,
        access: Access,
        recovery: Recovery,
        *,
        create: bool = False,
        families: Sequence[str] | None = None,
    ) -> None:
        """Open it as *access* and *recovery* say; its files, or links to them, are at *place*.

        :param families: those that are asked for, if not all; to be written, all, and those that
            are missing are made.
        """
        self._name(place)
        families = FAMILIES if families is None else families
        with translated("Opening", self._explain):
            options = options_for(recovery)
            options.create_if_missing(create)
            if access != READ_WRITE:  # which could not make those that are not there
                self.absent = frozenset(families).difference(Rdict.list_cf(str(place), options))
                families = [name for name in families if name not in self.absent]
            by_name = options_of_families(families, recovery)
            kind, *arguments = access
            how = getattr(AccessType, kind)(*arguments)
            rdict = self._rdict = Rdict(str(place), options, by_name, how)
            for name in families:
                self.families[name] = rdict.get_column_family(name)
                self._handles[name] = rdict.get_column_family_handle(name)

    @property
    def is_open(self) -> bool:
        return self._rdict is not None

    def close(self) -> None:
        rdict, self._rdict = self._rdict, None
        # Each of these keeps the database's own lock until it is gone.
        self._forget()
        try:
            if rdict is not None:
                with translated("Closing", self._explain):
                    rdict.close()
        finally:
            links, self._links = self._links, None
            if links is not None:
                links.cleanup()

    def abandon(self) -> None:
        if self._rdict is None:
            return
        # A close, which freeing is, flushes, and deletes files there that are unknown to it.
        with suppress(Exception):  # rocksdict raises nothing narrower
            self._rdict.cancel_all_background(True)
        never_free((self._rdict, {**self.families}, {**self._handles}, {**self._cursors}))
        self._rdict = None
        self._forget()

    def _leave_alone(self) -> None:
        """Have nothing freed in a forked child, not even when its interpreter ends.

        That flushes the store: to its parent's files, by RocksDB's threads, of which it has none.
        """
        never_free(self)

    def _forget(self) -> None:
        self._cursors.clear()
        self.families.clear()
        self._handles.clear()

    def has(self, family: str, key: bytes) -> bool:
        # With ``in``, a key that is there would be looked up twice.
        return self.families[family].get(key) is not None

    def get(self, family: str, key: bytes) -> bytes | None:
        with self.reading:
            value: bytes | None = self.families[family].get(key)
        return value

    def read(
        self, family: str, prefix: bytes, start: bytes, limit: int, most_bytes: int
    ) -> list[Row]:
        found: list[Row] = []
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

    def iterate(self, family: str, prefix: bytes = b"", start: bytes = b"") -> Iterator[Row]:
        if family in self.absent:
            return
        with self.reading:
            read_options = ReadOptions()
            if (end := after(prefix)) is not None:
                read_options.set_iterate_upper_bound(end)
            yield from _walk(self.families[family].iter(read_options), start or prefix)

    def write(self, batch: RowBatch, *, wait: bool) -> None:
        with self._writing:
            # An error keeps this frame, and a variable would keep the database's lock.
            self._opened.write(self._encode(batch), None if wait else self._prompt)
        # They would go on to see, and to keep from being deleted, what was there before.
        self._cursors.clear()

    def _encode(self, batch: RowBatch) -> WriteBatch:
        rows = WriteBatch(raw_mode=True)
        put, delete = rows.put, rows.delete
        for operation, family, changed in batch.changes:
            handle = self._handles[family]
            if operation is Operation.PUT:
                for key, value in changed:
                    put(key, value, handle)
            elif operation is Operation.DELETE:
                for key in changed:
                    delete(key, handle)
            else:
                start, end = changed
                rows.delete_range(start, end, handle)
        return rows

    def sync(self) -> None:
        # It has failed, too, if RocksDB could not force a directory to the disk in the background.
        with translated("Syncing", self._explain):
            rdict = self._opened
            rdict.flush_wal(True)
            failed = rdict.property_int_value("rocksdb.background-errors")
        if failed:
            raise StoreError(
                f"Syncing the store {self.path} failed: RocksDB met an error in the background."
                f" {advise(None)}"
            )

    def flush(self) -> None:
        with self._writing:
            for family in self.families.values():
                family.flush()

    @property
    def _opened(self) -> Rdict:
        if self._rdict is None:
            raise KeyError("closed")
        return self._rdict


def _walk(rows: RdictIter, start: bytes) -> Iterator[Row]:
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


def link_files(store: Path, directory: Path) -> None:
    """Make *directory* look as *store* does."""
    for name in files_of(store):
        (directory / name).symlink_to(store.absolute() / name)


def _sizes_of(store: Path) -> dict[str, int]:
    """Bytes of each file; one may come and go meanwhile."""
    sizes = {}
    for name in files_of(store):
        with suppress(OSError):
            sizes[name] = (store / name).stat().st_size
    return sizes


def files_of(store: Path) -> set[str]:
    """The names of the files that a store consists of; without those that rocksdict rewrites."""
    return {
        path.name
        for path in store.iterdir()
        if path.name not in ("LOCK", "rocksdict-config.json") and not path.name.startswith("LOG")
    }


ENGINE = RocksDatabase
