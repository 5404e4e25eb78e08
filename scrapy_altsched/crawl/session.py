"""One open crawl: its frontier, and all that works with it."""

from __future__ import annotations

import math
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from scrapy.exceptions import DontCloseSpider
from scrapy.signals import (
    request_dropped,
    response_downloaded,
    response_received,
    spider_idle,
)

from ..engine.components import keep_spider_state, place_spider_state
from ..errors import AltschedError, CodecError, JobdirLostError
from ..exit_code import exit_code
from ..feeds import Archive, JobFeeds
from ..frontier import Entry, Event, Frontier, events
from ..inflection import inflect
from ..maintenance.looking import StoredRequests
from ..maintenance.requeue import dead_requests, failed_requests
from ..resume.spider_state import SpiderStateCheckpoint
from ..resume.state import ResumeState, ResumeStates
from ..signals import frontier_committed
from . import messages
from .committer import Committer
from .crawl_delay import CrawlDelays
from .deferrals import Deferrals
from .downloads import Downloads
from .every_run import EveryRun
from .failures import Failures
from .in_progress import InProgress
from .outcome import DeadLetters, Outcome, close_failed, close_unfinished, judge
from .progress_line import ProgressLine
from .recent import Recent
from .revisits import Revisits
from .setup import Setup, is_fed
from .status import CrawlStatus
from .steering import Steering
from .traffic import START_TURNS, Traffic

if TYPE_CHECKING:
    from scrapy import Request

    from ..frontier.contract import Standing
    from ..frontier.entry import Place

#: What is counted on disk and in memory, and, as by Scrapy itself, together.
_TOTALS = "scheduler/enqueued", "scheduler/dequeued"


