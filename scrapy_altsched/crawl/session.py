"""One open crawl: its frontier, and all that works with it.

A session is created when the spider opens and is gone when it has closed: nothing is ever half
open.  What the frontier does by itself is passed to :meth:`Session.on_event`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from scrapy.exceptions import DontCloseSpider
from scrapy.signals import request_dropped, response_received, spider_idle

from ..engine.engine import keep_spider_state, place_spider_state
from ..errors import AltschedError, CodecError, JobdirLostError
from ..feeds import JobFeeds
from ..frontier import Counts, Entry, Event, Frontier, OnEvent
from ..frontier.events import (
    Committed,
    DeadLettered,
    FrontierFailed,
    FrontierLost,
    Isolated,
    IsolationEnded,
    LeasesReady,
    LeaseUnrecorded,
    Refused,
    SeenInvalidated,
    ServerRolledBack,
    Unreadable,
)
from ..frontier.store.records import ORPHANS
from ..maintenance.requeue import dead_requests
from ..requests.made_by import NOTE, warn_of_other_fingerprints
from ..resume.spider_state import SpiderStateCheckpoint
from ..resume.state import ResumeState, ResumeStates
from .committer import Committer
from .every_run import NOTE as EVERY_RUN_NOTE
from .every_run import EveryRun
from .exit_code import exit_code
from .failure import close_failed, close_unfinished
from .fed import is_fed
from .given_up import NOTE as GIVEN_UP_NOTE
from .given_up import GivenUp
from .handout import Handout
from .in_progress import InProgress
from .intake import START_TURNS, Intake
from .messages import OVERDUE
from .outage import STORE_DAMAGED
from .outcome import DeadLetters, Outcome, judge
from .setup import Setup

if TYPE_CHECKING:
    from scrapy import Request

#: Why a spider is closed whose shared crawl is gone.
FRONTIER_LOST = "frontier_lost"


class Session:
    """A crawl that is open.

    :param open_frontier: opens its frontier, given a handler of events.
    :ivar intake: accepts requests.
    :ivar handout: hands them out.
    :ivar feeds: the feeds of the job; ``None``: all is in memory.
    :ivar states: what commits store of the job's other states, if it has a directory.
    :raises AltschedError: it cannot be opened; everything is closed again.
    """

    def __init__(self, setup: Setup, open_frontier: Callable[[OnEvent], Frontier]) -> None:
        self._crawler, self._spider = setup.crawler, setup.spider
        self._engine, self._config = setup.engine, setup.config
        self._identity, self._entries = setup.identity, setup.entries
        self._reports, self._tally = setup.reports, setup.tally
        #: Whether ``start()`` is to run once more when it has ended.
        self._must_start_again = False
        self._outcome = Outcome.UNFINISHED
        self.feeds: JobFeeds | None = None
        self.frontier = frontier = open_frontier(self.on_event)
        try:
            self._begin(setup, frontier)
        except BaseException:  # nothing else would let go of the job directory
            frontier.abandon()
            if self.feeds is not None:
                self.feeds.release()
            raise

    def _begin(self, setup: Setup, frontier: Frontier) -> None:
        crawler, engine, config = self._crawler, self._engine, self._config
        job, now = frontier.job, setup.clock.monotonic
        self.states = ResumeStates(frontier.note, resumed=job.resumed)
        if setup.jobdir is not None:
            place_spider_state(crawler, setup.jobdir)
            spider_state = SpiderStateCheckpoint(setup.jobdir, self._spider, now, place=job.place)
            self.states.add(spider_state.state)
        self._is_durable = job.durable
        if job.durable:
            crawler.signals.connect(self._note_response, response_received)
            crawler.signals.connect(self._stay_open, spider_idle)
            engine.call_when_closing(frontier.note_closing)
        self._in_progress = InProgress(engine, frontier)
        self._entries.on_unserializable = self._note_unserializable
        given_up = frontier.note(GIVEN_UP_NOTE) if job.resumed else None
        self._given_up = GivenUp(crawler, engine, given_up)
        self._at_open = frontier.counts()
        self._dead_letters = DeadLetters(dead_requests(frontier), self._entries.url_of)
        start = engine.watch_start(
            self._note_end_of_start,
            self._is_full,
            turns=START_TURNS if job.starts_in_turns else math.inf,
        )
        if start.ended:  # there is none, as in some projects' tests
            frontier.note_start_end()
        self._every_run = EveryRun(
            engine,
            start,
            int(frontier.note(EVERY_RUN_NOTE) or 0) if job.resumed else 0,
            config.patience,
            lambda in_flight, to_come: self._reports.log(
                OVERDUE, in_flight=in_flight, to_come=to_come
            ),
            now,
        )
        self._committer = Committer(
            crawler,
            self._spider,
            frontier,
            engine,
            config,
            setup.clock,
            settle=self._settle,
            notes=self.states.capture,
            committed=self.states.note_commit,
        )
        self.intake = Intake(
            setup, frontier, self._in_progress, self._committer, self._every_run, start
        )
        self.handout = Handout(
            setup,
            frontier,
            self._in_progress,
            self._committer,
            self._every_run,
            self.intake,
            self._dead_letters,
            self._update_stats,
        )
        if job.durable:
            self._begin_durable(setup, frontier)

    def _begin_durable(self, setup: Setup, frontier: Frontier) -> None:
        job, jobdir, config = frontier.job, setup.jobdir, self._config
        self._committer.start()
        if job.run > 1 and jobdir is not None:
            stored = frontier.note(NOTE)
            warn_of_other_fingerprints(
                stored, setup.fingerprint_note, jobdir, self._spider, self._crawler.settings
            )
        self._reports.log_opening(job, self._at_open)
        self.feeds = JobFeeds(
            self._crawler,
            self._spider,
            frontier.note,
            jobdir=None if jobdir is None else Path(jobdir),
            resumed=job.resumed,
            sync=config.sync,
        )
        self.feeds.open(setup.feed_files)
        if jobdir is not None:
            orphans = self._in_progress.descendants.orphans
            for capture in (
                lambda: {NOTE: setup.fingerprint_note},
                lambda: {EVERY_RUN_NOTE: self._every_run.note},
                lambda: {GIVEN_UP_NOTE: self._given_up.note},
                lambda: {ORPHANS: str(len(orphans)).encode()},
                self.feeds.notes,
            ):
                self.states.add(ResumeState(capture=capture))
        if config.exit_code:
            exit_code.set(Outcome.UNFINISHED)

    def close(self, reason: str) -> None:
        """Commit everything, log the state of the job in one line, and close.

        :raises ForkedError: called in a forked child process.
        """
        frontier = self.frontier
        frontier.check_owner()
        try:
            self._close(reason)
        except AltschedError as error:
            if isinstance(error, JobdirLostError):
                keep_spider_state(self._crawler)
            self._reports.log_unsaved(frontier.pressure.unsaved, error)
        finally:
            is_started = self._engine.is_started
            if self.feeds is not None:
                self.feeds.close()
                if is_started:  # feeds close after the scheduler
                    self._engine.call_when_stopped(self.feeds.release)
                else:
                    self.feeds.release()
            if self._config.exit_code and self._is_durable:
                exit_code.set(self._outcome)
            if is_started:
                self._engine.call_when_stopped(frontier.end)

    def _close(self, reason: str) -> None:
        frontier = self.frontier
        damage = frontier.job.damage
        try:
            self.states.note_closing()
            if self.feeds is not None:
                # Before the store: a power cut must not take rows of pages that are done.
                self.feeds.force()
            self._committer.finish()
            counts = frontier.counts()
            complete = reason == "finished" and self.intake.start.exhausted
            complete = complete and not counts.unaccounted and damage is None
            self._outcome = outcome = judge(
                counts, self._dead_letters.unrestorable, complete=complete
            )
            # What handlers of spider_closed do still belongs to this run.
            hold = self._engine.is_started
            frontier.close(finished=outcome.is_finished, hold=hold)
            job = frontier.job
            if hold and job.path is not None:
                # The job may be moved from now on.
                place_spider_state(self._crawler, str(job.path.parent), str(job.place))
        finally:
            self._committer.stop()
            frontier.abandon()
            self._reports.log_unrecorded_leases()
        self._reports.log_end(
            counts,
            outcome,
            self._dead_letters,
            orphans=len(self._in_progress.descendants.orphans),
            damage=damage,
            store_damaged=reason == STORE_DAMAGED,
            is_lost=reason == FRONTIER_LOST,
        )
        had_nothing = not self._at_open.pending and counts.accepted == self._at_open.accepted
        is_blocked = outcome is Outcome.BLOCKED
        # Otherwise other workers may have had everything.
        is_own = self._is_durable and frontier.job.exclusive
        refused = self.intake.refused_starts
        if is_own and refused and had_nothing and not is_blocked:
            self._reports.log_nothing_to_do(refused, was_finished=not frontier.job.resumed)
        self._reports.log_given_up(self._given_up.counts)

    def _note_unserializable(self, entry: Entry, error: CodecError) -> None:
        self._reports.log_unserializable(entry.request, error)
        self._in_progress.note_memory_only(entry)

    # Queries

    def has_requests(self) -> bool:
        """Whether there are requests to hand out; what must wait for the store does not count."""
        return self.pending > 0 and not self._committer.outage.unreadable

    @property
    def pending(self) -> int:
        """How many requests wait to be handed out."""
        self._update_stats()
        return self.frontier.pending + self._every_run.pending

    def count_queue(self, *, in_memory: bool) -> int:
        """How many of the pending requests are in memory only, or else are stored."""
        counts: Counts = self.frontier.counts()
        if not self._is_durable:
            return counts.pending
        memory_only = min(counts.memory_only, counts.pending)
        return memory_only if in_memory else counts.pending - memory_only

    def checkpoint(self, *, force: bool = False) -> bool:
        """Commit now; whether everything that was accepted survives the process's death.

        :param force: whether to force the commit to the disk, too, and wait for that.
        :raises ForkedError: called in a forked child process.
        """
        is_saved = self._committer.commit_all()
        if force and is_saved:
            is_saved = self._committer.force()
        # A server saves what has ended later, and what was accepted as soon as it says so.
        is_saved |= not self.frontier.job.stored_here
        return is_saved and self._is_durable and not self.frontier.counts().undecided

    @property
    def position(self) -> int | None:
        """A number that stands for all that was accepted so far; ``None``: none of it survives."""
        return self.frontier.position if self._is_durable else None

    def is_durable(self, position: int) -> bool:
        """Whether all that was accepted up to *position* survives; also asked after the end."""
        return self._is_durable and self._committer.is_durable(position)

    # Callbacks of the frontier and the committer

    def on_event(self, event: Event) -> None:
        """Handle an event that the frontier raises on its own."""
        if isinstance(event, Committed):
            self._committer.note_committed(event.number)
        elif isinstance(event, Refused):
            request: Request = event.entry.request
            self._entries.note_refusal(event.entry)
            self._in_progress.descendants.discard(event.entry)
            self.intake.note_refusal(request, event.verdict, event.entry.from_start)
            self._update_stats()
            self._crawler.signals.send_catch_log(
                request_dropped, request=request, spider=self._spider
            )
        elif isinstance(event, Unreadable):
            self._committer.note_failure(event.error, reading=True)
        elif isinstance(event, LeasesReady):
            self._engine.wake()
        elif isinstance(event, LeaseUnrecorded):
            self._reports.unrecorded_leases += 1
        elif isinstance(event, SeenInvalidated):
            self._identity.recent.clear()
        elif isinstance(event, FrontierFailed):
            close_failed(self._engine, self._spider, event.error)
        elif isinstance(event, DeadLettered | Isolated | IsolationEnded):
            self._note_suspect(event)
        else:
            self._reports.log_event(event)
            if isinstance(event, ServerRolledBack):
                self._start_again()
            elif isinstance(event, FrontierLost):
                close_unfinished(self._engine, self._spider, FRONTIER_LOST)

    def _note_suspect(self, event: DeadLettered | Isolated | IsolationEnded) -> None:
        entry: Entry = event.entry
        url: str | None = None
        if entry.payload is not None:
            with suppress(CodecError):
                url = self._entries.decode(entry.payload).url
        if isinstance(event, DeadLettered):
            self._in_progress.descendants.discard(entry)
            self._dead_letters.note(entry.fingerprint, entry.payload or b"", event.why)
        elif isinstance(event, Isolated):
            self.handout.is_isolating = True
        self._reports.log_event(event, url or f"with fingerprint {entry.fingerprint.hex()}")

    def _start_again(self) -> None:
        """Have ``Spider.start()`` bring its requests again: the server may have lost them."""
        self._must_start_again = True
        if self.intake.start.ended:
            self._run_start_again()

    def _run_start_again(self) -> None:
        self._must_start_again = False
        self.intake.start = self._engine.start_again(self._note_end_of_start, self._is_full)

    def _is_full(self) -> bool:
        return self.frontier.pressure.is_full and not self.frontier.is_over

    def _settle(self) -> None:
        """Bring the frontier and the stats up to date."""
        self._in_progress.reap()
        self._update_stats()

    def _update_stats(self) -> None:
        if self._tally:
            self._tally.flush(self._crawler.stats)
        self._given_up.settle()

    def _note_end_of_start(self) -> None:
        if self._must_start_again:
            # One run at a time: this one may have brought requests before they were lost.
            self._run_start_again()
            return
        self.frontier.note_start_end()
        self.intake.note_start_end()
        self._engine.wake()

    def _stay_open(self) -> None:
        """Keep an idle spider open as long as something may still be saved, or read again."""
        # A spider that is fed decides by itself how long it waits.
        is_over = is_fed(self._spider) or self.frontier.is_over
        if (
            self._committer.outage.is_on
            or self.pending
            or not is_over
            or not self.intake.start.ended
        ):
            raise DontCloseSpider

    def _note_response(self, request: Request) -> None:
        """A response was received: callbacks and pipelines come next."""
        lease = self._in_progress.lease_of(request)
        if lease is not None:
            if self._in_progress.has_changed():
                # Requests that are done by now must not be recorded as in hand.
                self._in_progress.reap()
            self.frontier.note_response(lease)
