"""What the store's rows say, as objects and as bytes."""

from __future__ import annotations

import enum
import json
from dataclasses import astuple, dataclass, field
from typing import Any

from ...inflection import inflect
from ..entry import Counts
from .states import STATES, UNQUEUED, State

#: Name of the note that says what the job may lack, and why; empty if nothing.
DAMAGE = "damage"
#: Name of the note that says how many requests in memory only no page and no start() brings again.
#: Earlier versions wrote none, and pages were done before what they had led to.
ORPHANS = "orphans"
#: Name of the note of the run that finished the job.  Earlier versions wrote none.
FINISHED_IN = "finished in run"


def add_damage(noted: bytes | None, sentence: str) -> bytes:
    """The note :data:`DAMAGE` with *sentence* at its end, if it does not say so yet."""
    text = (noted or b"").decode()
    return (text if sentence in text else f"{text} {sentence}".strip()).encode()


def describe_orphans(counters: Counters, noted: bytes | None) -> str | None:
    """What is lost with the process that lived in memory only, as a sentence, if anything is."""
    lost = counters.memory_only if noted is None else int(noted)
    if not lost:
        return None
    return (
        f"{lost} {inflect(lost, 'request')} that could not be serialized, and that no page and no"
        f" start() brings again, {inflect(lost, 'ends', 'end')} with the process that found"
        f" {inflect(lost, 'it', 'them')}."
    )


#: How many commits are noted one by one: far more than there are in the moment in which there are
#: two logs that the disk may not have.
NOTED = 256


@dataclass(slots=True)
class Counters:
    """Absolute numbers that every batch carries.

    :ivar memory_only: requests that are gone if the process dies.
    :ivar run: how often the job was opened.
    :ivar delayed_queue: the id that the keys of delayed requests begin with: one that no slot has.
    :ivar time: the job's time, in seconds since the epoch: see :mod:`..job_time`.
    :ivar forgotten: fingerprints removed from the seen ones, of pending requests perhaps.
    :ivar seen: rows of what was seen; ``None``: they are to be counted when the next run begins.
    """

    accepted: int = 0
    done: int = 0
    dead: int = 0
    memory_only: int = 0
    next_sequence: int = 1
    next_slot: int = 1
    run: int = 0
    finished: bool = False
    forgotten: int = 0
    delayed: int = 0
    delayed_queue: int = 0
    time: float = 0.0
    failed: int = 0
    seen: int | None = None

    def count(self, state: State) -> int:
        number: int = getattr(self, state.counter or "")
        return number

    def as_counts(self, pending: int, **others: int | None) -> Counts:
        """The numbers in all states; *pending*: by the slots; *others*: what is in no store."""
        states = (state.counter or "" for state in UNQUEUED)
        names = ("accepted", "done", "memory_only", "seen", *states)
        return Counts(pending=pending, **{name: getattr(self, name) for name in names} | others)

    def encode(self) -> bytes:
        # asdict() would copy each value, with each commit.
        names = self.__dataclass_fields__
        return json.dumps({name: getattr(self, name) for name in names}).encode()

    @classmethod
    def parse(cls, text: bytes) -> Counters:
        """The inverse of :meth:`encode`; ValueError: *text* is damaged."""
        try:
            return cls(**json.loads(text))
        except TypeError as error:
            raise ValueError(f"no counters: {error}") from error


class Level(enum.IntEnum):
    """How a request is leased because of what earlier deaths of the process tell of it."""

    #: As any other.
    FREE = 0
    #: One after the other, along with others that are free.
    SUSPECT = 1
    #: Alone, when nothing else is pending.
    BLAMED = 2


