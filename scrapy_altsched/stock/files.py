"""The files that Scrapy's own scheduler and filter keep in a job directory, read as they are.

Scrapy 2.13 to 2.19 writes requests.queue/ (scrapy/pqueues.py), with one queue for each priority and
for start requests of that priority ("0", "-1s"), in a folder for each download slot or in none, and
requests.seen (scrapy/dupefilters.py).  A queue is one of queuelib's (queuelib/queue.py):

======  ===========================================================================================
LIFO    a file: the number of records, as of the last close (4 bytes); then records, each followed
        by its length (4 bytes).  What is popped is cut off.
FIFO    a folder: records, each after its length (4 bytes), in files "q00000", ... of 100,000 each;
        ``info.json``, as of the last close, says where to read on.  What is popped stays.
SQLite  a file: a table ``queue`` of ``id`` and ``item``.  What is popped is deleted.
======  ===========================================================================================

Numbers are big-endian.  A record is a dict of a request's attributes, pickled or marshalled.
Queuelib trusts the number of records and ``info.json``, which a process that dies never writes, and
it changes what it reads.  Here whatever begins and ends like a record, and has its length, is one.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
from array import array
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple
from urllib.parse import quote

from ..errors import JobdirError

Kind = Literal["LIFO", "FIFO", "SQLite"]
#: A queue's name: the negated priority, and whether it is of start requests.
_NAME = re.compile(r"(-?\d+)(s?)")
_SQLITE = b"SQLite format 3\0"
#: A pickle of some protocol; or a marshalled dict, marked for reference or not, and a string in it.
_BEGIN = re.compile(rb"\x80[\x02-\x05]|[{\xfb][zZaAut\xfa\xda\xe1\xc1\xf5\xf4]")
_LENGTH = 4  # bytes
_BLOCK = 1 << 20  # bytes
#: A fingerprint's length comes first in the binary format; a line of hex digits has greater bytes.
_FIRST_DIGIT = 0x30


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turn errors of reading *path*, or what is in it, into a JobdirError."""
    try:
        yield
    except (OSError, sqlite3.OperationalError) as error:
        raise JobdirError(
            f"{getattr(error, 'filename', None) or path}, of a crawl of Scrapy's own scheduler,"
            f" cannot be read ({getattr(error, 'strerror', None) or error}), so that crawl is not"
            " imported; nothing was changed. Make it readable to this user, stop what is using it,"
            " or move requests.queue and requests.seen away to start over."
        ) from error


class Look(NamedTuple):
    """What a queue looks like before it is read.

    :ivar unreadable: bytes in which there is no record.
    :ivar agrees: whether the queue's own count is the same; it is not if a process died.
    """

    records: int
    unreadable: int
    agrees: bool


