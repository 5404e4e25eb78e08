"""What robots.txt asks for between two requests, where a crawl is polite or shared."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from scrapy import signals

from .setup import Setup

if TYPE_CHECKING:
    from scrapy import Request

#: Seconds: what asks for more is a mistake.
_MOST = 86_400.0


class CrawlDelays:
    """Has the downloader wait for as long as ``Crawl-delay`` says, or longer.

    Scrapy reads that line since version 2.18, and tells of it by the signal ``robots_parsed``.

    :param note: called with each such slot, and its delay.
    """

    def __init__(
        self, setup: Setup, note: Callable[[str, float], object] = lambda _, __: None
    ) -> None:
        self._engine, self._note_delay = setup.engine, note
        settings = setup.crawler.settings
        self._agent = settings["ROBOTSTXT_USER_AGENT"]
        self._default_agent = settings["USER_AGENT"]
        signal = getattr(signals, "robots_parsed", None)
        if signal is not None:
            # Nothing else refers to this object.
            setup.crawler.signals.connect(self._note, signal, weak=False)

    def _note(self, robotparser: Any, request: Request) -> None:
        agent = self._agent or request.headers.get(b"User-Agent", self._default_agent)
        seconds = robotparser.crawl_delay(agent)
        if seconds is not None and 0 < seconds < math.inf:
            slot = self._engine.slot_key(request)
            self._engine.slow_down(slot, min(float(seconds), _MOST))
            self._note_delay(slot, self._engine.delay(slot))
