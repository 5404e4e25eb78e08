"""Scrapy's scheduler interface, onto a frontier."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from scrapy.core.scheduler import BaseScheduler
from scrapy.dupefilters import BaseDupeFilter
from scrapy.signals import request_dropped, response_received
from scrapy.utils.misc import build_from_crawler, load_object

from .canonical import Rules
from .crawl.committer import STORE_DAMAGED, Committer
from .crawl.every_run import NOTE as EVERY_RUN_NOTE
from .crawl.every_run import EveryRun
from .crawl.exit_code import exit_code
from .crawl.garbage import freeze, thaw
from .crawl.in_progress import InProgress
from .crawl.outcome import HOPELESS, RESTORE_FAILED, DeadLetters, Outcome, judge
from .crawl.reports import Reports, name_of, warn_of_other_fingerprints
from .crawl.tally import Tally
from .dupefilter import DupeFilter
from .engine import Engine, StartWatch, fingerprinter_of, keep_spider_state, place_spider_state
from .errors import AltschedError, CodecError, StoreError
from .feeds import JobFeeds, warn_of_unsafe_feeds
from .frontier import Busy, Components, DeadLettered, Entry, Event, Isolated, Lease, Verdict
from .frontier.local.frontier import LocalFrontier
from .frontier.store.records import CANNOT_BE_RESTORED
from .maintenance.opening import open_frontier
from .maintenance.requeue import dead_requests
from .requests.codec import decode_request, url_of
from .requests.entries import Entries, RequestEntry
from .requests.fingerprint import NOTE, describe, fingerprint_page, shorten
from .requests.meta_keys import EVERY_RUN
from .resume.spider_state import FILE, STATE, SpiderStateCheckpoint
from .settings import Config
from .stock.job import StockJob
from .stock.report import report_taking_over

if TYPE_CHECKING:
    from scrapy import Request, Spider
    from scrapy.crawler import Crawler
    from scrapy.statscollectors import StatsCollector
    from twisted.internet.defer import Deferred
    from typing_extensions import Self

logger = logging.getLogger(__name__)

#: Requests handed out after which the stats are told: each stat costs as much as a look-up.
_POUR_EVERY = 64


class _Queue:
    """What other code finds where Scrapy's scheduler has a queue.

    :param length: asked for the number of its requests.
    :param pop: asked for the scheduler's next request.
    """

    def __init__(self, length: Callable[[], int], pop: Callable[[], Request | None]) -> None:
        self._length = length
        self.pop = pop

    def __len__(self) -> int:
        return self._length()

    def close(self) -> None:
        self._length = int


class Scheduler(BaseScheduler):
    """Scrapy's scheduler: what it accepted survives any death of the process, if JOBDIR is set.

    The parameters are those of :class:`scrapy.core.scheduler.Scheduler`; of the queue classes only
    the order they stand for is taken.  ``None`` stands for the setting's value.
    """

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        dupefilter = build_from_crawler(load_object(crawler.settings["DUPEFILTER_CLASS"]), crawler)
        return cls(
            dupefilter,
            jobdir=crawler.settings["JOBDIR"] or None,
            logunser=crawler.settings.getbool("SCHEDULER_DEBUG"),
            stats=crawler.stats,
            crawler=crawler,
        )

    def __init__(
        self,
        dupefilter: BaseDupeFilter,
        jobdir: str | None = None,
        dqclass: type | None = None,
        mqclass: type | None = None,
        logunser: bool = False,
        stats: StatsCollector | None = None,
        pqclass: type | None = None,
        crawler: Crawler | None = None,
    ) -> None:
        self.df = dupefilter
        self.jobdir = jobdir
        self.dqclass = dqclass
        self.mqclass = mqclass
        self.pqclass = pqclass
        self.logunser = logunser
        self.stats: StatsCollector = stats  # type: ignore[assignment]
        self.crawler: Crawler = crawler  # type: ignore[assignment]
        self.config = Config()
        self._frontier: LocalFrontier | None = None
        #: Entries that wait for the store to be readable again, to know whether they were seen.
        self._held: list[Entry] = []
        self._refused_starts = 0
        self._outcome = Outcome.UNFINISHED
        #: Whether the spider is being closed because none of its requests can be restored.
        self._is_hopeless = False
        self._skipped_starts = 0
        #: Whether the frontier has just leased a request that may have killed the process, alone.
        self._is_isolating = False
        self._tally = Tally()
        #: Whether this crawl goes on with a job that earlier runs left unfinished.
        self.resumed = False
        #: The feeds of the job in JOBDIR.
        self.feeds: JobFeeds | None = None

    # Opening and closing

    def open(self, spider: Spider) -> Deferred[None] | None:
        """Open the frontier, resuming the job in JOBDIR if there is one.

        :raises AltschedError: a setting or the job directory cannot be used; the reason has been
            logged, and nothing in the job directory changed.
        """
        self.spider = spider
        try:
            self._open(spider)
        except AltschedError as error:
            logger.critical("%s", error, extra={"spider": spider})
            keep_spider_state(self.crawler)
            raise
        return self.df.open()

    def _open(self, spider: Spider) -> None:
        self._engine = Engine(self.crawler)
        # The spider may change the working directory.
        jobdir = str(Path(self.jobdir).absolute()) if self.jobdir else None
        if self._engine.interactive:
            jobdir = None
            keep_spider_state(self.crawler)
        settings = self.crawler.settings
        given = {
            "SCHEDULER_DISK_QUEUE": self.dqclass,
            "SCHEDULER_MEMORY_QUEUE": self.mqclass,
            "SCHEDULER_PRIORITY_QUEUE": self.pqclass,
        }
        self.config = Config.from_settings(settings, disk=jobdir is not None, **given)
        self._on_disk = jobdir is not None
        self._reports = Reports(spider, self.stats, jobdir, logs_reason=self.logunser)
        self._by_slot = self.config.order.policy == "slots"
        self._entries = Entries(
            spider,
            self._engine,
            self._reports.unserializable,
            self._tally,
            by_slot=self._by_slot,
            on_disk=self._on_disk,
        )
        self._busy: Busy = self._engine.active_downloads()
        self._fingerprinter = fingerprinter_of(self.crawler)
        #: Our own filter, if to look and to mark may be one step with the rest of an add.
        self._filter: DupeFilter | None = None
        if isinstance(self.df, DupeFilter) and (
            type(self.df).request_seen is DupeFilter.request_seen
        ):
            self._filter = self.df
        if jobdir is not None:
            warn_of_unsafe_feeds(settings, spider)
            if self._filter is None and type(self.df) is not BaseDupeFilter:
                self._reports.foreign_filter(self.df)
        if isinstance(self.df, DupeFilter):
            self.df.use_rules(self.config.rules_of(spider))
            self._fingerprint_note = self.df.fingerprint_note
        else:
            self._fingerprint_note = describe(self._fingerprinter, Rules())
        frontier = self._open_frontier(jobdir)
        try:
            self._begin(frontier, jobdir)
        except BaseException:
            # Whoever closes the crawl now must not find one that is half open.
            self._frontier = None
            frontier.abandon()
            raise
        if self.config.gc_freeze:
            freeze()

    def _begin(self, frontier: LocalFrontier, jobdir: str | None) -> None:
        """Have everything that works with the frontier know it."""
        spider = self.spider
        self._checkpoint = None
        if jobdir is not None:
            place_spider_state(self.crawler, jobdir)
            self._checkpoint = SpiderStateCheckpoint(jobdir, spider)
            self._checkpoint.restore(frontier.note(STATE), frontier.note(FILE))
        if isinstance(self.df, DupeFilter):
            self.df.share(frontier, self._tally)
        self._frontier = frontier
        self._in_progress = InProgress(self._engine, frontier.finish)
        if self._on_disk:
            self.crawler.signals.connect(self._note_response, response_received)
            self._engine.call_when_closing(frontier.note_closing)
        self.resumed = frontier.resumed
        self._at_open = frontier.counts()
        self._dead_letters = DeadLetters(dead_requests(frontier))
        self.dqdir = str(frontier.path) if frontier.path is not None else None
        self.mqs = _Queue(lambda: self._count_queue(in_memory=True), self.next_request)
        self.dqs: _Queue | None = None
        if self._on_disk:
            self.dqs = _Queue(lambda: self._count_queue(in_memory=False), self.next_request)
        self._start: StartWatch = self._engine.watch_start(self._note_end_of_start)
        self._every_run = EveryRun(
            self._engine,
            self._start,
            int(frontier.note(EVERY_RUN_NOTE) or 0) if frontier.resumed else 0,
            self.config.patience,
            self._reports.overdue,
        )
        self._committer = Committer(
            self.crawler,
            spider,
            frontier,
            self._engine,
            self.config,
            settle=self._settle,
            notes=self._notes,
            committed=self._note_commit,
        )
        if jobdir is not None:
            if frontier.run > 1:
                stored = frontier.note(NOTE)
                warn_of_other_fingerprints(stored, self._fingerprint_note, jobdir, spider)
            self._reports.resumption(frontier.pending, frontier.lost_in_memory, frontier.setback)
            self._reports.suspicion(*frontier.suspects)
            if frontier.run > 1 and not frontier.resumed:
                self._reports.was_finished()
            if frontier.died_finished:
                self._reports.died_finished()
            self._reports.damage(frontier.counts(), frontier.damage)
            self._open_feeds(frontier)
            if self.config.exit_code:
                exit_code.set(Outcome.UNFINISHED)
            self._committer.start()

    def _open_feeds(self, frontier: LocalFrontier) -> None:
        feeds = JobFeeds(
            self.crawler,
            self.spider,
            frontier.note,
            resumed=frontier.resumed,
            sync=self.config.sync,
        )
        feeds.open()
        self.feeds = feeds

    def _open_frontier(self, jobdir: str | None) -> LocalFrontier:
        name, options = self.spider.name, self.config.frontier
        if not isinstance(self.df, DupeFilter) and type(self.df) is not BaseDupeFilter:
            options = replace(options, components=Components(dupefilter=name_of(self.df)))
        if jobdir is None:
            return open_frontier(None, name, options)
        stock = StockJob(
            jobdir,
            self.spider,
            fingerprint=self._fingerprint,
            slot_key=self._engine.slot_key,
            notes={NOTE: self._fingerprint_note},
            takes_seen=self._filter is not None,
            trusts_seen=self.config.trust_stock_seen,
        )
        frontier = open_frontier(
            jobdir,
            name,
            options,
            locate=self._entries.locate,
            source=stock,
            on_event=self._report_event,
        )
        try:
            place = stock.put_aside()
        except BaseException:
            frontier.close()
            raise
        report_taking_over(stock, place, self.spider, self.stats)
        return frontier

    def close(self, reason: str) -> Deferred[None] | None:
        """Commit everything, say in one line what state the job is in, and close."""
        frontier = self._frontier
        if frontier is not None:
            frontier.check_owner()
            try:
                self._close(frontier, reason)
            except AltschedError as error:
                self._reports.unsaved(frontier.uncommitted, error)
            finally:
                self._frontier = None
                thaw()
                if self.feeds is not None:
                    self.feeds.close()
                if self.config.exit_code and self._on_disk:
                    exit_code.set(self._outcome)
                if self._engine.is_started:
                    self._engine.when_stopped(frontier.end)
            self.mqs.close()
            if self.dqs is not None:
                self.dqs.close()
        return self.df.close(reason)

    def _close(self, frontier: LocalFrontier, reason: str) -> None:
        try:
            if self._checkpoint is not None:
                self._checkpoint.hasten()
            self._committer.finish()
            counts = frontier.counts()
            complete = (
                reason == "finished"
                and self._start.exhausted
                and not counts.unaccounted
                and frontier.damage is None
            )
            self._outcome = outcome = judge(
                counts, self._dead_letters.unrestorable, complete=complete
            )
            # What handlers of spider_closed do still belongs to this run.
            frontier.close(finished=outcome.is_finished, hold=self._engine.is_started)
        finally:
            self._committer.stop()
            frontier.abandon()
            if frontier.unrecorded_leases:
                self._reports.unrecorded_leases(frontier.unrecorded_leases)
        self._reports.end(
            counts,
            outcome,
            self._dead_letters,
            damage=frontier.damage,
            store_damaged=reason == STORE_DAMAGED,
        )
        had_nothing = not self._at_open.pending and counts.accepted == self._at_open.accepted
        is_blocked = outcome is Outcome.BLOCKED
        if self._on_disk and self._refused_starts and had_nothing and not is_blocked:
            self._reports.nothing_to_do(self._refused_starts, was_finished=not self.resumed)

    # The path of every request

    def enqueue_request(self, request: Request) -> bool:
        """Accept *request*, unless it is a duplicate; whether it was accepted."""
        frontier = self._frontier
        assert frontier is not None, "the scheduler is not open"
        yielded = self._start.take(request)
        unique = not request.dont_filter
        dupefilter = self._filter
        page: str | None = None
        if dupefilter is not None:
            recent = dupefilter.recent
            page = recent.page_of(request)
            if page is None:
                if EVERY_RUN in request.meta and self._make_every_run(request, yielded):
                    return True
                fingerprint = dupefilter.fingerprint(request)
            elif unique and not yielded and recent.has(page):
                self.df.log(request, self.spider)
                return False
            else:
                fingerprint = fingerprint_page(page) or dupefilter.fingerprint(request)
        else:
            if EVERY_RUN in request.meta and self._make_every_run(request, yielded):
                return True
            if unique and self.df.request_seen(request):
                self._refused_starts += yielded
                self.df.log(request, self.spider)
                return False
            unique = False
            fingerprint = shorten(self._fingerprinter.fingerprint(request))
        entry = RequestEntry(fingerprint, request, unique, yielded, self._entries)
        try:
            verdict = frontier.add(entry)
        except StoreError as error:
            # Whether it was seen cannot be known now, and it must not be lost.
            self._held.append(entry)
            self._committer.note_failure(error, reading=True)
            return True
        if page is not None and unique and verdict is not Verdict.STARTED:
            recent.add(page)
        if verdict is Verdict.ADDED:
            self._commit_added()
            return True
        self._note_refusal(request, verdict, yielded)
        return False

    def _make_every_run(self, request: Request, yielded: bool) -> bool:
        """Take a request that every run has to make; whether it is one, as its meta key says."""
        if not request.meta[EVERY_RUN]:
            return False
        self._every_run.add(request, yielded=yielded)
        self._tally["scheduler/enqueued/memory"] += 1
        self._tally["scheduler/enqueued"] += 1
        return True

    def _note_refusal(self, request: Request, verdict: Verdict, yielded: bool) -> None:
        self._refused_starts += yielded
        if verdict is Verdict.SEEN:
            self.df.log(request, self.spider)
        else:
            self._skipped_starts += 1
            self._tally["altsched/start/skipped"] += 1

    def _commit_added(self) -> None:
        if self._on_disk:
            # Without a parent that would bring it back: not a second without a commit.
            self._committer.commit_if_due(urgent=not self._in_progress.is_any_left())

    def next_request(self) -> Request | None:
        """The next request, or ``None``: nothing is pending, or nothing is ready yet."""
        frontier = self._frontier
        assert frontier is not None, "the scheduler is not open"
        if self._in_progress.has_changed():
            self._in_progress.reap()
            if self._tally.get("scheduler/dequeued", 0) >= _POUR_EVERY:
                self._tally.pour(self.stats)
        if self._on_disk:
            self._committer.commit_if_due()
        if self._every_run.matters:
            first = self._every_run.next()
            if first is not None:
                self._tally["scheduler/dequeued/memory"] += 1
                self._tally["scheduler/dequeued"] += 1
                return first
            if self._every_run.holds_others():
                return None
        try:
            while (lease := self._lease(frontier)) is not None or self._in_progress.reap():
                if lease is None:
                    continue
                if self._is_isolating:
                    # If it kills the process, nothing else is to be crawled again.
                    self._is_isolating = False
                    self.checkpoint()
                if self._committer.unreadable:
                    self._committer.note_read()
                request = self._take(lease)
                if request is not None:
                    return request
                if self._is_hopeless:
                    break
        except StoreError as error:
            self._committer.note_failure(error, reading=True)
        self._tally.pour(self.stats)
        return None

    def has_pending_requests(self) -> bool:
        """Whether any request waits; those handed out are the engine's to count.

        Also true while nothing can be saved: a crawl is not finished as long as that may be tried
        again.
        """
        return len(self) > 0 or (self._frontier is not None and self._committer.failing)

    def __len__(self) -> int:
        if self._tally:
            self._tally.pour(self.stats)
        if self._frontier is None:
            return 0
        return self._frontier.pending + len(self._held) + len(self._every_run)

    def _count_queue(self, *, in_memory: bool) -> int:
        """How many of the pending requests are in memory only, or are not."""
        if self._frontier is None:
            return 0
        counts = self._frontier.counts()
        if not self._on_disk:
            return counts.pending
        memory_only = min(counts.memory_only, counts.pending)
        return memory_only if in_memory else counts.pending - memory_only

    def checkpoint(self) -> bool:
        """Commit now; whether everything that was accepted survives the process's death.

        For feeders: acknowledge what you fed after this is true, or on ``frontier_committed``.
        Requests that cannot be serialized never survive it and are not asked about.

        :raises ForkedError: it was asked for in a forked child.
        """
        if self._frontier is not None:
            self._frontier.check_owner()
        while self._frontier is not None and self._frontier.changed(self._notes()):
            before = self._frontier.commit_number
            self._committer.commit()
            if self._frontier.commit_number == before:
                return False
        return self._on_disk and not self._held

    # What the frontier and the committer ask for

    def _fingerprint(self, request: Request) -> bytes:
        if isinstance(self.df, DupeFilter):
            return self.df.fingerprint(request)
        return shorten(self._fingerprinter.fingerprint(request))

    def _settle(self) -> None:
        """Have the frontier and the stats know all that happened until now."""
        self._in_progress.reap()
        self._add_held()
        self._tally.pour(self.stats)

    def _add_held(self) -> None:
        """Add what came while the store could not be read; the engine was told it is accepted."""
        assert self._frontier is not None
        while self._held:
            entry = self._held[0]
            verdict = self._frontier.add(entry)
            del self._held[0]
            if verdict is not Verdict.ADDED:
                self._note_refusal(entry.request, verdict, entry.yielded)
                self.crawler.signals.send_catch_log(
                    request_dropped, request=entry.request, spider=self.spider
                )

    def _notes(self) -> dict[str, bytes]:
        if self._checkpoint is None or self.feeds is None:
            return {}
        return {
            NOTE: self._fingerprint_note,
            EVERY_RUN_NOTE: self._every_run.note,
            **self._checkpoint.notes(),
            **self.feeds.notes(),
        }

    def _note_end_of_start(self) -> None:
        skipped = self._skipped_starts
        if skipped:
            self._reports.skipped_starts(skipped)
        self._engine.wake()

    def _note_commit(self) -> None:
        if self._checkpoint is not None:
            self._checkpoint.note_commit()

    # Parts

    def _lease(self, frontier: LocalFrontier) -> Lease | None:
        return frontier.lease(self._busy) if self._by_slot else frontier.lease()

    def _note_response(self, request: Request) -> None:
        """A response was received: callbacks and pipelines come next."""
        lease = self._in_progress.lease_of(request)
        if lease is not None and self._frontier is not None:
            if self._in_progress.has_changed():
                # Who is over by now is not to be found in hand.
                self._in_progress.reap()
            self._frontier.note_response(lease)

    def _take(self, lease: Lease) -> Request | None:
        """The request of *lease*; ``None``: it cannot be restored, and is dead now."""
        try:
            request = self._entries.restore(lease.entry)
        except CodecError as error:
            assert self._frontier is not None
            self._give_up(self._frontier, lease, error)
            return None
        self._in_progress.add(request, lease)
        return request

    def _give_up(self, frontier: LocalFrontier, lease: Lease, error: CodecError) -> None:
        """Make a dead letter of a request that cannot be restored.

        If none of many can, the spider's code has changed: the rest is kept for when it is put
        right.
        """
        if self._is_hopeless:
            frontier.release(lease)
            return
        entry = lease.entry
        why = f"{CANNOT_BE_RESTORED}{error}"
        frontier.bury(lease, why)
        self._dead_letters.note(entry.fingerprint, entry.payload or b"", why)
        failed = self._dead_letters.failed_here
        if failed == 1:
            self._reports.unrestorable(url_of(entry.payload or b""), error)
        counts = frontier.counts()
        if failed >= HOPELESS and counts.done + counts.leased == self._at_open.done:
            self._is_hopeless = True
            self._reports.hopeless(failed, RESTORE_FAILED)
            self._engine.close_spider(self.spider, RESTORE_FAILED)

    def _report_event(self, event: Event) -> None:
        """The frontier did what nobody asked for."""
        url: str | None = None
        if event.entry.payload is not None:
            with suppress(CodecError):
                url = decode_request(event.entry.payload, self.spider).url
        name = url or f"with fingerprint {event.entry.fingerprint.hex()}"
        if isinstance(event, DeadLettered):
            entry = event.entry
            self._dead_letters.note(entry.fingerprint, entry.payload or b"", event.reason)
            self._reports.buried(entry, url, event.reason)
        elif isinstance(event, Isolated):
            self._is_isolating = True
            self._reports.isolated(name, event.deaths)
        else:
            self._reports.accompanied(name, event.why)
