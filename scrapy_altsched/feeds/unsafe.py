"""Warnings about feeds that a resume breaks, with an alternative that works."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlparse

from scrapy.exporters import CsvItemExporter, JsonLinesItemExporter

from .configured import (
    exporter_class,
    is_local,
    load_storage,
    mask_secrets,
    names_time,
    read_feeds,
    why_not_rows,
)
from .storage import FileFeedStorage

if TYPE_CHECKING:
    from scrapy import Spider
    from scrapy.settings import BaseSettings

logger = logging.getLogger(__name__)

_RECIPE = (
    "To lose none, write to a local .jsonl or .csv file, and convert or upload it when the job is"
    " finished."
)
_RECIPE_FOR_STOPS = (
    " For clean stops it is enough to put %(time)s into the URI: each run then has its own file."
)


def warn_of_unsafe_feeds(settings: BaseSettings, spider: Spider) -> None:
    """Log a warning for each feed that can lose items of pages that are done, why, and what to do.

    :raises ConfigError: the class of a feed's storage cannot be loaded.
    """
    for uri, options in read_feeds(settings):
        harm = _find_harm(uri, options, settings)
        if harm is None:
            continue
        stopped = None if names_time(uri) else harm.stopped
        logger.warning(
            "The feed %(uri)s may lose items, or be damaged, if this crawl dies:"
            " %(killed)s.%(also)s %(recipe)s",
            {
                "uri": mask_secrets(uri),
                "killed": harm.killed,
                "also": f" A clean stop is not safe either: {stopped}." if stopped else "",
                "recipe": _RECIPE + (_RECIPE_FOR_STOPS if stopped else ""),
            },
            extra={"spider": spider},
        )


class _Harm(NamedTuple):
    """What happens to a feed when a crawl is killed, and when a stopped one is resumed."""

    killed: str
    stopped: str | None = None


def _find_harm(uri: str, options: dict[str, Any], settings: BaseSettings) -> _Harm | None:
    scheme = urlparse(uri).scheme
    storage_class = load_storage(uri, settings)
    if scheme == "stdout":
        return _Harm("standard output cannot be read again")
    if isinstance(storage_class, type) and issubclass(storage_class, FileFeedStorage):
        reason = why_not_rows(options, settings)
        return _Harm(reason, _what_is_appended(options, settings)) if reason else None
    if is_local(uri):
        reason = (
            "its file is not flushed before requests are recorded as done (set ADDONS, or"
            " 'scrapy_altsched.feeds.FileStorage' in FEED_STORAGES)"
        )
        return _Harm(reason, _what_is_appended(options, settings))
    return _Harm(
        f"items are stored at {scheme} only when the crawl ends, or a batch is full",
        "the resume stores its own items in place of the earlier ones",
    )


def _what_is_appended(options: dict[str, Any], settings: BaseSettings) -> str | None:
    """What a resume adds to a feed's file that does not belong there."""
    exporter = exporter_class(options, settings)
    if isinstance(exporter, type) and issubclass(exporter, JsonLinesItemExporter):
        return None
    if isinstance(exporter, type) and issubclass(exporter, CsvItemExporter):
        return "the resume appends a second header line to its file"
    return "the resume appends a second document to its file, which few programs can read"
