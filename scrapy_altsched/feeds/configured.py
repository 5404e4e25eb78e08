"""Feeds as configured: where each goes, to which file, and whether it can be resumed."""

from __future__ import annotations

import logging
import operator
import re
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlparse

from scrapy.exporters import CsvItemExporter, JsonLinesItemExporter
from scrapy.extensions import feedexport
from scrapy.utils.conf import feed_complete_default_values_from_settings
from scrapy.utils.misc import load_object
from w3lib.url import file_uri_to_path

from ..errors import ConfigError
from .rows import exporter_class, is_kind, rows_of
from .storage import FileFeedStorage

if TYPE_CHECKING:
    from scrapy import Spider
    from scrapy.settings import BaseSettings

logger = logging.getLogger(__name__)

#: In older versions of Scrapy it is the operator.
_apply = getattr(feedexport, "apply_uri_params", operator.mod)
#: A URI with one of these names another file in each run.
_TIME = re.compile(r"%\((?:batch_)?time\)")
#: After it comes the host; a password may hold a slash that should have been quoted.
_PASSWORD = re.compile(r"^([\w+.-]+://[^/:@]*):(?!\d+/)(?:[^/]*@|.*@)")


def read_feeds(settings: BaseSettings) -> Iterator[tuple[str, dict[str, Any]]]:
    """URI and options of each feed, as Scrapy's FeedExporter reads them."""
    feeds = {}
    if settings["FEED_URI"]:
        feeds[settings["FEED_URI"]] = {"format": settings.get("FEED_FORMAT", "jsonlines")}
    for uri, feed in {**feeds, **settings.getdict("FEEDS")}.items():
        options = {"format": Path(uri).suffix.removeprefix("."), **feed}
        yield str(uri), feed_complete_default_values_from_settings(options, settings)


def identify(uri: str) -> str:
    """The same text for the same feed, without its password; a file's absolute path."""
    if _is_local(uri):
        return str(Path(file_uri_to_path(uri) if urlparse(uri).scheme else uri).absolute())
    return _mask_secrets(uri)


def find_files(settings: BaseSettings, spider: Spider) -> list[Path]:
    """The file of each feed that our storage writes; of a feed in batches, the first one.

    Left out are those that are named later, by the time or, say, an attribute that the spider sets
    when it is opened: they are locked when they are opened.

    :raises ConfigError: the class of a feed's storage cannot be loaded.
    """
    files: list[Path] = []
    for uri, options in read_feeds(settings):
        is_known = _is_local(uri) and not _TIME.search(uri)
        if is_known and is_kind(_load_storage(uri, settings), FileFeedStorage):
            # Whatever the project's function raises, Scrapy's exporter will meet it and log it.
            with suppress(Exception):
                files.append(Path(identify(_apply(uri, _uri_params(options, spider)))))
    return files


def name_archive(pattern: str, spider: Spider) -> Path:
    """The absolute path that ALTSCHED_ARCHIVE names, filled in as the URI of a feed is.

    :raises ConfigError: the spider has no such attribute, or the pattern is none.
    """
    try:
        return Path(pattern % _uri_params({}, spider)).absolute()
    except (KeyError, ValueError, TypeError) as error:
        raise ConfigError(
            f"ALTSCHED_ARCHIVE = {pattern!r} cannot be filled in ({error!r}): between %( and )s"
            " there is 'time', or the name of an attribute of the spider; % itself is written %%."
        ) from error


def warn_of_unsafe_feeds(settings: BaseSettings, spider: Spider) -> None:
    """Log a warning for each feed that can lose items of pages that are done.

    :raises ConfigError: as :func:`find_files`.
    """
    for uri, options in read_feeds(settings):
        killed, stopped = _find_harm(uri, options, settings)
        also = recipe = ""
        if stopped and not _TIME.search(uri):
            also = f" A clean stop is not safe either: {stopped}."
            recipe = (
                " For clean stops it is enough to put %(time)s into the URI: each run then has its"
                " own file."
            )
        if killed:
            logger.warning(
                "The feed %s may lose items, or be damaged, if this crawl dies: %s.%s To lose none,"
                " write to a local .jsonl or .csv file, and convert or upload it when the job is"
                " finished.%s",
                _mask_secrets(uri),
                killed,
                also,
                recipe,
                extra={"spider": spider},
            )


def _find_harm(uri: str, options: dict[str, Any], settings: BaseSettings) -> tuple[str, str]:
    """What happens to a feed when a crawl is killed, and when a stopped one is resumed."""
    scheme = urlparse(uri).scheme
    is_ours = is_kind(_load_storage(uri, settings), FileFeedStorage)
    if scheme == "stdout":
        return "standard output cannot be read again", ""
    if not is_ours and not _is_local(uri):
        return (
            f"items are stored at {scheme} only when the crawl ends, or a batch is full",
            "the resume stores its own items in place of the earlier ones",
        )
    killed = (
        rows_of(options, settings)[1]
        if is_ours
        else "its file is not flushed before requests are recorded as done (set ADDONS, or"
        " 'scrapy_altsched.feeds.FileStorage' in FEED_STORAGES)"
    )
    exporter = exporter_class(options, settings)
    if is_kind(exporter, JsonLinesItemExporter):
        return killed, ""
    if is_kind(exporter, CsvItemExporter):
        return killed, "the resume appends a second header line to its file"
    return killed, "the resume appends a second document to its file, which few programs can read"


def _is_local(uri: str) -> bool:
    return urlparse(uri).scheme in ("", "file")


def _mask_secrets(uri: str) -> str:
    """*uri* without its password, and without its query if it is not a file's."""
    return _PASSWORD.sub(r"\1:***@", uri if _is_local(uri) else uri.partition("?")[0])


def _load_storage(uri: str, settings: BaseSettings) -> Any:
    storages = settings.getwithbase("FEED_STORAGES")
    storage = storages.get(urlparse(uri).scheme) or storages.get("file")
    try:
        return load_object(storage)
    except (ImportError, AttributeError, ValueError, TypeError, NameError) as error:
        raise ConfigError(
            f"FEED_STORAGES: the class {storage!r} for {_mask_secrets(uri)} cannot be loaded:"
            f" {error}."
        ) from error


def _uri_params(options: dict[str, Any], spider: Spider) -> dict[str, Any]:
    """What Scrapy's exporter fills into the URI of a feed's first file."""
    now = datetime.now(tz=timezone.utc)
    params = {name: getattr(spider, name) for name in dir(spider)} | {
        "time": now.replace(microsecond=0).isoformat().replace(":", "-"),
        "batch_time": now.isoformat().replace(":", "-"),
        "batch_id": 1,
    }
    change = options.get("uri_params")
    changed = load_object(change)(params, spider) if change else None
    return params if changed is None else changed
