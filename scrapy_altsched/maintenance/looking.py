"""Looking into a job while a crawl may be running: what is next, and what is in flight."""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from ..frontier.queue.order import DEFAULT_ORDER, Order
from ..frontier.store.jobdir import read_holder
from ..frontier.store.lease_log import LeaseLog
from ..frontier.store.rows import Rows
from ..frontier.store.states import PENDING, decode_value
from .rewriter import order_of

_Item = TypeVar("_Item")
#: Rows of a slot that are read at once, and after how many bytes of these it ends.
_READ_AT_ONCE, _BYTES_AT_ONCE = 16, 1024 * 1024


@dataclass(frozen=True, slots=True)
class PendingRequest:
    """A request that waits for its turn.

    :ivar rests_until: when its download slot may be asked again, in seconds since the epoch;
        infinity: once a download of it is over; ``None``: it may be asked now.
    """

    fingerprint: bytes
    payload: bytes
    priority: int
    rests_until: float | None = None


def pending_request(
    order: Order, key: bytes, value: bytes, rests_until: float | None = None
) -> PendingRequest:
    """The request with this key and stored form; ValueError or IndexError: they are damaged."""
    entry, (priority, _, _) = decode_value(value), order.decode(key[8:])
    return PendingRequest(entry.fingerprint, entry.payload or b"", priority, rests_until)


def is_by_slot(rows: Rows) -> bool:
    """Whether requests wait in one queue for each download slot."""
    return (order_of(rows) or DEFAULT_ORDER).policy == "slots"


def next_requests(
    rows: Rows, slot: str | None = None, leased: Container[bytes] = ()
) -> Iterator[PendingRequest]:
    """Pending requests in the order in which they are chosen while nothing is downloaded.

    :param slot: only those of the queue with this name.
    :param leased: fingerprints of requests that are in flight, which are stored as pending.
    """
    order = order_of(rows) or DEFAULT_ORDER
    names = ((name, number) for number, count, name in rows.slots() if count)
    queues = sorted((name, number) for name, number in names if slot in (None, name))
    for key, value in take_turns(_queue(rows, number.to_bytes(8, "big")) for _, number in queues):
        request = pending_request(order, key, value)
        if request.fingerprint not in leased:
            yield request


def _queue(rows: Rows, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Keys and stored forms of a slot; nothing of the store is open in between."""
    start, limit = prefix, 1  # most slots are asked for one
    while found := rows.database.read(PENDING.family, prefix, start, limit, _BYTES_AT_ONCE):
        yield from found
        start, limit = found[-1][0] + b"\0", _READ_AT_ONCE


def take_turns(queues: Iterable[Iterator[_Item]]) -> Iterator[_Item]:
    """One of each in turns, until all are at their ends."""
    rest: deque[Iterator[_Item]] = deque()
    for queue in queues:
        for item in queue:
            yield item
            rest.append(queue)
            break
    while rest:
        queue = rest.popleft()
        for item in queue:
            yield item
            rest.append(queue)
            break


def in_flight(jobdir: Path, store_id: str, run: int) -> set[bytes]:
    """Fingerprints of what a running crawl has in flight; if none runs, there are none."""
    holder = read_holder(jobdir)
    if holder is None or holder.lives() is False:
        return set()
    return LeaseLog(jobdir, store_id).read(run).in_flight
