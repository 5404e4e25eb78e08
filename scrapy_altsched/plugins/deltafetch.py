"""scrapy-deltafetch, for crawls that can be resumed: its record does not run ahead of the crawl.

A page counts as done in such a record as soon as its callback yields an item.  If the process dies
then, the page that had led to it is crawled again, and the link to it is skipped: neither its items
nor its links are ever saved.  So what is noted reaches the record only when the page's items are
written, and all that it has led to is durable.
"""

from __future__ import annotations

import dbm
import logging
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import scrapy_deltafetch

from ..engine.engine import Engine, current_scheduler
from ..inflection import inflect
from ..signals import frontier_committed, frontier_committing

if TYPE_CHECKING:
    from scrapy import Request, Spider
    from scrapy.crawler import Crawler
    from scrapy.http import Response
    from typing_extensions import Self

logger = logging.getLogger(__name__)


class DeltaFetch(scrapy_deltafetch.DeltaFetch):  # type: ignore[misc]  # it has no types
    """scrapy-deltafetch's, for ``SPIDER_MIDDLEWARES``; callbacks may be asynchronous.

    Without JOBDIR, and under another scheduler, its record is as the original's.
    """

    crawler: Crawler
    db: Any

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


@dataclass(slots=True)
class _Row:
    """What was noted of a page, that of one of the requests *pages*.

    :ivar position: the scheduler's when these had left; ``None``: some are in progress.
    """

    value: str
    pages: frozenset[Request | None]
    position: int | None = None


class DurableRecord:
    """Stands in for a plugin's record, a database of ``dbm``, in a crawl that can be resumed.

    What is noted is found at once, and written when it is durable; on a full disk, say, it is kept
    and tried again at the next commit.

    :ivar page: the request whose page is noted next.
    """

    page: Request | None = None

    def __init__(self, record: Any, crawler: Crawler, spider: Spider) -> None:
        self._record = record
        self._spider = spider
        self._engine = Engine(crawler)
        self._scheduler: Any = current_scheduler(crawler)
        self._waiting: dict[bytes, _Row] = {}
        self._failing = False
        self._disconnect = crawler.signals.disconnect
        crawler.signals.connect(self._prepare, frontier_committing)
        crawler.signals.connect(self._write, frontier_committed)

    def __contains__(self, key: bytes) -> bool:
        return key in self._waiting or key in self._record

    def __setitem__(self, key: bytes, value: str) -> None:
        in_progress = self._engine.in_progress
        # A middleware may have given the response another request: then it may be any of them.
        pages = (self.page,) if self.page in in_progress else in_progress
        self._waiting[key] = _Row(value, frozenset(pages))

    def close(self) -> None:
        """Write what is durable, and close the plugin's record."""
        self._disconnect(self._prepare, frontier_committing)
        self._disconnect(self._write, frontier_committed)
        self._write()
        if count := len(self._waiting):
            self._warn(
                "%(count)d %(pages)s not added to the record of scrapy-deltafetch, as the last"
                " changes of this crawl or of the record could not be saved: a later crawl does not"
                " skip them.",
                count=count,
                pages=inflect(count, "page was", "pages were"),
            )
        self._record.close()

    def _prepare(self) -> None:
        """Note which pages the commit that comes now makes durable: those that have left."""
        in_progress, position = self._engine.in_progress, self._scheduler.position()
        for row in self._waiting.values():
            if row.position is None and row.pages.isdisjoint(in_progress):
                row.position = position

    def _write(self) -> None:
        for key, row in list(self._waiting.items()):
            if row.position is None or not self._scheduler.is_durable(row.position):
                continue
            try:
                self._record[key] = row.value
            except dbm.error as error:
                if not self._failing:
                    self._failing = True
                    self._warn(
                        "The record of scrapy-deltafetch cannot be written (%(error)s). This is"
                        " tried again after each commit; check that its disk (DELTAFETCH_DIR) has"
                        " space.",
                        error=error,
                    )
                return
            del self._waiting[key]
        self._failing = False

    def _warn(self, message: str, **values: object) -> None:
        logger.warning(message, values, extra={"spider": self._spider})
