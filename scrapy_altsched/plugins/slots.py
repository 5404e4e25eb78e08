"""Download slots whose sites ask to be left alone, or do not answer."""

from __future__ import annotations

from functools import cached_property
from time import monotonic
from typing import TYPE_CHECKING, Any

from scrapy.utils.misc import load_object

from ..engine.engine import current_scheduler, ignored_responses
from ..requests import FOLLOWS
from ..settings import Config
from .breaker import Breaker
from .retry_after import retry_after_of

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.crawler import Crawler
    from scrapy.http import Response
    from typing_extensions import Self

_BUSY = (429, 503)


class SlotMiddleware:
    """For ``DOWNLOADER_MIDDLEWARES``, nearer to the downloader than the retry middleware.

    A response with the status 429 or 503 and ``Retry-After`` defers its download slot for so long.
    After ``ALTSCHED_BREAKER`` responses with these statuses, or failed downloads, in a row the slot
    is deferred, too, and what was asked of it goes back without having cost a try.  Responses that
    the spider has asked for (``handle_httpstatus_list``) are good ones.
    """

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        exceptions = crawler.settings.getlist("RETRY_EXCEPTIONS")
        self._failures = tuple(map(load_object, exceptions))
        self._is_ignored = ignored_responses(crawler)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Scrapy's interface of components."""
        return cls(crawler)

    @cached_property
    def _breaker(self) -> Breaker:
        # The scheduler has checked the settings by now, and told what is wrong with them.
        config = Config.from_settings(self._crawler.settings, disk=None)
        return Breaker(config.breaker, config.breaker_delay, self._defer, monotonic)

    def process_response(
        self,
        request: Request,
        response: Response,
        spider: Any = None,  # noqa: ARG002  (Scrapy before 2.14)
    ) -> Request | Response:
        """Scrapy's interface of downloader middlewares."""
        slot = request.meta.get("download_slot")
        if slot is None:
            return response
        # As the engine does later.
        response.request = request
        if response.status not in _BUSY or not self._is_ignored(response):
            self._breaker.note_good(slot)
            return response
        if seconds := retry_after_of(self._crawler).read(response):
            self._defer(slot, seconds)
        return self._put_back(request, slot) or response

    def process_exception(
        self,
        request: Request,
        exception: Exception,
        spider: Any = None,  # noqa: ARG002  (Scrapy before 2.14)
    ) -> Request | None:
        """Scrapy's interface of downloader middlewares."""
        slot = request.meta.get("download_slot")
        if slot is None or not isinstance(exception, self._failures):
            return None
        return self._put_back(request, slot)

    def _put_back(self, request: Request, slot: str) -> Request | None:
        """The request once more, if its slot is left alone now."""
        if not self._breaker.note_bad(slot):
            return None
        again = request.replace(dont_filter=True)
        again.meta[FOLLOWS] = True
        assert self._crawler.stats is not None
        self._crawler.stats.inc_value("altsched/breaker/put_back")
        return again

    def _defer(self, slot: str, seconds: float) -> bool:
        scheduler = current_scheduler(self._crawler)
        defer = getattr(scheduler, "defer_slot", None)
        return defer is not None and defer(slot, seconds)
