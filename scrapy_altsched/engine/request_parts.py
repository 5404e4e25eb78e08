"""What a request consists of, and its download slot, as Scrapy has them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, cast
from urllib.parse import urlsplit

from scrapy import Request
from scrapy.core.downloader import Downloader

#: What a plain request is made of.
REQUEST_PARTS = ["url", "method", "headers", "body", "cookies", "meta", "encoding", "priority"]
REQUEST_PARTS += ["dont_filter", "flags", "cb_kwargs", "callback", "errback"]


def _name_of(part: str) -> str:
    """The attribute that holds *part*: a property is slower, and creates missing values."""
    private = f"_{part}"
    is_property = isinstance(getattr(Request, part, None), property)
    return private if is_property and hasattr(Request("http://site.test/"), private) else part


def reader_of(*parts: str) -> Callable[[Request], tuple[Any, ...]]:
    """A function: request of Scrapy's own class -> two or more parts, empty if missing."""
    return cast("Callable[[Request], tuple[Any, ...]]", attrgetter(*map(_name_of, parts)))


def slot_of(url: str, meta: Mapping[str, object]) -> str:
    """The download slot of a request, as Scrapy names it where it limits by host."""
    return str(meta.get(Downloader.DOWNLOAD_SLOT) or urlsplit(url).hostname or "")
