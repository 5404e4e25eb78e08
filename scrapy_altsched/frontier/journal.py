"""The store: RocksDB, through ``rocksdict``.

One atomic batch a commit takes the store from one consistent state to the next.  The families:

==========  ==================================  ================================================
family      key                                 value
==========  ==================================  ================================================
seen        fingerprint                         empty (room for an age)
pending     slot id (8 bytes), order key        flags, fingerprint, encoded request
slots       slot id                             count (8 bytes), name
leased      fingerprint                         when (8 bytes, seconds), crashes, alone
started     fingerprint, occurrence (4 bytes)   number of the run that claimed it (4 bytes)
dead        key the request was pending under   length of the reason, reason, value as in pending
meta        name                                identity, commit, counters, order, notes
==========  ==================================  ================================================

rocksdict raises bare exceptions with a text: they become :class:`StoreError` here, and nowhere
else.  What RocksDB does by itself in the failures that these options answer:
https://github.com/facebook/rocksdb/wiki/WAL-Recovery-Modes and
https://github.com/facebook/rocksdb/wiki/Atomic-flush.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import shutil
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from rocksdict import (
    AccessType,
    BlockBasedOptions,
    Cache,
    DBRecoveryMode,
    Options,
    Rdict,
    RdictIter,
    ReadOptions,
    WriteBatch,
    WriteOptions,
)

from ..errors import JobdirLostError, StoreError, StoreStalledError
from .jobdir import Identity, Jobdir, not_writable
from .records import (
    Batch,
    Counters,
    LeaseRecord,
    decode_dead,
    decode_lease,
    decode_slot,
    encode_lease,
    encode_slot,
)

logger = logging.getLogger(__name__)

_FAMILIES = ("seen", "pending", "slots", "leased", "started", "dead", "meta")
_MIB = 1024 * 1024
_RESTORE = "Restore the JOBDIR from a copy, or delete it to start the crawl over."


class _translated:  # noqa: N801  (reads as a verb; a class, as generators cost 1 us on hot paths)
    """Every error of rocksdict as a :class:`StoreError` that says what was tried, and where."""

    __slots__ = ("_path", "_what")

    def __init__(self, what: str, path: Path) -> None:
        self._what = what
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: object
    ) -> None:
        # rocksdict raises nothing narrower than Exception.
        if not isinstance(error, Exception) or isinstance(error, StoreError):
            return
        text = "it is closed, and could not be opened again" if kind is KeyError else str(error)
        refined = StoreStalledError if "Result incomplete" in text else StoreError
        is_damaged = "Corruption" in text or "No such file" in text
        remedy = _RESTORE if is_damaged else "See that its disk has space and can be written to."
        raise refined(f"{self._what} the store {self._path} failed: {text}. {remedy}") from error


def _options() -> Options:
    options = Options(raw_mode=True)
    options.create_missing_column_families(True)
    # Without it a lost WAL file opens without error, with queue and seen of different times.
    options.set_atomic_flush(True)
    options.set_wal_recovery_mode(DBRecoveryMode.tolerate_corrupted_tail_records())
    options.set_keep_log_file_num(2)
    options.set_max_log_file_size(4 * _MIB)
    options.set_stats_dump_period_sec(0)
    # Open files must not grow with the crawl.
    options.set_max_open_files(256)
    options.set_db_write_buffer_size(48 * _MIB)
    options.set_max_total_wal_size(96 * _MIB)
    options.set_max_background_jobs(2)
    return options


def _family_options(name: str, cache: Cache) -> Options:
    options = _options()
    options.set_write_buffer_size(16 * _MIB)
    table = BlockBasedOptions()
    table.set_block_cache(cache)
    table.set_format_version(5)
    if name == "seen":
        table.set_bloom_filter(10, False)
        # Memtables have no filter of their own, and most look-ups are for absent keys.
        options.set_memtable_whole_key_filtering(True)
        options.set_memtable_prefix_bloom_ratio(0.1)
    options.set_block_based_table_factory(table)
    return options


#: Journals of this process that are open.
_journals: weakref.WeakSet[Journal] = weakref.WeakSet()


def _leave_alone_in_child() -> None:
    """Never let a forked child free what RocksDB gave us, not even when its interpreter ends.

    Each object of rocksdict flushes the store when it is freed.  A child has none of RocksDB's
    threads: it would write to its parent's files, and then wait for those threads for ever.
    """
    for journal in _journals:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(journal))


os.register_at_fork(after_in_child=_leave_alone_in_child)


class Journal:
    """An open store, and the job directory around it.

    :raises JobdirError: the directory cannot be used; nothing in it was changed.
    :raises StoreError: RocksDB does not open.
    """

    def __init__(self, path: str | os.PathLike[str], owner: str) -> None:
        self.jobdir = Jobdir(path, owner)
        self.path = self.jobdir.store
        self._db: Rdict | None = None
        self._reader: RdictIter | None = None
        _journals.add(self)
        try:
            if not self.path.exists():
                self._create()
            self._open()
        except BaseException:
            with suppress(StoreError):  # what came first is what the user must hear of
                self._close_database()
            self.jobdir.release()
            raise

    # Opening and closing

    def _create(self) -> None:
        """Make the store beside its place and move it there, so that it is whole or absent."""
        partial = self.path.with_name(self.path.name + ".partial")
        try:
            shutil.rmtree(partial, ignore_errors=True)
            self._open_database(partial, create=True)
            identity = Identity.new(self.jobdir.owner)
            batch = WriteBatch(raw_mode=True)
            batch.put(b"identity", json.dumps(asdict(identity)).encode(), self._handles["meta"])
            with _translated("Writing to", partial):
                self._rdict.write(batch)
                self._rdict.flush()
            self._close_database()
            partial.rename(self.path)
        except OSError as error:
            raise not_writable(self.path, error) from error

    def _open(self) -> None:
        found = self._identify()
        self.jobdir.check(found)
        known = self.jobdir.identity
        if known is None:
            self.jobdir.write_identity(found)
        elif known.store_id != found.store_id:
            raise JobdirLostError(
                f"The store {self.path} is not the one that JOBDIR {self.jobdir.path} was made"
                " with. Restore the JOBDIR as a whole from one copy."
            )
        self._open_database(self.path, create=False)
        status = self.path.stat()
        self._directory = (status.st_dev, status.st_ino)
        self.commit_number = int.from_bytes(self._get("commit") or b"", "big")

    def _identify(self) -> Identity:
        """Whose the store is; read without changing it, as an open that is refused would."""
        if not (self.path / "CURRENT").is_file():
            raise StoreError(f"The store {self.path} lacks its file CURRENT. {_RESTORE}")
        with _translated("Opening", self.path):
            families = {"meta": _options()}
            database = Rdict(str(self.path), _options(), families, AccessType.read_only())
            value = database.get_column_family("meta").get(b"identity")
            database.close()
        if value is None:
            raise StoreError(
                f"The store {self.path} does not say whose it is: it was cut short before its"
                f" first commit. {_RESTORE}"
            )
        return Identity.parse(value)

    def _open_database(self, path: Path, *, create: bool) -> None:
        cache = Cache(16 * _MIB)
        options = _options()
        options.create_if_missing(create)
        families = {name: _family_options(name, cache) for name in _FAMILIES}
        with _translated("Opening", path):
            self._db = Rdict(str(path), options, column_families=families)
        self._cf = {name: self._db.get_column_family(name) for name in _FAMILIES}
        self._handles = {name: self._db.get_column_family_handle(name) for name in _FAMILIES}
        # A write that would wait for a flush is refused, so that the reactor is never blocked.
        self._prompt = WriteOptions()
        self._prompt.no_slowdown = True

    @property
    def _rdict(self) -> Rdict:
        if self._db is None:
            raise KeyError("closed")
        return self._db

    def _close_database(self) -> None:
        if self._db is None:
            return
        database, self._db = self._db, None
        # Each of these keeps the database's own lock until it is gone.
        self._reader = None
        self._cf.clear()
        self._handles.clear()
        with _translated("Closing", self.path):
            database.close()

    def reopen(self) -> None:
        """Close the store and open it again, which is what ends RocksDB's refusal to write.

        :raises StoreError: it does not open, or is not as the last commit left it.
        """
        self.check_directory()
        # It closes all the same, and says again what it failed to write.
        with suppress(StoreError):
            self._close_database()
        before = self.commit_number
        self._open()
        after, self.commit_number = self.commit_number, before
        if after != before:
            # What is in memory does not go on from there; the next run does.
            self._close_database()
            raise StoreError(
                f"The store {self.path} came back at commit {after} instead of {before}. Restart"
                " the crawl: it resumes from there."
            )

    def close(self) -> None:
        """Flush, close, and let others have the directory.  May be called twice."""
        try:
            if self._db is not None:
                self.sync()
        finally:
            try:
                self._close_database()
            finally:
                self.jobdir.release()

    def sync(self) -> None:
        """Have the operating system write what was committed to the disk; blocks."""
        with _translated("Syncing", self.path):
            self._rdict.flush_wal(True)

    def check_directory(self) -> None:
        """See that the store's directory is still the one that was opened.

        :raises JobdirLostError: it is not: writes would go nowhere.
        """
        try:
            status = self.path.stat()
        except OSError:
            status = None
        if status is None or (status.st_dev, status.st_ino) != self._directory:
            raise JobdirLostError(
                f"The store {self.path} was deleted or replaced while the crawl was running:"
                " nothing can be saved any more. Stop the crawl and restore the JOBDIR."
            )

    # Reading

    def _get(self, name: str) -> bytes | None:
        with _translated("Reading", self.path):
            value: bytes | None = self._cf["meta"].get(name.encode())
        return value

    def counters(self) -> Counters:
        """The counters of the last commit."""
        return Counters(**json.loads(self._get("counters") or b"{}"))

    def note(self, name: str) -> bytes | None:
        """A note of the last commit that wrote it."""
        return self._get("note:" + name)

    def has_seen(self, fingerprint: bytes) -> bool:
        """Whether *fingerprint* was committed as seen."""
        with _translated("Reading", self.path):
            return fingerprint in self._cf["seen"]

    def claimed(self, fingerprint: bytes, occurrence: int) -> int | None:
        """The run that claimed this occurrence of a start request; ``None``: none did."""
        with _translated("Reading", self.path):
            value = self._cf["started"].get(fingerprint + occurrence.to_bytes(4, "big"))
        return None if value is None else int.from_bytes(value, "big")

    def slots(self) -> Iterator[tuple[int, int, str]]:
        """Id, count and name of every slot."""
        for key, value in self._iterate("slots"):
            yield int.from_bytes(key, "big"), *decode_slot(value)

    def leases(self) -> Iterator[tuple[bytes, LeaseRecord]]:
        """Fingerprint and record of every lease."""
        for key, value in self._iterate("leased"):
            yield key, decode_lease(value)

    def dead(self) -> Iterator[tuple[bytes, str, bytes]]:
        """Key, reason and stored value of every dead request."""
        for key, value in self._iterate("dead"):
            yield key, *decode_dead(value)

    def pending(
        self, prefix: bytes = b"", start: bytes = b"", limit: int | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        """Key and value of pending requests whose keys start with *prefix*, from *start* on."""
        return self._iterate("pending", prefix, start, limit)

    def read_pending(self, prefix: bytes, start: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """At most *limit* pending requests of the slot of *prefix*, from key *start* on.

        One iterator serves all reads between two commits: making one costs more than a seek.
        """
        with _translated("Reading", self.path):
            if self._reader is None:
                self._reader = self._cf["pending"].iter()
            rows = self._reader
            rows.seek(start)
            found: list[tuple[bytes, bytes]] = []
            while len(found) < limit and rows.valid():
                key = rows.key()
                if not key.startswith(prefix):
                    return found
                found.append((key, rows.value()))
                rows.next()
            # A damaged block looks like the end; only the status tells the two apart.
            rows.status()
        return found

    def _iterate(
        self, family: str, prefix: bytes = b"", start: bytes = b"", limit: int | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        """Rows of a family in key order.

        An iterator over a damaged block just stops, as at the end: its status tells the two apart.
        """
        with _translated("Reading", self.path):
            read_options = ReadOptions()
            end = _after(prefix)
            if end is not None:
                read_options.set_iterate_upper_bound(end)
            rows = self._cf[family].iter(read_options)
            rows.seek(start or prefix)
            while rows.valid() and limit != 0:
                yield rows.key(), rows.value()
                rows.next()
                if limit is not None:
                    limit -= 1
            rows.status()

    # Writing

    def write(self, batch: Batch, *, wait: bool = False) -> None:
        """Apply *batch*, wholly or not at all.

        :param wait: whether to wait while RocksDB is behind with its own work.
        :raises StoreStalledError: RocksDB is behind with its own work; ask again later.
        :raises JobdirLostError: the directory is not there any more.
        :raises StoreError: it failed otherwise, e.g. a full disk.
        """
        self.check_directory()
        number = self.commit_number + 1
        with _translated("Writing to", self.path):
            self._rdict.write(self._encode(batch, number), None if wait else self._prompt)
        # It would go on to see, and to hold back from deletion, what was there before.
        self._reader = None
        self.commit_number = number

    def _encode(self, batch: Batch, number: int) -> WriteBatch:
        rows = WriteBatch(raw_mode=True)
        put: Callable[..., None] = rows.put
        delete: Callable[..., None] = rows.delete
        handle = self._handles["seen"]
        for fingerprint in batch.forgotten:
            delete(fingerprint, handle)
        for fingerprint in batch.seen:
            put(fingerprint, b"", handle)
        handle = self._handles["pending"]
        for key, value in batch.pending:
            put(key, value, handle)
        for key in batch.removed:
            delete(key, handle)
        for prefix in batch.removed_slots:
            rows.delete_range(prefix, _after(prefix) or b"\xff" * 9, handle)
        handle = self._handles["slots"]
        for slot_id, count, name in batch.slots:
            if count:
                put(slot_id, encode_slot(count, name), handle)
            else:
                delete(slot_id, handle)
        handle = self._handles["started"]
        for key in batch.unclaimed:
            delete(key, handle)
        for key, run in batch.started:
            put(key, run.to_bytes(4, "big"), handle)
        if batch.clear_started:
            rows.delete_range(b"", b"\xff" * 300, handle)
        handle = self._handles["leased"]
        for fingerprint, record in batch.leases:
            if record is None:
                delete(fingerprint, handle)
            else:
                put(fingerprint, encode_lease(record), handle)
        handle = self._handles["dead"]
        for key, value in batch.dead:
            put(key, value, handle)
        handle = self._handles["meta"]
        for name, note in batch.notes.items():
            put(b"note:" + name.encode(), note, handle)
        put(b"counters", json.dumps(asdict(batch.counters)).encode(), handle)
        put(b"commit", number.to_bytes(8, "big"), handle)
        return rows

    def remove_orphans(self, next_slot: int) -> None:
        """Delete rows of slots that no commit ever named: a re-encoding was cut short."""
        first = next_slot.to_bytes(8, "big")
        if any(True for _ in self._iterate("pending", start=first, limit=1)):
            with _translated("Writing to", self.path):
                self._cf["pending"].delete_range(first, b"\xff" * 9)

    def record_lease(self, fingerprint: bytes, record: LeaseRecord) -> None:
        """Note at once, outside any batch, that a request was leased."""
        with _translated("Writing to", self.path):
            self._cf["leased"].put(fingerprint, encode_lease(record), self._prompt)


def _after(prefix: bytes) -> bytes | None:
    """The first key past all that start with *prefix*; ``None``: there is no end."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes((stripped[-1] + 1,)) if stripped else None
