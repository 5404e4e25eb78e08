"""Bringing requests, or what was seen, into a crawl from outside, while workers may run."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from types import TracebackType

from ...errors import ConfigError, FrontierFailedError, SharedError, StoreError
from ..contract import Verdict
from ..entry import Entry
from ..events import Event, MemoryFull, Refused
from ..options import Options, SharedOptions
from .opening import Worker, open_shared

#: What is added before it is waited for.
_PORTION = 2_000


class Bringing:
    """A worker that brings something and leases nothing, while it is entered.

    A crawl that is finished is open again.  If this is interrupted it may be done again: what is
    filtered is added once.

    :param fingerprints: the note about what makes them; *are_sha1*: see :class:`.opening.Worker`.
    :param warn: called with sentences about the server.
    :ivar added: how many requests; *refused*: how many were seen before, or are over the budget of
        their download slots; both of those that were waited for.
    :ivar over_budget: the first of the latter.
    :raises AltschedError: as :func:`.opening.open_shared`; of those that are brought, it is not
        known which are stored.
    """

    def __init__(
        self,
        options: Options,
        shared: SharedOptions,
        spider: str,
        fingerprints: bytes,
        *,
        are_sha1: bool,
        warn: Callable[[str], object],
    ) -> None:
        self._key = shared.key
        self.added = self.refused = self._brought = 0
        self.over_budget: Entry | None = None
        worker = Worker(
            spider=spider,
            fingerprints=fingerprints,
            are_sha1=are_sha1,
            jobdir=None,
            check=lambda: None,
            wake=lambda _: None,  # every answer is asked for
            fail=lambda _: None,
            warn=warn,
        )
        self._frontier = open_shared(
            replace(options, retry_failed=False),
            replace(shared, prefetch=0, idle="wait", restart=False),
            worker,
            self._hear,
        )

    def __enter__(self) -> Bringing:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                self.wait()
                self._frontier.close()
            else:
                # Otherwise it counts as a worker until its leases would have expired.
                with suppress(ConfigError, FrontierFailedError, SharedError, StoreError):
                    self._frontier.close()
        finally:
            self._frontier.abandon()

    def add(self, entry: Entry) -> None:
        """Add a request."""
        if self._frontier.add(entry) in (Verdict.ADDED, Verdict.UNDECIDED):
            self.added += 1
        else:
            self.refused += 1
        self._wait_in_turn()

    def mark_seen(self, fingerprint: bytes) -> bool:
        """Have a page be seen; whether this brings it, as far as it is known here."""
        is_known = self._frontier.mark_seen(fingerprint)
        self._wait_in_turn()
        return not is_known

    def _wait_in_turn(self) -> None:
        self._brought += 1
        if not self._brought % _PORTION:
            self.wait()

    def wait(self) -> None:
        """Wait until all that was brought is stored."""
        while not self._frontier.commit(wait=True):
            pass

    def _hear(self, event: Event) -> None:
        if isinstance(event, Refused):
            self.added -= 1
            self.refused += 1
            if self.over_budget is None and event.verdict is Verdict.OVER_BUDGET:
                self.over_budget = event.entry
        elif isinstance(event, MemoryFull):
            raise SharedError(
                "The server has no memory for all that is brought into the shared crawl"
                f" {self._key!r}: raise its maxmemory (redis-cli CONFIG SET maxmemory ...), then"
                " run this command again; what is filtered is not added twice."
            )
