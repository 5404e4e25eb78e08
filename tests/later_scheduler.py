"""Our scheduler on a frontier that answers later, for whole crawls."""

from __future__ import annotations

from scrapy_altsched import DupeFilter, Scheduler
from scrapy_altsched.crawl.session import Setup
from scrapy_altsched.frontier import Frontier, OnEvent

from .later import LaterFrontier


class LaterScheduler(Scheduler):
    def _open_frontier(self, setup: Setup, on_event: OnEvent) -> Frontier:
        from twisted.internet import reactor

        frontier = LaterFrontier(
            setup.config.frontier,
            on_event,
            lambda: reactor.callFromThread(frontier.take_answers),
        )
        assert isinstance(self.df, DupeFilter)
        self.df.share(frontier, setup.tally)
        return frontier
