"""A store that cannot be read or written: how long a crawl goes on without it."""

from __future__ import annotations

from ..errors import AltschedError, JobdirLostError, StoreDamagedError, StoreError
from ..frontier import Frontier
from . import messages
from .setup import Setup

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
