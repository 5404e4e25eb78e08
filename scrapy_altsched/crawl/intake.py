"""From requests to the frontier: every link of a crawl passes here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..engine.start_watch import StartWatch
from ..frontier import Frontier, Verdict
from ..inflection import inflect
from ..requests import EVERY_RUN
from ..requests.entries import RequestEntry
from . import messages
from .committer import Committer
from .every_run import EveryRun
from .fed import has_fed_starts
from .in_progress import InProgress
from .setup import Setup
from .skipped import SkippedStarts

if TYPE_CHECKING:
    from scrapy import Request

#: Start requests after which a worker hears its server's answers, and skipped ones after which any
#: crawl goes on with all else.
START_TURNS = 100


class Intake:
    """Accepts requests, or refuses them.

    :ivar start: the output of ``Spider.start()``.
    :ivar refused_starts: how many requests of ``start()`` were refused.
    """

    __slots__ = (
        "_add",
        "_committer",
        "_df",
        "_engine",
        "_entries",
        "_every_run",
        "_has_fed_starts",
        "_identity",
        "_in_progress",
        "_is_durable",
        "_reports",
        "_skipped",
        "_spider",
        "_tally",
        "refused_starts",
        "start",
    )

    def __init__(
        self,
        setup: Setup,
        frontier: Frontier,
        in_progress: InProgress,
        committer: Committer,
        every_run: EveryRun,
        start: StartWatch,
    ) -> None:
        self._add = frontier.add
        self._is_durable = frontier.job.durable
        self._in_progress = in_progress
        self._committer = committer
        self._every_run = every_run
        self._engine, self._spider = setup.engine, setup.spider
        self._df, self._identity = setup.dupefilter, setup.identity
        self._entries = setup.entries
        self._reports, self._tally = setup.reports, setup.tally
        self._has_fed_starts = has_fed_starts(setup.spider)
        self._skipped = SkippedStarts(setup.clock.monotonic)
        self.start = start
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
        """Count and log a request that was seen, or skipped since an earlier run started it."""
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
        """Crawl start requests that were skipped if ``start()`` may wait for them for ever.

        :param is_idle: whether nothing but ``start()`` can go on.
        """
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
        if self._skipped.count:
            self._reports.log(messages.SKIPPED_STARTS, count=self._skipped.count)
