"""Giving a stored queue another order, in one go or not at all.

Every request is written again under the id of a new slot.  Until the batch that names the new
slots, no reader knows these rows; if that batch never comes, they are deleted at the next open.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from ..errors import CodecError
from ..frontier.queue.order import Order
from ..frontier.store.journal import Journal
from ..frontier.store.records import Batch, decode_value

logger = logging.getLogger(__name__)

#: Requests written at once.
_CHUNK = 5_000

#: Payload -> (download slot's name, whether a start request).
Locate = Callable[[bytes], tuple[str, bool]]


def reorder(journal: Journal, new: Order, locate: Locate | None = None) -> None:
    """Have all pending requests in order *new*, if they are in another one.

    :param locate: where a request belongs in the new order.
    :raises StoreError: a read or write failed; the queue is as it was.
    """
    # Rows of a change that was cut short must be gone before the next one begins.
    journal.remove_orphans(journal.counters().next_slot)
    stored = journal.note("order")
    if stored is not None and Order.parse(stored.decode()) != new:
        _rewrite(journal, Order.parse(stored.decode()), new, locate)


def _rewrite(journal: Journal, old: Order, new: Order, locate: Locate | None) -> None:
    final = Batch(replace(journal.counters()), notes={"order": str(new).encode()})
    names = {slot_id: name for slot_id, _, name in journal.slots()}
    moved: dict[str, tuple[int, int]] = {}
    asks = locate is not None and (
        old.policy != new.policy or (old.start is None) != (new.start is None)
    )
    # The rows go out before the final batch, with counters that say nothing new.
    rows = Batch(journal.counters())
    total = 0
    for key, value in journal.pending():
        old_name = names.get(int.from_bytes(key[:8], "big"))
        if old_name is None:
            continue
        priority, start, sequence = old.decode(key[8:])
        name = old_name
        if asks and locate is not None:
            payload = decode_value(value).payload
            assert payload is not None
            try:
                name, start = locate(payload)
            except CodecError:
                logger.debug("A stored request that cannot be decoded keeps its place")
        name = new.slot_of(name)
        slot_id, count = moved.get(name) or (final.counters.next_slot + len(moved), 0)
        moved[name] = slot_id, count + 1
        new_key = slot_id.to_bytes(8, "big") + new.encode(priority, start, sequence)
        rows.pending.append((new_key, value))
        total += 1
        if len(rows.pending) == _CHUNK:
            journal.write(rows, wait=True)
            rows.pending.clear()
    if rows.pending:
        journal.write(rows, wait=True)
    for slot_id in names:
        prefix = slot_id.to_bytes(8, "big")
        final.removed_slots.append(prefix)
        final.slots.append((prefix, 0, ""))
    for name, (slot_id, count) in moved.items():
        final.slots.append((slot_id.to_bytes(8, "big"), count, name))
    final.counters.next_slot += len(moved)
    journal.write(final, wait=True)
    logger.info("The order of %d stored requests was changed from %s to %s", total, old, new)
