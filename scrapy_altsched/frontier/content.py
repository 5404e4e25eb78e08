"""All that a crawl consists of, a part at a time: how it moves from one place to another.

A place is a job directory, a crawl on a server, or a file; what reads one makes parts, and what
fills one takes them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from .entry import DeadLetter, Entry, PageFailure
from .queue.order import Order, decode_int
from .store.records import Counters, Suspicion
from .store.states import State


@dataclass(slots=True)
class Head:
    """What is known of a crawl as a whole.

    :ivar order: in which its requests are.
    :ivar keys: what is kept of the fingerprints of seen pages, by its name in :mod:`.store.seen`.
    :ivar counters: of these, the ids are those of a place, and of no use in another.
    :ivar notes: those that are true in any place.
    :ivar remarks: what those who move it should know, in sentences.
    """

    spider: str
    order: Order
    keys: bytes
    counters: Counters
    notes: dict[str, bytes] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)


@dataclass(slots=True)
class StoredRequest:
    """A request in one of the states.

    :ivar entry: without its download slot.
    :ivar slot: that; ``None``: the place does not tell, but the request does.
    :ivar sequence: its number among all requests of the crawl, which orders equal ones.
    :ivar at: when it is due, or has failed, in milliseconds since the epoch.
    :ivar why: why it is dead, or how it has failed.
    """

    state: State
    entry: Entry
    slot: str | None
    sequence: int
    at: int = 0
    why: DeadLetter | PageFailure | None = None


@dataclass(frozen=True, slots=True)
class SeenPage:
    """A page that was found: its key, and its row in a job directory (:mod:`.store.seen`)."""

    key: bytes
    row: bytes = b""


@dataclass(frozen=True, slots=True)
class Claim:
    """An accepted start request: its key (:func:`.store.records.encode_claim`), and its run."""

    key: bytes
    run: int


@dataclass(frozen=True, slots=True)
class Suspect:
    """What is held against a request."""

    fingerprint: bytes
    suspicion: Suspicion


@dataclass(frozen=True, slots=True)
class SlotBudget:
    """How many unique requests of a download slot were accepted."""

    slot: str
    accepted: int


Part: TypeAlias = StoredRequest | SeenPage | Claim | Suspect | SlotBudget


@dataclass(frozen=True, slots=True)
class Content:
    """A crawl.

    :ivar total: how many parts there are, if that is known.
    :ivar trusted: whether pickles in it may be loaded, as those of a job directory.
    """

    head: Head
    parts: Iterator[Part]
    total: int | None = None
    trusted: bool = False

    def with_parts(self, parts: Iterator[Part]) -> Content:
        """The same crawl, with these parts instead."""
        return replace(self, parts=parts)


def place_of(order_key: bytes, last: int) -> tuple[int, bool, int]:
    """Priority, whether in the start requests' own queue, and sequence of a key in any order.

    :param last: the greatest sequence number, from which those are subtracted of which the last is
        to be the first.  No crawl comes near half of it.
    """
    sequence = int.from_bytes(order_key[-8:], "big")
    return -decode_int(order_key[:-9]), bool(order_key[-9]), min(sequence, last - sequence)
