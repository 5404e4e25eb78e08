"""Scrapy's HTTP cache in files, without the entries that a kill has cut short."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scrapy.extensions import httpcache

from ..engine.engine import cache_entry

if TYPE_CHECKING:
    from pathlib import Path

    from scrapy import Request, Spider
    from scrapy.http import Response


class FilesystemCacheStorage(httpcache.FilesystemCacheStorage):
    """Scrapy's, for ``HTTPCACHE_STORAGE``: an entry that is not complete is not there.

    Scrapy writes the files of an entry one after the other, and ``request_body`` last, in its own
    storage, too.  So an entry that has it is complete; one that is to be replaced loses it first.
    """

    def retrieve_response(self, spider: Spider, request: Request) -> Response | None:
        if not self._last_file(spider, request).exists():
            return None
        return super().retrieve_response(spider, request)

    def store_response(self, spider: Spider, request: Request, response: Response) -> None:
        self._last_file(spider, request).unlink(missing_ok=True)
        super().store_response(spider, request, response)

    def _last_file(self, spider: Spider, request: Request) -> Path:
        return cache_entry(self, spider, request) / "request_body"
