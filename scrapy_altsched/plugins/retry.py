"""Scrapy's retries, which wait before they are asked again."""

from __future__ import annotations

from functools import cached_property
from random import uniform
from typing import TYPE_CHECKING, Any

from scrapy import Request
from scrapy.downloadermiddlewares import retry

from ..requests import DELAY, FOLLOWS
from ..settings import Config
from .retry_after import retry_after_of

if TYPE_CHECKING:
    from scrapy.crawler import Crawler
    from scrapy.http import Response
    from typing_extensions import Self

#: The share by which waits differ, or all pages of an outage would be asked for at once after it.
_JITTER = 0.1


class RetryMiddleware(retry.RetryMiddleware):
    """Scrapy's, for ``DOWNLOADER_MIDDLEWARES``, with a wait before each retry.

    The n-th retry of a page waits for ``ALTSCHED_RETRY_DELAY`` seconds times 2 to the n-1, or for
    as long as the response's ``Retry-After`` says, and for ``ALTSCHED_RETRY_DELAY_MAX`` seconds at
    the most.  It is stored together with the end of the request that it repeats.  Which requests
    are retried, how often, and with which priority, Scrapy's settings say.
    """

    crawler: Crawler

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Scrapy's interface of components."""
        middleware = super().from_crawler(crawler)
        # Not before Scrapy 2.14 is it set there.
        middleware.crawler = crawler
        return middleware

    @cached_property
    def _config(self) -> Config:
        # The scheduler has checked the settings by now, and told what is wrong with them.
        return Config.from_settings(self.crawler.settings, disk=None)

    def process_response(
        self, request: Request, response: Response, *more: Any, **named: Any
    ) -> Request | Response:
        """Scrapy's interface of downloader middlewares."""
        # With a parameter named "spider", Scrapy 2.14 and newer warn that it is deprecated.
        result = super().process_response(request, response, *more, **named)
        if isinstance(result, Request):
            self._put_off(result, response)
        return result

    def process_exception(
        self, request: Request, exception: Exception, *more: Any, **named: Any
    ) -> Request | Response | None:
        """Scrapy's interface of downloader middlewares."""
        result = super().process_exception(request, exception, *more, **named)
        if isinstance(result, Request):
            self._put_off(result)
        return result

    def _put_off(self, request: Request, response: Response | None = None) -> None:
        most = self._config.retry_delay_max
        tries = max(1, request.meta.get("retry_times", 1))
        wait = (
            self._config.retry_delay
            * 2.0 ** min(tries - 1, 100)
            * uniform(1 - _JITTER, 1 + _JITTER)
        )
        asked = None if response is None else retry_after_of(self.crawler).read(response)
        if asked is not None:
            wait = asked * uniform(1, 1 + _JITTER)
        request.meta[DELAY] = min(wait, most)
        request.meta[FOLLOWS] = True
