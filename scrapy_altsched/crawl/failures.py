"""Why pages have failed: no response, a status that is retried, an exception in a callback.

A request has failed that Scrapy goes on without, and of which it says so in its log only.  A
response with a status that the spider has asked for (``handle_httpstatus_list``) is a page.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scrapy.exceptions import IgnoreRequest
from scrapy.signals import spider_error
from twisted.python.failure import Failure

from ..engine.components import ignored_responses
from ..frontier.entry import PageFailure, Reason
from .in_progress import InProgress
from .setup import Setup

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.http import Response

#: Most characters of an exception that are kept.
_MOST_TEXT = 300
#: By what Scrapy counts the retries of a page.
_RETRIES = "retry_times"
_STATS = {
    Reason.DOWNLOAD: "altsched/failed/download",
    Reason.STATUS: "altsched/failed/status",
    Reason.CALLBACK: "altsched/failed/callback",
}


class Failures:
    """Tells leases how their requests have failed, before they end.

    Whatever else happens then, the first failure of a request is the one that counts.
    """

    def __init__(self, setup: Setup, in_progress: InProgress) -> None:
        crawler = setup.crawler
        self._in_progress, self._tally = in_progress, setup.tally
        self._is_ignored = ignored_responses(crawler)
        self._retried = {int(code) for code in crawler.settings.getlist("RETRY_HTTP_CODES")}
        setup.engine.watch_results(self._note_result)
        crawler.signals.connect(self._note_error, spider_error)

    def _note_result(self, request: Request, result: Response | Failure) -> None:
        if isinstance(result, Failure):
            # An errback deals with what was not worth a retry.
            is_handled = request.errback is not None and _RETRIES not in request.meta
            if not is_handled and not isinstance(result.value, IgnoreRequest):
                self._note(request, Reason.DOWNLOAD, _describe(result))
        elif result.status in self._retried and self._is_ignored(result):
            self._note(request, Reason.STATUS, f"HTTP status {result.status}", result.status)

    def _note_error(self, failure: Failure, response: Response | Any) -> None:
        request: Request | None = getattr(response, "request", None)
        if request is not None:
            status = getattr(response, "status", 0)
            self._note(request, Reason.CALLBACK, _describe(failure), status)

    def _note(self, request: Request, reason: Reason, text: str, status: int = 0) -> None:
        retries = request.meta.get(_RETRIES, 0)
        tries = retries + 1 if isinstance(retries, int) else 1
        if self._in_progress.note_failure(request, PageFailure(reason, text, status, tries)):
            self._tally[_STATS[reason]] += 1


def _describe(failure: Failure) -> str:
    text = f"{failure.type.__name__}: {failure.value}" if failure.type else str(failure.value)
    # It may be the site's own: what would steer a terminal is not to reach one.
    return "".join(
        it if it.isprintable() else "\ufffd" for it in " ".join(text.split())[:_MOST_TEXT]
    )
