"""The seen set of a frontier, as a ``DUPEFILTER_CLASS``."""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from typing import TYPE_CHECKING

from scrapy.dupefilters import BaseDupeFilter
from scrapy.utils.python import global_object_name
from scrapy.utils.request import (
    RequestFingerprinter,
    RequestFingerprinterProtocol,
    referer_str,
)

from .canonical import Rules
from .engine.engine import Engine, current_scheduler
from .errors import AltschedError, StoreStalledError
from .frontier import Components, Frontier, Options
from .frontier.options import SYSTEM_CLOCK
from .inflection import inflect
from .maintenance.opening import open_frontier
from .requests.fingerprint import apply_rules, shorten
from .requests.identity import PageIdentity, describe, page_of
from .settings import Config

if TYPE_CHECKING:
    from scrapy import Request, Spider
    from scrapy.crawler import Crawler
    from twisted.internet.defer import Deferred
    from typing_extensions import Self

logger = logging.getLogger(__name__)
#: For messages that Scrapy logs as well: filters on the logger's name still match.
_scrapy_logger = logging.getLogger("scrapy.dupefilters")

#: Seconds until a failed commit is retried, and reported if it fails again.
_RETRY_AFTER = 60.0


class DupeFilter(BaseDupeFilter):
    """Refuses a request whose fingerprint was seen.

    Under this package's scheduler it shares the scheduler's frontier, and a request becomes seen
    and pending atomically.  Under any other it is a plain, exact filter, on disk if JOBDIR is set.

    :param path: the job directory, or ``None``.
    """

    def __init__(
        self,
        path: str | None = None,
        debug: bool = False,
        *,
        fingerprinter: RequestFingerprinterProtocol | None = None,
        crawler: Crawler | None = None,
    ) -> None:
        self.fingerprinter: RequestFingerprinterProtocol = fingerprinter or RequestFingerprinter()
        self.debug, self.logdupes = debug, True
        self._path, self._crawler = path, crawler
        self._frontier: Frontier | None = None
        self._tally: MutableMapping[str, int] | None = None
        self.use_rules(Rules())
        self._is_owner = False
        self._interval = self._due_at = 0.0

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        path, debug = crawler.settings["JOBDIR"], crawler.settings.getbool("DUPEFILTER_DEBUG")
        made_by = crawler.request_fingerprinter
        return cls(path or None, debug, fingerprinter=made_by, crawler=crawler)

    def use_rules(self, rules: Rules) -> None:
        stats = getattr(self._crawler, "stats", None)
        self._make = apply_rules(self.fingerprinter, rules, stats).fingerprint
        is_ours = type(self).fingerprint is DupeFilter.fingerprint
        #: Whether look-up and mark may be one atomic step with the rest of an add.
        is_exact = type(self).request_seen is DupeFilter.request_seen
        is_scrapys = type(self.fingerprinter) is RequestFingerprinter
        #: Which page a request is, for a scheduler that shares its frontier.
        self.identity = PageIdentity(
            self.fingerprint,
            describe(self.fingerprinter, rules),
            page_of if is_ours and is_exact and not rules and is_scrapys else None,
            None if is_exact else self.request_seen,
            is_hashed=is_ours,
        )

    def share(self, frontier: Frontier, tally: MutableMapping[str, int]) -> None:
        """Use a scheduler's frontier, and its tally of stats; called before :meth:`open`."""
        self._frontier, self._tally = frontier, tally

    def open(self) -> Deferred[None] | None:
        """Open a frontier for its seen set, unless a scheduler shares its own."""
        if self._frontier is None:
            self._open()
        return None

    def _open(self) -> Frontier:
        crawler, path = self._crawler, self._path
        spider = None if crawler is None else crawler.spider
        try:
            if crawler is not None:
                config = Config.from_settings(crawler.settings, disk=None)
                self._interval = config.commit_interval
                self.use_rules(config.rules_of(spider))
                if Engine(crawler).interactive:
                    path = None
            components = Components(scheduler=self._scheduler_name())
            owner = "dupefilter" if spider is None else spider.name
            self._frontier = frontier = open_frontier(path, owner, Options(components=components))
        except AltschedError as error:
            logger.critical("%s", error, extra={"spider": spider})
            raise
        self._is_owner = True
        if path is not None and crawler is not None:
            logger.warning(
                "JOBDIR is set, and SCHEDULER is %(scheduler)s, not 'scrapy_altsched.Scheduler':"
                " requests that it loses when the process dies remain marked as seen. Set"
                " SCHEDULER = 'scrapy_altsched.Scheduler' to lose none. If an addon sets the other"
                " one, put 'scrapy_altsched.Addon' after it in ADDONS.",
                {"scheduler": components.scheduler},
                extra={"spider": spider},
            )
        if path is not None and frontier.job.run > 1:
            settings = None if crawler is None else crawler.settings
            self.identity.warn_if_changed(frontier.run.note, path, spider, settings)
        if left := frontier.pending + frontier.delayed:
            requests = inflect(left, "request")
            logger.warning(
                "%(count)d pending %(requests)s in JOBDIR %(jobdir)s will not be crawled: set"
                " SCHEDULER = 'scrapy_altsched.Scheduler' to crawl them.",
                {"count": left, "requests": requests, "jobdir": path},
                extra={"spider": spider},
            )
        return frontier

    def _scheduler_name(self) -> str:
        if self._crawler is None:
            return "unknown"
        if (scheduler := current_scheduler(self._crawler)) is not None:
            return global_object_name(type(scheduler))
        return str(self._crawler.settings["SCHEDULER"])

    def fingerprint(self, request: Request) -> bytes:
        """The fingerprint of *request*, of at most 255 bytes."""
        return shorten(self._make(request))

    def request_seen(self, request: Request) -> bool:
        """Whether the page of *request* was seen; it is marked as seen now.

        :raises StoreError: the store could not be read.
        """
        frontier = self._frontier or self._open()
        seen = frontier.mark_seen(self.fingerprint(request))
        if self._is_owner and SYSTEM_CLOCK.monotonic() >= self._due_at:
            self._due_at = SYSTEM_CLOCK.monotonic() + self._commit(frontier)
        return seen

    def forget(self, request: Request) -> bool:
        """Forget that the page of *request* was seen; whether it was.

        The next request for it is crawled again.  A pending one stays pending.

        :raises StoreError: the store could not be read or written.
        """
        frontier = self._frontier or self._open()
        self.identity.forget_recent()
        was_seen = frontier.forget(self.fingerprint(request))
        if was_seen and self._is_owner:
            self._commit(frontier)
        return was_seen

    def _commit(self, frontier: Frontier) -> float:
        """Commit; returns the seconds until the next commit."""
        try:
            complete = frontier.commit(self.identity.notes())
        except StoreStalledError:
            return 0.1
        except AltschedError as error:
            # The request is already marked: to raise now would lose it.
            logger.error(
                "%(error)s What was seen since then is kept in memory; saving it is retried in"
                " %(seconds)g s and when the crawl ends.",
                {"error": error, "seconds": _RETRY_AFTER},
            )
            return _RETRY_AFTER
        return self._interval if complete else 0.0

    def close(self, reason: str) -> Deferred[None] | None:  # noqa: ARG002  (Scrapy's interface)
        if self._is_owner and self._frontier is not None:
            self._frontier.close()
        self._frontier, self._is_owner = None, False
        return None

    def log(self, request: Request, spider: Spider) -> None:
        """Log and count that *request* was refused, in Scrapy's words."""
        if self.debug or self.logdupes:
            message = "Filtered duplicate request: %(request)s - no more duplicates will be shown"
            message += " (see DUPEFILTER_DEBUG to show all duplicates)"
            if self.debug:
                message = "Filtered duplicate request: %(request)s (referer: %(referer)s)"
            self.logdupes = False
            values = {"request": request, "referer": referer_str(request)}
            _scrapy_logger.debug(message, values, extra={"spider": spider})
        if self._tally is not None:
            self._tally["dupefilter/filtered"] += 1
        else:
            spider.crawler.stats.inc_value("dupefilter/filtered")
