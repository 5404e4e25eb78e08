"""Dead letters: listing them, and making them pending again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from ..frontier.dead_letter import DeadLetter
from ..frontier.queue.order import DEFAULT_ORDER
from ..frontier.store.journal import Journal
from ..frontier.store.states import DEAD, decode_value
from .rewriter import Locate, Rewriter, order_of


class HasDead(Protocol):
    """Rows, a frontier, or a crawl on a server; the key and the value are those that are stored."""

    def dead(self) -> Iterator[tuple[bytes, DeadLetter, bytes]]: ...


@dataclass(frozen=True, slots=True)
class DeadRequest:
    """A dead letter."""

    #: That it was pending under.
    key: bytes
    fingerprint: bytes
    #: Empty for one that lived in memory only.
    payload: bytes
    why: DeadLetter
    value: bytes


def dead_requests(rows: HasDead) -> Iterator[DeadRequest]:
    """All dead letters of a job."""
    for key, why, value in rows.dead():
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
