"""One open crawl: its frontier, and all that works with it.

A session is created when the spider opens and is gone when it has closed: nothing is ever half
open.  What the frontier does by itself is passed to :meth:`Session.on_event`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from scrapy.exceptions import DontCloseSpider
from scrapy.signals import request_dropped, response_received, spider_idle

from ..engine.engine import Engine, keep_spider_state, place_spider_state
from ..errors import AltschedError, CodecError, JobdirLostError
from ..feeds import JobFeeds
from ..frontier import Clock, Counts, Entry, Event, Frontier, Lease, OnEvent, Verdict
from ..frontier.contract import (
    AlreadyFinished,
    Committed,
    DeadLettered,
    FrontierFailed,
    FrontierLost,
    Isolated,
    IsolationEnded,
    LeaseLost,
    LeasesReady,
    LeaseUnrecorded,
    MemoryFull,
    Reason,
    Refused,
    SeenInvalidated,
    ServerRolledBack,
    Stalled,
    Unreadable,
    Waiting,
)
from ..frontier.store.records import CANNOT_BE_RESTORED, ORPHANS
from ..maintenance.requeue import dead_requests
from ..requests.entries import Entries, RequestEntry
from ..requests.fingerprint import NOTE
from ..requests.identity import PageIdentity
from ..requests.meta_keys import EVERY_RUN
from ..resume.spider_state import FILE, STATE, SpiderStateCheckpoint
from ..settings import Config
from .committer import STORE_DAMAGED, Committer
from .every_run import NOTE as EVERY_RUN_NOTE
from .every_run import EveryRun
from .exit_code import exit_code
from .failure import close_failed, close_unfinished
from .fed import has_fed_starts, is_fed
from .given_up import NOTE as GIVEN_UP_NOTE
from .given_up import GivenUp
from .in_progress import InProgress
from .outcome import HOPELESS, RESTORE_FAILED, DeadLetters, Outcome, judge
from .reports import Reports, warn_of_other_fingerprints
from .skipped import SkippedStarts
from .tally import Tally

if TYPE_CHECKING:
    from scrapy import Request, Spider
    from scrapy.crawler import Crawler
    from scrapy.dupefilters import BaseDupeFilter
    from scrapy.statscollectors import StatsCollector

#: Why a spider is closed whose shared crawl is gone.
FRONTIER_LOST = "frontier_lost"
_NO_NOTES: Mapping[str, bytes] = {}
#: Requests handed out between updates of the stats: each stat costs as much as a look-up.
_UPDATE_STATS_EVERY = 64
#: Start requests after which a worker hears its server's answers, and skipped ones after which any
#: crawl goes on with all else.
_START_TURNS = 100


@dataclass(frozen=True, slots=True)
class Setup:
    """What a session is created from.

    :ivar jobdir: the job directory, absolute; ``None``: all is in memory.
    :ivar fingerprint_note: what makes the fingerprints.
    :ivar feed_files: the local files that the feeds of a job will write to.
    """

    crawler: Crawler
    spider: Spider
    engine: Engine
    config: Config
    clock: Clock
    jobdir: str | None
    dupefilter: BaseDupeFilter
    identity: PageIdentity
    fingerprint_note: bytes
    feed_files: Sequence[Path]
    entries: Entries
    reports: Reports
    tally: Tally
    stats: StatsCollector


class Session:
    """A crawl that is open.

    :param open_frontier: opens its frontier, given a handler of events.
    :ivar feeds: the feeds of the job; ``None``: there is no job directory.
    :raises AltschedError: it cannot be opened; everything is closed again.
    """

    def __init__(self, setup: Setup, open_frontier: Callable[[OnEvent], Frontier]) -> None:
        # At most 29 attributes: CPython 3.11 is slower to read those of an object that has more,
        # and some of them are read for every link.
        self._crawler, self._spider = setup.crawler, setup.spider
        self._engine, self._config = setup.engine, setup.config
        self._df = setup.dupefilter
        self._identity = setup.identity
        self._fingerprint_note = setup.fingerprint_note
        self._entries = setup.entries
        self._reports = setup.reports
        self._tally = setup.tally
        self._gate = setup.engine.active_downloads()
        self._has_fed_starts = has_fed_starts(setup.spider)
        self._refused_starts = 0
        self._skipped = SkippedStarts(setup.clock.monotonic)
        #: Whether ``start()`` is to run once more when it has ended.
        self._must_start_again = False
        self._outcome = Outcome.UNFINISHED
        #: Whether the spider is being closed because none of its requests can be restored.
        self._is_hopeless = False
        #: Whether the frontier has just leased a request that may have killed the process, alone.
        self._is_isolating = False
        self._checkpoint: SpiderStateCheckpoint | None = None
        self.feeds: JobFeeds | None = None
        self.frontier = frontier = open_frontier(self.on_event)
        try:
            self._begin(setup, frontier)
        except BaseException:  # nobody else would let go of the job directory
            frontier.abandon()
            if self.feeds is not None:
                self.feeds.release()
            raise

    def _begin(self, setup: Setup, frontier: Frontier) -> None:
        config, job, jobdir = self._config, frontier.job, setup.jobdir
        if jobdir is not None:
            place_spider_state(self._crawler, jobdir)
            self._checkpoint = SpiderStateCheckpoint(
                jobdir, self._spider, setup.clock.monotonic, place=job.place
            )
            self._checkpoint.restore(frontier.note(STATE), frontier.note(FILE))
        self._is_durable = job.durable
        if job.durable:
            self._crawler.signals.connect(self._note_response, response_received)
            self._crawler.signals.connect(self._stay_open, spider_idle)
            self._engine.call_when_closing(frontier.note_closing)
        self._in_progress = InProgress(self._engine, frontier)
        self._entries.on_unserializable = self._note_unserializable
        self._given_up = GivenUp(
            self._crawler, self._engine, frontier.note(GIVEN_UP_NOTE) if job.resumed else None
        )
        self._at_open = frontier.counts()
        self._dead_letters = DeadLetters(dead_requests(frontier), self._entries.url_of)
        self._start = self._engine.watch_start(
            self._note_end_of_start,
            self._is_full,
            turns=math.inf if job.shared is None else _START_TURNS,
        )
        if self._start.ended:  # there is none, as in some projects' tests
            frontier.note_start_end()
        self._every_run = EveryRun(
            self._engine,
            self._start,
            int(frontier.note(EVERY_RUN_NOTE) or 0) if job.resumed else 0,
            config.patience,
            self._reports.log_overdue,
            setup.clock.monotonic,
        )
        self._committer = Committer(
            self._crawler,
            self._spider,
            frontier,
            self._engine,
            config,
            setup.clock,
            settle=self._settle,
            notes=self._notes,
            committed=self._note_commit,
        )
        if not job.durable:
            return
        self._committer.start()
        if job.run > 1 and jobdir is not None:
            stored = frontier.note(NOTE)
            warn_of_other_fingerprints(
                stored, self._fingerprint_note, jobdir, self._spider, self._crawler.settings
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
            if self.feeds is not None:
                self.feeds.close()
                self._call_at_end(self.feeds.release)
            if self._config.exit_code and self._is_durable:
                exit_code.set(self._outcome)
            if self._engine.is_started:
                self._engine.call_when_stopped(frontier.end)

    def _call_at_end(self, call: Callable[[], object]) -> None:
        """Call *call* when all else of the crawl has ended: feeds close after the scheduler."""
        if self._engine.is_started:
            self._engine.call_when_stopped(call)
        else:
            call()

    def _close(self, reason: str) -> None:
        frontier = self.frontier
        damage = frontier.job.damage
        try:
            if self._checkpoint is not None:
                self._checkpoint.flush_soon()
            if self.feeds is not None:
                # Before the store: a power cut must not take rows of pages that are done.
                self.feeds.files.force()
            self._committer.finish()
            counts = frontier.counts()
            complete = (
                reason == "finished"
                and self._start.exhausted
                and not counts.unaccounted
                and damage is None
            )
            self._outcome = outcome = judge(
                counts, self._dead_letters.unrestorable, complete=complete
            )
            # What handlers of spider_closed do still belongs to this run.
            hold = self._engine.is_started
            frontier.close(finished=outcome.is_finished, hold=hold)
            if hold:
                self._hold_spider_state()
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
        # In a shared crawl others may have had everything.
        is_own = self._is_durable and frontier.job.shared is None
        if is_own and self._refused_starts and had_nothing and not is_blocked:
            was_finished = not frontier.job.resumed
            self._reports.log_nothing_to_do(self._refused_starts, was_finished=was_finished)
        self._reports.log_given_up(self._given_up.counts)

    def _hold_spider_state(self) -> None:
        """Have ``spider.state`` written where the job is, even if that is moved from now on."""
        job = self.frontier.job
        if job.path is not None:
            place_spider_state(self._crawler, str(job.path.parent), str(job.place))

    # The path of every request

    def enqueue(self, request: Request) -> bool:
        """Accept *request*, unless it is a duplicate; whether it was accepted."""
        start = self._start
        yielded = request is start.last and start.take(request)
        unique = not request.dont_filter
        identity = self._identity
        page = identity.page_of(request)
        if page is None:
            if EVERY_RUN in request.meta and self._add_every_run(request, yielded):
                return True
            if identity.is_refused is not None:
                if unique and identity.is_refused(request):
                    self._refused_starts += yielded
                    self._df.log(request, self._spider)
                    return False
                unique = False
        elif unique and not yielded and (page in identity.newest or identity.is_recent(page)):
            self._df.log(request, self._spider)
            return False
        fingerprint = identity.of(request, page)
        verdict = self.frontier.add(
            RequestEntry(
                fingerprint, request, unique, yielded and not self._has_fed_starts, self._entries
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
        self._note_refusal(request, verdict, yielded)
        return False

    def _add_every_run(self, request: Request, yielded: bool) -> bool:
        """Accept *request* if every run has to make it, by its meta key; whether it does."""
        if not request.meta[EVERY_RUN]:
            return False
        self._every_run.add(request, yielded=yielded)
        self._tally["scheduler/enqueued/memory"] += 1
        self._tally["scheduler/enqueued"] += 1
        return True

    def _note_refusal(self, request: Request, verdict: Verdict, yielded: bool) -> None:
        self._refused_starts += yielded
        if verdict is Verdict.SEEN:
            self._df.log(request, self._spider)
        else:
            self._note_skipped(request)
            self._tally["altsched/start/skipped"] += 1

    def _note_skipped(self, request: Request) -> None:
        self._skipped.note(request)
        if self._skipped.count % _START_TURNS == 0:
            # To skip hundreds of thousands must not keep pages and signals waiting.
            self._start.needs_turn = True

    def _free_start(self) -> None:
        """Crawl start requests that were skipped if ``start()`` may wait for them for ever."""
        is_idle = not self._engine.in_progress and not self.pending
        if not self._skipped.is_awaited(is_stuck=is_idle and self._start.is_waiting):
            return
        requests = self._skipped.take()
        if not requests:
            self._reports.log_start_waits(self._refused_starts)
            return
        self._reports.log_skipped_again(len(requests))
        for request in requests:
            fingerprint = self._identity.of(request, self._identity.page_of(request))
            self.frontier.add(RequestEntry(fingerprint, request, False, False, self._entries))
        self._engine.wake()

    def _note_unserializable(self, entry: Entry, error: CodecError) -> None:
        self._reports.log_unserializable(entry.request, error)
        self._in_progress.note_memory_only(entry)

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
        lease_next, gate = self.frontier.lease, self._gate
        while not self._is_hopeless:
            lease = lease_next(gate)
            if isinstance(lease, Waiting):
                if lease.reason is Reason.UNREACHABLE or not in_progress.reap():
                    break
                continue
            if self._is_isolating:
                # If it kills the process, nothing else should have to be crawled again.
                self._is_isolating = False
                self.checkpoint()
            if committer.unreadable:
                committer.note_read()
            request = self._take(lease)
            if request is not None:
                return request
        self._update_stats()
        if self._refused_starts and self._is_durable and not self._start.ended:
            self._free_start()
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

        If none of many can, the spider's code has changed: the rest is kept until that is
        fixed.
        """
        entry = lease.entry
        why = f"{CANNOT_BE_RESTORED}{error}"
        self.frontier.dead_letter(lease, why)
        self._dead_letters.note(entry.fingerprint, entry.payload or b"", why)
        failed = self._dead_letters.failed_here
        if failed == 1:
            self._reports.log_unrestorable(self._entries.url_of(entry.payload or b""), error)
        counts = self.frontier.counts()
        if failed >= HOPELESS and counts.done + counts.leased == self._at_open.done:
            self._is_hopeless = True
            self._reports.log_hopeless(failed, RESTORE_FAILED)
            self._engine.close_spider(self._spider, RESTORE_FAILED)

    # Queries

    def has_requests(self) -> bool:
        """Whether there are requests to hand out; what must wait for the store does not count."""
        return self.pending > 0 and not self._committer.unreadable

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
        if self.frontier.job.shared is not None:
            # What has ended is saved later; what was accepted is, as soon as the server says so.
            return not self.frontier.counts().undecided
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
            self._note_refusal(request, event.verdict, event.entry.yielded)
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
        elif isinstance(event, LeaseLost):
            self._crawler.stats.inc_value("altsched/shared/leases_lost")
        elif isinstance(event, SeenInvalidated):
            self._identity.recent.clear()
        elif isinstance(event, ServerRolledBack):
            self._start_again()
        elif isinstance(event, FrontierLost):
            self._reports.log_frontier_lost()
            close_unfinished(self._engine, self._spider, FRONTIER_LOST)
        elif isinstance(event, FrontierFailed):
            close_failed(self._engine, self._spider, event.error)
        elif isinstance(event, MemoryFull):
            self._reports.log_memory_full(event.waiting)
        elif isinstance(event, Stalled):
            self._reports.log_stalled(event.seconds, event.why)
        elif isinstance(event, AlreadyFinished):
            self._reports.log_came_late()
        else:
            self._report(event)

    def _report(self, event: DeadLettered | Isolated | IsolationEnded) -> None:
        entry: Entry = event.entry
        url: str | None = None
        if entry.payload is not None:
            with suppress(CodecError):
                url = self._entries.decode(entry.payload).url
        name = url or f"with fingerprint {entry.fingerprint.hex()}"
        if isinstance(event, DeadLettered):
            self._in_progress.descendants.discard(entry)
            self._dead_letters.note(entry.fingerprint, entry.payload or b"", event.reason)
            self._reports.log_dead_lettered(name, event.reason)
        elif isinstance(event, Isolated):
            self._is_isolating = True
            self._reports.log_isolated(name, event.deaths)
        else:
            self._reports.log_accompanied(name, event.why)

    def _start_again(self) -> None:
        """Have ``Spider.start()`` bring its requests again: the server may have lost them."""
        self._reports.log_history_lost()
        self._must_start_again = True
        if self._start.ended:
            self._run_start_again()

    def _run_start_again(self) -> None:
        self._must_start_again = False
        self._start = self._engine.start_again(self._note_end_of_start, self._is_full)

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

    def _notes(self) -> Mapping[str, bytes]:
        if self._checkpoint is None or self.feeds is None:
            return _NO_NOTES
        return {
            NOTE: self._fingerprint_note,
            EVERY_RUN_NOTE: self._every_run.note,
            GIVEN_UP_NOTE: self._given_up.note,
            ORPHANS: str(len(self._in_progress.descendants.orphans)).encode(),
            **self._checkpoint.notes(),
            **self.feeds.notes(),
        }

    def _note_end_of_start(self) -> None:
        if self._must_start_again:
            # One run at a time: this one may have brought requests before they were lost.
            self._run_start_again()
            return
        self.frontier.note_start_end()
        if self._skipped.count:
            self._reports.log_skipped_starts(self._skipped.count)
        self._engine.wake()

    def _note_commit(self) -> None:
        if self._checkpoint is not None:
            self._checkpoint.note_commit()

    def _stay_open(self) -> None:
        """Keep an idle spider open as long as something may still be saved, or read again."""
        # A spider that is fed decides by itself how long it waits.
        is_over = is_fed(self._spider) or self.frontier.is_over
        if self._committer.failing or self.pending or not is_over or not self._start.ended:
            raise DontCloseSpider

    def _note_response(self, request: Request) -> None:
        """A response was received: callbacks and pipelines come next."""
        lease = self._in_progress.lease_of(request)
        if lease is not None:
            if self._in_progress.has_changed():
                # Requests that are done by now must not be recorded as in hand.
                self._in_progress.reap()
            self.frontier.note_response(lease)
