"""Requests that come back by themselves: each time that one is done, it is delayed once more."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import CodecError
from ..requests import DELAY
from ..requests.delays import read_revisit
from ..requests.entries import RequestEntry
from .setup import Setup

if TYPE_CHECKING:
    from scrapy import Request

    from ..frontier import Entry, Lease


class Revisits:
    """Makes the request that follows one that is to come back."""

    def __init__(self, setup: Setup) -> None:
        self._entries, self._reports = setup.entries, setup.reports

    def follow(self, request: Request, lease: Lease) -> Entry | None:
        """What follows *request*, which is done: it, as it was when it was scheduled, and later."""
        if lease.failure is not None:
            return None

        def complain(key: str, value: object, why: str) -> None:
            self._reports.log_bad_delay(request, key, value, why)

        seconds = read_revisit(request.meta, complain)
        if seconds is None:
            return None
        entry = lease.entry
        try:
            again = request.copy() if entry.payload is None else self._entries.decode(entry.payload)
        except CodecError:  # its code was changed while it was crawled
            return None
        again.meta[DELAY] = seconds
        return RequestEntry(entry.fingerprint, again, entry.unique, False, self._entries)
