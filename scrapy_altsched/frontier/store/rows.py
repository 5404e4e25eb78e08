"""The store's rows, as they are read: RocksDB, through ``rocksdict``.

==========  ==================================  ================================================
family      key                                 value
==========  ==================================  ================================================
seen        fingerprint                         empty; or, of what our filter has seen under
                                                another scheduler, the number of the run (4 bytes)
pending     slot id (8 bytes), order key        flags, fingerprint, encoded request
slots       slot id                             count (8 bytes), name
suspects    fingerprint                         level, deaths alone of two kinds, age; 0
started     fingerprint, occurrence (4 bytes)   number of the run that claimed it (4 bytes)
dead        key the request was pending under   length of the reason, reason, value as in pending
meta        name                                identity, commit, counters, notes
==========  ==================================  ================================================

rocksdict raises bare exceptions with a text: they become :class:`StoreError` here, and nowhere
else.  What RocksDB does by itself in the failures that these options answer:
https://github.com/facebook/rocksdb/wiki/WAL-Recovery-Modes and
https://github.com/facebook/rocksdb/wiki/Atomic-flush.  On the kinds of memtables:
https://github.com/facebook/rocksdb/wiki/MemTable.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from shlex import quote

from rocksdict import (
    AccessType,
    BlockBasedOptions,
    Cache,
    ColumnFamily,
    DBCompressionType,
    DBRecoveryMode,
    MemtableFactory,
    Options,
    Rdict,
    RdictIter,
    ReadOptions,
)

from ...errors import StoreDamagedError, StoreError, StoreStalledError
from ..forks import call_in_child
from .records import Counters, Suspicion, decode_dead, decode_slot, decode_suspicion, encode_claim

FAMILIES = ("seen", "pending", "slots", "suspects", "started", "dead", "meta")

READ_WRITE = AccessType.read_write()
READ_ONLY = AccessType.read_only()

#: Recovers from a log whose end a dying machine tore off, and from no other damage.
STRICT = DBRecoveryMode.tolerate_corrupted_tail_records()
#: Recovers the last state before whatever is damaged in the log; what came after it is dropped.
UP_TO_DAMAGE = DBRecoveryMode.point_in_time()

_MIB = 1024 * 1024


class translated:  # noqa: N801  (reads as a verb; a class, as generators cost 1 us on hot paths)
    """Every error of rocksdict as a :class:`StoreError` that says what was tried, and where.

    :param path: the store, as messages name it.
    :param place: where RocksDB believes it to be, if that is elsewhere.
    """

    __slots__ = ("_path", "_place", "_what")

    def __init__(self, what: str, path: Path, place: Path | None = None) -> None:
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
        text = " ".join(text.split()).rstrip(".")
        if self._place is not None:
            text = text.replace(str(self._place), str(self._path))
        message = f"{self._what} the store {self._path} failed: {text}."
        if "Corruption" in text or "No such file" in text:
            raise StoreDamagedError(message, remedy(self._path)) from error
        refined = StoreStalledError if "Result incomplete" in text else StoreError
        raise refined(message + " See that its disk has space and can be written to.") from error


def remedy(store: Path) -> str:
    """What to do about a store that is damaged."""
    return (
        f"Run `scrapy altsched check {quote(str(store.parent))} --repair` to keep what can be read"
        " of it (without --repair: to see what is wrong); or restore the JOBDIR from a copy, or"
        " delete it to start the crawl over."
    )


def options_for(recovery: DBRecoveryMode) -> Options:
    """RocksDB's options for the database, and for what all families have in common."""
    options = Options(raw_mode=True)
    options.create_missing_column_families(True)
    # Without it a lost WAL file opens without error, with queue and seen of different times.
    options.set_atomic_flush(True)
    options.set_wal_recovery_mode(recovery)
    options.set_keep_log_file_num(2)
    options.set_max_log_file_size(4 * _MIB)
    options.set_stats_dump_period_sec(0)
    # Open files must not grow with the crawl.
    options.set_max_open_files(256)
    # After a kill the log of all that is only in there is read again: some 20 ms a MiB.
    options.set_db_write_buffer_size(16 * _MIB)
    options.set_max_total_wal_size(96 * _MIB)
    options.set_max_background_jobs(2)
    # There is one writer; and only skip lists could take more.
    options.set_allow_concurrent_memtable_write(False)
    return options


