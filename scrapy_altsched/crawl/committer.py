"""When to commit, and what to do when it fails.

Whatever changes the frontier calls :meth:`Committer.commit_if_due`; a timer calls it too, since a
full or paused engine may not call the scheduler for a long time.
"""

from __future__ import annotations

import inspect
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from twisted.python.failure import Failure

from ..background import Background
from ..engine.engine import Engine
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
from ..frontier import Clock, Frontier
from ..frontier.contract import Progress
from ..inflection import inflect
from ..settings import Config
from ..signals import frontier_committed, frontier_committing
from .clock import Timer
from .failure import close_failed
from .pace import Pace
from .reports import set_counts

if TYPE_CHECKING:
    from scrapy import Spider
    from scrapy.crawler import Crawler

logger = logging.getLogger(__name__)

#: Reason for closing a spider if its store has to be repaired.
STORE_DAMAGED = "store_damaged"
#: Seconds between two log lines about commits that keep failing.
_LOG_EVERY = 60.0
#: Seconds after which a failed commit is retried.
_RETRY_AFTER = 1.0
#: Seconds for which the end of a crawl waits for the disk.
_SYNC_WITHIN = 60.0
#: Seconds after which a commit that RocksDB had no room for is retried.
_STALLED_FOR = 0.1


class Committer:
    """Commits a frontier when it is time to.

    Finished requests and notes become durable only here, and together: the frontier learns which
    requests are done, other components flush their data, the notes are taken, and one batch stores
    it all, before any other code of the crawl runs.

    :param clock: when it is time.
    :param settle: called before each commit: tells the frontier which requests are done.
    :param committed: called after each commit that has written the notes.
    :param notes: returns what is to be stored with the endings of requests, called after other
        components have flushed their data.
    """

    def __init__(
        self,
        crawler: Crawler,
        spider: Spider,
        frontier: Frontier,
        engine: Engine,
        config: Config,
        clock: Clock,
        settle: Callable[[], None],
        notes: Callable[[], Mapping[str, bytes]],
        committed: Callable[[], None],
    ) -> None:
        self._crawler = crawler
        self._spider = spider
        self._frontier = frontier
        self._engine = engine
        self._config = config
        self._settle = settle
        self._notes = notes
        self._committed = committed
        self._now = clock.monotonic
        self._pace = Pace(config.commit_interval, fixed=config.keeps_interval)
        self._timer = Timer(clock, config.commit_interval, self.commit_if_due)
        self._due_at = self._now() + self._pace.pause
        self._committing = False
        #: Number of the last commit that is stored.
        self._number = 0
        #: When a commit was handed over that is stored elsewhere, and not there yet.
        self._sent_at: float | None = None
        self._failing_since: float | None = None
        #: Whether RocksDB was behind with its own work at the last commit.
        self._stalled = False
        self._log_at = 0.0
        self._was_logged = False
        self._reopen = False
        #: Whether the store was found damaged, and whether it was reopened since.
        self._met_damage = False
        self._reopened_damaged = False
        #: Whether a read failed, and none has succeeded since: a commit alone ends no outage then.
        self.unreadable = False
        self._closing = False
        #: Whether the thread that syncs has died.
        self._has_failed = False
        self._syncer = _Syncer(frontier.sync) if config.sync else None
        #: Number of each complete commit that the disk may not have yet, and up to where it goes.
        self._unsynced: deque[tuple[int, int]] = deque()
        #: Up to where the disk has everything, if that is waited for.
        self._synced_position = 0

    def start(self) -> None:
        """Start the timer; from now on the stats show the job's progress."""
        set_counts(self._crawler.stats, self._frontier.counts())
        self._timer.start()

    def commit_if_due(self, *, urgent: bool = False) -> None:
        """Commit if it is time to, enough has changed, or the change is *urgent*.

        After a commit that failed, or that RocksDB had no room for, only the time matters.
        """
        if self._syncer is not None:
            self._collect(self._syncer)
        frontier = self._frontier
        if self._now() >= self._due_at or (
            self._failing_since is None
            and not self._stalled
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
            self._stalled = True
            self._due_at = self._now() + _STALLED_FOR
            return False
        except ForkedError:
            raise
        except AltschedError as error:
            self.note_failure(error)
            return False
        finally:
            self._committing = False

    def _commit(self, *, wait: bool = False) -> bool:
        frontier = self._frontier
        frontier.check_owner()
        if self._reopen:
            self._recover()
            self._reopen = False
            # What is still damaged after that is damaged on the disk.
            self._reopened_damaged = self._met_damage
        before = self._number
        progress = Progress(before, complete=True)
        began, busy = self._now(), time.thread_time()
        self._settle()
        has_changes = frontier.has_changes() or frontier.has_changes(self._notes())
        if has_changes:
            self._prepare_others()
            # Only after the others have written: a note may say how far they got.
            progress = frontier.commit(self._notes(), wait=wait)
            if progress.complete:
                self._committed()
        self._stalled = False
        self._note_success()
        is_done = progress.complete or progress.is_sent
        if self._number != before:
            self._report_commit()
        elif has_changes and self._sent_at is None:
            self._sent_at = began
        if has_changes:
            self._pace.note_commit(time.thread_time() - busy, self._now() - began)
        pause = self._pace.pause if is_done else 0
        self._due_at = self._now() + pause
        if has_changes:
            # The scheduler may not be called again for long, and there may be more by then.
            self._timer.flush_soon(pause)
        return is_done

    def _recover(self) -> None:
        """Reopen the store; what was not forced to the disk is written again, and forced."""
        if self._syncer is not None:
            self._syncer.discard(_RETRY_AFTER)
        self._frontier.recover()
        if self._syncer is not None:
            self._syncer.ask(self._number)

    def commit_all(self) -> bool:
        """Commit everything that can be committed now; whether nothing is left.

        :raises ForkedError: called in a forked child process.
        """
        while self._frontier.has_changes(self._notes()):
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
                self._syncer.finish(self._number, _SYNC_WITHIN)
                self._announce(self._number)
        except StoreError as error:
            self.note_failure(error)
            return False
        except FrontierFailedError as error:
            self._fail(error)
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
        if not self._frontier.is_durable(position):
            return False
        # What is on a server is synced there.
        is_here = self._frontier.job.shared is None
        return self._syncer is None or not is_here or self._synced_position >= position

    def _report_commit(self) -> None:
        self._crawler.stats.inc_value("altsched/commit/count")
        set_counts(self._crawler.stats, self._frontier.counts())
        if self._syncer is None:
            self._announce(self._number)
        else:
            if self._frontier.is_durable(self._frontier.position):
                self._unsynced.append((self._number, self._frontier.position))
            self._syncer.ask(self._number)

    def _collect(self, syncer: _Syncer) -> None:
        try:
            number = syncer.collect()
        except StoreError as error:
            self.note_failure(error)
            return
        except FrontierFailedError as error:
            self._fail(error)
            return
        if number is not None:
            self._pace.note_elsewhere(syncer.took)
            self._announce(number)

    def _fail(self, error: FrontierFailedError) -> None:
        if not self._has_failed:
            self._has_failed = self._closing = True
            close_failed(self._engine, self._spider, error)

    def finish(self) -> None:
        """Commit all that is left; nothing is retried any more.

        :raises AltschedError: it could not be committed.
        """
        self._timer.stop()
        self._closing = True
        if self._committing:
            raise CommitPostponedError("The crawl was closed from inside a commit.")
        try:
            self._commit_rest()
        except StoreError:
            # It may be RocksDB alone that still refuses.
            self._reopen = True
            self._commit_rest()
        if self._syncer is not None:
            try:
                self._force_last(self._syncer)
            except FrontierFailedError as error:
                self._fail(error)
                raise
            self._announce(self._number)

    def _force_last(self, syncer: _Syncer) -> None:
        try:
            syncer.finish(self._number, _SYNC_WITHIN)
        except StoreError:
            if syncer.is_running:
                raise
            self._recover()
            syncer.finish(self._number, _SYNC_WITHIN)

    def _commit_rest(self) -> None:
        while not self._commit(wait=True):
            pass

    def stop(self) -> None:
        """Free everything; may be called at any time."""
        self._timer.stop()
        self._closing = True
        if self._syncer is not None:
            self._syncer.stop()

    @property
    def failing(self) -> bool:
        """Whether the last commit failed; the next try is for :meth:`commit_if_due`."""
        return self._failing_since is not None

    def note_read(self) -> None:
        """The store can be read again."""
        self.unreadable = False

    def note_failure(self, error: AltschedError, *, reading: bool = False) -> None:
        """A read or write of the store failed: the crawl continues in memory, for a while."""
        now = self._now()
        self._due_at = now + _RETRY_AFTER
        self._crawler.stats.inc_value("altsched/commit/failed")
        self.unreadable |= reading
        if self._failing_since is None:
            self._failing_since = now
        reason = self._find_reason_to_close(error, now - self._failing_since)
        if reason is not None:
            self._close_spider(reason, error)
            return
        if now >= self._log_at:
            self._log_at = now + _LOG_EVERY
            self._was_logged = True
            self._log_failure(error)
        if isinstance(error, StoreError):
            # RocksDB itself resumes writing only after ENOSPC, and if much space is free.
            self._reopen = True
            self._met_damage |= isinstance(error, StoreDamagedError)

    def _find_reason_to_close(self, error: AltschedError, seconds: float) -> str | None:
        """What the spider is closed as, if it is of no use to go on after *seconds* of failure."""
        if isinstance(error, JobdirLostError):
            return "jobdir_lost"
        if isinstance(error, StoreDamagedError) and self._reopened_damaged:
            return STORE_DAMAGED
        return "commit_failed" if seconds >= self._config.commit_timeout else None

    def _log_failure(self, error: AltschedError) -> None:
        changes = self._frontier.pressure.unsaved
        logger.error(
            "%(error)s The crawl continues in memory and tries again; %(changes)d %(are)s not"
            " saved yet. After %(timeout)g s of failure (ALTSCHED_COMMIT_TIMEOUT) the spider is"
            " closed.",
            {
                "error": error,
                "changes": changes,
                "are": inflect(changes, "change is", "changes are"),
                "timeout": self._config.commit_timeout,
            },
            extra={"spider": self._spider},
        )

    def _note_success(self) -> None:
        if self._failing_since is None or self.unreadable:
            return
        if self._was_logged:
            self._was_logged = False
            logger.info(
                "The frontier is saved again, after %(seconds).0f s of failing commits",
                {"seconds": self._now() - self._failing_since},
                extra={"spider": self._spider},
            )
        self._failing_since = None
        self._engine.wake()

    def _close_spider(self, reason: str, error: AltschedError) -> None:
        if not self._closing:
            self._closing = True
            logger.error(
                "The spider is closed (%(reason)s): %(error)s",
                {"reason": reason, "error": error},
                extra={"spider": self._spider},
            )
            self._engine.close_spider(self._spider, reason)

    def _prepare_others(self) -> None:
        """Make other components flush their data; ``send_catch_log`` swallows errors."""
        # Errors are logged at a sane rate here, not at every try there.
        results = self._crawler.signals.send_catch_log(
            frontier_committing, spider=self._spider, dont_log=Exception
        )
        for receiver, result in results:
            if isinstance(result, Failure):
                if isinstance(result.value, CommitPostponedError):
                    raise result.value
                raise CommitPostponedError(
                    f"The commit was postponed: {receiver}, a handler of frontier_committing,"
                    f" raised {result.getErrorMessage()}."
                )
            if inspect.isawaitable(result) or hasattr(result, "addCallback"):
                if inspect.iscoroutine(result):
                    result.close()
                raise CommitPostponedError(
                    f"The commit was postponed: {receiver}, a handler of frontier_committing, is"
                    " asynchronous. Make it a plain function that returns when it has written."
                )

    def _announce(self, number: int) -> None:
        while self._unsynced and self._unsynced[0][0] <= number:
            self._synced_position = self._unsynced.popleft()[1]
        self._crawler.signals.send_catch_log(frontier_committed, spider=self._spider, commit=number)


class _Syncer:
    """Forces commits to the disk in a thread: unlike writes, that releases the GIL.

    :param sync: blocks until the disk has everything that was committed before.
    :ivar took: seconds that the last sync took.
    """

    def __init__(self, sync: Callable[[], None]) -> None:
        self._sync = sync
        self._thread: Background[None, float | StoreError] = Background(
            "altsched-sync", "has commits synced", self._work
        )
        #: Number of the commit that is being forced to the disk.
        self._running: int | None = None
        self._asked = 0
        self.took = 0.0
        self._is_stopped = False

    def _work(self, _: None) -> float | StoreError:
        began = time.monotonic()
        try:
            self._sync()
        except StoreError as error:
            return error
        return time.monotonic() - began

    def ask(self, number: int) -> None:
        """Ask for commit *number* and all before it to be forced to the disk."""
        self._asked = number
        if self._running is None:
            self._running = number
            self._thread.give(None)

    def collect(self, timeout: float = 0.0) -> int | None:
        """The number of a commit that has reached the disk since the last call.

        :param timeout: seconds to wait for it.
        :return: ``None``: there is none yet.
        :raises StoreError: forcing it failed.
        :raises FrontierFailedError: the thread has died.
        """
        if self._running is None:
            return None
        found = self._thread.take(timeout)
        if found is None:
            return None
        number, self._running = self._running, None
        if isinstance(found, StoreError):
            # Nothing is asked of that store again: a second sync would succeed, though the
            # operating system may have forgotten what to write.
            raise found
        self.took = found
        if self._asked > number:
            self.ask(self._asked)
        return number

    @property
    def is_running(self) -> bool:
        """Whether a sync has not been collected."""
        return self._running is not None

    def discard(self, timeout: float) -> None:
        """Wait for a sync that is running; whatever it did, it counts for nothing.

        :raises StoreError: it takes longer.
        """
        self._asked = 0
        if self._running is None:
            return
        try:
            done = self.collect(timeout)
        except (StoreError, FrontierFailedError):
            return
        if done is None:
            raise StoreError("The disk has not finished a sync. Check the disk.")

    def finish(self, number: int, timeout: float) -> None:
        """Have commit *number* forced to the disk, and wait for that.

        :param timeout: seconds for which the disk may do nothing.
        :raises StoreError: forcing it failed, or took longer.
        :raises FrontierFailedError: the thread has died.
        """
        self.ask(number)
        while (done := self.collect(timeout)) != number:
            if done is None:
                self._is_stopped = True
                raise StoreError(
                    f"The disk has not finished a sync for {timeout:g} s: what was written last may"
                    " not survive a power cut. Check the disk."
                )

    def stop(self) -> None:
        """Let the thread end; a sync that is running is waited for, for a while."""
        if not self._is_stopped:
            self._is_stopped = True
            self._thread.stop()
            self._thread.join(_SYNC_WITHIN)
