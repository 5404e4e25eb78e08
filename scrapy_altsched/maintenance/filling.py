"""A job made of all that a crawl consists of, which came from elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from ..errors import CodecError, InputError
from ..frontier.content import (
    Claim,
    Content,
    Part,
    SeenPage,
    SlotBudget,
    StoredRequest,
    Suspect,
)
from ..frontier.store.seen import KEYS
from ..frontier.store.states import (
    DEAD,
    DELAYED,
    FAILED,
    PENDING,
    UNQUEUED,
    encode_delayed_key,
    encode_failed_key,
    encode_value,
)
from ..frontier.store.store import Store
from ..requests.carrying import slot_in, url_in
from .rewriter import Rewriter

#: What keys of failed requests and of dead letters begin with, where those of others have slots.
_NO_SLOT = bytes(8)


def fill_job(store: Store, content: Content) -> None:
    """Write all of *content* into a store that is new, and discarded unless this succeeds.

    :raises StoreError: it could not be written.  What goes through *content* may raise, too.
    """
    filling = _Filling(store, content)
    for part in content.parts:
        filling.take(part)
        filling.flush_if_full()
    filling.finish()


class _Filling(Rewriter):
    def __init__(self, store: Store, content: Content) -> None:
        super().__init__(store)
        self._head = head = content.head
        counters = self.final.counters
        self._delayed_queue = counters.next_slot
        self.final.counters = replace(
            head.counters,
            next_slot=counters.next_slot + 1,
            delayed_queue=self._delayed_queue,
            seen=None,
            **dict.fromkeys((state.counter or "" for state in UNQUEUED), 0),  # type: ignore[arg-type]  # names of ints
        )
        self.final.notes = {**head.notes, "order": str(head.order).encode(), KEYS: head.keys}

    def take(self, part: Part) -> None:
        match part:
            case StoredRequest():
                self._take_request(part)
            case SeenPage():
                self.rows.seen_rows.append((part.key, part.row))
            case Claim():
                self.rows.started.append((part.key, part.run))
            case Suspect():
                self.rows.suspects.append((part.fingerprint, part.suspicion))
            case SlotBudget():
                self.final.budgets.append((part.slot, part.accepted))

    def _take_request(self, part: StoredRequest) -> None:
        order, entry, counters = self._head.order, part.entry, self.final.counters
        slot, state, value = part.slot or "", part.state, encode_value(part.entry)
        order_key = order.encode(entry.priority, entry.start, part.sequence)
        if state is PENDING:
            self.add(order.slot_of(slot), order_key, value)
            return
        if state is DELAYED:
            queue = self._delayed_queue.to_bytes(8, "big")
            key = encode_delayed_key(queue, part.at, part.sequence)
            row = DELAYED.join((entry.priority, entry.start, slot), value)
        elif state is FAILED:
            key, row = (
                encode_failed_key(part.at, _NO_SLOT + order_key),
                FAILED.join(part.why, value),
            )
        else:
            key, row = _NO_SLOT + order_key, DEAD.join(part.why, value)
        self.rows.stored[state].append((key, row))
        name = state.counter or ""
        setattr(counters, name, getattr(counters, name) + 1)


def recoded(
    content: Content, encode: Callable[[bytes], bytes], form: str, *, keeps_dead: bool = False
) -> Content:
    """The same crawl, with requests as another place has them, and with their download slots.

    :param encode: payload -> payload, or CodecError.
    :param form: what cannot carry a request then, as a message names it.
    :param keeps_dead: whether dead letters that it cannot carry stay as they are.
    :raises InputError: there is such a request, while the parts are gone through.
    """

    def parts() -> Iterator[Part]:
        for part in content.parts:
            if isinstance(part, StoredRequest):
                payload = part.entry.payload or b""
                if part.slot is None:
                    part.slot = slot_in(payload, trusted=content.trusted)
                try:
                    part.entry.payload = encode(payload)
                except CodecError as error:
                    if keeps_dead and part.state is DEAD:
                        yield part
                        continue
                    url = url_in(payload, trusted=content.trusted)
                    raise InputError(
                        f"The {part.state.noun} {url or part.entry.fingerprint.hex()} cannot be"
                        f" taken to {form} ({error}). Nothing was imported."
                    ) from error
            yield part

    return content.with_parts(parts())
