"""Requests as a frontier keeps them, and back."""

from __future__ import annotations

import sys
from collections.abc import Callable, MutableMapping
from typing import TYPE_CHECKING

from ..engine import Engine
from ..errors import CodecError
from ..frontier import Entry
from .codec import decode_request, encode_request, is_as_encoded

if TYPE_CHECKING:
    from scrapy import Request, Spider

#: What ``sys.getrefcount`` says of an object that only one local variable refers to.
_OURS = 2


class Entries:
    """Turns requests of a crawl into entries, and entries into requests.

    :param on_unserializable: called with each request that cannot be encoded, and why.
    :param tally: name of a stat -> by how much to increase it: what is enqueued and dequeued.
    :param by_slot: whether requests wait in the queues of their download slots.
    :param on_disk: whether they are to survive the process.
    """

    def __init__(
        self,
        spider: Spider,
        engine: Engine,
        on_unserializable: Callable[[Request, CodecError], None],
        tally: MutableMapping[str, int],
        *,
        by_slot: bool,
        on_disk: bool,
    ) -> None:
        self._spider = spider
        self._engine = engine
        self._on_unserializable = on_unserializable
        self._tally = tally
        self._by_slot = by_slot
        self._on_disk = on_disk

    def complete(self, entry: RequestEntry) -> None:
        """Fill in what only an accepted request needs: its slot, and its bytes."""
        request: Request = entry.request
        if self._by_slot:
            name = self._engine.slot_key(request)
            entry.slot = name if isinstance(name, str) else str(name)
        entry.start = bool(request.meta.get("is_start_request"))
        if self._on_disk:
            try:
                entry.payload = encode_request(request, self._spider)
            except CodecError as error:
                self._on_unserializable(request, error)
        tally = self._tally
        if entry.payload is None:
            tally["scheduler/enqueued/memory"] += 1
        else:
            tally["scheduler/enqueued/disk"] += 1
        tally["scheduler/enqueued"] += 1

    def restore(self, entry: Entry) -> Request:
        """The request of *entry*: a copy as it was when it was added.

        If nothing else refers to it, the object itself is as good, and saves creating another.

        :raises CodecError: it cannot be restored from its bytes.
        """
        tally = self._tally
        request: Request | None = entry.request
        payload = entry.payload
        if payload is None:
            assert request is not None
            tally["scheduler/dequeued/memory"] += 1
        else:
            entry.request = None
            if (
                request is None
                or sys.getrefcount(request) != _OURS
                or not is_as_encoded(request, payload, self._spider)
            ):
                request = decode_request(payload, self._spider)
            tally["scheduler/dequeued/disk"] += 1
        tally["scheduler/dequeued"] += 1
        return request

    def locate(self, payload: bytes) -> tuple[str, bool]:
        """Slot of the request in *payload*, and whether it is a start request.

        :raises CodecError: it cannot be restored.
        """
        request = decode_request(payload, self._spider)
        return self._engine.slot_key(request), bool(request.meta.get("is_start_request"))


class RequestEntry(Entry):
    """An entry that is encoded only if it is accepted.

    :param entries: completes it.
    """

    __slots__ = ("_entries",)

    def __init__(
        self, fingerprint: bytes, request: Request, unique: bool, yielded: bool, entries: Entries
    ) -> None:
        # As in Entry, which is not called: every request takes this path.
        self.fingerprint = fingerprint
        self.slot = ""
        self.priority = request.priority
        self.start = False
        self.payload = None
        self.request = request
        self.unique = unique
        self.yielded = yielded
        self._entries = entries

    def complete(self) -> None:
        self._entries.complete(self)
