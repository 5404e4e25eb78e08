"""A log line now and then that says how far the crawl is, beside Scrapy's own."""

from __future__ import annotations

import math

from ..frontier import Frontier
from ..frontier.clock import Call
from . import messages
from .setup import Setup


class ProgressLine:
    """Logs how far the crawl is, each ``LOGSTATS_INTERVAL`` seconds; 0: never."""

    def __init__(self, setup: Setup, frontier: Frontier) -> None:
        self._reports, self._clock, self._frontier = setup.reports, setup.clock, frontier
        interval = setup.crawler.settings.getfloat("LOGSTATS_INTERVAL")
        self._interval = interval if setup.config.log_progress else 0.0
        self._call: Call | None = None
        if 0 < self._interval < math.inf:
            counts = frontier.counts()
            self._at = setup.clock.monotonic()
            self._accepted, self._done = counts.accepted, counts.done
            self._plan()

    def _plan(self) -> None:
        self._call = self._clock.call_at(self._clock.monotonic() + self._interval, self._tell)

    def _tell(self) -> None:
        self._plan()
        counts, now = self._frontier.counts(), self._clock.monotonic()
        per_minute = 60 / max(now - self._at, 1e-3)
        self._reports.log(
            messages.PROGRESS,
            done=counts.done,
            share=100 * counts.done // max(counts.accepted, 1),
            accepted=counts.accepted,
            others="".join(
                f", {number} {state}"
                for number, state in (
                    (counts.delayed, "delayed"),
                    (counts.failed, "failed"),
                    (counts.dead, "dead"),
                )
                if number
            ),
            pending=counts.pending,
            in_flight=counts.leased,
            done_rate=max(0.0, counts.done - self._done) * per_minute,
            found_rate=max(0.0, counts.accepted - self._accepted) * per_minute,
        )
        self._at, self._accepted, self._done = now, counts.accepted, counts.done

    def close(self) -> None:
        """Say nothing any more."""
        planned, self._call = self._call, None
        if planned is not None:
            planned.cancel()
