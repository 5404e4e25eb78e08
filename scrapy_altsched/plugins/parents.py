"""Which page each request was found on first, kept with the request."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from scrapy.spidermiddlewares.base import BaseSpiderMiddleware

from ..requests import FOUND_ON
from ..settings import Config

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.http import Response

#: Characters of a URL that are kept: those of ``data:`` pages may be as long as a page.
_LENGTH = 2_000


class ParentMiddleware(BaseSpiderMiddleware):
    """For ``SPIDER_MIDDLEWARES``, nearer to the engine than all others.

    With ``ALTSCHED_KEEP_PARENT`` it notes, in the meta of each request that the callback of a page
    yields, the URL of that page.  Retries and redirects inherit it, and so does a page that asks
    for itself once more.  Those of ``start()``, of errbacks and of code outside of callbacks have
    none.
    """

    @cached_property
    def _is_on(self) -> bool:
        # The scheduler has checked the settings by now, and told what is wrong with them.
        return Config.from_settings(self.crawler.settings, disk=None).keep_parent

    def get_processed_request(self, request: Request, response: Response | None) -> Request:
        """Scrapy's interface of spider middlewares."""
        if response is not None and self._is_on:
            page = response.request
            found_on: str | None = response.url[:_LENGTH]
            if page is not None and request.url in (response.url, page.url):
                found_on = page.meta.get(FOUND_ON)
            if found_on is not None:
                request.meta[FOUND_ON] = found_on
            else:
                request.meta.pop(FOUND_ON, None)
        return request
