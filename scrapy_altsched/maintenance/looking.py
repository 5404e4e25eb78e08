"""Looking into a job while a crawl may be running: what is next, and where a request is."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Container, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from ..frontier.entry import NEVER_SEEN, STARTED, Counts, Place
from ..frontier.queue.order import DEFAULT_ORDER, Order
from ..frontier.queue.slots import take_turns
from ..frontier.store.holder import find_holder
from ..frontier.store.lease_log import LeaseLog
from ..frontier.store.rows import Rows
from ..frontier.store.seen import SINCE, UNFINISHED, end_time_of
from ..frontier.store.states import DELAYED, PENDING, decode_delayed_key, decode_value
from .progress import follow
from .requeue import DeadRequest, FailedRequest
from .rewriter import order_of

_Item = TypeVar("_Item")
#: Rows of a slot that are read at once, and after how many bytes of these it ends.
_READ_AT_ONCE, _BYTES_AT_ONCE = 16, 1024 * 1024
#: How many rows take so long that it is shown how far it is.
_MANY = 20_000


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


@dataclass(frozen=True, slots=True)
class StoredRequests:
    """All requests that are stored, one at a time.

    :ivar pending: key and stored form, in the order of keys.
    :ivar delayed: when it is due, in seconds since the epoch, and stored form.
    :ivar in_flight: fingerprints of those among the pending ones that are in flight.
    :ivar leased: name of the worker and stored form of those that are in flight, and not pending.
    """

    counts: Counts
    pending: Iterable[tuple[bytes, bytes]]
    delayed: Iterable[tuple[float, bytes]]
    failed: Iterable[FailedRequest]
    dead: Iterable[DeadRequest]
    in_flight: Collection[bytes] = ()
    leased: Iterable[tuple[str, bytes]] = ()

    def find(self, wanted: Collection[bytes]) -> Iterator[tuple[bytes, Place]]:
        """All places of requests with these fingerprints; everything is read for that.

        One that moves on meanwhile is found: it goes through the states in this order.
        """
        counts = self.counts
        for due, value in _follow("Reading delayed requests", self.delayed, counts.delayed):
            entry = decode_value(value)
            if entry.fingerprint in wanted:
                yield entry.fingerprint, Place("delayed", entry.payload or b"", at=due)
        yield from self._find_pending(wanted)
        for worker, value in self.leased:
            entry = decode_value(value)
            if entry.fingerprint in wanted:
                place = Place("in flight", entry.payload or b"", worker=worker)
                yield entry.fingerprint, place
        for failed in _follow("Reading failed requests", self.failed, counts.failed):
            if failed.fingerprint in wanted:
                text, tries = failed.why.text, failed.why.tries
                place = Place("failed", failed.payload, at=failed.at, why=text, tries=tries)
                yield failed.fingerprint, place
        for dead in _follow("Reading dead letters", self.dead, counts.dead):
            if dead.fingerprint in wanted:
                yield dead.fingerprint, Place("dead", dead.payload, why=str(dead.why))

    def _find_pending(self, wanted: Collection[bytes]) -> Iterator[tuple[bytes, Place]]:
        counts, queue, ahead = self.counts, b"", 0
        uncommitted = {fingerprint for fingerprint in self.in_flight if fingerprint in wanted}
        for key, value in _follow("Reading pending requests", self.pending, counts.pending):
            if key[:8] != queue:
                queue, ahead = key[:8], 0
            fingerprint = value[2 : 2 + value[1]]
            is_leased = fingerprint in self.in_flight
            if fingerprint in wanted:
                uncommitted.discard(fingerprint)
                payload = decode_value(value).payload or b""
                if is_leased:
                    yield fingerprint, Place("in flight", payload)
                else:
                    yield fingerprint, Place("pending", payload, ahead=ahead)
            ahead += not is_leased
        for fingerprint in uncommitted:
            yield fingerprint, Place("in flight")


def _follow(title: str, rows: Iterable[_Item], total: int) -> Iterable[_Item]:
    return follow(title, rows, total) if total >= _MANY else rows


def group_places(found: Iterable[tuple[bytes, Place]]) -> dict[bytes, list[Place]]:
    """All places of each fingerprint."""
    places: defaultdict[bytes, list[Place]] = defaultdict(list)
    for fingerprint, place in found:
        places[fingerprint].append(place)
    return places


def delayed_rows(rows: Rows) -> Iterator[tuple[float, bytes]]:
    """When each delayed request of a job is due, in seconds since the epoch, and stored form."""
    for key, row in rows.requests(DELAYED):
        yield decode_delayed_key(key)[0] / 1000, DELAYED.split(row)[1]


def find_seen(rows: Rows, fingerprint: bytes) -> Place:
    """Where a request is that is not stored, by what was seen or claimed."""
    value, since = rows.seen_value(rows.seen_key(fingerprint)), rows.note(SINCE)
    if value is None:
        return NEVER_SEEN if rows.claimed(fingerprint, 0) is None else STARTED
    if since is None:
        return Place("done")
    return Place(
        "seen" if value == UNFINISHED else "done", at=end_time_of(value, json.loads(since))
    )


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


def find_oldest(rows: Rows, leased: Container[bytes] = ()) -> int | None:
    """The sequence number of the pending request that was accepted first; all are read.

    :param leased: as for :func:`next_requests`.
    """
    oldest, sequence_of = None, (order_of(rows) or DEFAULT_ORDER).sequence_of
    for key, value in rows.pending():
        sequence = sequence_of(key)
        is_older = oldest is None or sequence < oldest
        if is_older and value[2 : 2 + value[1]] not in leased:
            oldest = sequence
    return oldest


def _queue(rows: Rows, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Keys and stored forms of a slot; nothing of the store is open in between."""
    start, limit = prefix, 1  # most slots are asked for one
    while found := rows.database.read(PENDING.family, prefix, start, limit, _BYTES_AT_ONCE):
        yield from found
        start, limit = found[-1][0] + b"\0", _READ_AT_ONCE


def in_flight(jobdir: Path, store_id: str, run: int) -> set[bytes]:
    """Fingerprints of what a running crawl has in flight; if none runs, there are none."""
    holder = find_holder(jobdir)
    if holder is None or holder.lives() is False:
        return set()
    return LeaseLog(jobdir, store_id).read(run).in_flight