@dataclass(frozen=True, order=True, slots=True)
class Suspicion:
    """What is held against a request that was in flight when the process died.

    :ivar in_hand: deaths while it was leased alone and its response had been received;
        *downloading*: had not.
    :ivar age: quarters of a death, of those while it was in flight among others.
    :ivar narrowed: 1 if the process died while it was a suspect and among those in hand, else 0.
    """

    level: Level = Level.FREE
    in_hand: int = 0
    downloading: int = 0
    age: int = 0
    narrowed: int = 0

    def encode(self) -> bytes:
        """A row: a byte for each number."""
        return bytes(min(number, 255) for number in astuple(self))

    @classmethod
    def parse(cls, row: bytes) -> Suspicion:
        """The inverse of :meth:`encode`; raises ValueError if *row* is damaged.

        Format 1 had one number, of deaths while the request was leased alone, in four bytes.
        """
        if len(row) == 4:
            deaths = int.from_bytes(row, "big")
            return cls(Level.BLAMED if deaths else Level.SUSPECT, downloading=min(deaths, 255))
        if len(row) != 5 or row[0] > Level.BLAMED:
            raise ValueError(f"{row.hex()} does not say what is held against a request")
        return cls(Level(row[0]), *row[1:])


def _lists() -> dict[State, list[Any]]:
    return {state: [] for state in STATES}


@dataclass(slots=True)
class Batch:
    """What one commit changes.  Absolute values only: it can be written again.

    :ivar identity: what the store says of itself, if that changes.
    :ivar seen: seen keys, by :attr:`.rows.Rows.seen_key`, that get *seen_value* as their row;
        *seen_rows*: those with rows of their own; *forgotten*: those that go.
    :ivar stored: rows of requests, by state; *removed*: keys of those that leave it.
    :ivar removed_slots: ids of slots all of whose requests go; *removed_queues*: of delayed ones.
    :ivar budgets: name of a download slot, and how many unique requests of it were accepted.
    :ivar suspects: fingerprint and what is held against it, if anything still is.
    """

    counters: Counters
    identity: bytes | None = None
    seen: list[bytes] = field(default_factory=list)
    seen_value: bytes = b""
    seen_rows: list[tuple[bytes, bytes]] = field(default_factory=list)
    forgotten: list[bytes] = field(default_factory=list)
    stored: dict[State, list[tuple[bytes, bytes]]] = field(default_factory=_lists)
    removed: dict[State, list[bytes]] = field(default_factory=_lists)
    removed_slots: list[bytes] = field(default_factory=list)
    removed_queues: list[bytes] = field(default_factory=list)
    slots: list[tuple[bytes, int, str]] = field(default_factory=list)
    unclaimed: list[bytes] = field(default_factory=list)
    started: list[tuple[bytes, int]] = field(default_factory=list)
    suspects: list[tuple[bytes, Suspicion | None]] = field(default_factory=list)
    budgets: list[tuple[str, int]] = field(default_factory=list)
    clear_started: bool = False
    notes: dict[str, bytes] = field(default_factory=dict)


#: The key of a row that stands for all claims of a crawl that came from a server: they are among
#: its seen keys there, and nothing tells which.
SHARED_CLAIMS = b"\0"


def encode_claim(fingerprint: bytes, occurrence: int) -> bytes:
    """The key of the claim to one occurrence of a start request; they are counted from 0."""
    return fingerprint + occurrence.to_bytes(4, "big")


def encode_slot(count: int, name: str) -> bytes:
    """The row of a slot: how many requests it holds, and its name."""
    return count.to_bytes(8, "big") + name.encode("utf-8", "surrogatepass")


def decode_slot(row: bytes) -> tuple[int, str]:
    """The inverse of :func:`encode_slot`; raises ValueError if *row* is damaged."""
    if len(row) < 8:
        raise ValueError(f"{row.hex()} does not say what a slot holds")
    return int.from_bytes(row[:8], "big"), row[8:].decode("utf-8", "surrogatepass")


def noted_key(number: int) -> bytes:
    """The key, in ``meta``, of the note of a commit: its number, and the first that has a note."""
    return b"commit:%d" % (number % NOTED)
