"""When to commit, and what to do when it fails."""

from __future__ import annotations

import inspect
import logging
import time
from collections import deque
from collections.abc import Callable

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
from .pace import Pace
from .setup import Setup
from .syncing import Syncer

logger = logging.getLogger(__name__)

#: Seconds after which a failed commit is retried.
_RETRY_AFTER = 1.0
#: Seconds after which a commit that RocksDB had no room for is retried.
_STALLED_FOR = 0.1
#: Seconds between two log lines about commits that keep failing.
_LOG_EVERY = 60.0


class Outage:
    """Whether the store of a crawl fails, since when, and what is said of it.

    :ivar unreadable: whether a read failed, and none has succeeded since: a commit alone ends no
        outage then.
    :ivar must_reopen: whether the store is to be reopened before the next commit.
    """

    def __init__(self, setup: Setup, frontier: Frontier) -> None:
        self._stats, self._reports = setup.crawler.stats, setup.reports
        self._frontier = frontier
        self._now, self._timeout = setup.clock.monotonic, setup.config.commit_timeout
        self._since: float | None = None
        self._log_at = 0.0
        self._was_logged = False
        #: Whether the store was found damaged, and whether it was reopened since.
        self._met_damage = self._reopened_damaged = False
        self.unreadable = self.must_reopen = False

    @property
    def is_on(self) -> bool:
        """Whether the last commit or read failed."""
        return self._since is not None

    def note_failure(self, error: AltschedError, *, reading: bool) -> str | None:
        """A read or write failed; why the spider is to be closed, if going on is of no use."""
        now = self._now()
        self._stats.inc_value("altsched/commit/failed")
        self.unreadable |= reading
        if self._since is None:
            self._since = now
        if isinstance(error, JobdirLostError):
            return "jobdir_lost"
        if isinstance(error, StoreDamagedError) and self._reopened_damaged:
            return "store_damaged"
        if now - self._since >= self._timeout:
            return "commit_failed"
        if now >= self._log_at:
            self._log_at = now + _LOG_EVERY
            self._was_logged = True
            changes, timeout = self._frontier.pressure.unsaved, self._timeout
            self._reports.log(messages.FAILING, error=error, changes=changes, timeout=timeout)
        if isinstance(error, StoreError):
            # RocksDB itself resumes writing only after ENOSPC, and if much space is free.
            self.must_reopen = True
            self._met_damage |= isinstance(error, StoreDamagedError)
        return None

    def note_reopened(self) -> None:
        """The store was reopened: what is still damaged then is damaged on the disk."""
        self.must_reopen = False
        self._reopened_damaged = self._met_damage

    def note_success(self) -> bool:
        """A commit succeeded; whether that has ended the outage."""
        if self._since is None or self.unreadable:
            return False
        if self._was_logged:
            self._was_logged = False
            self._reports.log(messages.SAVED_AGAIN, seconds=self._now() - self._since)
        self._since = None
        return True


