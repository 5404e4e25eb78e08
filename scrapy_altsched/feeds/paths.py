"""Which local files the feeds of a crawl will write to, as far as that can be told at its start."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scrapy.extensions import feedexport
from scrapy.utils.misc import load_object

from .configured import identify, is_local, load_storage, names_time, names_worker, read_feeds
from .locks import FeedLocks
from .storage import FileFeedStorage

if TYPE_CHECKING:
    from scrapy import Spider
    from scrapy.settings import BaseSettings

#: In older versions of Scrapy it is the operator.
_apply = getattr(feedexport, "apply_uri_params", operator.mod)


def find_files(settings: BaseSettings, spider: Spider) -> list[Path]:
    """The file of each feed that our storage writes; of a feed in batches, the first one.

    Left out are feeds with the time in their names, which are named later, and those that cannot
    be named yet, e.g. by an attribute that the spider sets when it is opened.  Their files are
    locked when they are opened.

    :raises ConfigError: the class of a feed's storage cannot be loaded.
    """
    files: list[Path] = []
    for uri, options in read_feeds(settings):
        if not is_local(uri) or names_time(uri):
            continue
        storage = load_storage(uri, settings)
        if not (isinstance(storage, type) and issubclass(storage, FileFeedStorage)):
            continue
        # Whatever the project's function raises, Scrapy's exporter will meet it and log it.
        with suppress(Exception):
            files.append(Path(identify(_apply(uri, _uri_params(options, spider)))))
    return files


def check_files(files: Sequence[Path], settings: BaseSettings, spider: Spider) -> None:
    """Check that no other crawl writes to *files* now; :meth:`JobFeeds.open` locks them.

    :raises FeedLockedError: one does.
    """
    locks = FeedLocks(spider, by_worker=names_worker(settings))
    try:
        for path in files:
            locks.claim(path, create=False)
    finally:
        locks.release()


def _uri_params(options: dict[str, Any], spider: Spider) -> dict[str, Any]:
    """What Scrapy's exporter fills into the URI of a feed's first file."""
    now = datetime.now(tz=timezone.utc)
    params = {name: getattr(spider, name) for name in dir(spider)}
    params["time"] = now.replace(microsecond=0).isoformat().replace(":", "-")
    params["batch_time"] = now.isoformat().replace(":", "-")
    params["batch_id"] = 1
    change = options.get("uri_params")
    changed = load_object(change)(params, spider) if change else None
    return params if changed is None else changed
