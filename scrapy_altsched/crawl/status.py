"""What is told at each commit of how the crawl stands: in the stats, and to those who look in."""

from __future__ import annotations

from ..frontier import Counts, Frontier
from ..frontier.contract import Standing
from .deferrals import Deferrals
from .hold import Hold
from .rates import Rates
from .setup import Setup

#: How many slots that are deferred are named.
NAMED = 20


class CrawlStatus:
    """Tells of a crawl with each commit; nothing is done for a request."""

    def __init__(self, setup: Setup, frontier: Frontier, deferrals: Deferrals, hold: Hold) -> None:
        self._spider = setup.spider.name
        self._shared = None if setup.shared is None else setup.shared.key
        self._stats, self._reports = setup.crawler.stats, setup.reports
        self._wall, self._now = setup.clock.wall, setup.clock.monotonic
        self._frontier, self._deferrals, self._hold = frontier, deferrals, hold
        #: Only a job directory has a place for it.
        self._is_published = frontier.job.path is not None
        self._began = self._wall()
        self._rates = Rates(frontier.counts(), self._now())

    def note(self, *, ends: bool = False) -> None:
        """The counts have changed; *ends*: for the last time."""
        counts = self._frontier.counts()
        self._reports.set_counts(counts)
        if self._is_published:
            self._rates.note(counts, self._now())
            self._frontier.run.publish(self._describe(counts, ends=ends))

    def look(self) -> Standing:
        """How the crawl stands now, uncommitted changes included."""
        counts = self._frontier.counts()
        self._rates.note(counts, self._now())
        return self._describe(counts, ends=False)

    def _describe(self, counts: Counts, *, ends: bool) -> Standing:
        assert self._stats is not None
        return Standing(
            spider=self._spider,
            counts=counts,
            began=self._began,
            at=self._wall(),
            shared=self._shared,
            duplicates=self._stats.get_value("dupefilter/filtered", 0),
            found_rate=self._rates.found,
            ended_rate=self._rates.ended,
            held=self._deferrals.held(NAMED),
            paused=self._hold.since,
            busiest=self._frontier.busiest_slots(all_at_once=ends),
        )
