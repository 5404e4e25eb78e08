"""What was in flight when a process died, and how far it had come: a log of leases.

A lease has to be known the moment it is given, or a page that kills the process within a commit's
interval is never identified.  One write to a plain file, which survives the process, costs a fifth
of one to RocksDB, and cannot wait for a flush.

There are two files, and the one begun last counts.  When all that has ended is committed, the log
restarts in the other file, with the leases that are out: a death in between leaves the old one.
"""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from zlib import crc32

from ..forks import close_in_child

_NAMES = ("altsched.leases.0", "altsched.leases.1")
#: Format, generation, run, number of leases that were out at the beginning, id of the store, id of
#: the boot of the machine.
_HEAD = struct.Struct(">8sQII32s64s")
_MAGIC = b"ALTSCHL2"
#: A byte that tells whether the crawl began to close: a full disk permits to overwrite it in place.
_CLOSING_AT = _HEAD.size + 4  # bytes of a checksum
_RECORDS_AT = _CLOSING_AT + 1
#: Checksum, flags, length of the fingerprint that follows.
_RECORD = struct.Struct(">IBB")
_pack = _RECORD.pack

#: What a record tells of a request: it was leased, and, with the first flag, alone; it is over
#: (done, dead, or given back); its response was received.
LEASED = 0
ALONE = 1
OVER = 2
RECEIVED = 4
#: One that was leased before the log was restarted, and whose response had been received.
_IN_HAND = 8
#: Two records in one, as most are: a request is over, and another one was leased, whose fingerprint
#: follows and is as long.
_AND_LEASED = 16


@dataclass(slots=True)
class Evidence:
    """What is known of the death of a process.

    :ivar in_flight: fingerprints of the requests that were leased and not over.
    :ivar in_hand: of these, the ones whose response had been received.
    :ivar alone: the one that was leased alone, if it was in flight.
    :ivar inconclusive: whether the machine was rebooted, or the crawl was being closed.
    """

    in_flight: set[bytes] = field(default_factory=set)
    in_hand: set[bytes] = field(default_factory=set)
    alone: bytes | None = None
    inconclusive: bool = False


class LeaseLog:
    """The log of one job directory; what writes raises OSError."""

    def __init__(self, directory: Path, store_id: str) -> None:
        self._paths = [directory / name for name in _NAMES]
        self._store_id = store_id.encode("ascii").ljust(32)[:32]
        self._boot = boot_id().encode()[:64]
        self._files: dict[int, int] = {}
        self._generation = 0
        self._file = -1
        self._end = 0
        self._is_closing = False
        #: Requests that are over, to be told with the next record: a write costs the most.
        self._over: list[bytes] = []
        #: Notes that the request with a fingerprint is over.
        self.note_over: Callable[[bytes], None] = self._over.append
        close_in_child(self.close)

    def read(self, run: int) -> Evidence:
        """What *run*, or a later one, has left; what is damaged is as if it were not there."""
        newest = Evidence()
        for path in self._paths:
            with suppress(OSError):
                found = self._parse(path.read_bytes(), run)
                if found is not None and found[0] > self._generation:
                    self._generation, newest = found
        return newest

    def _parse(self, content: bytes, run: int) -> tuple[int, Evidence] | None:
        if len(content) < _RECORDS_AT:
            return None
        head = content[: _HEAD.size]
        magic, generation, its_run, count, store_id, boot = _HEAD.unpack(head)
        known = content[_HEAD.size : _CLOSING_AT] == crc32(head).to_bytes(4, "big")
        if not known or (magic, store_id) != (_MAGIC, self._store_id) or its_run < run:
            return None
        records = list(_records(content, _RECORDS_AT, generation))
        if len(records) < count:
            return None
        evidence = _weigh(records)
        boot = boot.rstrip(b"\0")
        is_other_boot = bool(boot and self._boot) and boot != self._boot
        evidence.inconclusive = is_other_boot or content[_CLOSING_AT] != 0
        return generation, evidence

    def restart(self, run: int, held: Iterable[tuple[bytes, bool, bool]] = ()) -> None:
        """Start a new log; after an OSError, it continues as it was.

        :param held: what is leased, oldest first: fingerprint, whether alone, whether received.
        """
        generation = self._generation + 1
        records = [
            _encode(fingerprint, len(fingerprint), ALONE * alone | _IN_HAND * in_hand, generation)
            for fingerprint, alone, in_hand in held
        ]
        head = _HEAD.pack(_MAGIC, generation, run, len(records), self._store_id, self._boot)
        closing = bytes((self._is_closing,))
        content = b"".join((head, crc32(head).to_bytes(4, "big"), closing, *records))
        number = generation % len(_NAMES)
        self._open_missing()
        file = self._files[number]
        _write(file, content, 0)
        self._generation, self._file, self._end = generation, file, len(content)
        self._over.clear()

    def _open_missing(self) -> None:
        # Both before the first record: one opened later could be of another job, if a backup took
        # the place of this directory meanwhile.
        for number, path in enumerate(self._paths):
            if number not in self._files:
                flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
                self._files[number] = os.open(path, flags, 0o644)

    def note(self, fingerprint: bytes, what: int) -> None:
        """Note that a request was LEASED or leased ALONE, or its response RECEIVED."""
        over, generation = self._over, self._generation
        length = len(fingerprint)
        if what == LEASED and over and len(over[-1]) == length:
            record = _encode(over.pop() + fingerprint, length, OVER | _AND_LEASED, generation)
        else:
            record = _encode(fingerprint, length, what, generation)
        if over:
            record = self._encode_over() + record
        self._append(record)

    def note_closing(self) -> None:
        self._is_closing = True
        if self._file >= 0:
            _write(self._file, b"\1", _CLOSING_AT)

    def flush(self) -> None:
        if self._over:
            self._append(self._encode_over())

    def _encode_over(self) -> bytes:
        generation = self._generation
        over = b"".join([_encode(name, len(name), OVER, generation) for name in self._over])
        # If this cannot be written, they count as in flight at a death; memory comes first.
        self._over.clear()
        return over

    def _append(self, records: bytes) -> None:
        # What a failed write left is written over by the next.
        _write(self._file, records, self._end)
        self._end += len(records)

    def close(self) -> None:
        while self._files:
            os.close(self._files.popitem()[1])
        self._file = -1