@dataclass(frozen=True, slots=True)
class StockQueue:
    """One queue in requests.queue/.

    :ivar slot_hash: the end of the name of its slot's folder; ``""``: it is in none.
    :ivar priority: of its requests, negated.
    :ivar start: whether it is a queue of start requests.
    """

    path: Path
    kind: Kind
    slot_hash: str
    priority: int
    start: bool

    def look(self) -> Look:
        """Count the records, without reading them."""
        records = unreadable = 0
        with readable(self.path):
            if self.kind == "SQLite":
                for number in self._column("id"):
                    if number is None:
                        return Look(records, self.path.stat().st_size, agrees=False)
                    records += 1
                return Look(records, 0, agrees=True)
            for _, to_read, spans in self._files():
                unreadable += max(0, to_read)
                for start, end in spans:
                    records += 1
                    unreadable -= _LENGTH + end - start
            return Look(records, unreadable, records == self._own_count())

    def records(self) -> Iterator[bytes]:
        """The records, in the order in which they were pushed."""
        with readable(self.path):
            if self.kind == "SQLite":
                yield from (bytes(item) for item in self._column("item") if item is not None)
                return
            for file, _, spans in self._files():
                for start, end in spans:
                    yield os.pread(file, end - start, start)

    def _files(self) -> Iterator[tuple[int, int, Iterable[tuple[int, int]]]]:
        """The files of records, the oldest first: descriptor, bytes to read, bounds of the records.

        What was taken before the last close is left out; what was taken since may be read again.
        """
        if self.kind == "LIFO":
            with _opened(self.path) as (file, size):
                yield file, size - _LENGTH, _lifo_bounds(file, size)
            return
        read_on, offset, _ = _read_info(self.path) or (-1, 0, 0)
        chunks = [path for path in self.path.iterdir() if re.fullmatch(r"q\d{5,}", path.name)]
        for number, path in sorted((int(path.name[1:]), path) for path in chunks):
            with _opened(path) as (file, size):
                begin = offset if number == read_on else 0
                yield file, size - begin, _fifo_bounds(file, size, begin)

    def _column(self, name: str) -> Iterator[Any]:
        """A column of an SQLite queue; ``None`` at its end: it is damaged from there on."""
        # The first read rolls back what a dead process left half done; nothing else is changed.
        mode = "rw" if self.path.with_name(self.path.name + "-journal").exists() else "ro"
        uri = f"file:{quote(str(self.path))}?mode={mode}"
        try:
            with closing(sqlite3.connect(uri, uri=True)) as database:
                if database.execute("SELECT 1 FROM sqlite_master WHERE name = 'queue'").fetchone():
                    rows = database.execute(f"SELECT {name} FROM queue ORDER BY id")
                    yield from (value for (value,) in rows)
        except sqlite3.OperationalError:
            raise
        except sqlite3.DatabaseError:
            yield None

    def _own_count(self) -> int:
        if self.kind == "LIFO":
            with _opened(self.path) as (file, _):
                return _number(file, 0)
        if (info := _read_info(self.path)) is None:
            return 0
        number, _, size = info
        return size if (self.path / f"q{number:05d}").exists() else -1


def find_queues(directory: Path, slot_hash: str = "") -> Iterator[StockQueue]:
    """All queues in *directory*: a requests.queue/, or in it the folder of a slot.

    :raises JobdirError: it cannot be read; so do the methods of a queue.
    """
    with readable(directory):
        for path in sorted(directory.iterdir(), reverse=True):  # "0s" before "0"
            if name := _NAME.fullmatch(path.name):
                yield StockQueue(path, _kind_of(path), slot_hash, int(name[1]), bool(name[2]))
            elif not slot_hash and path.is_dir():
                yield from find_queues(path, path.name.rpartition("-")[2])


def _kind_of(path: Path) -> Kind:
    if path.is_dir():
        return "FIFO"
    with path.open("rb") as file:
        return "SQLite" if file.read(len(_SQLITE)) == _SQLITE else "LIFO"


@contextmanager
def _opened(path: Path) -> Iterator[tuple[int, int]]:  # descriptor, and size in bytes
    with path.open("rb", buffering=0) as file:
        yield file.fileno(), os.fstat(file.fileno()).st_size


def _number(file: int, at: int) -> int:
    return int.from_bytes(os.pread(file, _LENGTH, at), "big")


def _is_record(file: int, start: int, end: int) -> bool:
    """Whether the bytes between begin and end like a pickled or a marshalled dict."""
    first = os.pread(file, 2, start)
    last = b"." if first[:1] == b"\x80" else b"0"
    return bool(_BEGIN.match(first)) and os.pread(file, 1, end - 1) == last


# Last in, first out


def _lifo_bounds(file: int, size: int) -> Iterator[tuple[int, int]]:
    """Read backward, as a record's length comes after it.

    Where no record is found, a write was cut short: skip back to the nearest place where one is.
    """
    ends, end = array("Q"), size
    while end > _LENGTH:
        start = end - _LENGTH - _number(file, end - _LENGTH)
        if start >= _LENGTH and _is_record(file, start, end - _LENGTH):
            ends.append(end - _LENGTH)
            end = start
        else:
            end = _last_whole(file, end - 1)
    for end in reversed(ends):
        yield end - _number(file, end), end


