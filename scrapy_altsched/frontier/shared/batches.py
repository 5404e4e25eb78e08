"""One exchange with the server: what is asked, and what it answers.

Both are one msgpack blob each: a call with hundreds of arguments costs redis-py several times as
much.  The server's msgpack knows no ``bin`` type, so bytes go as ``raw``.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgpack

from ..changes import Kind
from ..entry import Entry

#: Version of batches, and of the keys and what they hold in a crawl that records ages of pages.
PROTOCOL = b"5"
#: Of a crawl without a pace; of one that is paused; and of one that is being imported, which no
#: worker can join.
UNPACED, PAUSED, FILLING = b"2", b"4", b"1000000"
#: Versions of crawls that can be continued; 1 knew neither delayed nor failed requests.
READABLE = (b"1", UNPACED, b"3", PAUSED, PROTOCOL)
#: What the script calls the kinds of changes: additions, and endings of leases.
_ADDITIONS = (Kind.ADDED_UNIQUE, Kind.ADDED, Kind.MARKED, Kind.FORGOTTEN, Kind.CHECKED)
_ENDINGS = (Kind.DONE, Kind.DIED, Kind.RELEASED, Kind.FAILED)
NUMBERS = {kind: at for kinds in (_ADDITIONS, _ENDINGS) for at, kind in enumerate(kinds, 1)}


@dataclass(slots=True, eq=False)
class Addition:
    """Something new, until the server has answered.

    :ivar level: the beginning of its order key.
    :ivar inverted: whether of equals the last is the first.
    :ivar row: what is stored of a request; *entry*: it, if a verdict on it is awaited.
    :ivar delay: ms for which it waits from when the server has it; *not_before*: until when, in ms
        since the epoch.
    :ivar threshold: likewise, before when its page must have been finished to be crawled again;
        ``None``: it is not.
    :ivar number: its place among all of this worker's.
    """

    kind: Kind
    seen_key: bytes
    slot: bytes = b""
    level: bytes = b""
    inverted: bool = False
    row: bytes = b""
    entry: Entry | None = None
    number: int = 0
    delay: int = 0
    not_before: int = 0
    threshold: float | None = None

    def request(self) -> Sequence[object]:
        """What the server stores of a request."""
        return self.slot, self.level, self.inverted, self.row, self.delay, self.not_before


@dataclass(slots=True, eq=False)
class Ending:
    """The end of a lease, until the server has answered.

    It rests on what was added while its request was worked on, and on what made a request that it
    led to a duplicate, if the server had not acknowledged that: additions number *after* + 1 to
    *upto*, some of which are its own.

    :ivar reason: of a dead or failed one, as it is stored.
    :ivar then: what follows the request, in the same step.
    """

    key: bytes
    kind: Kind
    after: int
    upto: int
    reason: bytes
    entry: Entry
    then: Addition | None = None

    @property
    def finishes_page(self) -> bool:
        """Whether its page is finished from then on, where that is recorded."""
        return self.kind is Kind.DONE and self.then is None and self.entry.unique


class Status(enum.Enum):
    """What became of a batch."""

    OK = b"OK"  # It was applied, now or when it came first.
    GAP = b"GAP"  # The worker's last batches are not known: the server's history was rolled back.
    STALE = b"STALE"  # The server has later batches of this worker than this one.
    LOST = b"LOST"  # The crawl is gone, or is another one.
    FINISHED = b"FINISHED"  # The crawl had finished before this worker came.
    FULL = b"FULL"  # The crawl would be a new one, and the server has no memory for it.
    RUNNING = b"RUNNING"  # The crawl is to be restarted, and workers are there.
    PROTOCOL = b"PROTOCOL"  # The server's data is of another version.


@dataclass(frozen=True, slots=True)
class Reply:
    """What the server answered.

    :ivar feeders: workers that have more to bring.
    :ivar version: changes whenever anything happened; *epoch*: whenever a seen key was removed.
    :ivar refused: numbers of additions that were seen (or, to be forgotten, were not); *full*: of
        those for which there was no memory.
    :ivar void: keys of leases that were not this worker's any more; *skipped*: of endings that rest
        on additions in *full*.
    :ivar leases: key and row of requests that were leased; an empty row has expired since.
    :ivar late: a worker whose leases are due to go back, if any.
    :ivar suspicions: fingerprint and what is held against it, of what was leased or asked for.
    :ivar delayed: how many requests wait until they are due; *due_in*: ms until the first one is.
    :ivar dropped: how many failed requests there was no more room for, in all.
    :ivar rests_for: ms until the next download slot may be asked again; -1: that is not known.
    :ivar paused: since when nothing is leased, in ms since the epoch; 0: it is.
    :ivar stops: how often workers were told to end.
    :ivar seen: how many pages were; -1: that is not known.
    :ivar time: what time it was, in ms since the epoch, in a crawl that records when pages are
        finished; -1: it does not.
    :ivar ticks: of each lease, the number of its permit; 0, or missing: it needs none.
    :ivar permits: keys of leases that may be started now, each with such a number.
    :ivar limits: delay in ms, jitter in thousandths, and cap of download slots in this crawl;
        empty: it has none.
    :ivar over: numbers of additions whose download slots have had as many requests as they may.
    :ivar told: the batch's *alone* and *watched*: see :meth:`.stream.Stream.build`.
    """

    status: Status
    crawl: bytes = b""
    accepted: int = 0
    pending: int = 0
    leased: int = 0
    done: int = 0
    dead: int = 0
    feeders: int = 0
    version: int = -1
    epoch: int = 0
    delayed: int = 0
    due_in: int = -1
    failed: int = 0
    dropped: int = 0
    rests_for: int = -1
    paused: int = 0
    stops: int = 0
    seen: int = -1
    time: int = -1
    refused: Sequence[int] = ()
    full: Sequence[int] = ()
    void: Sequence[bytes] = ()
    skipped: Sequence[bytes] = ()
    leases: Sequence[tuple[bytes, bytes]] = ()
    finished: bool = False
    late: bytes = b""
    suspicions: Sequence[tuple[bytes, bytes]] = ()
    told: tuple[bytes, ...] = ()
    ticks: Sequence[int] = ()
    permits: Sequence[tuple[bytes, int]] = ()
    limits: Sequence[int] = ()
    over: Sequence[int] = ()


#: Numbers in a reply of any version; those that newer ones add, where they are missing.
_OLDEST, _NEWER = 12, (-1, 0, 0, -1, -1)


def parse_reply(blob: bytes) -> Reply:
    """What a call of the script in ``batch`` has returned."""
    status, *fields = msgpack.unpackb(blob, raw=True, strict_map_key=False)
    if not fields:
        return Reply(Status(status))
    crawl, numbers, *fields = fields
    if fields:
        # An empty table of Lua may come as a map.
        parts = [field or () for field in fields]
        keys, rows, state, late, _, suspicions, told = parts[4:11]
        # A reply that an older version has left has no more.
        ticks, permits, limits, over = parts[11:] or ((), (), (), ())
        leases = list(zip(keys, rows, strict=True))
        held, allowed = _pairs(suspicions), _pairs(permits)
        ends = [leases, state == b"finished", late or b"", held, tuple(told)]
        fields = [*parts[:4], *ends, ticks, allowed, limits, over]
    # One number is for older versions: whether the crawl was finished before.
    numbers = [*numbers[:8], *numbers[9:]]
    numbers += _NEWER[len(numbers) - _OLDEST :]
    return Reply(Status(status), crawl, *numbers, *fields)


def _pairs(items: Sequence[Any]) -> list[tuple[Any, Any]]:
    return list(zip(items[::2], items[1::2], strict=True))


#: Reuses its buffer; each call returns a copy.
pack = msgpack.Packer(use_bin_type=False, autoreset=True).pack