class Committer:
    """Commits a frontier when it is time to.

    Finished requests and notes become durable only here, and together: the frontier learns which
    requests are done (*settle*), other components flush their data, the notes are captured, and one
    batch stores it all, before any other code of the crawl runs.
    """

    def __init__(
        self, setup: Setup, frontier: Frontier, states: ResumeStates, settle: Callable[[], None]
    ) -> None:
        self._crawler, self._spider, self._engine = setup.crawler, setup.spider, setup.engine
        self._reports, self._config = setup.reports, setup.config
        config = setup.config
        self._frontier, self._states, self._settle = frontier, states, settle
        self._clock, self._now = setup.clock, setup.clock.monotonic
        self._pace = Pace(config.commit_interval, fixed=config.keeps_interval)
        #: The next call of the timer, as a full or paused engine may not call for a long time.
        self._next: Call | None = None
        self._due_at = self._now() + self._pace.pause
        self._committing = self._closing = False
        #: Number of the last commit that is stored.
        self._number = 0
        #: When a commit was handed over that is stored elsewhere, and not there yet.
        self._sent_at: float | None = None
        #: Whether the last commit failed, or RocksDB had no room for it: only time matters then.
        self._must_wait = False
        self.outage = Outage(setup, frontier)
        #: Whether the thread that syncs has died.
        self._has_failed = False
        self._syncer = Syncer(frontier.sync) if config.sync else None
        #: Number of each complete commit that the disk may not have yet, and up to where it goes.
        self._unsynced: deque[tuple[int, int]] = deque()
        #: Up to where the disk has everything, if that is waited for.
        self._synced_position = 0

    def start(self) -> None:
        """Start the timer; from now on the stats show the job's progress."""
        self._reports.set_counts(self._frontier.counts())
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

    def commit_if_due(self, *, urgent: bool = False) -> None:
        """Commit if it is time to, enough has changed, or the change is *urgent*."""
        if self._syncer is not None:
            self._collect(self._syncer)
        frontier = self._frontier
        if self._now() >= self._due_at or (
            not self._must_wait
            and (
                urgent
                or frontier.pressure.urgent
                or frontier.pressure.changes >= self._config.commit_every
            )
        ):
            self.commit()

    def commit(self) -> bool:
        """Commit now what can be committed in one batch; whether nothing is left.

        A failure is logged and counted, and the commit is retried later.

        :raises ForkedError: called in a forked child process.
        """
        if self._committing:
            return False
        self._committing = True
        try:
            return self._commit()
        except StoreStalledError:
            self._crawler.stats.inc_value("altsched/commit/stalled")
            self._must_wait = True
            self._due_at = self._now() + _STALLED_FOR
        except ForkedError:
            raise
        except AltschedError as error:
            self.note_failure(error)
        finally:
            self._committing = False
        return False

    def _commit(self, *, wait: bool = False) -> bool:
        frontier = self._frontier
        frontier.check_owner()
        if self.outage.must_reopen:
            self._recover()
            self.outage.note_reopened()
        before, is_done = self._number, True
        began, busy = self._now(), time.thread_time()
        self._settle()
        has_changes = frontier.has_changes() or frontier.has_changes(self._states.capture())
        if has_changes:
            self._prepare_others()
            # Only after the others have written: a note may say how far they got.
            is_done = frontier.commit(self._states.capture(), wait=wait)
            if is_done:
                self._states.note_commit()
            # What is stored elsewhere is on its way, and a further commit would do no more.
            is_done |= not frontier.job.stored_here
        if self.outage.note_success():
            self._engine.wake()
        self._must_wait = self.outage.is_on
        if self._number != before:
            self._report_commit()
        elif has_changes and self._sent_at is None:
            self._sent_at = began
        if has_changes:
            self._pace.note_commit(time.thread_time() - busy, self._now() - began)
        pause = self._pace.pause if is_done else 0
        self._due_at = self._now() + pause
        if has_changes and self._next is not None:
            # The scheduler may not be called again for long, and there may be more by then.
            self._next.cancel()
            self._call_after(pause)
        return is_done

    def _recover(self) -> None:
        """Reopen the store; what was not forced to the disk is written again, and forced."""
        if self._syncer is not None:
            self._syncer.discard(_RETRY_AFTER)
        self._frontier.recover()
        if self._syncer is not None:
            self._syncer.ask(self._number)

    def commit_all(self) -> bool:
        """Commit everything that can be committed now; whether nothing is left."""
        while self._frontier.has_changes(self._states.capture()):
            before = self._number
            self.commit()
            if self._number == before:
                return False
        return True

    def force(self) -> bool:
        """Force what was committed to the disk, and wait for it; whether that succeeded."""
        try:
            if self._syncer is None:
                self._frontier.sync()
            else:
                self._syncer.finish(self._number)
                self._announce(self._number)
        except (StoreError, FrontierFailedError) as error:
            self._note_unsynced(error)
            return False
        return True

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
        is_synced = self._syncer is None or self._synced_position >= position
        is_synced |= not self._frontier.job.stored_here
        return is_synced and self._frontier.is_durable(position)

    def _report_commit(self) -> None:
        self._crawler.stats.inc_value("altsched/commit/count")
        self._reports.set_counts(self._frontier.counts())
        if self._syncer is None:
            self._announce(self._number)
        else:
            if self._frontier.is_durable(self._frontier.position):
                self._unsynced.append((self._number, self._frontier.position))
            self._syncer.ask(self._number)

    def _collect(self, syncer: Syncer) -> None:
        try:
            number = syncer.collect()
        except (StoreError, FrontierFailedError) as error:
            self._note_unsynced(error)
            return
        if number is not None:
            self._pace.note_elsewhere(syncer.took)
            self._announce(number)

    def _note_unsynced(self, error: StoreError | FrontierFailedError) -> None:
        if isinstance(error, StoreError):
            self.note_failure(error)
        elif not self._has_failed:
            self._has_failed = self._closing = True
            close_failed(self._engine, self._spider, error)

    def finish(self) -> None:
        """Commit all that is left; nothing is retried any more.

        :raises AltschedError: it could not be committed.
        """
        self._end()
        if self._committing:
            raise CommitPostponedError("The crawl was closed from inside a commit.")
        try:
            self._commit_rest()
        except StoreError:
            # It may be RocksDB alone that still refuses.
            self.outage.must_reopen = True
            self._commit_rest()
        if self._syncer is not None:
            try:
                try:
                    self._syncer.finish(self._number)
                except StoreError:
                    if self._syncer.is_running:
                        raise
                    self._recover()
                    self._syncer.finish(self._number)
            except FrontierFailedError as error:
                self._note_unsynced(error)
                raise
            self._announce(self._number)

    def _commit_rest(self) -> None:
        while not self._commit(wait=True):
            pass

    def stop(self) -> None:
        """Free everything; may be called at any time."""
        self._end()
        if self._syncer is not None:
            self._syncer.stop()

    def _end(self) -> None:
        self._closing = True
        planned, self._next = self._next, None
        if planned is not None:
            planned.cancel()

    def note_failure(self, error: AltschedError, *, reading: bool = False) -> None:
        """A read or write of the store failed: the crawl continues in memory, for a while."""
        self._due_at = self._now() + _RETRY_AFTER
        self._must_wait = True
        reason = self.outage.note_failure(error, reading=reading)
        if reason is not None and not self._closing:
            self._closing = True
            self._reports.log(messages.CLOSES, reason=reason, error=error)
            self._engine.close_spider(self._spider, reason)

    def _prepare_others(self) -> None:
        """Make other components flush their data; ``send_catch_log`` swallows errors."""
        # Errors are logged at a sane rate here, not at every try there.
        results = self._crawler.signals.send_catch_log(
            frontier_committing, spider=self._spider, dont_log=Exception
        )
        for receiver, result in results:
            problem = None
            if isinstance(result, Failure):
                if isinstance(result.value, CommitPostponedError):
                    raise result.value
                problem = f"raised {result.getErrorMessage()}."
            elif inspect.isawaitable(result) or hasattr(result, "addCallback"):
                if inspect.iscoroutine(result):
                    result.close()
                problem = (
                    "is asynchronous. Make it a plain function that returns when it has written."
                )
            if problem is not None:
                raise CommitPostponedError(
                    f"The commit was postponed: {receiver}, a handler of frontier_committing,"
                    f" {problem}"
                )

    def _announce(self, number: int) -> None:
        while self._unsynced and self._unsynced[0][0] <= number:
            self._synced_position = self._unsynced.popleft()[1]
        self._crawler.signals.send_catch_log(frontier_committed, spider=self._spider, commit=number)
