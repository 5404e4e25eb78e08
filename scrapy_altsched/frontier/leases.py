"""Who was under way when a process died: a log of leases, beside the store.

A lease has to be known the moment it is given, or a page that kills the process within a commit's
interval is never found out.  It need not be in the store for that: what was handed to the operating
system survives the process, and one write to a plain file costs a fifth of one to RocksDB, leaves
no row to be deleted, and cannot wait for a flush.

There are two files, and the one begun last counts.  When all that has ended is committed, the log
begins anew in the other file, with the leases that are out: a death in between leaves the old one.
"""

from __future__ import annotations

import os
import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

from .forks import close_in_child

_NAMES = ("altsched.leases.0", "altsched.leases.1")
#: Format, generation, run, number of leases that were out at the beginning, id of the store.
_HEAD = struct.Struct(">8sQII32s")
_MAGIC = b"ALTSCHL1"
_CHECK = struct.Struct(">I")
#: Checksum, flags, length of the fingerprint that follows.
_RECORD = struct.Struct(">IBB")
_ALONE = 1
_OVER = 2


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """One line of the log.

    :ivar alone: whether it was leased while nothing else was.
    :ivar over: whether this tells that it was given back, and not that it was leased.
    """

    fingerprint: bytes
    alone: bool = False
    over: bool = False


def find_suspects(stored: Mapping[bytes, int], records: Iterable[LeaseRecord]) -> dict[bytes, int]:
    """Fingerprint of each request that may have killed a process -> how often it did so alone.

    :param stored: those of earlier runs.
    :param records: the log of the run that died: if it ends with a request that was leased alone,
        that one is to blame, whatever clocks say.
    """
    out: Counter[bytes] = Counter()
    last = None
    for last in records:
        # Equal requests may be under way at the same time.
        out[last.fingerprint] += -1 if last.over else 1
    suspects = {**stored, **{name: stored.get(name, 0) for name, times in out.items() if times > 0}}
    if last is not None and last.alone and not last.over:
        suspects[last.fingerprint] += 1
    return suspects


class LeaseLog:
    """The log of one job directory.

    :param directory: the job directory.
    :param store_id: of the store that the leases are of.
    """

    def __init__(self, directory: Path, store_id: str) -> None:
        self._paths = [directory / name for name in _NAMES]
        self._store_id = store_id.encode("ascii").ljust(32)[:32]
        self._files: dict[int, int] = {}
        self._generation = 0
        self._file = -1
        self._end = 0
        close_in_child(self.close)

    def read(self, run: int) -> list[LeaseRecord]:
        """The leases of run number *run* or a later one, oldest first; none if no log tells.

        What is damaged is as if it were not there: it is known then of nobody that he was under
        way.
        """
        newest: list[LeaseRecord] = []
        for path in self._paths:
            with suppress(OSError):
                found = self._parse(path.read_bytes(), run)
                if found is not None and found[0] > self._generation:
                    self._generation, newest = found
        return newest

    def _parse(self, content: bytes, run: int) -> tuple[int, list[LeaseRecord]] | None:
        start = _HEAD.size + _CHECK.size
        if len(content) < start:
            return None
        head = content[: _HEAD.size]
        magic, generation, its_run, count, store_id = _HEAD.unpack(head)
        if (magic, store_id) != (_MAGIC, self._store_id) or its_run < run:
            return None
        if content[_HEAD.size : start] != _CHECK.pack(crc32(head)):
            return None
        records = list(_records(content, start, generation))
        return (generation, records) if len(records) >= count else None

    def restart(self, run: int, held: Iterable[tuple[bytes, bool]] = ()) -> None:
        """Begin anew.

        :param run: the number of this run.
        :param held: fingerprints that are leased, oldest first, and whether alone.
        :raises OSError: it could not be written; the log goes on as it was.
        """
        generation = self._generation + 1
        records = [_encode(fingerprint, _ALONE * alone, generation) for fingerprint, alone in held]
        head = _HEAD.pack(_MAGIC, generation, run, len(records), self._store_id)
        content = b"".join((head, _CHECK.pack(crc32(head)), *records))
        number = generation % len(_NAMES)
        file = self._files.get(number)
        if file is None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
            file = self._files[number] = os.open(self._paths[number], flags, 0o644)
        _write(file, content, 0)
        self._generation, self._file, self._end = generation, file, len(content)

    def note(self, fingerprint: bytes, *, alone: bool = False, over: bool = False) -> None:
        """Note that a request was leased, or given back.

        :raises OSError: it could not be written.
        """
        flags = _ALONE if alone else _OVER if over else 0
        record = _encode(fingerprint, flags, self._generation)
        # What a failed write left is written over by the next.
        _write(self._file, record, self._end)
        self._end += len(record)

    def close(self) -> None:
        """Close the files.  May be called twice."""
        self._file = -1
        while self._files:
            os.close(self._files.popitem()[1])


def _encode(fingerprint: bytes, flags: int, generation: int) -> bytes:
    # With the generation, what an earlier log left further on in the file cannot be taken for this
    # one's.
    check = crc32(fingerprint, flags << 24 | generation & 0xFFFFFF)
    return _RECORD.pack(check, flags, len(fingerprint)) + fingerprint


def _records(content: bytes, at: int, generation: int) -> Iterator[LeaseRecord]:
    """The records from position *at* to the first that is not one of this generation."""
    while at + _RECORD.size <= len(content):
        check, flags, length = _RECORD.unpack_from(content, at)
        at += _RECORD.size
        fingerprint = content[at : at + length]
        at += length
        seed = flags << 24 | generation & 0xFFFFFF
        if len(fingerprint) < length or check != crc32(fingerprint, seed):
            return
        yield LeaseRecord(fingerprint, bool(flags & _ALONE), bool(flags & _OVER))


def _write(file: int, content: bytes, position: int) -> None:
    if os.pwrite(file, content, position) != len(content):
        raise OSError(f"only a part of {len(content)} bytes could be written")
