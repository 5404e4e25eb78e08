"""Components of Scrapy's own that a crawl has: how they are asked, and what they are kept from."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from scrapy import signals
from scrapy.crawler import Crawler
from scrapy.extensions.spiderstate import SpiderState
from scrapy.http import Response
from scrapy.spidermiddlewares.httperror import HttpError, HttpErrorMiddleware
from scrapy.utils.misc import build_from_crawler
from scrapy.utils.request import RequestFingerprinter, RequestFingerprinterProtocol


def ignored_responses(crawler: Crawler) -> Callable[[Response], bool]:
    """A function: response -> whether it is kept from the callback for its HTTP status."""
    check = build_from_crawler(HttpErrorMiddleware, crawler).process_spider_input
    spider = spider_for(check, crawler.spider)

    def is_ignored(response: Response) -> bool:
        with suppress(HttpError):
            check(response, *spider)
            return False
        return True

    return is_ignored


def spider_for(method: Callable[..., Any], spider: Any) -> list[Any]:
    """What is passed to *method* for its spider: nothing since Scrapy 2.14, which knows it."""
    parameters = list(inspect.signature(method).parameters.values())
    return [spider] if parameters and parameters[-1].default is inspect.Parameter.empty else []


def keep_spider_state(crawler: Crawler) -> None:
    """Keep Scrapy's SpiderState from writing its file, which would look newer than any commit."""
    for extension in _spider_states(crawler):
        crawler.signals.disconnect(extension.spider_closed, signals.spider_closed)


def place_spider_state(crawler: Crawler, jobdir: str, place: str | None = None) -> None:
    """Let SpiderState find its file after a change of directory; *place*: also after a move."""
    for extension in _spider_states(crawler):
        if extension.jobdir and str(Path(extension.jobdir).absolute()) == jobdir:
            extension.jobdir = place or jobdir


def _spider_states(crawler: Crawler) -> list[SpiderState]:
    found = getattr(getattr(crawler, "extensions", None), "middlewares", ())
    return [extension for extension in found if isinstance(extension, SpiderState)]


def fingerprinter_of(crawler: Crawler) -> RequestFingerprinterProtocol:
    """The crawler's fingerprinter; Scrapy's default one for a crawler that never started."""
    try:
        return crawler.request_fingerprinter or RequestFingerprinter()
    except (AttributeError, RuntimeError):
        return RequestFingerprinter()