def _last_whole(file: int, end: int) -> int:
    """The end of the last record, its length included, that ends at *end* or before."""
    while end > 2 * _LENGTH:
        begin = max(_LENGTH, end - _BLOCK)
        block = os.pread(file, end - begin, begin)
        for at in reversed([found.end() for found in re.finditer(rb"[.0]", block[:-_LENGTH])]):
            start = begin + at - int.from_bytes(block[at : at + _LENGTH], "big")
            if start >= _LENGTH and _is_record(file, start, begin + at):
                return begin + at + _LENGTH
        # The last byte of a record may be before the boundary, and its length after it.
        end = begin + _LENGTH
    return _LENGTH


# First in, first out


def _read_info(path: Path) -> tuple[int, int, int] | None:
    """The number of the file to read on in, and at which byte; and the number of records."""
    with suppress(FileNotFoundError, ValueError):
        match json.loads((path / "info.json").read_bytes()):
            case {"tail": [int(number), _, int(offset)], "size": int(size)}:
                return number, offset, size
    return None


def _fifo_bounds(file: int, size: int, at: int) -> Iterator[tuple[int, int]]:
    """Read forward from byte *at*, as a record's length comes before it."""
    while at < size:
        end = _end_of_record(file, size, at)
        # Unless it was cut short, and others followed, of which one lies across its end.
        if end and (
            end == size
            or _end_of_record(file, size, end)
            or not any(
                _end_of_record(file, size, other) > end
                for other in _find_records(file, size, at + 1, end)
            )
        ):
            yield at + _LENGTH, end
            at = end
        else:
            at = next(_find_records(file, size, at + 1, size), size)


def _end_of_record(file: int, size: int, at: int) -> int:
    """The end of the record whose length is at *at*; 0: there is none."""
    start = at + _LENGTH
    end = start + _number(file, at)
    return end if end <= size and _is_record(file, start, end) else 0


def _find_records(file: int, size: int, begin: int, end: int) -> Iterator[int]:
    """Where records may start, their lengths included, between *begin* and *end*."""
    while begin < end:
        block = os.pread(file, min(_BLOCK, end - begin + _LENGTH), begin)
        for found in re.finditer(rb"[\x80{\xfb]", block[_LENGTH:]):
            if _end_of_record(file, size, begin + found.start()):
                yield begin + found.start()
        begin += max(1, len(block) - _LENGTH)


# What was seen


@dataclass
class SeenFile:
    """A requests.seen, in either of its formats, or one after the other.

    Before Scrapy 2.19 each fingerprint is a line of hex digits; since then, two bytes of length and
    then the fingerprint.  Once all was read:

    :ivar formats: which of the two are in it.
    :ivar unreadable: bytes that are in no fingerprint.
    """

    path: Path
    formats: set[str] = field(default_factory=set)
    unreadable: int = 0

    def __iter__(self) -> Iterator[bytes]:
        self.formats, self.unreadable = set(), 0
        with readable(self.path), self.path.open("rb") as file:
            while start := file.read(2):
                if start[0] < _FIRST_DIGIT:
                    format_, length = "binary", int.from_bytes(start, "big")
                    rest = file.read(length)
                    fingerprint = rest if len(rest) == length else None
                else:
                    format_ = "hex"
                    rest = b"" if start.endswith(b"\n") else file.readline(_BLOCK)
                    line = start + rest
                    # A last line without its end may lack some of its digits.
                    fingerprint = parse_hex(line) if line.endswith(b"\n") else None
                if fingerprint:
                    self.formats.add(format_)
                    yield fingerprint
                else:
                    self.unreadable += len(start) + len(rest)


def parse_hex(text: bytes) -> bytes | None:
    """The fingerprint of these digits; ``None``: they are none."""
    try:
        return bytes.fromhex(text.decode("ascii"))
    except ValueError:
        return None
