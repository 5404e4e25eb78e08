"""From requests to the frontier: every link of a crawl passes here."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..engine.start_watch import StartWatch
from ..frontier import Frontier, Verdict
from ..inflection import inflect
from ..requests.entries import RequestEntry
from ..requests.meta_keys import EVERY_RUN
from . import messages
from .committer import Committer
from .every_run import EveryRun
from .fed import has_fed_starts
from .in_progress import InProgress
from .setup import Setup

if TYPE_CHECKING:
    from scrapy import Request

#: Start requests after which a worker hears its server's answers, and any crawl that skips them
#: goes on with all else.
START_TURNS = 100
#: How many of the start requests that were skipped last are crawled again.
_AGAIN = 100
#: Seconds for which nothing but a waiting ``start()`` is left before they are.  The engine, which
#: then asks for a request every 5 seconds, has this looked at.
_PATIENCE = 1.0


class SkippedStarts:
    """The start requests that this run has skipped, as earlier runs accepted them.

    A ``start()`` that goes on only when its first page is there would wait for ever then.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.count = 0
        self._last: deque[Request] = deque(maxlen=_AGAIN)
        self._stuck_since: float | None = None
        #: Whether the user was told that there are none to crawl again.
        self._is_told = False

    def note(self, request: Request) -> None:
        self.count += 1
        self._last.append(request)
        self._stuck_since = None

    def is_awaited(self, *, is_stuck: bool) -> bool:
        """Whether ``start()`` seems to wait for a page that was refused.

        It is true once for each wait as long as there are any to crawl again, and once more.
        """
        if not is_stuck or (self._is_told and not self._last):
            self._stuck_since = None
        elif self._stuck_since is None:
            self._stuck_since = self._now()
        elif self._now() - self._stuck_since >= _PATIENCE:
            self._stuck_since = math.inf
            return True
        return False

    def take(self) -> list[Request]:
        """Those that are to be crawled again: the last ones that were not taken yet."""
        taken = list(self._last)
        self._last.clear()
        self._is_told = not taken
        return taken


class Intake:
    """Accepts requests, or refuses them; *refused_starts*: how many of ``start()``."""

    def __init__(
        self,
        setup: Setup,
        frontier: Frontier,
        in_progress: InProgress,
        committer: Committer,
        every_run: EveryRun,
        start: StartWatch,
    ) -> None:
        self._add, self._is_durable = frontier.add, frontier.job.durable
        self._in_progress, self._committer = in_progress, committer
        self._every_run, self.start = every_run, start
        self._engine, self._spider = setup.engine, setup.spider
        self._df, self._identity, self._entries = setup.dupefilter, setup.identity, setup.entries
        self._reports, self._tally = setup.reports, setup.tally
        self._has_fed_starts = has_fed_starts(setup.spider)
        self._skipped = SkippedStarts(setup.clock.monotonic)
        self.refused_starts = 0

    def enqueue(self, request: Request) -> bool:
        """Accept *request*, unless it is a duplicate; whether it was accepted."""
        start = self.start
        from_start = request is start.last and start.take(request)
        unique = not request.dont_filter
        identity = self._identity
        page = identity.page_of(request)
        if page is None:
            if EVERY_RUN in request.meta and self._add_every_run(request, from_start):
                return True
            if identity.is_refused is not None:
                if unique and identity.is_refused(request):
                    self.refused_starts += from_start
                    self._df.log(request, self._spider)
                    return False
                unique = False
        elif unique and not from_start and (page in identity.newest or identity.is_recent(page)):
            self._df.log(request, self._spider)
            return False
        fingerprint = identity.of(request, page)
        verdict = self._add(
            RequestEntry(
                fingerprint,
                request,
                unique,
                from_start and not self._has_fed_starts,
                self._entries,
            )
        )
        if page is not None and unique and verdict is not Verdict.STARTED:
            identity.remember(page)
        if verdict is Verdict.UNDECIDED:
            return True
        if verdict is Verdict.ADDED:
            if self._is_durable:
                # If no parent would bring it back, commit without delay.
                self._committer.commit_if_due(urgent=not self._in_progress.is_any_left())
            return True
        self.note_refusal(request, verdict, from_start)
        return False

    def _add_every_run(self, request: Request, from_start: bool) -> bool:
        """Accept *request* if every run has to make it, by its meta key; whether it does."""
        if not request.meta[EVERY_RUN]:
            return False
        self._every_run.add(request, from_start=from_start)
        self._tally["scheduler/enqueued/memory"] += 1
        self._tally["scheduler/enqueued"] += 1
        return True

    def note_refusal(self, request: Request, verdict: Verdict, from_start: bool) -> None:
        self.refused_starts += from_start
        if verdict is Verdict.SEEN:
            self._df.log(request, self._spider)
            return
        self._tally["altsched/start/skipped"] += 1
        self._skipped.note(request)
        if self._skipped.count % START_TURNS == 0:
            # To skip hundreds of thousands must not keep pages and signals waiting.
            self.start.needs_turn = True

    def free_start(self, *, is_idle: bool) -> None:
        """Crawl start requests that were skipped if nothing but a waiting ``start()`` can go on."""
        if not self._skipped.is_awaited(is_stuck=is_idle and self.start.is_waiting):
            return
        requests = self._skipped.take()
        if not requests:
            count = self.refused_starts
            were = "One of its requests was", f"{count} of its requests were"
            self._reports.log(messages.START_WAITS, refused=inflect(count, *were))
            return
        count = len(requests)
        last = inflect(count, "request", f"{count} requests")
        self._reports.log(messages.SKIPPED_AGAIN, count=count, last=last)
        for request in requests:
            fingerprint = self._identity.of(request, self._identity.page_of(request))
            self._add(RequestEntry(fingerprint, request, False, False, self._entries))
        self._engine.wake()

    def note_start_end(self) -> None:
        """``start()`` has ended: say how many of its requests were skipped, if any were."""
        self._reports.log(messages.SKIPPED_STARTS, count=self._skipped.count)
