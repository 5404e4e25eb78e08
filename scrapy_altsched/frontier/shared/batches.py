"""One exchange with the server: what is asked, and what it answers.

Both are one msgpack blob each: a call with hundreds of arguments costs redis-py several times as
much.  The server's msgpack knows no ``bin`` type, so that bytes go as ``raw``.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgpack

from ..changes import Kind
from ..entry import Entry

#: Version of the keys, of what they hold, and of batches.
PROTOCOL = b"1"


#: What ``shared.lua`` calls the kinds of changes: additions, and endings of leases.
NUMBERS = {
    Kind.ADDED_UNIQUE: 1,
    Kind.ADDED: 2,
    Kind.MARKED: 3,
    Kind.FORGOTTEN: 4,
    Kind.CHECKED: 5,
    Kind.DONE: 1,
    Kind.DIED: 2,
    Kind.RELEASED: 3,
}


class Addition:
    """Something new, until the server has answered.

    :ivar number: its place among all of this worker's.
    :ivar level: the beginning of its order key.
    :ivar inverted: whether of equals the last is the first.
    :ivar row: what is stored of a request.
    :ivar entry: the request, if somebody waits for the verdict on it.
    """

    __slots__ = ("entry", "inverted", "kind", "level", "number", "row", "seen_key", "slot")

    def __init__(
        self,
        kind: Kind,
        seen_key: bytes,
        slot: bytes = b"",
        level: bytes = b"",
        inverted: bool = False,
        row: bytes = b"",
        entry: Entry | None = None,
    ) -> None:
        self.number = 0
        self.kind = kind
        self.seen_key = seen_key
        self.slot = slot
        self.level = level
        self.inverted = inverted
        self.row = row
        self.entry = entry


class Ending:
    """The end of a lease, until the server has answered.

    It rests on what was added while its request was worked on, and on what made a request that it
    led to a duplicate, if the server had not acknowledged that: additions number *after* + 1 to
    *upto*, some of which are its own.

    :ivar entry: the request, if somebody wants to hear that the lease had been lost.
    """

    __slots__ = ("after", "entry", "key", "kind", "reason", "upto")

    def __init__(
        self,
        key: bytes,
        kind: Kind,
        after: int,
        upto: int,
        reason: bytes = b"",
        entry: Entry | None = None,
    ) -> None:
        self.key = key
        self.kind = kind
        self.after = after
        self.upto = upto
        self.reason = reason
        self.entry = entry


class Status(enum.Enum):
    """What became of a batch."""

    #: It was applied, now or when it came first.
    OK = b"OK"
    #: The server does not know the worker's last batches: its history was rolled back.
    GAP = b"GAP"
    #: The server has later batches of this worker than this one.
    STALE = b"STALE"
    #: The crawl is gone, or is another one.
    LOST = b"LOST"
    #: The crawl had finished before this worker came.
    FINISHED = b"FINISHED"
    #: The crawl would be a new one, and the server has no memory for it.
    FULL = b"FULL"
    #: The server's data is of another version.
    PROTOCOL = b"PROTOCOL"


@dataclass(frozen=True, slots=True)
class Reply:
    """What the server answered.

    :ivar crawl: the crawl's id.
    :ivar refused: numbers of additions that were seen (or, to be forgotten, were not).
    :ivar full: numbers of additions for which there was no memory.
    :ivar void: keys of leases that were not this worker's any more.
    :ivar skipped: keys of endings that rest on additions in *full*.
    :ivar leases: key and row of requests that were leased; an empty row has expired since.
    :ivar feeders: workers that have more to bring.
    :ivar version: changes whenever anything happened.
    :ivar epoch: changes whenever a seen key was removed.
    :ivar late: a worker whose leases are due to go back, if any.
    :ivar told: fingerprints of what the batch said to be worked on alone, and beside others.
    :ivar suspicions: fingerprint and what is held against it, of what was leased or asked for.
    """

    status: Status
    crawl: bytes = b""
    accepted: int = 0
    pending: int = 0
    leased: int = 0
    done: int = 0
    dead: int = 0
    feeders: int = 0
    version: int = 0
    epoch: int = 0
    refused: Sequence[int] = ()
    full: Sequence[int] = ()
    void: Sequence[bytes] = ()
    skipped: Sequence[bytes] = ()
    leases: Sequence[tuple[bytes, bytes]] = ()
    finished: bool = False
    late: bytes = b""
    suspicions: Sequence[tuple[bytes, bytes]] = ()
    told: tuple[bytes, ...] = ()

    @property
    def is_idle(self) -> bool:
        """Whether nothing is left to do, and nobody brings more."""
        return not (self.pending or self.leased or self.feeders)


def _list(value: Any) -> Any:
    # An empty table of Lua may come as a map.
    return value or ()


def parse_reply(blob: bytes) -> Reply:
    """What a call of ``shared.lua`` has returned."""
    fields: list[Any] = msgpack.unpackb(blob, raw=True, strict_map_key=False)
    status = Status(fields[0])
    if len(fields) == 1:
        return Reply(status)
    crawl, numbers = fields[1:3]
    if status is not Status.OK:
        return Reply(status, crawl, *numbers[:5])
    keys, rows, state, late = fields[7:11]
    suspicions = _list(fields[12])
    values: list[Any] = [
        # The last number is for older versions: whether the crawl was finished before.
        *numbers[:8],
        *map(_list, fields[3:7]),
        list(zip(_list(keys), _list(rows), strict=True)),
        state == b"finished",
        late,
        list(zip(suspicions[::2], suspicions[1::2], strict=True)),
        tuple(fields[13]),
    ]
    return Reply(status, crawl, *values)


#: Reuses its buffer; each call returns a copy.
pack = msgpack.Packer(use_bin_type=False, autoreset=True).pack
