"""Local feed files that are safe to resume, by Scrapy's interface for storages."""

from __future__ import annotations

import errno
import io
import logging
from collections.abc import Callable
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from itemadapter import ItemAdapter
from scrapy import signals
from scrapy.extensions import feedexport
from scrapy.utils.misc import load_object

from ..engine.engine import current_scheduler
from ..errors import FeedLockedError
from .feed_file import FeedFile
from .rows import Rows, csv_dialect, cut_torn_row, ends_a_line, fit_fields, read_header, rows_of

if TYPE_CHECKING:
    from scrapy import Spider
    from scrapy.crawler import Crawler
    from typing_extensions import Self

    from .job_feeds import JobFeeds

logger = logging.getLogger(__name__)


class FileFeedStorage(feedexport.FileFeedStorage):
    """Scrapy's storage for local files, for ``FEED_STORAGES`` under ``""`` and ``"file"``.

    There it is ``scrapy_altsched.feeds.FileStorage``.  It has the name of Scrapy's own since Scrapy
    names a stat after the class.
    """

    _crawler: Crawler | None = None
    _feeds: JobFeeds | None = None
    _is_refused = False
    #: The columns of a CSV file that is appended to, until a warning of others was logged.
    _columns: set[str] | None = None

    def __init__(self, uri: str, *, feed_options: dict[str, Any] | None = None) -> None:
        super().__init__(uri, feed_options=feed_options)
        self._options = feed_options if feed_options is not None else {}
        # The storages of all batches of a feed share its options, and what `open` changes for one
        # file must not look like the project's own to the next.
        changed = self._options.keys() & {"fields", "item_export_kwargs"}
        self._given = self._options.setdefault(
            "altsched_given", {name: self._options[name] for name in changed}
        )

    @classmethod
    def from_crawler(
        cls, crawler: Crawler, uri: str, *, feed_options: dict[str, Any] | None = None
    ) -> Self:
        storage = cls(uri, feed_options=feed_options)
        storage._crawler = crawler
        if getattr(current_scheduler(crawler), "resumed", False):
            crawler.signals.connect(storage._warn_of_dropped_fields, signals.item_scraped)
        return storage

    def open(self, spider: Spider) -> IO[bytes]:
        """Open the file, which a job locks; that of a resumed, unfinished job is appended to.

        If another crawl has it, the spider is closed, and what is written stays in memory: its
        pages are not saved as done.

        :raises OSError: it cannot be opened, and there is no job whose commits could wait for it.
        """
        self._spider = spider
        path = Path(self.path).absolute()
        self.path = str(path)
        file = FeedFile(path, self._open_raw, self._unlock)
        opened = cast("IO[bytes]", file)
        scheduler: Any = None if self._crawler is None else current_scheduler(self._crawler)
        self._options.update(self._given)
        self._feeds = feeds = getattr(scheduler, "feeds", None)
        if feeds is None or self._crawler is None:
            file.open()
            return opened
        try:
            feeds.locks.take(path, self)
        except FeedLockedError as error:
            # Neither read nor written, even if the other crawl ends soon.
            self._is_refused = True
            feeds.refuse(file, error)
            return opened
        rows, _ = rows_of(self._options, self._crawler.settings)
        is_torn = False
        try:
            is_torn = self._continue(path, rows, resumed=scheduler.resumed)
        except OSError as error:
            # Most likely it cannot be written either, and commits will wait for that.
            logger.error("%s cannot be read: %s", path, error, extra={"spider": spider})
        feeds.add(file, rows)
        if is_torn:
            end = csv_dialect(self._options).lineterminator if rows == "csv" else "\n"
            file.write(end.encode())
        return opened

    def store(self, file: IO[bytes]) -> Any:
        """Close the file; see :meth:`.JobFeeds.store`."""
        if self._crawler is not None:
            self._crawler.signals.disconnect(self._warn_of_dropped_fields, signals.item_scraped)
        if self._feeds is not None and isinstance(file, FeedFile):
            return self._feeds.store(file)
        return super().store(file)

    def _unlock(self) -> None:
        if self._feeds is not None:
            self._feeds.locks.give_back(self)

    def _open_raw(self) -> io.RawIOBase:
        if self._is_refused:
            raise BlockingIOError(errno.EWOULDBLOCK, "another crawl writes to it")
        try:
            if self._feeds is not None:  # again, if it could not be opened before
                self._feeds.locks.take(Path(self.path), self)
        except FeedLockedError as error:
            raise BlockingIOError(errno.EWOULDBLOCK, str(error)) from error
        buffered = super().open(self._spider)
        assert isinstance(buffered, io.BufferedWriter)
        # What is put in its place is not ours to be overwritten.
        self.write_mode = "ab"
        return buffered.detach()

    def _continue(self, path: Path, rows: Rows | None, *, resumed: bool) -> bool:
        """Prepare a file that is not empty to be appended to; whether it lacks a line feed."""
        if not (path.exists() and path.stat().st_size):
            return False
        if resumed and self.write_mode == "wb":
            self.write_mode = "ab"
            self._warn(
                "is appended to, not overwritten (-O, 'overwrite'): it holds items of pages that"
                " this unfinished job does not crawl again"
            )
        if rows is None or self.write_mode == "wb":
            return False
        assert self._feeds is not None
        if not self._feeds.is_complete:
            cut_torn_row(path, rows, self._spider)
            if not path.stat().st_size:
                return False
        if resumed and rows == "csv":
            self._keep_columns(path)
        if ends_a_line(path):
            return False
        self._warn(
            "does not end with a line feed; a new line is started. Check whether its last row is"
            " whole: this job did not write it."
        )
        return True

    def _keep_columns(self, path: Path) -> None:
        """Keep each value of a CSV file below its heading."""
        kwargs = self._options.get("item_export_kwargs") or {}
        header = None if "include_headers_line" in kwargs else read_header(path, self._options)
        if header is None:
            return
        given = self._options.get("fields")
        self._options["item_export_kwargs"] = {**kwargs, "include_headers_line": False}
        self._options["fields"], unlike = fit_fields(given, header)
        if not given:
            self._columns = set(header)
            filter_class = load_object(self._options.get("item_filter", feedexport.ItemFilter))
            self._accepts: Callable[[Any], bool] = filter_class(self._options).accepts
        if unlike:
            self._warn_of_columns(f"with {unlike}")

    def _warn_of_dropped_fields(self, item: Any) -> None:
        """Scrapy's exporter does so only if it wrote the header line itself."""
        if self._columns is None:
            return
        dropped = sorted(set(ItemAdapter(item).field_names()) - self._columns)
        if dropped and self._accepts(item):
            self._columns = None
            self._warn_of_columns(f"without {', '.join(map(repr, dropped))} of the items")

    def _warn_of_columns(self, how: str) -> None:
        if not self._options.get("altsched_warned"):
            self._options["altsched_warned"] = True
            self._warn(
                f"keeps the columns of its header line, {how}. To have other columns, let the next"
                " job write to a new file."
            )

    def _warn(self, what: str) -> None:
        logger.warning("%s %s", self.path, what, extra={"spider": self._spider})