def _family_options(name: str, cache: Cache, recovery: DBRecoveryMode) -> Options:
    options = options_for(recovery)
    options.set_write_buffer_size(16 * _MIB)
    # While a table is written, 8 bytes for each of its keys are in memory.
    options.set_target_file_size_base(16 * _MIB)
    table = BlockBasedOptions()
    table.set_block_cache(cache)
    table.set_format_version(5)
    if name == "seen":
        table.set_bloom_filter(10, False)
        # Memtables have no filter of their own, and most look-ups are for absent keys.
        options.set_memtable_whole_key_filtering(True)
        options.set_memtable_prefix_bloom_ratio(0.1)
    if name == "slots":
        # Read when the store is opened, and written in each commit: it is put in order when it is
        # flushed.  To find a place for each row among a hundred thousand took a third of a commit.
        options.set_memtable_factory(MemtableFactory.vector())
    if name == "pending":
        # A request is read once, from anywhere: a block that has to be unpacked for it costs more
        # than the disk that it saves.
        options.set_compression_type(DBCompressionType.none())
    options.set_block_based_table_factory(table)
    return options


#: Stores of this process.
_stores: weakref.WeakSet[Rows] = weakref.WeakSet()


def _leave_alone_in_child() -> None:
    """Never let a forked child free what RocksDB gave us, not even when its interpreter ends.

    Each object of rocksdict flushes the store when it is freed.  A child has none of RocksDB's
    threads: it would write to its parent's files, and then wait for those threads for ever.
    """
    for store in _stores:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(store))


call_in_child(_leave_alone_in_child)


