"""Feeds as configured: where each goes, and whether its file consists of rows."""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlparse

from scrapy.exporters import CsvItemExporter, JsonLinesItemExporter
from scrapy.utils.conf import feed_complete_default_values_from_settings
from scrapy.utils.misc import load_object
from w3lib.url import file_uri_to_path

from ..errors import ConfigError
from ..worker import PARAMETER

if TYPE_CHECKING:
    from scrapy.settings import BaseSettings

#: What the rows of a file are: lines, or those of CSV, whose values may hold line feeds.
Rows = Literal["lines", "csv"]

#: Those of a CSV feed's ``item_export_kwargs`` that say how rows are written.
_CSV_FORMAT = frozenset(
    {"dialect", "delimiter", "doublequote", "escapechar", "lineterminator", "quotechar", "quoting"}
)
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


def names_worker(settings: BaseSettings) -> bool:
    """Whether the name of the worker is in the URI of a feed."""
    return any(f"%({PARAMETER})" in uri for uri, _ in read_feeds(settings))


def is_local(uri: str) -> bool:
    """Whether *uri* is the path of a file, or begins with ``file:``."""
    return urlparse(uri).scheme in ("", "file")


def names_time(uri: str) -> bool:
    """Whether *uri* has the time in it, so that each run has its own file."""
    return _TIME.search(uri) is not None


def identify(uri: str) -> str:
    """The same text for the same feed, without its password; a file's absolute path."""
    if is_local(uri):
        return str(Path(file_uri_to_path(uri) if urlparse(uri).scheme else uri).absolute())
    return mask_secrets(uri)


def load_storage(uri: str, settings: BaseSettings) -> Any:
    """The class, or other callable, that makes the storage of a feed.

    :raises ConfigError: it cannot be loaded.
    """
    storages = settings.getwithbase("FEED_STORAGES")
    storage = storages.get(urlparse(uri).scheme) or storages.get("file")
    try:
        return load_object(storage)
    except (ImportError, AttributeError, ValueError, TypeError, NameError) as error:
        raise ConfigError(
            f"FEED_STORAGES: the class {storage!r} for {mask_secrets(uri)} cannot be loaded:"
            f" {error}."
        ) from error


def mask_secrets(uri: str) -> str:
    """*uri* without its password, and without its query if it is not a file's."""
    if urlparse(uri).scheme not in ("", "file"):
        uri = uri.partition("?")[0]
    return _PASSWORD.sub(r"\1:***@", uri)


def rows_of(options: dict[str, Any], settings: BaseSettings) -> Rows | None:
    """What a feed's file consists of; ``None``: its rows cannot be told apart."""
    if why_not_rows(options, settings):
        return None
    return "csv" if exporter_class(options, settings) is CsvItemExporter else "lines"


def why_not_rows(options: dict[str, Any], settings: BaseSettings) -> str | None:
    """Why a feed's file cannot be cut after a row and appended to; ``None``: it can."""
    if options.get("postprocessing"):
        return "its post-processing buffers items and cannot be appended to"
    encoding = options.get("encoding") or "utf-8"
    exporter = exporter_class(options, settings)
    if exporter is CsvItemExporter:
        is_row = _is_like_ascii(encoding) and _has_even_quotes(options)
    elif isinstance(exporter, type) and issubclass(exporter, JsonLinesItemExporter):
        is_row = _is_like_ascii(encoding)
    else:
        return f"a file in the format {options['format']} cannot be appended to"
    if not is_row:
        return "its encoding or quoting does not show where a row ends"
    return None


def exporter_class(options: dict[str, Any], settings: BaseSettings) -> Any:
    """The exporter of a feed's format, or ``None``."""
    path = settings.getwithbase("FEED_EXPORTERS").get(options["format"])
    return load_object(path) if path is not None else None


def csv_dialect(options: dict[str, Any]) -> csv.Dialect:
    """How the rows of a CSV feed are written.

    :raises csv.Error: the options are not a valid dialect.
    :raises TypeError: likewise.
    """
    kwargs = options.get("item_export_kwargs") or {}
    given = {name: kwargs[name] for name in _CSV_FORMAT.intersection(kwargs)}
    return csv.writer(io.StringIO(), **given).dialect  # type: ignore[return-value]


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
        dialect = csv_dialect(options)
    except (csv.Error, TypeError):
        return False
    return (
        dialect.quotechar == '"'
        and dialect.doublequote
        and dialect.quoting != csv.QUOTE_NONE
        and dialect.lineterminator.endswith("\n")
    )
