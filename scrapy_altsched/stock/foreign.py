"""A crawl of another scheduler, its requests and fingerprints as a frontier takes them."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ..errors import CodecError
from ..frontier import Entry
from ..frontier.entry import Cause, DeadLetter
from ..maintenance.progress import follow
from ..requests.codec import adopt_record, decode_request
from ..requests.fingerprint import shorten

if TYPE_CHECKING:
    from scrapy import Request, Spider

    from ..maintenance.importing import Imported


@dataclass(kw_only=True, eq=False)
class ForeignJob(ABC):
    """What another scheduler has left; a :class:`~scrapy_altsched.maintenance.importing.Source`.

    :ivar encode: the bytes of a request, as the frontier is to keep them.
    :ivar is_filtered: whether the frontier keeps the record of what was seen.
    :ivar pending: how many requests are in its queue, once that was looked at.
    :ivar seen: how many fingerprints are in its record of what was seen.
    :ivar imported: how much was imported; ``None``: nothing.
    :ivar first_dead: why the first of those that cannot be restored is dead; ``None``: none is.
    :ivar no_requests: how many records are not requests.
    :ivar unreadable: bytes that could not be read, those of such records included.
    """

    spider: Spider
    encode: Callable[[Request], bytes]
    fingerprint: Callable[[Request], bytes]
    slot_key: Callable[[Request], str]
    notes: Mapping[str, bytes]
    is_filtered: bool = True
    pending: int = 0
    seen: int = 0
    imported: Imported | None = None
    first_dead: str | None = None
    no_requests: int = 0
    unreadable: int = 0

    scheduler: ClassVar[str]  # as log lines name it

    @abstractmethod
    def records(self) -> Iterator[bytes]:
        """All that is in the queue."""

    def requests(self) -> Iterator[tuple[Entry, DeadLetter | None]]:
        title = f"Importing requests of {self.scheduler}"
        for record in follow(title, self.records(), self.pending):
            try:
                payload = adopt_record(record)
            except CodecError:
                self.no_requests += 1
                self.unreadable += len(record)
            else:
                yield self._restore(payload)

    def _restore(self, payload: bytes) -> tuple[Entry, DeadLetter | None]:
        why: DeadLetter | None = None
        try:
            request = decode_request(payload, self.spider)
            payload = self.encode(request)
        except CodecError as error:
            why = DeadLetter(str(error), Cause.UNRESTORABLE)
            try:
                request = decode_request(payload, None)
            except CodecError:
                return self._dead(payload, why)
        try:
            fingerprint = self.fingerprint(request)
            slot = str(self.slot_key(request))
        except MemoryError:
            raise
        except Exception as error:  # of a fingerprinter or a downloader of the project's own
            text = f"it has no fingerprint or slot: {type(error).__name__}: {error}"
            return self._dead(payload, DeadLetter(text))
        if why is not None:
            self.first_dead = self.first_dead or f"{request.url}: {why}"
        is_start = bool(request.meta.get("is_start_request"))
        entry = Entry(
            fingerprint,
            slot,
            request.priority,
            is_start,
            payload,
            unique=self.is_filtered and not request.dont_filter,
            from_start=is_start,
        )
        return entry, why

    def _dead(self, payload: bytes, why: DeadLetter) -> tuple[Entry, DeadLetter]:
        self.first_dead = self.first_dead or str(why)
        fingerprint = hashlib.sha1(payload, usedforsecurity=False).digest()
        return Entry(fingerprint, payload=payload, unique=False), why

    def shorten(self, fingerprints: Iterable[bytes], origin: str) -> Iterator[bytes]:
        """All *fingerprints* as a frontier takes them; *origin* is for the progress."""
        return map(shorten, follow(f"Importing fingerprints of {origin}", fingerprints, self.seen))
