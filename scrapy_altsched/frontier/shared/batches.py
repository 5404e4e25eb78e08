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


@dataclass(slots=True, eq=False)
class Addition:
    """Something new, until the server has answered.

    :ivar level: the beginning of its order key.
    :ivar inverted: whether of equals the last is the first.
    :ivar row: what is stored of a request.
    :ivar entry: the request, if a verdict on it is awaited.
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


@dataclass(slots=True, eq=False)
class Ending:
    """The end of a lease, until the server has answered.

    It rests on what was added while its request was worked on, and on what made a request that it
    led to a duplicate, if the server had not acknowledged that: additions number *after* + 1 to
    *upto*, some of which are its own.

    :ivar entry: the request, if it is to be reported that the lease had been lost.
    """

    key: bytes
    kind: Kind
    after: int
    upto: int
    reason: bytes = b""
    entry: Entry | None = None


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
    :ivar feeders: workers that have more to bring.
    :ivar version: changes whenever anything happened.
    :ivar epoch: changes whenever a seen key was removed.
    :ivar refused: numbers of additions that were seen (or, to be forgotten, were not).
    :ivar full: numbers of additions for which there was no memory.
    :ivar void: keys of leases that were not this worker's any more.
    :ivar skipped: keys of endings that rest on additions in *full*.
    :ivar leases: key and row of requests that were leased; an empty row has expired since.
    :ivar late: a worker whose leases are due to go back, if any.
    :ivar suspicions: fingerprint and what is held against it, of what was leased or asked for.
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
    refused: Sequence[int] = ()
    full: Sequence[int] = ()
    void: Sequence[bytes] = ()
    skipped: Sequence[bytes] = ()
    leases: Sequence[tuple[bytes, bytes]] = ()
    finished: bool = False
    late: bytes = b""
    suspicions: Sequence[tuple[bytes, bytes]] = ()
    told: tuple[bytes, ...] = ()


def parse_reply(blob: bytes) -> Reply:
    """What a call of ``shared.lua`` has returned."""
    fields: list[Any] = msgpack.unpackb(blob, raw=True, strict_map_key=False)
    status = Status(fields[0])
    if len(fields) == 1:
        return Reply(status)
    crawl, numbers = fields[1:3]
    if status is not Status.OK:
        return Reply(status, crawl, *numbers[:5])
    # An empty table of Lua may come as a map.
    *lists, keys, rows, state, late, _, suspicions, told = (field or () for field in fields[3:])
    values: list[Any] = [
        # The last number is for older versions: whether the crawl was finished before.
        *numbers[:8],
        *lists,
        list(zip(keys, rows, strict=True)),
        state == b"finished",
        late or b"",
        list(zip(suspicions[::2], suspicions[1::2], strict=True)),
        tuple(told),
    ]
    return Reply(status, crawl, *values)


#: Reuses its buffer; each call returns a copy.
pack = msgpack.Packer(use_bin_type=False, autoreset=True).pack
