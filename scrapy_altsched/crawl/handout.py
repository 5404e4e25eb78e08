"""From the frontier to requests: what is handed out next, and what cannot be restored."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ..errors import CodecError
from ..frontier import Frontier, Lease, Reason, Waiting
from ..frontier.dead_letter import Cause, DeadLetter
from . import messages
from .committer import Committer
from .every_run import EveryRun
from .in_progress import InProgress
from .intake import Intake
from .outcome import DeadLetters
from .setup import Setup

if TYPE_CHECKING:
    from scrapy import Request

#: Requests handed out between updates of the stats: each stat costs as much as a look-up.
_UPDATE_STATS_EVERY = 64
#: Reason for closing a spider if no request can be restored, and after how many.
_RESTORE_FAILED = "restore_failed"
HOPELESS = 100


class Handout:
    """Hands out requests.

    :ivar is_isolating: whether the frontier has just leased, alone, a request that may have killed
        the process.
    """

    def __init__(
        self,
        setup: Setup,
        frontier: Frontier,
        in_progress: InProgress,
        committer: Committer,
        every_run: EveryRun,
        intake: Intake,
        dead_letters: DeadLetters,
        update_stats: Callable[[], None],
    ) -> None:
        self._frontier, self._lease, self._is_durable = (
            frontier,
            frontier.lease,
            frontier.job.durable,
        )
        self._done_at_open = frontier.counts().done
        self._in_progress, self._committer, self._every_run = in_progress, committer, every_run
        self._intake, self._dead_letters, self._update_stats = intake, dead_letters, update_stats
        self._engine, self._spider, self._entries = setup.engine, setup.spider, setup.entries
        self._reports, self._tally = setup.reports, setup.tally
        #: Whether the spider is being closed because none of its requests can be restored.
        self._is_hopeless = False
        self.is_isolating = False

    def next_request(self) -> Request | None:
        """The next request, or ``None``: nothing is pending, or nothing is ready yet."""
        in_progress, committer = self._in_progress, self._committer
        if in_progress.has_changed():
            in_progress.reap()
            if self._tally.get("scheduler/dequeued", 0) >= _UPDATE_STATS_EVERY:
                self._update_stats()
        if self._is_durable:
            committer.commit_if_due()
        if self._every_run.matters:
            first = self._every_run.next()
            if first is not None:
                self._tally["scheduler/dequeued/memory"] += 1
                self._tally["scheduler/dequeued"] += 1
                return first
            if self._every_run.holds_others():
                return None
        lease_next, gate, outage = self._lease, self._engine, committer.outage
        while not self._is_hopeless:
            lease = lease_next(gate)
            if isinstance(lease, Waiting):
                if lease.reason is Reason.UNREACHABLE or not in_progress.reap():
                    break
                continue
            if self.is_isolating:
                # If it kills the process, nothing else should have to be crawled again.
                self.is_isolating = False
                committer.commit_all()
            if outage.unreadable:
                outage.unreadable = False
            request = self._take(lease)
            if request is not None:
                return request
        self._update_stats()
        if self._intake.refused_starts and self._is_durable and not self._intake.start.ended:
            pending = self._frontier.pending + self._every_run.pending
            self._intake.free_start(is_idle=not self._engine.in_progress and not pending)
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
            self._reports.log(messages.HOPELESS, count=failed, reason=_RESTORE_FAILED)
            self._engine.close_spider(self._spider, _RESTORE_FAILED)