class NullLeaseLog:
    """For a frontier whose leases nothing will ask for: see :class:`LeaseLog`."""

    def note(self, _: bytes, __: int = 0) -> None:
        pass

    def flush(self) -> None:
        pass

    note_over, note_closing = note, flush


def _weigh(records: Iterable[tuple[bytes, int]]) -> Evidence:
    """What records say together, oldest first.  Equal requests may be in flight at one time."""
    leased: Counter[bytes] = Counter()
    received: Counter[bytes] = Counter()
    alone: bytes | None = None
    for fingerprint, flags in records:
        if flags & OVER:
            leased[fingerprint] -= 1
            received[fingerprint] = max(0, received[fingerprint] - 1)
            if alone == fingerprint:
                alone = None
        elif flags & RECEIVED:
            received[fingerprint] += 1
        else:
            leased[fingerprint] += 1
            received[fingerprint] += bool(flags & _IN_HAND)
            if flags & ALONE:
                alone = fingerprint
    in_flight = {fingerprint for fingerprint, times in leased.items() if times > 0}
    in_hand = {fingerprint for fingerprint in in_flight if received[fingerprint]}
    return Evidence(in_flight, in_hand, alone if alone in in_flight else None)


def _encode(told: bytes, length: int, flags: int, generation: int) -> bytes:
    """A record; *told*: a fingerprint of that length, or two."""
    # With the generation, which tells this log's from what an earlier one left in the file.
    check = crc32(told, flags << 24 | generation & 0xFFFFFF)
    return _pack(check, flags, length) + told


def _records(content: bytes, at: int, generation: int) -> Iterator[tuple[bytes, int]]:
    """Fingerprint and flags of records, up to the first that is not one of this generation."""
    while at + _RECORD.size <= len(content):
        check, flags, length = _RECORD.unpack_from(content, at)
        at += _RECORD.size
        size = 2 * length if flags & _AND_LEASED else length
        told = content[at : at + size]
        at += size
        if len(told) < size or check != crc32(told, flags << 24 | generation & 0xFFFFFF):
            return
        yield told[:length], flags & ~_AND_LEASED
        if flags & _AND_LEASED:
            yield told[length:], LEASED


def _write(file: int, content: bytes, position: int) -> None:
    if os.pwrite(file, content, position) != len(content):
        raise OSError(f"only a part of {len(content)} bytes could be written")


@lru_cache(maxsize=1)
def boot_id() -> str:
    """What tells this boot of the machine from all others; empty: it cannot be known.

    https://man7.org/linux/man-pages/man5/proc_sys_kernel.5.html; for macOS, ``man 3 sysctl``.
    """
    with suppress(OSError, subprocess.SubprocessError):
        if sys.platform != "darwin":
            return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        command = ["/usr/sbin/sysctl", "-n", "kern.boottime"]
        output = subprocess.run(command, capture_output=True, check=True, timeout=5, text=True)
        return output.stdout.partition("}")[0]
    return ""
