"""Requests and fingerprints that another scheduler has stored, as a frontier takes them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from ..errors import CodecError
from ..frontier import Entry
from ..frontier.dead_letter import Cause, DeadLetter
from ..maintenance.progress import follow
from ..requests.codec import adopt_record, decode_request
from ..requests.fingerprint import shorten

if TYPE_CHECKING:
    from scrapy import Request, Spider


class Restorer:
    """Makes entries of records, one each.

    :param encode: the bytes of a request, as the frontier is to keep them.
    :param is_filtered: whether the frontier keeps the record of what was seen.
    :ivar first_dead: why the first of those that cannot be restored is dead; ``None``: none is.
    :ivar unreadable: the lengths (bytes) of records that are not requests.
    """

    def __init__(
        self,
        spider: Spider,
        *,
        encode: Callable[[Request], bytes],
        fingerprint: Callable[[Request], bytes],
        slot_key: Callable[[Request], str],
        is_filtered: bool,
    ) -> None:
        self._spider = spider
        self._encode, self.fingerprint, self._slot_key = encode, fingerprint, slot_key
        self._is_filtered = is_filtered
        self.first_dead: str | None = None
        self.unreadable: list[int] = []

    def restore(
        self, records: Iterable[bytes], title: str, total: int
    ) -> Iterator[tuple[Entry, DeadLetter | None]]:
        """Requests, and why each is dead if it is; *title* and *total* are for the progress."""
        for record in follow(title, records, total):
            try:
                payload = adopt_record(record)
            except CodecError:
                self.unreadable.append(len(record))
            else:
                yield self._restore(payload)

    def _restore(self, payload: bytes) -> tuple[Entry, DeadLetter | None]:
        why: DeadLetter | None = None
        try:
            request = decode_request(payload, self._spider)
            payload = self._encode(request)
        except CodecError as error:
            why = DeadLetter(str(error), Cause.UNRESTORABLE)
            try:
                request = decode_request(payload, None)
            except CodecError:
                return self._dead(payload, why)
        try:
            fingerprint = self.fingerprint(request)
            slot = str(self._slot_key(request))
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
            unique=self._is_filtered and not request.dont_filter,
            from_start=is_start,
        )
        return entry, why

    def _dead(self, payload: bytes, why: DeadLetter) -> tuple[Entry, DeadLetter]:
        self.first_dead = self.first_dead or str(why)
        fingerprint = hashlib.sha1(payload, usedforsecurity=False).digest()
        return Entry(fingerprint, payload=payload, unique=False), why


def shortened(fingerprints: Iterable[bytes], title: str, total: int) -> Iterator[bytes]:
    """*fingerprints* as a frontier takes them; *title* and *total* are for the progress."""
    return map(shorten, follow(title, fingerprints, total))
