"""The states that requests are stored in: one table for all who read, write, check or repair rows.

A request that is leased is stored as pending until it is over; of one that is done only its
fingerprint is stored, among the seen ones.  CONTRIBUTING.rst says how to add a state.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..entry import Cause, DeadLetter, Entry, PageFailure, Reason

_UNIQUE, _AGAIN = 1, 2
#: Flags and length of a fingerprint, as every stored request begins; by both.
_HEADS = tuple(
    tuple(bytes((flags, length)) for length in range(256))
    for flags in (0, _UNIQUE, _AGAIN, _UNIQUE | _AGAIN)
)
#: Reason, status and tries of a failure, and how many bytes of text follow.
_FAILURE = struct.Struct(">BHII")


def encode_value(entry: Entry) -> bytes:
    """The stored form of a request: flags, length of the fingerprint, fingerprint, payload."""
    fingerprint = entry.fingerprint
    flags = entry.unique | _AGAIN if entry.again else entry.unique
    return _HEADS[flags][len(fingerprint)] + fingerprint + (entry.payload or b"")


def decode_value(value: bytes) -> Entry:
    """The inverse of :func:`encode_value`; slot and priority stay in the key."""
    flags, end = value[0], 2 + value[1]
    entry = Entry(value[2:end], payload=value[end:], unique=bool(flags & _UNIQUE))
    if flags & _AGAIN:
        entry.again = True
    return entry


def fingerprint_of(value: bytes) -> bytes:
    """The fingerprint in a stored form, without the rest of it."""
    return value[2 : 2 + value[1]]


def mark_again(value: bytes) -> bytes:
    """The stored form of a request that had failed, and of which all tries are to come again."""
    return bytes((value[0] | _AGAIN,)) + value[1:]


def _join_letter(why: DeadLetter, value: bytes) -> bytes:
    text = why.text.encode("utf-8", "backslashreplace")
    return bytes((why.cause,)) + len(text).to_bytes(4, "big") + text + value


def _split_letter(row: bytes) -> tuple[DeadLetter, bytes]:
    if not row[0]:  # format 2 had no cause; the length of a text is below 2**24
        end = 4 + int.from_bytes(row[:4], "big")
        return DeadLetter.parse(row[4:end].decode()), row[end:]
    end = 5 + int.from_bytes(row[1:5], "big")
    return DeadLetter(row[5:end].decode(), Cause(row[0])), row[end:]


def _join_delayed(place: tuple[int, bool, str], value: bytes) -> bytes:
    priority, start, slot = place
    # In hexadecimal: Python refuses to read and write decimal numbers of thousands of digits.
    head = f"{priority:x} {start:d} {slot}".encode("utf-8", "surrogatepass")
    return len(head).to_bytes(4, "big") + head + value


def _split_delayed(row: bytes) -> tuple[tuple[int, bool, str], bytes]:
    end = 4 + int.from_bytes(row[:4], "big")
    priority, start, slot = row[4:end].decode("utf-8", "surrogatepass").split(" ", 2)
    return (int(priority, 16), start == "1", slot), row[end:]


def encode_failure(why: PageFailure) -> bytes:
    """How a request has failed, as it is stored in front of the request."""
    text = why.text.encode("utf-8", "backslashreplace")
    status, tries = min(max(why.status, 0), 0xFFFF), min(max(why.tries, 0), 0xFFFFFFFF)
    return _FAILURE.pack(why.reason, status, tries, len(text)) + text


def _join_failure(why: PageFailure, value: bytes) -> bytes:
    return encode_failure(why) + value


def _split_failure(row: bytes) -> tuple[PageFailure, bytes]:
    if len(row) < _FAILURE.size:
        raise ValueError(f"{row.hex()} does not say how a request has failed")
    reason, status, tries, size = _FAILURE.unpack_from(row)
    end = _FAILURE.size + size
    text = row[_FAILURE.size : end].decode()
    return PageFailure(Reason(reason), text, status, tries), row[end:]


@dataclass(frozen=True, eq=False)
class State:
    """A state that requests are stored in; their keys are those of pending ones, but where it says.

    :ivar noun: what messages call such a request.
    :ivar counter: the field of the counters that has their number; ``None``: the slots have it.
    :ivar is_left: whether they are still to be worked on.
    :ivar join: detail, and request as :func:`encode_value` makes it -> row.
    :ivar split: the inverse; raises ValueError or IndexError if the row is damaged.
    """

    family: str
    noun: str
    counter: str | None = None
    join: Callable[[Any, bytes], bytes] = lambda _, value: value
    split: Callable[[bytes], tuple[Any, bytes]] = lambda row: (None, row)
    is_left: bool = False

    def decode(self, row: bytes) -> Entry:
        """The request of a row; ValueError or IndexError: it is damaged, or cut short."""
        return decode_value(self.split(row)[1])


PENDING = State("pending", "pending request", is_left=True)
#: Not before its time.  The detail is its priority, whether it goes to the start requests' queue,
#: and its download slot's *name*: slots come and go, and orders change, while it waits.  Key: the
#: queue's id (8 bytes; see :attr:`.records.Counters.delayed_queue`), when it is due (8, in
#: milliseconds since the epoch), and its sequence number (8).
DELAYED = State("delayed", "delayed request", "delayed", _join_delayed, _split_delayed, True)
#: The detail is a :class:`~..entry.DeadLetter`.
DEAD = State("dead", "dead letter", "dead", _join_letter, _split_letter)
#: The detail is a :class:`~..entry.PageFailure`.  Key: when it has failed (8 bytes, in milliseconds
#: since the epoch), and the key that it was pending under.
FAILED = State("failed", "failed request", "failed", _join_failure, _split_failure)

STATES = (PENDING, DELAYED, DEAD, FAILED)
#: Those whose requests are in no queue.
UNQUEUED = tuple(state for state in STATES if state.counter is not None)

#: All families of rows.
FAMILIES = ("seen", "slots", "suspects", "started", "meta", *(state.family for state in STATES))


def encode_delayed_key(queue: bytes, due: int, sequence: int) -> bytes:
    """The key of a delayed request; *due*: milliseconds since the epoch."""
    return queue + due.to_bytes(8, "big") + sequence.to_bytes(8, "big")


def decode_delayed_key(key: bytes) -> tuple[int, int]:
    """When it is due, and its sequence number; raises ValueError if *key* is damaged."""
    if len(key) != 24:
        raise ValueError(f"{key.hex()} does not say when a request is due")
    return int.from_bytes(key[8:16], "big"), int.from_bytes(key[16:], "big")


def encode_failed_key(when: int, key: bytes) -> bytes:
    """The key of a failed request; *when*: in milliseconds since the epoch."""
    return when.to_bytes(8, "big") + key


def decode_failed_key(key: bytes) -> tuple[int, bytes]:
    """The inverse of :func:`encode_failed_key`."""
    return int.from_bytes(key[:8], "big"), key[8:]


def encode_delayed(entry: Entry) -> bytes:
    """The row of a delayed request."""
    return DELAYED.join((entry.priority, entry.start, entry.slot), encode_value(entry))


def decode_delayed(row: bytes) -> Entry:
    """The inverse of :func:`encode_delayed`; ValueError or IndexError: the row is damaged."""
    (priority, start, slot), value = DELAYED.split(row)
    entry = decode_value(value)
    entry.priority, entry.start, entry.slot = priority, start, slot
    return entry
