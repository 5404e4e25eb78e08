"""Dead letters and failed requests: listing them, and making them pending again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import ClassVar

from ..errors import CodecError
from ..frontier.entry import DeadLetter, PageFailure
from ..frontier.queue.order import DEFAULT_ORDER
from ..frontier.store.journal import Journal
from ..frontier.store.states import (
    DEAD,
    FAILED,
    State,
    decode_failed_key,
    decode_value,
    mark_again,
)
from .rewriter import CHUNK, Locate, Rewriter, order_of


@dataclass(frozen=True, slots=True)
class DeadRequest:
    """A dead letter.

    :ivar key: that it was pending under; *value*: its stored form.
    :ivar payload: empty for one that lived in memory only.
    """

    state: ClassVar[State] = DEAD

    key: bytes
    fingerprint: bytes
    payload: bytes
    why: DeadLetter
    value: bytes

    @property
    def pending_key(self) -> bytes:
        return self.key

    @property
    def pending_value(self) -> bytes:
        return self.value


@dataclass(frozen=True, slots=True)
class FailedRequest:
    """A request that has failed, as :class:`DeadRequest` is one that is dead.

    :ivar key: when it has failed, and the key that it was pending under.
    """

    state: ClassVar[State] = FAILED

    key: bytes
    fingerprint: bytes
    payload: bytes
    why: PageFailure
    value: bytes

    @property
    def at(self) -> float:
        """When it has failed, in seconds since the epoch."""
        return decode_failed_key(self.key)[0] / 1000

    @property
    def pending_key(self) -> bytes:
        return decode_failed_key(self.key)[1]

    @property
    def pending_value(self) -> bytes:
        return mark_again(self.value)


def dead_requests(stored: Iterable[tuple[bytes, DeadLetter, bytes]]) -> Iterator[DeadRequest]:
    """All dead letters of *stored*: ``dead()`` of rows, a frontier, or a crawl on a server."""
    for key, why, value in stored:
        entry = decode_value(value)
        yield DeadRequest(key, entry.fingerprint, entry.payload or b"", why, value)


def failed_requests(stored: Iterable[tuple[bytes, PageFailure, bytes]]) -> Iterator[FailedRequest]:
    """All failed requests of *stored*: ``failed()`` of rows, or of a crawl on a server."""
    for key, why, value in stored:
        entry = decode_value(value)
        yield FailedRequest(key, entry.fingerprint, entry.payload or b"", why, value)


def requeue(journal: Journal, chosen: Iterable[DeadRequest | FailedRequest], locate: Locate) -> int:
    """Make requests pending again; how many there were.

    Crashes of dead ones are forgotten already: the record of them went when they became dead
    letters.  Of those that have failed, the tries are counted anew.

    :raises StoreError: it could not be read or written.  Some thousand at a time are pending again,
        or none of these.
    :raises CodecError: a payload cannot be decoded; none of the same thousands is pending.
    """
    rest, count = iter(chosen), 0
    while portion := list(islice(rest, CHUNK)):
        count += _requeue_at_once(journal, portion, locate)
    return count


def retry_failed(journal: Journal, locate: Locate) -> int:
    """Make all failed requests pending again that can be restored; how many there were."""
    failed = failed_requests(journal.failed())
    return requeue(journal, (it for it in failed if _can_locate(it, locate)), locate)


def _can_locate(request: FailedRequest, locate: Locate) -> bool:
    try:
        locate(request.payload)
    except CodecError:
        return False
    return True


def _requeue_at_once(
    journal: Journal, chosen: list[DeadRequest | FailedRequest], locate: Locate
) -> int:
    order = order_of(journal) or DEFAULT_ORDER
    rewriter = Rewriter(journal, extends=True)
    counters = rewriter.final.counters
    counters.finished = False
    for request in chosen:
        download_slot, start = locate(request.payload)
        priority, _, _ = order.decode(request.pending_key[8:])
        order_key = order.encode(priority, start, counters.next_sequence)
        rewriter.add(order.slot_of(download_slot), order_key, request.pending_value)
        rewriter.final.removed[request.state].append(request.key)
        counters.next_sequence += 1
        name = request.state.counter or ""
        setattr(counters, name, getattr(counters, name) - 1)
    rewriter.finish()
    return len(chosen)
