"""Every request of a crawl: accepted or refused on its way in, and handed out on its way out."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..engine.start_watch import StartWatch
from ..errors import CodecError
from ..frontier import Frontier, Lease, Verdict, Waiting
from ..frontier.entry import Cause, DeadLetter
from ..inflection import inflect
from ..requests import EVERY_RUN, FOLLOWS
from ..requests.entries import RequestEntry
from . import messages
from .committer import Committer
from .every_run import EveryRun
from .in_progress import InProgress
from .outcome import DeadLetters
from .setup import Setup, has_fed_starts

if TYPE_CHECKING:
    from scrapy import Request

#: Start requests after which a worker hears its server's answers, or that are skipped in one go.
START_TURNS = 100
#: How many of the start requests that were skipped last are crawled again.
_AGAIN = 100
#: Seconds for which nothing but a waiting ``start()`` is left before they are.
_PATIENCE = 1.0
#: Requests handed out between updates of the stats: each stat costs as much as a look-up.
_UPDATE_STATS_EVERY = 64
#: How many download slots are named whose requests were dropped.
_SHOWN = 5
#: After how many the spider is closed if no request can be restored.
HOPELESS = 100

# Names of this module are found faster than members of an enumeration.
_ADDED, _UNDECIDED = Verdict.ADDED, Verdict.UNDECIDED
#: Verdicts after which a page need not be looked up again.
_NOW_SEEN = (Verdict.ADDED, Verdict.SEEN, Verdict.UNDECIDED)


class Traffic:
    """Accepts requests, or refuses them, and hands them out.

    :ivar start: the output of ``Spider.start()``; *refused_starts*: how many of it were refused.
    :ivar is_isolating: whether the frontier has just leased, alone, a request that may have killed
        the process.
    """

    __slots__ = (
        "__weakref__",
        "_add",
        "_committer",
        "_dead_letters",
        "_df",
        "_done_at_open",
        "_engine",
        "_entries",
        "_every_run",
        "_frontier",
        "_has_fed_starts",
        "_has_told",
        "_identity",
        "_in_progress",
        "_is_durable",
        "_is_hopeless",
        "_lease",
        "_now",
        "_over_budget",
        "_reports",
        "_skipped",
        "_skipped_count",
        "_spider",
        "_stuck_since",
        "_tally",
        "_update_stats",
        "is_isolating",
        "refused_starts",
        "start",
    )

    def __init__(
        self,
        setup: Setup,
        frontier: Frontier,
        start: StartWatch,
        every_run: EveryRun,
        in_progress: InProgress,
        committer: Committer,
        dead_letters: DeadLetters,
        update_stats: Callable[[], None],
    ) -> None:
        self._frontier, self._is_durable = frontier, frontier.job.durable
        self._add, self._lease = frontier.add, frontier.lease
        self.start, self._every_run = start, every_run
        self._in_progress, self._committer = in_progress, committer
        self._dead_letters, self._update_stats = dead_letters, update_stats
        self._engine, self._spider = setup.engine, setup.spider
        self._df, self._identity, self._entries = setup.dupefilter, setup.identity, setup.entries
        self._reports, self._tally = setup.reports, setup.tally
        self._has_fed_starts = has_fed_starts(setup.spider)
        self._now = setup.clock.monotonic
        #: Download slot -> how many of its requests were dropped.
        self._over_budget: Counter[str] = Counter()
        #: The start requests that were skipped last and not crawled again since.
        self._skipped: deque[Request] = deque(maxlen=_AGAIN)
        self._skipped_count = self.refused_starts = 0
        #: Since when only a waiting ``start()`` is left; infinity: that was dealt with.
        self._stuck_since: float | None = None
        #: Whether the user was told that there are none to crawl again.
        self._has_told = False
        self._done_at_open = frontier.counts().done
        #: Whether the spider is being closed because none of its requests can be restored.
        self._is_hopeless = False
        self.is_isolating = False

    def enqueue(self, request: Request) -> bool:
        """Accept *request*, unless it is a duplicate; whether it was accepted."""
        start = self.start
        # Its meta["is_start_request"] does not tell: retries and redirects inherit that.
        from_start = request is start.last
        if from_start:
            start.last = None
        unique = not request.dont_filter
        # By local names: see "Cheap requests" in docs/architecture.rst.
        identity, add = self._identity, self._add
        page_of = identity.page_of
        page = page_of(request)
        if page is None:
            if EVERY_RUN in request.meta and self._add_every_run(request, from_start):
                return True
            if identity.is_refused is not None:
                if unique and identity.is_refused(request):
                    self.refused_starts += from_start
                    self._df.log(request, self._spider)
                    return False
                unique = False
        elif (
            unique
            and not from_start
            and (page in identity.newest or (page in identity.older and identity.is_recent(page)))
        ):
            self._df.log(request, self._spider)
            return False
        fingerprint = identity.of(request, page)
        skips = from_start and not self._has_fed_starts
        entry = RequestEntry(fingerprint, request, unique, skips, self._entries)
        if page is None and FOLLOWS in request.meta:
            del request.meta[FOLLOWS]
            if self._in_progress.follow(entry):
                return True
        verdict = add(entry)
        if page is not None and unique and verdict in _NOW_SEEN:
            identity.remember(page)
        if verdict is _ADDED:
            if self._is_durable:
                # If no parent would bring it back, commit without delay.
                self._committer.commit_if_full(not self._in_progress.is_any_left())
            return True
        if verdict is _UNDECIDED:
            return True
        self.note_refusal(request, verdict, from_start)
        return False

    def _add_every_run(self, request: Request, from_start: bool) -> bool:
        if not request.meta[EVERY_RUN]:
            return False
        self._every_run.add(request, from_start=from_start)
        self._tally["scheduler/enqueued/memory"] += 1
        return True

    def note_refusal(self, request: Request, verdict: Verdict, from_start: bool) -> None:
        self.refused_starts += from_start
        if verdict is Verdict.SEEN:
            self._df.log(request, self._spider)
            return
        if verdict is Verdict.OVER_BUDGET:
            self._over_budget[self._entries.slot_of(request)] += 1
            self._tally["altsched/over_budget"] += 1
            return
        self._tally["altsched/start/skipped"] += 1
        self._skipped.append(request)
        self._skipped_count += 1
        self._stuck_since = None
        if self._skipped_count % START_TURNS == 0:
            # To skip hundreds of thousands must not keep pages and signals waiting.
            self.start.needs_turn = True

    def _free_start(self, *, is_idle: bool) -> None:
        """Crawl start requests that were skipped if nothing but a waiting ``start()`` can go on.

        One that goes on only when its first page is there would wait for ever.
        """
        if not (is_idle and self.start.is_waiting) or (self._has_told and not self._skipped):
            self._stuck_since = None
            return
        if self._stuck_since is None:
            self._stuck_since = self._now()
        if self._now() - self._stuck_since < _PATIENCE:
            return
        self._stuck_since = math.inf
        requests = list(self._skipped)
        self._skipped.clear()
        self._has_told = not requests
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
        self._reports.log(messages.SKIPPED_STARTS, count=self._skipped_count)

    def log_end(self) -> None:
        count = self._over_budget.total()
        most = ", ".join(f"{slot} ({n})" for slot, n in self._over_budget.most_common(_SHOWN))
        self._reports.log(messages.OVER_BUDGET, count=count, most=most)

    def next_request(self) -> Request | None:
        """The next request, or ``None``: nothing is pending, or nothing is ready yet."""
        in_progress, committer = self._in_progress, self._committer
        if in_progress.has_changed():
            in_progress.reap()
            tally = self._tally
            handed_out = tally.get("scheduler/dequeued/disk", 0)
            handed_out += tally.get("scheduler/dequeued/memory", 0)
            if handed_out >= _UPDATE_STATS_EVERY:
                self._update_stats()
        if self._is_durable:
            committer.commit_if_due()
        if self._every_run.matters:
            first = self._every_run.next()
            if first is not None:
                self._tally["scheduler/dequeued/memory"] += 1
                return first
            if self._every_run.holds_others():
                return None
        lease_next, gate = self._lease, self._engine
        while not self._is_hopeless:
            lease = lease_next(gate)
            if isinstance(lease, Waiting):
                if lease is Waiting.UNREACHABLE or not in_progress.reap():
                    break
                continue
            if self.is_isolating:
                # If it kills the process, nothing else should have to be crawled again.
                self.is_isolating = False
                committer.commit_all()
            if committer.unreadable:
                committer.unreadable = False
            request = self._take(lease)
            if request is not None:
                return request
        self._update_stats()
        if self.refused_starts and self._is_durable and not self.start.ended:
            left = self._frontier.pending + self._frontier.delayed + self._every_run.pending
            self._free_start(is_idle=not self._engine.in_progress and not left)
        return None

    def _take(self, lease: Lease) -> Request | None:
        """The request of *lease*; ``None``: it cannot be restored, and is a dead letter now."""
        try:
            request = self._entries.restore(lease.entry)
        except CodecError as error:
            self._give_up(lease, error)
            return None
        self._in_progress.add(request, lease)
        return request

    def _give_up(self, lease: Lease, error: CodecError) -> None:
        """Make a dead letter of a request that cannot be restored.

        If none of many can, the spider's code has changed: the rest is kept until that is fixed.
        """
        entry, payload = lease.entry, lease.entry.payload or b""
        why = DeadLetter(str(error), Cause.UNRESTORABLE)
        self._frontier.dead_letter(lease, why)
        self._dead_letters.note(entry.fingerprint, payload, why)
        failed = self._dead_letters.failed_here
        if failed == 1:
            url = self._entries.url_of(payload) or "an unknown URL"
            self._reports.log(messages.UNRESTORABLE, url=url, error=error)
        counts = self._frontier.counts()
        if failed >= HOPELESS and counts.done + counts.leased == self._done_at_open:
            self._is_hopeless = True
            self._reports.log(messages.HOPELESS, count=failed)
            self._engine.close_spider(self._spider, "restore_failed")
