"""Local feed files that are safe to resume.

A page must not be done on disk while its item sits in a Python buffer: every open feed file is
flushed before each commit.  What a dying process tore off in the middle of a line is cut when the
file is opened again; its page was not done, and comes again.
"""

from __future__ import annotations

import codecs
import csv
import io
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast
from urllib.parse import urlparse

from scrapy.exporters import CsvItemExporter, JsonLinesItemExporter
from scrapy.extensions.feedexport import FileFeedStorage
from scrapy.utils.conf import feed_complete_default_values_from_settings
from scrapy.utils.misc import load_object

from .engine import current_scheduler
from .errors import ConfigError
from .feedfile import FeedFile
from .settings import Config
from .signals import frontier_committing

if TYPE_CHECKING:
    from scrapy import Spider
    from scrapy.crawler import Crawler
    from scrapy.settings import BaseSettings
    from typing_extensions import Self

logger = logging.getLogger(__name__)

#: Options of a feed that are other ones for a file that goes on.
_CHANGED = ("fields", "item_export_kwargs")
#: Those of a CSV feed's ``item_export_kwargs`` that say how rows are written.
_CSV_FORMAT = frozenset(
    {"dialect", "delimiter", "doublequote", "escapechar", "lineterminator", "quotechar", "quoting"}
)
_CHUNK = 1024 * 1024  # bytes


class FileStorage(FileFeedStorage):
    """Scrapy's storage for local files, for ``FEED_STORAGES`` under ``""`` and ``"file"``."""

    def __init__(
        self,
        uri: str,
        *,
        feed_options: dict[str, Any] | None = None,
        crawler: Crawler | None = None,
    ) -> None:
        super().__init__(uri, feed_options=feed_options)
        self._options = feed_options if feed_options is not None else {}
        # The storages of all batches of a feed share its options, and what `open` changes for one
        # file must not be taken for the project's own by the next.
        self._given = self._options.setdefault(
            "altsched_given",
            {name: self._options[name] for name in _CHANGED if name in self._options},
        )
        self._crawler = crawler
        self._file: IO[bytes] | None = None

    @classmethod
    def from_crawler(
        cls, crawler: Crawler, uri: str, *, feed_options: dict[str, Any] | None = None
    ) -> Self:
        return cls(uri, feed_options=feed_options, crawler=crawler)

    def open(self, spider: Spider) -> IO[bytes]:
        """Open the file; that of a resumed, unfinished job goes on where it ended."""
        scheduler = current_scheduler(self._crawler) if self._crawler is not None else None
        self._options.update(self._given)
        if self._crawler is not None and getattr(scheduler, "resumed", False):
            self._continue(spider, self._crawler.settings)
        buffered = super().open(spider)
        assert isinstance(buffered, io.BufferedWriter)
        self._file = cast("IO[bytes]", FeedFile(buffered.detach()))
        if self._crawler is not None:
            self._crawler.signals.connect(self._flush, frontier_committing)
        return self._file

    def store(self, file: IO[bytes]) -> Any:
        """Close the file."""
        self._flush()  # no commit will do it any more
        if self._crawler is not None and self._file is not None:
            self._crawler.signals.disconnect(self._flush, frontier_committing)
        self._file = None
        return super().store(file)

    def _continue(self, spider: Spider, settings: BaseSettings) -> None:
        path = Path(self.path)
        if not path.exists() or not path.stat().st_size:
            return
        if self.write_mode == "wb":
            self.write_mode = "ab"
            logger.warning(
                "%(path)s is appended to, not overwritten (-O, 'overwrite'): it holds items of"
                " pages that this unfinished job does not crawl again",
                {"path": self.path},
                extra={"spider": spider},
            )
        if _why_not_rows(self._options, settings):
            return
        is_csv = _exporter_class(self._options, settings) is CsvItemExporter
        cut = cut_torn_row(path, quoted=is_csv)
        if cut:
            logger.info(
                "%(bytes)d bytes of a torn last row were cut from %(path)s; its page comes again",
                {"bytes": cut, "path": self.path},
                extra={"spider": spider},
            )
        kwargs = self._options.get("item_export_kwargs") or {}
        if is_csv and path.stat().st_size and "include_headers_line" not in kwargs:
            self._options["item_export_kwargs"] = {**kwargs, "include_headers_line": False}
            # Without a header line to write, the exporter would not settle on columns either.
            self._options["fields"] = self._options.get("fields") or _read_header(
                path, self._options
            )

    def _flush(self) -> None:
        file = self._file
        if file is None or file.closed:
            return
        file.flush()
        scheduler = current_scheduler(self._crawler) if self._crawler is not None else None
        config: Config | None = getattr(scheduler, "config", None)
        if config is not None and config.sync:
            os.fsync(file.fileno())


def cut_torn_row(path: Path, *, quoted: bool) -> int:
    """Cut what follows the last whole row of a text file.

    :param quoted: whether a line feed between double quotes does not end a row, as in CSV.
    :return: how many bytes were cut.
    :raises OSError: the file cannot be read or written.
    """
    with path.open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        end = _end_of_last_row(file, size, quoted=quoted)
        if end < size:
            file.truncate(end)
    return size - end


