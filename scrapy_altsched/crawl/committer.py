"""When to commit, and what to do when it fails."""

from __future__ import annotations

import inspect
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from twisted.python.failure import Failure

from ..errors import (
    AltschedError,
    CommitPostponedError,
    ForkedError,
    FrontierFailedError,
    JobdirLostError,
    StoreDamagedError,
    StoreError,
    StoreStalledError,
)
from ..frontier import Frontier
from ..frontier.clock import Call
from ..resume.state import ResumeStates
from ..signals import frontier_committed, frontier_committing
from . import messages
from .outcome import close_failed
from .pace import CommitPace
from .setup import Setup
from .status import CrawlStatus
from .syncing import Syncer

logger = logging.getLogger(__name__)

#: Seconds after which a commit is retried that failed, or that the store had no room for.
_RETRY_AFTER, _STALLED_FOR = 1.0, 0.03
#: Seconds between two log lines about commits that keep failing.
_LOG_EVERY = 60.0


class Committer:
    """Commits a frontier when it is time to.

    Finished requests and notes become durable only here, and together: the frontier learns which
    requests are done, other components flush their data, the notes are captured, and one batch
    stores it all, before any other code of the crawl runs.

    :param settle: tells the frontier which requests are done.
    :param states: whose notes go with each commit.
    :param status: what tells of the crawl after each commit.
    :ivar failing_since: when the reads or writes began to fail; ``None``: they do not.
    :ivar unreadable: whether a read failed, and none has succeeded since: a commit alone ends no
        outage then.
    """

    def __init__(
        self,
        setup: Setup,
        frontier: Frontier,
        settle: Callable[[], None],
        states: ResumeStates,
        status: CrawlStatus,
    ) -> None:
        self._crawler, self._spider, self._engine = setup.crawler, setup.spider, setup.engine
        self._reports, self._config = setup.reports, setup.config
        self._frontier, self._settle, self._states = frontier, settle, states
        self._status = status
        config, self._clock, self._now = setup.config, setup.clock, setup.clock.monotonic
        self._pace = CommitPace(config.commit_interval, fixed=config.keeps_interval)
        #: The next call of the timer, as a full or paused engine may not call for a long time.
        self._next: Call | None = None
        self._due_at = self._now() + self._pace.pause
        #: Changes with which a commit is due.
        self._every = 1.0
        self._note_rest(is_done=True)
        self._committing = self._closing = False
        #: Whether the next commit must be one batch.
        self._whole = False
        #: Number of the last commit that is stored.
        self._number = 0
        #: When a commit was handed over that is stored elsewhere, and not there yet.
        self._sent_at: float | None = None
        #: Whether the last commit failed, or the store had no room for it: only time matters then.
        self._must_wait = False
        self.failing_since: float | None = None
        #: When a failure is logged again.
        self._log_at = 0.0
        #: Whether the store is to be reopened; was found damaged; and was reopened since.
        self._must_reopen = self._met_damage = self._reopened_damaged = False
        self.unreadable = False
        #: Whether the thread that syncs has died.
        self._has_failed = False
        self._syncer = Syncer(frontier.run.sync) if config.sync else None

    def start(self) -> None:
        self._status.note()
        self._call_after(self._config.commit_interval)

    def _call_after(self, seconds: float) -> None:
        self._next = self._clock.call_at(self._now() + seconds, self._on_time)

    def _on_time(self) -> None:
        due = self._next
        try:
            self.commit_if_due()
        except Exception:  # without the next call, nothing would be committed in time any more
            logger.exception("Error in a timed call of scrapy_altsched")
        if due is not None and self._next is due:
            self._call_after(self._config.commit_interval)

    def commit_if_full(self, urgent: bool) -> None:
        """Commit if enough has changed, or the change is *urgent*, without a look at the time."""
        pressure = self._frontier.pressure
        if urgent or pressure.urgent or pressure.changes >= self._every:
            self.commit_if_due(urgent)

    def commit_if_due(self, urgent: bool = False) -> None:
        """Commit if it is time to, enough has changed, or the change is *urgent*."""
        if self._syncer is not None:
            self._collect(self._syncer)
        pressure, every = self._frontier.pressure, self._every
        now = self._now  # see "Cheap requests" in docs/architecture.rst
        if now() >= self._due_at or (
            not self._must_wait and (urgent or pressure.urgent or pressure.changes >= every)
        ):
            self.commit()

    def commit(self) -> bool:
        """Commit what fits into one batch, or have it retried later; whether nothing is left."""
        if self._committing:
            return False
        self._committing = True
        try:
            return self._commit()
        except StoreStalledError as error:
            self._note_stall(error)
        except ForkedError:
            raise
        except AltschedError as error:
            self.note_failure(error)
        finally:
            self._committing = False
        return False

    def _commit(self, *, wait: bool = False) -> bool:
        frontier = self._frontier
        frontier.run.check_owner()
        if self._must_reopen:
            self._recover()
        before, is_done = self._number, True
        began, busy = self._now(), time.thread_time()
        self._settle()
        has_changes = frontier.has_changes() or frontier.has_changes(self._states.capture())
        if has_changes:
            self._prepare_others()
            # Only after the others have written: a note may say how far they got.
            notes, whole = self._states.capture(), self._whole
            is_done = frontier.commit(notes, wait=wait, whole=whole)
            if is_done:
                self._whole = False
                self._states.note_commit()
            # What is stored elsewhere is on its way, and a further commit would do no more.
            is_done |= not frontier.job.stored_here
        if (seconds := self._end_stall()) >= _LOG_EVERY:
            self._reports.log(messages.BUSY_NO_MORE, seconds=seconds)
        if self.failing_since is not None and not self.unreadable:
            if self._log_at >= self.failing_since + _LOG_EVERY:  # it was logged
                seconds = self._now() - self.failing_since
                self._reports.log(messages.SAVED_AGAIN, seconds=seconds)
            self.failing_since = None
            self._engine.wake()
        self._must_wait = self.failing_since is not None
        if self._number != before:
            self._report_commit()
        elif has_changes and self._sent_at is None:
            self._sent_at = began
        if has_changes:
            self._pace.note_commit(time.thread_time() - busy, self._now() - began)
        pause = self._pace.pause if is_done else 0
        self._due_at = self._now() + pause
        self._note_rest(is_done=is_done)
        if has_changes and self._next is not None:
            # The scheduler may not be called again for long, and there may be more by then.
            self._next.cancel()
            self._call_after(pause)
        return is_done

    def _note_rest(self, *, is_done: bool) -> None:
        """Have what a commit has left be written with the next request, and more with many."""
        usual = min(self._config.commit_every, self._frontier.pressure.enough)
        self._every = usual if is_done else 1

    def _recover(self) -> None:
        """Reopen the store; what was not forced to the disk is written again, and forced."""
        if self._syncer is not None:
            self._syncer.discard(_RETRY_AFTER)
        self._frontier.run.recover()
        if self._syncer is not None:
            self._syncer.ask(self._number)
        # What is still damaged now is damaged on the disk.
        self._must_reopen, self._reopened_damaged = False, self._met_damage

    def commit_all(self) -> bool:
        """Commit everything that can be committed now; whether nothing is left."""
        while self._frontier.has_changes(self._states.capture()):
            before = self._number
            self.commit()
            if self._number == before:
                return False
        return True

    @contextmanager
    def together(self) -> Iterator[None]:
        """Commit nothing meanwhile, so that all that changes goes into one commit, and batch."""
        before, self._committing, self._whole = self._committing, True, True
        try:
            yield
        finally:
            self._committing = before

    def save_all(self) -> bool:
        """Commit everything, and with ``ALTSCHED_SYNC`` wait until the disk has it."""
        return self.commit_all() and (self._syncer is None or self.force())

    def force(self) -> bool:
        """Force what was committed to the disk, and wait for it; whether that succeeded."""
        try:
            self._force()
        except (StoreError, JobdirLostError, FrontierFailedError) as error:
            self._note_unsynced(error)
            return False
        return True

    def _force(self, *, anew: bool = False) -> None:
        if self._must_reopen:
            # After a sync that failed, a second one may succeed for nothing.
            self._recover()
        if self._syncer is None:
            self._frontier.run.sync()
        elif self._syncer.finish(self._number, anew=anew):
            self._announce(self._number)

    def save_notes(self, notes: Mapping[str, bytes]) -> None:
        """Store *notes* alone, and force them to the disk; AltschedError: that is not possible."""
        self._frontier.run.check_owner()
        if self._must_reopen:
            self._recover()
        self._frontier.run.write_notes(notes)
        self._force(anew=True)

    def note_committed(self, number: int) -> None:
        """The frontier has stored commit *number*."""
        self._number = number
        if not self._committing:
            if self._sent_at is not None:
                self._pace.note_elsewhere(self._now() - self._sent_at)
                self._sent_at = None
            self._report_commit()

    def is_durable(self, position: int) -> bool:
        """Whether all that was added up to *position* survives what the settings ask for."""
        # What is on a server is synced there.
        is_synced = self._syncer is None or self._syncer.position >= position
        is_synced |= not self._frontier.job.stored_here
        return is_synced and self._frontier.is_durable(position)

    def _report_commit(self) -> None:
        self._crawler.stats.inc_value("altsched/commit/count")
        self._status.note()
        if self._syncer is None:
            self._announce(self._number)
        else:
            position = self._frontier.position
            is_complete = self._frontier.is_durable(position)
            self._syncer.ask(self._number, position if is_complete else None)

    def _collect(self, syncer: Syncer) -> None:
        try:
            number = syncer.collect()
        except (StoreError, FrontierFailedError) as error:
            self._note_unsynced(error)
            return
        if number is not None:
            self._pace.note_elsewhere(syncer.took)
            self._announce(number)

    def _note_unsynced(self, error: StoreError | JobdirLostError | FrontierFailedError) -> None:
        if not isinstance(error, FrontierFailedError):
            self.note_failure(error)
        elif not self._has_failed:
            self._has_failed = self._closing = True
            close_failed(self._engine, self._spider, error)

    def finish(self) -> None:
        """Commit all that is left; AltschedError: it could not be, and is not retried any more."""
        self._end()
        if self._committing:
            raise CommitPostponedError("The crawl was closed from inside a commit.")
        try:
            self._commit_rest()
        except StoreError:
            # It may be the engine of the store alone that still refuses.
            self._must_reopen = True
            self._commit_rest()
        if self._syncer is not None:
            try:
                try:
                    self._force()
                except StoreError:
                    if self._syncer.is_running:
                        raise
                    self._must_reopen = True
                    self._force()
            except FrontierFailedError as error:
                self._note_unsynced(error)
                raise

    def _commit_rest(self) -> None:
        while not self._commit(wait=True):
            pass

    def stop(self) -> None:
        self._end()
        if self._syncer is not None:
            self._syncer.stop()

    def _end(self) -> None:
        self._closing = True
        planned, self._next = self._next, None
        if planned is not None:
            planned.cancel()

    def note_failure(self, error: AltschedError, *, reading: bool = False) -> None:
        """A read or write failed: the crawl continues in memory, for a while."""
        self._crawler.stats.inc_value("altsched/commit/failed")
        self._end_stall()
        now, timeout = self._now(), self._config.commit_timeout
        self._due_at, self._must_wait = now + _RETRY_AFTER, True
        self.unreadable |= reading
        if self.failing_since is None:
            self.failing_since = now
        is_damaged, reason = isinstance(error, StoreDamagedError), None
        if isinstance(error, JobdirLostError):
            reason = "jobdir_lost"
        elif is_damaged and self._reopened_damaged:
            reason = "store_damaged"
        elif now - self.failing_since >= timeout:
            reason = "commit_failed"
        if reason is not None:
            if not self._closing:
                self._closing = True
                self._reports.log(messages.CLOSES, reason=reason, error=error)
                self._engine.close_spider(self._spider, reason)
            return
        if now >= self._log_at:
            self._log_at = now + _LOG_EVERY
            changes = self._frontier.pressure.unsaved
            self._reports.log(messages.FAILING, error=error, changes=changes, timeout=timeout)
        if isinstance(error, StoreError):
            # RocksDB itself resumes writing only after ENOSPC, and if much space is free.
            self._must_reopen = True
            self._met_damage |= is_damaged

    def _note_stall(self, error: StoreStalledError) -> None:
        """The store has no room for a commit now: it is asked again soon."""
        self._crawler.stats.inc_value("altsched/commit/stalled")
        now, pressure = self._now(), self._frontier.pressure
        self._must_wait, self._due_at = True, now + _STALLED_FOR
        if pressure.stalled_since is None:
            pressure.stalled_since = now
        seconds = now - pressure.stalled_since
        if seconds >= _LOG_EVERY and now >= self._log_at:
            self._log_at = now + _LOG_EVERY
            self._reports.log(messages.BUSY, error=error, changes=pressure.unsaved, seconds=seconds)

    def _end_stall(self) -> float:
        """For how many seconds the store was busy, which it is no more."""
        pressure = self._frontier.pressure
        if pressure.stalled_since is None:
            return 0.0
        seconds, pressure.stalled_since = self._now() - pressure.stalled_since, None
        if seconds >= _LOG_EVERY:  # it was logged, and a failure that follows is to be, too
            self._log_at = 0.0
        self._engine.wake()  # what was held back may be leased
        return seconds

    def _prepare_others(self) -> None:
        """Make other components flush their data; an error is not logged at every try."""
        results = self._crawler.signals.send_catch_log(
            frontier_committing, spider=self._spider, dont_log=Exception
        )
        for receiver, result in results:
            if isinstance(result, Failure):
                if isinstance(result.value, AltschedError):
                    raise result.value
                problem = f"raised {result.getErrorMessage()}."
            elif inspect.isawaitable(result):
                if inspect.iscoroutine(result):
                    result.close()
                problem = (
                    "is asynchronous. Make it a plain function that returns when it has written."
                )
            else:
                continue
            raise CommitPostponedError(
                f"The commit was postponed: {receiver}, a handler of frontier_committing, {problem}"
            )

    def _announce(self, number: int) -> None:
        self._crawler.signals.send_catch_log(frontier_committed, spider=self._spider, commit=number)
