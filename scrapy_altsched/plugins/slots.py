"""Download slots whose sites ask to be left alone, or do not answer."""

from __future__ import annotations

import logging
from functools import cached_property, partial
from time import monotonic
from typing import TYPE_CHECKING, Any

from scrapy.utils.misc import load_object

from ..engine.components import ignored_responses
from ..engine.engine import current_scheduler
from ..requests import FOLLOWS
from ..settings import Config
from .breaker import Breaker
from .network import Network
from .retry_after import retry_after_of

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.crawler import Crawler
    from scrapy.http import Response
    from typing_extensions import Self

logger = logging.getLogger(__name__)

_BUSY = (429, 503)


class SlotMiddleware:
    """For ``DOWNLOADER_MIDDLEWARES``, nearer to the downloader than the retry middleware.

    A response with the status 429 or 503 and ``Retry-After`` defers its download slot for so long.
    After ``ALTSCHED_BREAKER`` responses with these statuses, or failed downloads, in a row the slot
    is deferred, too, and what was asked of it goes back without having cost a try.  Responses that
    the spider has asked for (``handle_httpstatus_list``) are good ones.  If as many downloads in a
    row fail of several slots that have answered before, all are deferred: there is no network.
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
    def _config(self) -> Config:
        # The scheduler has checked the settings by now, and told what is wrong with them.
        return Config.from_settings(self._crawler.settings, disk=None)

    @cached_property
    def _breaker(self) -> Breaker:
        config = self._config
        return Breaker(config.breaker, config.breaker_delay, self._defer, monotonic)

    @cached_property
    def _network(self) -> Network:
        config = self._config
        defer_all = partial(self._defer, None)
        return Network(config.breaker, config.breaker_delay, defer_all, monotonic)

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
        if self._network.is_down:
            logger.info("Sites can be reached again", extra={"spider": self._crawler.spider})
        self._network.note_answer(slot)
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
        was_down = self._network.is_down
        if not self._network.note_failure(slot):
            return self._put_back(request, slot)
        if not was_down:
            logger.warning(
                "Sites that have answered before cannot be reached, the last of them %(slot)r:"
                " %(error)s. The crawl pauses, and tries one request every %(seconds).0f s.",
                {"slot": slot, "error": exception, "seconds": self._config.breaker_delay},
                extra={"spider": self._crawler.spider},
            )
        return self._repeat(request)

    def _put_back(self, request: Request, slot: str) -> Request | None:
        """The request once more, if its slot is left alone now."""
        return self._repeat(request) if self._breaker.note_bad(slot) else None

    def _repeat(self, request: Request) -> Request:
        again = request.replace(dont_filter=True)
        again.meta[FOLLOWS] = True
        assert self._crawler.stats is not None
        self._crawler.stats.inc_value("altsched/breaker/put_back")
        return again

    def _defer(self, slot: str | None, seconds: float) -> bool:
        scheduler = current_scheduler(self._crawler)
        defer = getattr(scheduler, "defer_slot", None)
        return defer is not None and defer(slot, seconds)