class Session:
    """A crawl that is open, from the opening of its spider to the end: it is never half open.

    :ivar feeds: the feeds of the job; ``None``: all is in memory.
    :raises AltschedError: it cannot be opened; everything is closed again.
    """

    def __init__(self, setup: Setup) -> None:
        self._crawler, self._spider = setup.crawler, setup.spider
        self._engine, self._config = setup.engine, setup.config
        self._identity, self._entries = setup.identity, setup.entries
        self._reports, self._tally = setup.reports, setup.tally
        #: Whether ``start()`` is to run once more when it has ended.
        self._must_start_again = False
        self._unrecorded_leases, self._outcome = 0, Outcome.UNFINISHED
        self.feeds: JobFeeds | None = None
        self._archive: Archive | None = None
        self._recent: Recent | None = None
        self.frontier = frontier = setup.open_frontier(self.on_event)
        self._is_durable = frontier.job.durable
        try:
            self._begin(setup, frontier)
            if self._is_durable:
                self._begin_durable(setup, frontier)
            if setup.archive is not None:
                self._open_archive(setup.archive)
            if self._is_durable:
                self._start_committing()
            self._progress_line = ProgressLine(setup, frontier)
        except BaseException:  # nothing else would let go of the job directory
            frontier.abandon()
            if self.feeds is not None:
                self.feeds.locks.give_back()
            raise

    def _begin(self, setup: Setup, frontier: Frontier) -> None:
        job, engine, signals = frontier.job, self._engine, self._crawler.signals
        self._in_progress = InProgress(engine, frontier, Revisits(setup))
        if job.durable:
            signals.connect(self._in_progress.note_response, response_received)
            engine.call_when_closing(frontier.run.note_closing)
        # Without a job, too: requests may be delayed.
        signals.connect(self._stay_open, spider_idle)
        self._entries.on_unserializable = self._note_unserializable
        self._entries.on_bad_delay = self._reports.log_bad_delay
        # In memory there is no later run.
        self._entries.records_ages = job.records_ages or not job.durable
        Failures(setup, self._in_progress)
        self._at_open = frontier.counts()
        self._dead_letters = DeadLetters(dead_requests(frontier.dead()), self._entries.url_of)
        turns = START_TURNS if job.starts_in_turns else math.inf
        start = engine.watch_start(self._note_end_of_start, self._is_full, turns)
        if start.ended:  # there is none, as in some projects' tests
            frontier.note_start_end()
        if setup.ages:
            self._recent = Recent(setup)
        self._downloads: Downloads | None = None
        if (pace := frontier.pace) is not None and engine.can_pace:
            self._downloads = Downloads(setup, pace, self._in_progress)
        elif self._config.policy == "polite":
            CrawlDelays(setup)
        self._every_run = EveryRun(setup, start)
        self.deferrals = Deferrals(setup, frontier)
        self._states = ResumeStates(frontier.run.note, resumed=job.resumed)
        self.steering = Steering(setup, frontier, self.deferrals, self._dead_letters)
        hold = self.steering.hold
        self._status = status = CrawlStatus(setup, frontier, self.deferrals, hold)
        self._committer = Committer(setup, frontier, self._settle, self._states, status)
        parts = start, self._every_run, self._in_progress, self._committer, self._dead_letters
        self.traffic = Traffic(setup, frontier, *parts, self._update_stats)

    def _begin_durable(self, setup: Setup, frontier: Frontier) -> None:
        crawler, spider, jobdir = self._crawler, self._spider, setup.jobdir
        job, read = frontier.job, frontier.run.note
        if jobdir is not None:
            place_spider_state(crawler, jobdir)
            now = setup.clock.monotonic
            self._states.add(SpiderStateCheckpoint(jobdir, spider, now, place=job.place).state)
            if job.run > 1:
                self._identity.warn_if_changed(read, jobdir, spider, crawler.settings)
        self._reports.log_opening(job, self._at_open, frontier.next_due())
        self.feeds = JobFeeds(
            crawler,
            spider,
            setup.feed_files,
            read,
            self._committer.save_notes,
            jobdir=Path(jobdir) if jobdir else None,
            resumed=job.resumed,
            sync=self._config.sync,
        )
        if jobdir is not None:
            for part in self._every_run, self.deferrals:
                self._states.add(ResumeState(capture=part.capture, restore=part.restore))
            if job.stored_here:
                self.steering.listen(jobdir, self._committer, self._states)
            for capture in self._identity.notes, self._in_progress.notes, self.feeds.notes:
                self._states.add(ResumeState(capture=capture))

    def _start_committing(self) -> None:
        self._committer.start()
        self.steering.start()
        if self._config.exit_code:
            exit_code.set(Outcome.UNFINISHED.code)

    def _open_archive(self, path: Path) -> None:
        run, size = self.frontier.job.run, self._config.archive_size
        archive = Archive(path, size, self._spider, run=run, feeds=self.feeds)
        connect = self._crawler.signals.connect
        # The second one tells of responses that were not downloaded, as those from a cache.
        connect(archive.note_response, response_downloaded)
        connect(archive.note_response, response_received)
        connect(archive.note_committed, frontier_committed)
        self._in_progress.on_done = lambda request, lease: archive.note_finished(
            request, lease.entry.fingerprint
        )
        self._archive = archive

    def _settle(self) -> None:
        self._in_progress.reap()
        self._update_stats()

    def close(self, reason: str) -> None:
        frontier = self.frontier
        try:
            self._close(reason)
        except AltschedError as error:
            if isinstance(error, JobdirLostError):
                keep_spider_state(self._crawler)
            self._reports.log_unsaved(frontier.pressure.unsaved, error)
        finally:
            self._progress_line.close()
            self.steering.close()
            if self._recent is not None:
                self._recent.close()
            if self._archive is not None:
                self._archive.close()
                self._engine.call_when_stopped(self._archive.wait)
            if self.feeds is not None:
                self.feeds.close()
                # Scrapy's feeds close after the scheduler.
                self._engine.call_when_stopped(self.feeds.locks.give_back)
            if self._config.exit_code and self._is_durable:
                exit_code.set(self._outcome.code)
            if self._engine.is_started:
                self._engine.call_when_stopped(frontier.run.end)

    def _close(self, reason: str) -> None:
        frontier, dead_letters = self.frontier, self._dead_letters
        damage = frontier.job.damage
        try:
            self._states.note_closing()
            if self.feeds is not None:
                # Before the store: a power cut must not take rows of pages that are done.
                self.feeds.write_out(force=True)
            self._committer.finish()
            self._status.note(ends=True)
            counts, due = frontier.counts(), frontier.next_due()
            is_missing = counts.unaccounted or damage is not None
            complete = reason == "finished" and self.traffic.start.exhausted and not is_missing
            self._outcome = outcome = judge(counts, dead_letters.unrestorable, complete=complete)
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
            self._reports.log(messages.UNRECORDED_LEASES, count=self._unrecorded_leases)
        orphans = len(self._in_progress.orphans)
        ends = reason, counts, outcome, dead_letters
        self._reports.log_end(*ends, orphans=orphans, damage=damage, due=due)
        had_nothing = not self._at_open.left and counts.accepted == self._at_open.accepted
        refused = self.traffic.refused_starts
        # Otherwise other workers may have had everything.
        is_own = self._is_durable and frontier.job.exclusive
        if is_own and refused and had_nothing and outcome is not Outcome.BLOCKED:
            all_were = "its start request was", f"all {refused} start requests were"
            message = messages.NOTHING_LEFT if frontier.job.resumed else messages.NOTHING_NEW
            self._reports.log(message, refused=inflect(refused, *all_were))
        self.traffic.log_end()
        # A crawl that is gone from its server has none to be made pending again.
        if self._is_durable and reason != "frontier_lost":
            self._reports.log(messages.FAILED, count=counts.failed)

    def _note_unserializable(self, entry: Entry, error: CodecError) -> None:
        self._reports.log_unserializable(entry.request, error)
        self._in_progress.note_memory_only(entry)

    def has_requests(self) -> bool:
        return self.pending > 0 and not self._committer.unreadable

    @property
    def pending(self) -> int:
        self._update_stats()
        others = self._every_run.pending + self._in_progress.to_follow
        return self.frontier.pending + others

    def count_queue(self, *, in_memory: bool) -> int:
        """How many of the pending requests are in memory only, or else are stored."""
        counts = self.frontier.counts()
        stored = max(0, counts.pending - counts.memory_only) if self._is_durable else 0
        return counts.pending - stored if in_memory else stored

    def checkpoint(self, *, force: bool) -> bool:
        is_saved = self._committer.commit_all()
        if force and is_saved:
            is_saved = self._committer.force()
        # A server saves what has ended later, and what was accepted as soon as it says so.
        is_saved |= not self.frontier.job.stored_here
        return is_saved and self._is_durable and not self.frontier.counts().undecided

    def look(self) -> Standing:
        self._update_stats()
        return self._status.look()

    def peek(self, limit: int, slot: str | None) -> list[Request]:
        """See :meth:`.scheduler.Scheduler.peek`."""
        is_by_slot = self._config.order.policy == "slots"
        found: list[Request] = []
        for entry in self.frontier.peek(slot if is_by_slot else None):
            if len(found) >= limit:
                break
            with suppress(CodecError):  # it will be a dead letter when its turn comes
                request = self._entries.copy_of(entry)
                if is_by_slot or slot in (None, self._entries.slot_of(request)):
                    found.append(request)
        return found

    def locate(self, request: Request) -> Place | None:
        """See :meth:`.scheduler.Scheduler.locate`."""
        fingerprint = self._identity.of(request, self._identity.page_of(request))
        place = self.frontier.locate(fingerprint, self._entries.slot_of(request))
        if place is None or place.state in ("in flight", "pending", "delayed"):
            return place
        # Those are listed as of the last commit.
        self._committer.commit_all()
        counts, frontier = self.frontier.counts(), self.frontier
        failed, dead = failed_requests(frontier.failed()), dead_requests(frontier.dead())
        stopped = StoredRequests(counts, (), (), failed, dead).find({fingerprint})
        return next((stop for _, stop in stopped), place)

    @property
    def position(self) -> int | None:
        return self.frontier.position if self._is_durable else None

    def is_durable(self, position: int) -> bool:
        return self._is_durable and self._committer.is_durable(position)

    def on_event(self, event: Event) -> None:
        match event:
            case events.Committed():
                self._committer.note_committed(event.number)
            case events.Refused():
                self._note_refusal(event)
            case events.Unreadable():
                self._committer.note_failure(event.error, reading=True)
            case events.LeasesReady():
                self._engine.wake()
            case events.PaceChanged():
                if self._downloads is not None:
                    self._downloads.note_change()
            case events.LeaseUnrecorded():
                self._unrecorded_leases += 1
            case events.SeenInvalidated():
                self._identity.forget_recent()
            case events.FrontierFailed():
                close_failed(self._engine, self._spider, event.error)
            case events.DeadLettered() | events.Isolated() | events.IsolationEnded():
                self._note_suspect(event)
            case _:
                self._reports.log_event(event)
                if isinstance(event, events.ServerRolledBack):
                    # Start requests come again: the server may have lost them.
                    self._must_start_again = True
                    if self.traffic.start.ended:
                        self._run_start_again()
                elif isinstance(event, events.FrontierLost | events.VersionOutdated):
                    close_unfinished(self._engine, self._spider, "frontier_lost")
                elif isinstance(event, events.StopRequested):
                    # The reason of Ctrl-C.
                    self._engine.close_spider(self._spider, "shutdown")

    def _note_refusal(self, event: events.Refused) -> None:
        entry, request = event.entry, event.entry.request
        self._entries.uncount(entry)
        self._in_progress.discard(entry)
        self.traffic.note_refusal(request, event.verdict, entry.from_start)
        self._update_stats()
        self._crawler.signals.send_catch_log(request_dropped, request=request, spider=self._spider)

    def _note_suspect(
        self, event: events.DeadLettered | events.Isolated | events.IsolationEnded
    ) -> None:
        entry = event.entry
        url = None if entry.payload is None else self._entries.url_of(entry.payload)
        if isinstance(event, events.DeadLettered):
            self._in_progress.discard(entry)
            self._dead_letters.note(entry.fingerprint, entry.payload or b"", event.why)
        elif isinstance(event, events.Isolated):
            self.traffic.is_isolating = True
        self._reports.log_event(event, url or f"with fingerprint {entry.fingerprint.hex()}")

    def _run_start_again(self) -> None:
        self._must_start_again = False
        self.traffic.start = self._engine.start_again(self._note_end_of_start, self._is_full)

    def _is_full(self) -> bool:
        return self.frontier.pressure.is_full and not self.frontier.is_over

    def _update_stats(self) -> None:
        if self._tally:
            increase = self._crawler.stats.inc_value
            for name, count in self._tally.items():
                increase(name, count)
                for total in _TOTALS:
                    if name.startswith(total):
                        increase(total, count)
            self._tally.clear()

    def _note_end_of_start(self) -> None:
        if self._must_start_again:
            # One run at a time: this one may have brought requests before they were lost.
            self._run_start_again()
            return
        self.frontier.note_start_end()
        self.traffic.note_start_end()
        self._engine.wake()

    def _stay_open(self) -> None:
        """Keep an idle spider open as long as something is to come, or to be saved."""
        frontier = self.frontier
        if frontier.delayed and self._config.wait_at_close:
            self._reports.log_wait(frontier.delayed, frontier.next_due)
            raise DontCloseSpider
        if not self._is_durable:
            return
        # A spider that is fed decides by itself how long it waits.
        is_over = is_fed(self._spider) or frontier.is_over
        is_over = is_over and self.traffic.start.ended
        if self.pending or not is_over or self._committer.failing_since is not None:
            raise DontCloseSpider
