"""Dead letters: listing them, and making them pending again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ..frontier.entry import DeadLetter
from ..frontier.queue.order import DEFAULT_ORDER
from ..frontier.store.journal import Journal
from ..frontier.store.states import DEAD, decode_value
from .rewriter import Locate, Rewriter, order_of


@dataclass(frozen=True, slots=True)
class DeadRequest:
    """A dead letter.

    :ivar key: that it was pending under; *value*: its stored form.
    :ivar payload: empty for one that lived in memory only.
    """

    key: bytes
    fingerprint: bytes
    payload: bytes
    why: DeadLetter
    value: bytes


def dead_requests(stored: Iterable[tuple[bytes, DeadLetter, bytes]]) -> Iterator[DeadRequest]:
    """All dead letters of *stored*: ``dead()`` of rows, a frontier, or a crawl on a server."""
    for key, why, value in stored:
        entry = decode_value(value)
        yield DeadRequest(key, entry.fingerprint, entry.payload or b"", why, value)


def requeue(journal: Journal, chosen: Iterable[DeadRequest], locate: Locate) -> int:
    """Make dead letters pending again, all of them or none; how many there were.

    Their crashes are forgotten already: the record of them went when they became dead letters.

    :raises StoreError: it could not be read or written.
    :raises CodecError: a payload cannot be decoded.
    """
    order = order_of(journal) or DEFAULT_ORDER
    rewriter = Rewriter(journal, extends=True)
    counters, removed = rewriter.final.counters, rewriter.final.removed[DEAD]
    counters.finished = False
    for request in chosen:
        download_slot, start = locate(request.payload)
        priority, _, _ = order.decode(request.key[8:])
        order_key = order.encode(priority, start, counters.next_sequence)
        rewriter.add(order.slot_of(download_slot), order_key, request.value)
        removed.append(request.key)
        counters.next_sequence += 1
        counters.dead -= 1
    rewriter.finish()
    return len(removed)
