"""A plugin's record of the pages that are done, kept from running ahead of the crawl's own.

A page counts as done in such a record as soon as its callback yields an item.  If the process dies
then, the page that had led to it is crawled again, and the plugin skips the link to it: neither its
items nor its links are ever saved.  So what is noted reaches the record only when no death can undo
the page any more: its items are written, and all that it has led to is durable.
"""

from __future__ import annotations

import dbm
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from ..engine.engine import Engine, current_scheduler
from ..inflection import inflect
from ..signals import frontier_committed, frontier_committing

if TYPE_CHECKING:
    from scrapy import Request, Spider
    from scrapy.crawler import Crawler

logger = logging.getLogger(__name__)


class PluginRecord(Protocol):
    """What a plugin notes its pages in, such as a database of ``dbm``."""

    def __contains__(self, key: bytes, /) -> bool: ...
    def __setitem__(self, key: bytes, value: str, /) -> None: ...
    def close(self) -> None: ...


@dataclass(slots=True)
class _Row:
    """What was noted of a page.

    :ivar pages: the requests of which one is the page.
    :ivar position: the scheduler's when these had left; ``None``: some of them are in progress.
    """

    value: str
    pages: frozenset[Request | None]
    position: int | None = None


class DurableRecord:
    """Stands in for a plugin's record in a crawl that can be resumed.

    What is noted is found at once, and written when it is durable.  What the record cannot take, as
    on a full disk, is kept and tried again at the next commit.

    :param record: the plugin's own, open; closed by :meth:`close`.
    :ivar page: the request whose page is noted next.
    """

    page: Request | None = None

    def __init__(self, record: PluginRecord, crawler: Crawler, spider: Spider) -> None:
        self._record = record
        self._signals = crawler.signals
        self._spider = spider
        self._engine = Engine(crawler)
        self._scheduler: Any = current_scheduler(crawler)
        self._waiting: dict[bytes, _Row] = {}
        self._failing = False
        self._signals.connect(self._prepare, frontier_committing)
        self._signals.connect(self._write, frontier_committed)

    def __contains__(self, key: bytes) -> bool:
        return key in self._waiting or key in self._record

    def __setitem__(self, key: bytes, value: str) -> None:
        page, in_progress = self.page, self._engine.in_progress
        # A middleware may have given the response another request: then it may be any of them.
        is_known = page is not None and page in in_progress
        pages = frozenset((page,) if is_known else in_progress)
        self._waiting[key] = _Row(value, pages)

    def close(self) -> None:
        """Write what is durable, and close the plugin's record."""
        self._signals.disconnect(self._prepare, frontier_committing)
        self._signals.disconnect(self._write, frontier_committed)
        self._write()
        if self._waiting:
            count = len(self._waiting)
            logger.warning(
                "%(count)d %(pages)s not added to the record of scrapy-deltafetch, as the last"
                " changes of this crawl or of the record could not be saved: a later crawl does not"
                " skip them.",
                {"count": count, "pages": inflect(count, "page was", "pages were")},
                extra={"spider": self._spider},
            )
        self._record.close()

    def _prepare(self) -> None:
        """Note which pages the commit that comes now makes durable: those that have left."""
        in_progress = self._engine.in_progress
        position = self._scheduler.position()
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
                self._report(error)
                return
            del self._waiting[key]
        self._failing = False

    def _report(self, error: Exception) -> None:
        if not self._failing:
            self._failing = True
            logger.warning(
                "The record of scrapy-deltafetch cannot be written (%(error)s). This is tried again"
                " after each commit; check that its disk (DELTAFETCH_DIR) has space.",
                {"error": error},
                extra={"spider": self._spider},
            )
