"""Pages that were given up: Scrapy goes on without them, and their requests are done.

A page counts once, and for good from the commit on that says that its request is done.  What its
errback does makes no page of it; a response with a status that the spider has asked for
(``handle_httpstatus_list``) is a page.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

from scrapy.exceptions import IgnoreRequest
from scrapy.signals import spider_error
from twisted.python.failure import Failure

from ..engine.engine import Engine, ignored_responses

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.crawler import Crawler
    from scrapy.http import Response

#: Name of the note that says how many were given up, and why: JSON.
NOTE = "given_up"
#: Why: there was no response; it had a status that is retried, each time; a callback or an errback
#: raised an exception.
DOWNLOAD, STATUS, CALLBACK = "download", "status", "callback"


def count_given_up(noted: bytes | None) -> Counter[str]:
    """Reason -> how many, as the note :data:`NOTE` says."""
    return Counter(json.loads(noted or b"{}"))


class GivenUp:
    """How many pages of a job were given up, and why.

    :param noted: the note :data:`NOTE` of earlier runs, or ``None``.
    :ivar counts: reason -> how many.
    """

    def __init__(self, crawler: Crawler, engine: Engine, noted: bytes | None) -> None:
        self.counts = count_given_up(noted)
        self._crawler = crawler
        self._engine = engine
        self._is_ignored = ignored_responses(crawler)
        self._retried = {int(code) for code in crawler.settings.getlist("RETRY_HTTP_CODES")}
        #: Those of which more may become known, until they are over.
        self._in_progress: dict[Request, str] = {}
        engine.watch_results(self._note_result)
        crawler.signals.connect(self._note_error, spider_error)
        self._update_stats()

    @property
    def note(self) -> bytes:
        """What is to be noted in the job."""
        return json.dumps(self.counts, sort_keys=True).encode()

    def settle(self) -> None:
        """Count those that are over by now."""
        if self._in_progress:
            in_progress = self._engine.in_progress
            for request in [it for it in self._in_progress if it not in in_progress]:
                self.counts[self._in_progress.pop(request)] += 1
            self._update_stats()

    def _update_stats(self) -> None:
        stats = self._crawler.stats
        # As words: the reference of all stats is compared with the names in this line.
        for reason in ("download", "status", "callback"):
            if self.counts[reason]:
                stats.set_value(f"altsched/given_up/{reason}", self.counts[reason])
        if self.counts:
            stats.set_value("altsched/given_up", self.counts.total())

    def _note_result(self, request: Request, result: Response | Failure) -> None:
        """What a downloaded request came to, retries and redirects excepted."""
        if isinstance(result, Failure):
            if not isinstance(result.value, IgnoreRequest):
                self._in_progress[request] = DOWNLOAD
        elif result.status in self._retried and self._is_ignored(result):
            self._in_progress[request] = STATUS

    def _note_error(self, response: Response | Any) -> None:
        """A callback or an errback has raised an exception."""
        request: Request | None = getattr(response, "request", None)
        if request is not None:
            self._in_progress.setdefault(request, CALLBACK)
