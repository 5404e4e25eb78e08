"""A store that cannot be read or written: how long a crawl goes on without it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..errors import AltschedError, JobdirLostError, StoreDamagedError, StoreError
from ..frontier import Frontier
from ..inflection import inflect

if TYPE_CHECKING:
    from scrapy import Spider
    from scrapy.crawler import Crawler

logger = logging.getLogger(__name__)

#: Reason for closing a spider if its store has to be repaired.
STORE_DAMAGED = "store_damaged"
#: Seconds between two log lines about commits that keep failing.
_LOG_EVERY = 60.0


class Outage:
    """Whether the store of a crawl fails, since when, and what is said of it.

    :param now: the time in seconds, monotonic.
    :param timeout: seconds of failure after which the spider is closed.
    :ivar unreadable: whether a read failed, and none has succeeded since: a commit alone ends no
        outage then.
    :ivar must_reopen: whether the store is to be reopened before the next commit.
    """

    def __init__(
        self,
        crawler: Crawler,
        spider: Spider,
        frontier: Frontier,
        now: Callable[[], float],
        timeout: float,
    ) -> None:
        self._crawler = crawler
        self._spider = spider
        self._frontier = frontier
        self._now = now
        self._timeout = timeout
        self._since: float | None = None
        self._log_at = 0.0
        self._was_logged = False
        #: Whether the store was found damaged, and whether it was reopened since.
        self._met_damage = False
        self._reopened_damaged = False
        self.unreadable = False
        self.must_reopen = False

    @property
    def is_on(self) -> bool:
        """Whether the last commit or read failed."""
        return self._since is not None

    def note_failure(self, error: AltschedError, *, reading: bool) -> str | None:
        """A read or write failed; why the spider is to be closed, if going on is of no use."""
        now = self._now()
        self._crawler.stats.inc_value("altsched/commit/failed")
        self.unreadable |= reading
        if self._since is None:
            self._since = now
        if isinstance(error, JobdirLostError):
            return "jobdir_lost"
        if isinstance(error, StoreDamagedError) and self._reopened_damaged:
            return STORE_DAMAGED
        if now - self._since >= self._timeout:
            return "commit_failed"
        if now >= self._log_at:
            self._log_at = now + _LOG_EVERY
            self._was_logged = True
            changes = self._frontier.pressure.unsaved
            logger.error(
                "%(error)s The crawl continues in memory and tries again; %(changes)d %(are)s not"
                " saved yet. After %(timeout)g s of failure (ALTSCHED_COMMIT_TIMEOUT) the spider is"
                " closed.",
                {
                    "error": error,
                    "changes": changes,
                    "are": inflect(changes, "change is", "changes are"),
                    "timeout": self._timeout,
                },
                extra={"spider": self._spider},
            )
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
            logger.info(
                "The frontier is saved again, after %(seconds).0f s of failing commits",
                {"seconds": self._now() - self._since},
                extra={"spider": self._spider},
            )
        self._since = None
        return True