class Rows:
    """A store that is open, to be read.

    :param path: its directory, as messages name it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._reading = translated("Reading", path)
        self._db: Rdict | None = None
        self._cf: dict[str, Rdict] = {}
        self._handles: dict[str, ColumnFamily] = {}
        self._reader: RdictIter | None = None
        _stores.add(self)

    def _open_database(
        self,
        path: Path,
        access: AccessType = READ_WRITE,
        recovery: DBRecoveryMode = STRICT,
        *,
        create: bool = False,
        families: Sequence[str] = FAMILIES,
    ) -> None:
        place = path if path != self.path else None
        self._reading = translated("Reading", self.path, place)
        cache = Cache(8 * _MIB)
        options = options_for(recovery)
        options.create_if_missing(create)
        by_name = {name: _family_options(name, cache, recovery) for name in families}
        with translated("Opening", self.path, place):
            self._db = Rdict(str(path), options, by_name, access)
            self._cf = {name: self._db.get_column_family(name) for name in families}
            self._handles = {name: self._db.get_column_family_handle(name) for name in families}

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
        with translated("Closing", self.path):
            database.close()

    def _read(self, name: str) -> bytes | None:
        with self._reading:
            value: bytes | None = self._cf["meta"].get(name.encode())
        return value

    def identity(self) -> bytes | None:
        """Whose the store is, as JSON; ``None``: it was cut short before it could say so."""
        return self._read("identity")

    def stored_commit(self) -> int:
        """The number of the last commit that the store holds."""
        return int.from_bytes(self._read("commit") or b"", "big")

    def counters(self) -> Counters:
        """The counters of the last commit."""
        return Counters.parse(self._read("counters") or b"{}")

    def notes(self, prefix: str = "") -> dict[str, bytes]:
        """All notes, or those whose names begin with *prefix*, by name.

        :raises StoreDamagedError: they cannot be read, or, for all, something else of their family.
        """
        start = b"note:"
        return {
            key[len(start) :].decode(): value
            for key, value in self._iterate("meta", start + prefix.encode() if prefix else b"")
            if key.startswith(start)
        }

    def note(self, name: str) -> bytes | None:
        """A note of the last commit that wrote it."""
        return self._read("note:" + name)

    def has_seen(self, fingerprint: bytes) -> bool:
        """Whether *fingerprint* was committed as seen."""
        try:  # a with statement takes as long as the look-up
            return fingerprint in self._cf["seen"]
        except Exception:
            with self._reading:
                raise

    def claimed(self, fingerprint: bytes, occurrence: int) -> int | None:
        """The run that claimed this occurrence of a start request; ``None``: none did."""
        with self._reading:
            value = self._cf["started"].get(encode_claim(fingerprint, occurrence))
        return None if value is None else int.from_bytes(value, "big")

    def seen(self) -> Iterator[bytes]:
        """Every fingerprint that was seen."""
        for key, _ in self.seen_rows():
            yield key

    def seen_rows(self) -> Iterator[tuple[bytes, bytes]]:
        """Fingerprint and value of everything that was seen."""
        return self._iterate("seen")

    def started(self) -> Iterator[tuple[bytes, bytes]]:
        """Claim and stored run of every start request."""
        return self._iterate("started")

    def slots(self) -> Iterator[tuple[int, int, str]]:
        """Id, count and name of every slot."""
        for key, value in self._iterate("slots"):
            yield int.from_bytes(key, "big"), *decode_slot(value)

    def suspects(self) -> Iterator[tuple[bytes, Suspicion]]:
        """Fingerprint of every suspect of earlier runs, and what is held against it."""
        for key, value in self._iterate("suspects"):
            yield key, decode_suspicion(value)

    def dead(self) -> Iterator[tuple[bytes, str, bytes]]:
        """Key, reason and stored value of every dead request."""
        for key, value in self._iterate("dead"):
            yield key, *decode_dead(value)

    def pending(
        self, prefix: bytes = b"", start: bytes = b"", limit: int | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        """Key and value of pending requests whose keys start with *prefix*, from *start* on."""
        return self._iterate("pending", prefix, start, limit)

    def read_pending(
        self, prefix: bytes, start: bytes, limit: int, most_bytes: int
    ) -> list[tuple[bytes, bytes]]:
        """At most *limit* pending requests of the slot of *prefix*, from key *start* on.

        It stops at the one with which the values come to *most_bytes*, too.
        One iterator serves all reads between two commits: making one costs more than a seek.
        """
        with self._reading:
            if self._reader is None:
                self._reader = self._cf["pending"].iter()
            rows = self._reader
            found: list[tuple[bytes, bytes]] = []
            size = 0
            try:
                rows.seek(start)
                while rows.valid():
                    key = rows.key()
                    if not key.startswith(prefix):
                        return found
                    value = rows.value()
                    size += len(value)
                    found.append((key, value))
                    # The next one may be far away, behind rows that were deleted.
                    if len(found) >= limit or size >= most_bytes:
                        return found
                    rows.next()
                # A damaged block looks like the end; only the status tells the two apart.
                rows.status()
            finally:
                # An error keeps this frame, and an iterator the database's lock.
                del rows
        return found

    def _iterate(
        self, family: str, prefix: bytes = b"", start: bytes = b"", limit: int | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        """Rows of a family in key order.

        An iterator over a damaged block just stops, as at the end: its status tells the two apart.
        """
        with self._reading:
            read_options = ReadOptions()
            end = after(prefix)
            if end is not None:
                read_options.set_iterate_upper_bound(end)
            rows = self._cf[family].iter(read_options)
            try:
                rows.seek(start or prefix)
                while rows.valid() and limit != 0:
                    yield rows.key(), rows.value()
                    rows.next()
                    if limit is not None:
                        limit -= 1
                rows.status()
            finally:
                del rows  # as above


def after(prefix: bytes) -> bytes | None:
    """The first key past all that start with *prefix*; ``None``: there is no end."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes((stripped[-1] + 1,)) if stripped else None