def _end_of_last_row(file: IO[bytes], size: int, *, quoted: bool) -> int:
    # Whether a line feed is inside quotes shows in the number of quotes before it, odd or even.
    inside = quoted and bool(_count_quotes(file) % 2)
    position = size
    while position:
        start = max(0, position - _CHUNK)
        file.seek(start)
        chunk = file.read(position - start)
        at = len(chunk)
        while (found := chunk.rfind(b"\n", 0, at)) >= 0:
            if quoted:
                inside ^= bool(chunk.count(b'"', found, at) % 2)
            if not inside:
                return start + found + 1
            at = found
        if quoted:
            inside ^= bool(chunk.count(b'"', 0, at) % 2)
        position = start
    return 0


def _count_quotes(file: IO[bytes]) -> int:
    file.seek(0)
    return sum(chunk.count(b'"') for chunk in iter(lambda: file.read(_CHUNK), b""))


def _read_header(path: Path, options: dict[str, Any]) -> list[str] | None:
    encoding = options.get("encoding") or "utf-8"
    with path.open(encoding=encoding, errors="replace", newline="") as file:
        return next(csv.reader(file, _csv_dialect(options))) or None


def _csv_dialect(options: dict[str, Any]) -> csv.Dialect:
    kwargs = options.get("item_export_kwargs") or {}
    given = {name: kwargs[name] for name in _CSV_FORMAT.intersection(kwargs)}
    return csv.writer(io.StringIO(), **given).dialect  # type: ignore[return-value]


def _exporter_class(options: dict[str, Any], settings: BaseSettings) -> Any:
    path = settings.getwithbase("FEED_EXPORTERS").get(options["format"])
    return load_object(path) if path is not None else None


def warn_of_unsafe_feeds(settings: BaseSettings, spider: Spider) -> None:
    """Log a warning for each feed that can lose items of pages that are done, and why.

    :raises ConfigError: the class of a feed's storage cannot be loaded.
    """
    for uri, options in _feeds(settings):
        reason = _why_unsafe(uri, options, settings)
        if reason:
            logger.warning(
                "The feed %(uri)s may lose items, or be damaged, if this crawl dies: %(reason)s."
                " Use a local file in the format jsonlines or csv to be able to resume.",
                {"uri": uri, "reason": reason},
                extra={"spider": spider},
            )


def _feeds(settings: BaseSettings) -> Iterator[tuple[str, dict[str, Any]]]:
    """URI and options of each feed, as Scrapy's FeedExporter reads them."""
    feeds = {}
    if settings["FEED_URI"]:
        feeds[settings["FEED_URI"]] = {"format": settings.get("FEED_FORMAT", "jsonlines")}
    for uri, feed in {**feeds, **settings.getdict("FEEDS")}.items():
        options = {"format": Path(uri).suffix.removeprefix("."), **feed}
        yield str(uri), feed_complete_default_values_from_settings(options, settings)


def _why_unsafe(uri: str, options: dict[str, Any], settings: BaseSettings) -> str | None:
    scheme = urlparse(uri).scheme
    storages = settings.getwithbase("FEED_STORAGES")
    storage = storages.get(scheme) or storages.get("file")
    try:
        storage_class = load_object(storage)
    except (ImportError, AttributeError, ValueError, TypeError, NameError) as error:
        raise ConfigError(
            f"FEED_STORAGES: the class {storage!r} for {uri} cannot be loaded: {error}."
        ) from error
    if scheme == "stdout":
        return "standard output cannot be read again"
    if isinstance(storage_class, type) and issubclass(storage_class, FileStorage):
        return _why_not_rows(options, settings)
    if scheme in ("", "file"):
        return (
            "its file is not flushed before requests are recorded as done (set ADDONS, or"
            " 'scrapy_altsched.feeds.FileStorage' in FEED_STORAGES)"
        )
    return f"items are stored at {scheme} only when the crawl ends"


def _why_not_rows(options: dict[str, Any], settings: BaseSettings) -> str | None:
    """Why a feed's file cannot be cut where a row ends and go on there; ``None``: it can."""
    if options.get("postprocessing"):
        return "its post-processing holds items back and cannot be appended to"
    encoding = options.get("encoding") or "utf-8"
    exporter = _exporter_class(options, settings)
    if exporter is CsvItemExporter:
        is_row = _is_like_ascii(encoding) and _has_even_quotes(options)
    elif isinstance(exporter, type) and issubclass(exporter, JsonLinesItemExporter):
        is_row = _is_like_ascii(encoding)
    else:
        return f"a file in the format {options['format']} cannot be appended to"
    if not is_row:
        return "its encoding or its way of quoting does not show where a row ends"
    return None


def _is_like_ascii(encoding: str) -> bool:
    """Whether the bytes of line feeds and quotes are ASCII's, and not part of other characters."""
    try:
        name = codecs.lookup(encoding).name
        return '"\n'.encode(encoding).endswith(b'"\n') and not name.startswith(("iso2022", "hz"))
    except LookupError:
        return False


def _has_even_quotes(options: dict[str, Any]) -> bool:
    """Whether each row of a CSV feed has an even number of double quotes, and then a line feed."""
    try:
        dialect = _csv_dialect(options)
    except (csv.Error, TypeError):
        return False
    return (
        dialect.quotechar == '"'
        and dialect.doublequote
        and dialect.quoting != csv.QUOTE_NONE
        and dialect.lineterminator.endswith("\n")
    )
