"""A crawl in a running event loop, for schedulers that have their answers later.

What is measured is the wall-clock time from the first call until the scheduler has closed, and all
is stored, without the processor time that the stand-in for the engine itself has used.  So waiting
counts, and what other threads take from this one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from time import perf_counter, process_time, thread_time
from typing import Any

from scrapy.exceptions import DontCloseSpider
from scrapy.signals import spider_idle
from twisted.python.failure import Failure

from .contenders import Contender
from .engine import Clock, Crawl, Scrape
from .workloads import Place

#: Seconds until a crawl with nothing to download looks again.
_LOOK_AGAIN = 0.0005


class LoopCrawl(Crawl):
    """A :class:`~.engine.Crawl` whose scheduler can do something between two turns.

    :ivar seconds: from the first call to the end, without those of the stand-in.
    :ivar processor: of processor time in all threads, likewise.
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        super().__init__(settings, Clock(each=True))
        self.seconds = self.processor = 0.0
        #: Processor time of this thread in the scheduler's calls, and between two turns.
        self._between = 0.0

    async def run_to_end(self, scrape: Scrape) -> None:
        """Run until nothing is pending here or elsewhere, and close the scheduler."""
        clock = self.clock
        start, processor, own = perf_counter(), process_time(), thread_time()
        while self.step(scrape) or self._must_stay_open():
            begin, used = perf_counter(), thread_time()
            # As the real engine, it waits for whoever wakes it.
            await asyncio.sleep(_LOOK_AGAIN if self.is_starving else 0)
            used = thread_time() - used
            self._between += used
            clock.note(used if self.is_starving else perf_counter() - begin, used, 0.0)
        used = thread_time()
        self.close()
        self._between += thread_time() - used
        stand_in = thread_time() - own - clock.processor - self._between
        self.seconds = perf_counter() - start - stand_in
        self.processor = process_time() - processor - stand_in

    def _must_stay_open(self) -> bool:
        """Ask whether an idle spider must not be closed, as the engine does."""
        answers = self.crawler.signals.send_catch_log(
            spider_idle, spider=self.spider, dont_log=DontCloseSpider
        )
        failures = (answer for _, answer in answers if isinstance(answer, Failure))
        return any(isinstance(failure.value, DontCloseSpider) for failure in failures)


def run_in_loop(
    contender: Contender, place: Place, work: Callable[[LoopCrawl], Coroutine[Any, Any, None]]
) -> LoopCrawl:
    """A crawl in which *work* was done."""

    async def run() -> LoopCrawl:
        crawl = LoopCrawl(place.settings(contender))
        await work(crawl)
        return crawl

    return asyncio.run(run())
