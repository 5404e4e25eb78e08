"""Pages that were given up: Scrapy goes on without them, and their requests are done.

A page counts once, and for good from the commit of its end on.  What its errback does makes no page
of it; a response with a status that the spider has asked for (``handle_httpstatus_list``) is one.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from scrapy.exceptions import IgnoreRequest
from scrapy.signals import spider_error
from twisted.python.failure import Failure

from ..engine.engine import ignored_responses
from .messages import GIVEN_UP
from .setup import Setup

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.http import Response

#: Why -> what is said of it.
_REASONS = {
    "download": "could not be downloaded",
    "status": "had an HTTP status of RETRY_HTTP_CODES each time",
    "callback": "led to an exception in a callback or errback",
}


def count_given_up(note: Callable[[str], bytes | None]) -> Counter[str]:
    """Why -> how many pages, as a job notes it: JSON."""
    return Counter(json.loads(note("given_up") or b"{}"))


class GivenUp:
    """How many pages of a job were given up, and why."""

    def __init__(self, setup: Setup) -> None:
        crawler = setup.crawler
        self._engine, self._stats, self._reports = setup.engine, crawler.stats, setup.reports
        self._counts: Counter[str] = Counter()
        self._is_ignored = ignored_responses(crawler)
        self._retried = {int(code) for code in crawler.settings.getlist("RETRY_HTTP_CODES")}
        #: Those of which more may become known, until they are over.
        self._in_progress: dict[Request, str] = {}
        setup.engine.watch_results(self._note_result)
        crawler.signals.connect(self._note_error, spider_error)

    def restore(self, note: Callable[[str], bytes | None]) -> None:
        self._counts = count_given_up(note)
        self._update_stats()

    def capture(self) -> dict[str, bytes]:
        return {"given_up": json.dumps(self._counts, sort_keys=True).encode()}

    def settle(self) -> None:
        """Count those that are over by now."""
        if self._in_progress:
            in_progress = self._engine.in_progress
            for request in [it for it in self._in_progress if it not in in_progress]:
                self._counts[self._in_progress.pop(request)] += 1
            self._update_stats()

    def log(self) -> None:
        why = (f"{self._counts[it]} {words}" for it, words in _REASONS.items() if self._counts[it])
        self._reports.log(GIVEN_UP, count=self._counts.total(), why=", ".join(why))

    def _update_stats(self) -> None:
        # As words: the reference of all stats is compared with the names in this line.
        for reason in ("download", "status", "callback"):
            if self._counts[reason]:
                self._stats.set_value(f"altsched/given_up/{reason}", self._counts[reason])
        if self._counts:
            self._stats.set_value("altsched/given_up", self._counts.total())

    def _note_result(self, request: Request, result: Response | Failure) -> None:
        if isinstance(result, Failure):
            if not isinstance(result.value, IgnoreRequest):
                self._in_progress[request] = "download"
        elif result.status in self._retried and self._is_ignored(result):
            self._in_progress[request] = "status"

    def _note_error(self, response: Response | Any) -> None:
        request: Request | None = getattr(response, "request", None)
        if request is not None:
            self._in_progress.setdefault(request, "callback")
