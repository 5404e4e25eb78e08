"""scrapy-deltafetch, for crawls that can be resumed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import scrapy_deltafetch

from ..engine.engine import current_scheduler
from .record import DurableRecord, PluginRecord

if TYPE_CHECKING:
    from scrapy import Spider
    from scrapy.crawler import Crawler
    from scrapy.http import Response
    from typing_extensions import Self


class DeltaFetch(scrapy_deltafetch.DeltaFetch):  # type: ignore[misc]  # it has no types
    """scrapy-deltafetch's spider middleware, whose record does not run ahead of the crawl.

    For ``SPIDER_MIDDLEWARES``.  Without JOBDIR, and under another scheduler, its record is as the
    original's.  Callbacks may be asynchronous, which Scrapy 2.19 asks of every middleware.
    """

    crawler: Crawler
    db: PluginRecord

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        middleware: Self = super().from_crawler(crawler)
        middleware.crawler = crawler
        return middleware

    def spider_opened(self, spider: Spider) -> None:
        """Open the record, and have writes to it wait until they are durable."""
        super().spider_opened(spider)
        position = getattr(current_scheduler(self.crawler), "position", lambda: None)
        if position() is not None:
            self.db = DurableRecord(self.db, self.crawler, spider)

    def process_spider_output(
        self, response: Response, result: Iterable[Any], spider: Spider | None = None
    ) -> Iterator[Any]:
        for output in result:
            yield from self._process(response, output, spider)

    async def process_spider_output_async(
        self, response: Response, result: AsyncIterator[Any], spider: Spider | None = None
    ) -> AsyncIterator[Any]:
        async for output in result:
            for kept in self._process(response, output, spider):
                yield kept

    def _process(self, response: Response, output: Any, spider: Spider | None) -> list[Any]:
        if isinstance(self.db, DurableRecord):
            self.db.page = response.request
        return list(super().process_spider_output(response, (output,), spider))
