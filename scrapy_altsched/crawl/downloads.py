"""When requests of a crawl with a pace are downloaded, and what the frontier is told of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scrapy.exceptions import IgnoreRequest
from twisted.internet.defer import Deferred, succeed

from ..frontier import Lease
from ..frontier.pace import Pace, Start
from .crawl_delay import CrawlDelays
from .in_progress import InProgress
from .setup import Setup

if TYPE_CHECKING:
    from scrapy import Request

#: By what part a delay has to change to be told: AutoThrottle changes it with each response.
_CHANGE = 0.1


class Downloads:
    """Has requests start as the frontier's *pace* says, whatever it was that kept them until then.

    Requests that no lease is known of, as for robots.txt and of pipelines, are Scrapy's own matter.
    """

    def __init__(self, setup: Setup, pace: Pace, in_progress: InProgress) -> None:
        self._engine, self._pace, self._in_progress = setup.engine, pace, in_progress
        #: Requests that wait until they may start.
        self._waiting: dict[Request, tuple[Lease, Deferred[None]]] = {}
        self._is_closing = False
        #: Download slot -> the delay that AutoThrottle has found.
        self._delays: dict[str, float] = {}
        self._is_throttled = setup.crawler.settings.getbool("AUTOTHROTTLE_ENABLED")
        self._engine.pace_downloads(self._admit, self._note_sent, self._end)
        self._engine.call_when_closing(self._note_closing)
        if pace.may_begin or setup.config.policy == "polite":
            CrawlDelays(setup, pace.set_delay)

    def _admit(self, request: Request) -> Deferred[None] | None:
        """Fires when the request may start; ``None``: it has no pace."""
        lease = self._in_progress.lease_of(request)
        if lease is None or not lease.key or not self._pace.is_on:
            return None
        if self._is_throttled:
            slot = self._engine.slot_key(request)
            self._engine.set_delay(slot, self._delays.get(slot))
        start = self._pace.start(lease)
        if start is Start.NOW:
            return succeed(None)
        waiting: Deferred[None] = Deferred()
        self._waiting[request] = lease, waiting
        if start is Start.NEVER:
            self._ignore(request, "another worker has it")
        elif self._is_closing:
            self._give_back(request)
        return waiting

    def note_change(self) -> None:
        """Start what was waiting and may start now."""
        for request, (lease, waiting) in list(self._waiting.items()):
            match self._pace.start(lease):
                case Start.NOW:
                    del self._waiting[request]
                    waiting.callback(None)
                case Start.NEVER:
                    self._ignore(request, "another worker has it")

    def _ignore(self, request: Request, why: str) -> None:
        _, waiting = self._waiting.pop(request)
        waiting.errback(IgnoreRequest(f"{request} was not downloaded: {why}"))

    def _note_closing(self) -> None:
        """The spider is being closed: let other workers have what has not started."""
        self._is_closing = True
        for request in list(self._waiting):
            self._give_back(request)

    def _give_back(self, request: Request) -> None:
        self._in_progress.give_back(request)
        self._ignore(request, "the spider is being closed")

    def _note_sent(self, request: Request) -> None:
        lease = self._in_progress.lease_of(request)
        if lease is not None:
            self._pace.note_sent(lease)

    def _end(self, request: Request) -> None:
        lease = self._in_progress.lease_of(request)
        if lease is not None:
            self._pace.note_downloaded(lease)
        if self._is_throttled:
            slot = self._engine.slot_key(request)
            delay, known = self._engine.delay(slot), self._delays.get(slot, 0.0)
            if abs(delay - known) > known * _CHANGE:
                self._delays[slot] = delay
                self._pace.set_delay(slot, delay)
