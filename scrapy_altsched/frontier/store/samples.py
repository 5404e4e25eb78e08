"""``altsched.samples``: how a job stood over its whole life, for the page that shows that.

A commit appends a sample if the last one is old enough.  When the file is full, every second one
goes, and later ones are taken half as often: so the beginning is never lost, and the end is not
finer than it.  It is never forced to the disk.  Each sample is a block of one size with a checksum,
which begins with the store's id: one that is torn, or of another store, is left out.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

from ...disk import Overwritten
from ...errors import JobdirError
from ..entry import Counts
from ..history import GRAIN, MOST, Sample, thin
from .status import JobStatus

NAME = "altsched.samples"
#: Time, run, grain, state, counts, duplicates, seen (-1: not known); and the checksum of all that.
_BODY, _CHECKSUM = struct.Struct("<dIII9q"), struct.Struct("<I")
#: In files of earlier versions; and what it lacks.
_OLDER_BODY, _UNKNOWN = struct.Struct("<dIII8q"), (-1).to_bytes(8, "little", signed=True)
#: Bytes of a sample.
SIZE = _BODY.size + _CHECKSUM.size
_COUNTS = ("accepted", "pending", "leased", "done", "dead", "delayed", "failed")
#: The state of a run that goes on, whatever it does; and of those that have noted their end.
_STATES = ("running", "stopped", "finished", "unsaved")
ENDED = frozenset(_STATES[1:])
#: The bytes of the run's number.
_RUN = slice(8, 12)


def sample_of(status: JobStatus) -> Sample:
    """How a job stood when it wrote its status."""
    standing = status.standing
    state = status.state if status.state in ENDED else _STATES[0]
    return Sample(standing.at, status.run, state, standing.counts, standing.duplicates)


def _parse(block: bytes) -> Sample:
    """The inverse of :func:`_encode`, of a block whose checksum is right."""
    at, run, _, state, *numbers = _BODY.unpack_from(block)
    *counted, duplicates, seen = numbers
    known = dict(zip(_COUNTS, counted, strict=True))
    counts = Counts(**known, seen=None if seen < 0 else seen)
    return Sample(at, run, _STATES[state], counts, duplicates)


def _encode(sample: Sample, store_id: str, grain: int) -> bytes:
    """One block; *grain*: seconds between two of them, now."""
    numbers = (getattr(sample.counts, name) for name in _COUNTS)
    state, seen = _STATES.index(sample.state), sample.counts.seen
    seen = -1 if seen is None else seen
    body = _BODY.pack(sample.at, sample.run, grain, state, *numbers, sample.duplicates, seen)
    return body + _CHECKSUM.pack(_sum_of(body, store_id))


class SampleFile:
    """The file, as a run of the job writes it.

    The samples of a shared crawl are on its server: a worker keeps none here.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._file = path, Overwritten(path)
        #: Of what is in it; ``None``: this run has none yet.
        self._size: int | None = None
        self._grain = GRAIN
        self._last = -math.inf

    def note(self, status: JobStatus) -> None:
        """Note how the job stands, unless that was done just now; OSError: it was not."""
        standing = status.standing
        if standing.shared is not None:
            return
        # The clock may have been set back.
        if abs(standing.at - self._last) < self._grain and status.state not in ENDED:
            return
        self._last = standing.at
        size = self._begin(status.store_id) if self._size is None else self._size
        if size >= MOST * SIZE:
            size = self._thin_out(status.store_id)
        block = _encode(sample_of(status), status.store_id, self._grain)
        self._file.write(block, size)
        self._size = size + SIZE

    def _begin(self, store_id: str) -> int:
        """Go on after the samples of earlier runs, in a file of this run's own; its size."""
        blocks = list(_blocks_in(self._path, store_id))
        if blocks:
            _, _, self._grain, *_ = _BODY.unpack_from(blocks[-1])
        return self._replace(blocks)

    def _thin_out(self, store_id: str) -> int:
        """Leave out every second one of them; its size."""
        size = self._replace(thin(list(_blocks_in(self._path, store_id)), _run_of))
        self._grain *= 2
        return size

    def _replace(self, blocks: Sequence[bytes]) -> int:
        """Write it anew; its size.  A death, or an OSError, leaves the old file or the new one."""
        self._file.close()
        self._size = None
        content = b"".join(blocks)
        self._file.write(content)
        return len(content)

    def close(self) -> None:
        self._size, self._last = None, -math.inf
        self._file.close()


def read_samples(jobdir: Path, store_id: str) -> list[Sample]:
    """All samples of a job, the oldest first; JobdirError: the file cannot be read."""
    path = jobdir / NAME
    try:
        return [_parse(block) for block in _blocks_in(path, store_id)]
    except OSError as error:
        raise JobdirError(
            f"{path} cannot be read ({error.strerror or error}). Make it readable for this user, or"
            " delete it: the history is lost then, and nothing else."
        ) from error


def _blocks_in(path: Path, store_id: str) -> Iterator[bytes]:
    """The blocks of a store that are whole; OSError: the file is there, and cannot be read."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return
    # A run writes all of the file anew before it goes on: its blocks are of one size.
    older = (body + _UNKNOWN for body in _bodies_in(content, _OLDER_BODY.size, store_id))
    for body in chain(_bodies_in(content, _BODY.size, store_id), older):
        yield body + _CHECKSUM.pack(_sum_of(body, store_id))


def _bodies_in(content: bytes, size: int, store_id: str) -> Iterator[bytes]:
    """Those of blocks that are whole, without their checksums."""
    step = size + _CHECKSUM.size
    for start in range(0, len(content) - step + 1, step):
        body, checksum = content[start : start + size], content[start + size : start + step]
        if _CHECKSUM.pack(_sum_of(body, store_id)) == checksum:
            yield body


def _run_of(block: bytes) -> int:
    return int.from_bytes(block[_RUN], "little")


def _sum_of(body: bytes, store_id: str) -> int:
    return zlib.crc32(body, zlib.crc32(store_id.encode()))
