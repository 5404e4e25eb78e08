"""Giving a stored queue another order, all or nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable

from ..errors import CodecError
from ..frontier.queue.order import Order
from ..frontier.store.journal import Journal
from ..frontier.store.states import decode_value
from .rewriter import Rewriter

logger = logging.getLogger(__name__)

#: Payload -> (download slot's name, whether a start request).
Locate = Callable[[bytes], tuple[str, bool]]


def reorder(journal: Journal, new: Order, locate: Locate | None = None) -> None:
    """Have all pending requests in order *new*, if they are in another one.

    :param locate: where a request belongs in the new order.
    :raises StoreError: a read or write failed; the queue is as it was.
    """
    # In any case: rows of a change that was cut short must be gone before the crawl continues.
    rewriter = Rewriter(journal)
    stored = journal.note("order")
    if stored is not None and Order.parse(stored.decode()) != new:
        _rewrite(journal, rewriter, Order.parse(stored.decode()), new, locate)


def _rewrite(
    journal: Journal, rewriter: Rewriter, old: Order, new: Order, locate: Locate | None
) -> None:
    names = {slot_id: name for slot_id, _, name in journal.slots()}
    asks = locate is not None and (
        old.policy != new.policy or (old.start is None) != (new.start is None)
    )
    total = 0
    for key, value in journal.pending():
        name = names.get(int.from_bytes(key[:8], "big"))
        if name is None:
            continue
        priority, start, sequence = old.decode(key[8:])
        if asks and locate is not None:
            payload = decode_value(value).payload
            assert payload is not None
            try:
                name, start = locate(payload)
            except CodecError:
                logger.debug("A stored request that cannot be decoded keeps its place")
        rewriter.add(new.slot_of(name), new.encode(priority, start, sequence), value)
        rewriter.flush_if_full()
        total += 1
    rewriter.flush()
    rewriter.replace_queue()
    rewriter.final.notes["order"] = str(new).encode()
    rewriter.finish()
    logger.info("The order of %d stored requests was changed from %s to %s", total, old, new)
