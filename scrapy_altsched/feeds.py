"""Local feed files that are safe to resume.

A page must not be done on disk while its item sits in a Python buffer: every open feed file is
flushed before each commit.  What a dying process tore off in the middle of a line is cut when the
file is opened again; its page was not done, and comes again.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any
from urllib.parse import urlparse

from scrapy.extensions.feedexport import FileFeedStorage
from scrapy.utils.conf import feed_complete_default_values_from_settings
from scrapy.utils.misc import load_object

from .engine import current_scheduler
from .errors import ConfigError
from .settings import Config
from .signals import frontier_committing

if TYPE_CHECKING:
    from scrapy import Spider
    from scrapy.crawler import Crawler
    from scrapy.settings import BaseSettings
    from typing_extensions import Self

logger = logging.getLogger(__name__)

#: Formats whose files are rows of text, and so can be appended to and cut at a row's end.
_LINE_FORMATS = frozenset({"jsonlines", "jsonl", "jl", "csv"})
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
        self._kwargs = dict(self._options.get("item_export_kwargs") or {})
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
        if getattr(scheduler, "resumed", False):
            self._continue(spider)
        self._file = super().open(spider)
        if self._crawler is not None:
            self._crawler.signals.connect(self._flush, frontier_committing)
        return self._file

    def store(self, file: IO[bytes]) -> Any:
        """Close the file."""
        if self._crawler is not None and self._file is not None:
            self._crawler.signals.disconnect(self._flush, frontier_committing)
        self._file = None
        return super().store(file)

    def _continue(self, spider: Spider) -> None:
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
        if self._options.get("format") not in _LINE_FORMATS or _is_wrapped(self._options):
            return
        cut = cut_torn_row(path, quoted=self._options["format"] == "csv")
        if cut:
            logger.info(
                "%(bytes)d bytes of a torn last row were cut from %(path)s; its page comes again",
                {"bytes": cut, "path": self.path},
                extra={"spider": spider},
            )
        if self._options["format"] == "csv" and path.stat().st_size:
            self._options["item_export_kwargs"] = {
                "include_headers_line": False,
                **self._kwargs,
            }

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


def _is_wrapped(options: dict[str, Any]) -> bool:
    return bool(options.get("postprocessing"))


def warn_of_unsafe_feeds(settings: BaseSettings, spider: Spider) -> None:
    """Log a warning for each feed that can lose items of pages that are done, and why.

    :raises ConfigError: the class of a feed's storage cannot be loaded.
    """
    storages = settings.getwithbase("FEED_STORAGES")
    for uri, feed in settings.getdict("FEEDS").items():
        options = feed_complete_default_values_from_settings(dict(feed), settings)
        reason = _why_unsafe(str(uri), options, storages)
        if reason:
            logger.warning(
                "The feed %(uri)s may lose items, or be damaged, if this crawl dies: %(reason)s."
                " Use a local file in the format jsonlines or csv to be able to resume.",
                {"uri": uri, "reason": reason},
                extra={"spider": spider},
            )


def _why_unsafe(uri: str, options: dict[str, Any], storages: Any) -> str | None:
    scheme = urlparse(uri).scheme
    storage = storages.get(scheme) or storages.get("file")
    try:
        is_ours = issubclass(load_object(storage), FileStorage)
    except (ImportError, AttributeError, ValueError, TypeError, NameError) as error:
        raise ConfigError(
            f"FEED_STORAGES: the class {storage!r} for {uri} cannot be loaded: {error}."
        ) from error
    if scheme == "stdout":
        return "standard output cannot be read again"
    if not is_ours and scheme in ("", "file"):
        return (
            "its file is not flushed before requests are recorded as done (set ADDONS, or"
            " 'scrapy_altsched.feeds.FileStorage' in FEED_STORAGES)"
        )
    if not is_ours:
        return f"items are stored at {scheme or 'its storage'} only when the crawl ends"
    if _is_wrapped(options):
        return "its post-processing holds items back and cannot be appended to"
    if options.get("format") not in _LINE_FORMATS:
        return f"a file in the format {options.get('format')} cannot be appended to"
    return None
