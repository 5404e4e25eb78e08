"""Giving a stored queue another order, all or nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable

from ..errors import CodecError
from ..frontier.queue.order import Order
from ..frontier.store.journal import Journal
from ..frontier.store.states import decode_value
from .rewriter import Rewriter, order_of

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
    old = order_of(journal) or new
    if old == new:
        return
    if old.policy == new.policy and (old.start is None) == (new.start is None):
        locate = None
    total = 0
    for key, slot, value in rewriter.pending():
        priority, start, sequence = old.decode(key[8:])
        place = slot, start
        if locate is not None:
            try:
                place = locate(decode_value(value).payload or b"")
            except CodecError:
                logger.debug("A stored request that cannot be decoded keeps its place")
        name, start = place
        rewriter.add(new.slot_of(name), new.encode(priority, start, sequence), value)
        rewriter.flush_if_full()
        total += 1
    rewriter.flush()
    rewriter.replace_queue()
    rewriter.final.notes["order"] = str(new).encode()
    rewriter.finish()
    logger.info("The order of %d stored requests was changed from %s to %s", total, old, new)
