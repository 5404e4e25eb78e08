"""How long a response asks to be left alone."""

from __future__ import annotations

import logging
import time
from datetime import timezone
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary, ref

from ..settings import Config

if TYPE_CHECKING:
    from scrapy.crawler import Crawler
    from scrapy.http import Response

logger = logging.getLogger(__name__)


class RetryAfter:
    """Reads ``Retry-After`` (RFC 9110, 10.2.3) of the responses of a crawl."""

    _has_warned = False

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        # The scheduler has checked the settings by now, and told what is wrong with them.
        self._most = Config.from_settings(crawler.settings, disk=None).retry_delay_max
        self._last: ref[Response] | None = None

    def read(self, response: Response) -> float | None:
        """Seconds, ALTSCHED_RETRY_DELAY_MAX at the most; ``None``: it says nothing of use.

        What is of no use is counted, and the first time warned of.
        """
        header = response.headers.get("Retry-After")
        if header is None:
            return None
        value = header.decode("latin-1")
        seconds = _parse(value)
        if seconds is not None and seconds <= self._most:
            return seconds
        if self._last is None or self._last() is not response:
            # Each of our middlewares reads it.
            self._last = ref(response)
            self._complain(response, value)
        return None if seconds is None else self._most

    def _complain(self, response: Response, value: str) -> None:
        assert self._crawler.stats is not None
        self._crawler.stats.inc_value("altsched/retry_after/ignored")
        if self._has_warned:
            return
        self._has_warned = True
        logger.warning(
            "Retry-After of %(response)s is %(value)r, and is ignored: it must be a number of"
            " seconds or a date, and not more than ALTSCHED_RETRY_DELAY_MAX = %(most)g s away."
            " Further ones are only counted (stat altsched/retry_after/ignored).",
            {"response": response, "value": value[:100], "most": self._most},
            extra={"spider": self._crawler.spider},
        )


_readers: WeakKeyDictionary[Crawler, RetryAfter] = WeakKeyDictionary()


def retry_after_of(crawler: Crawler) -> RetryAfter:
    """The one of a crawl."""
    if crawler not in _readers:
        _readers[crawler] = RetryAfter(crawler)
    return _readers[crawler]


def _parse(value: str) -> float | None:
    value = value.strip()
    if value.isascii() and value.isdigit():
        return float(value[:20])
    try:
        date = parsedate_to_datetime(value)
    except (ValueError, TypeError, OverflowError):
        return None
    if date.tzinfo is None:
        date = date.replace(tzinfo=timezone.utc)
    return max(0.0, date.timestamp() - time.time())
