"""What the parts of an open crawl are created from, its clock, and whether its spider is fed."""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scrapy import Spider

from ..engine.engine import Engine
from ..engine.event_loop import call_later
from ..frontier.clock import Call, Clock, SystemClock
from ..requests.entries import Entries
from ..requests.identity import PageIdentity
from ..settings import Config
from .reports import Reports

if TYPE_CHECKING:
    from scrapy.crawler import Crawler
    from scrapy.dupefilters import BaseDupeFilter

    from ..scheduler import Scheduler


class CrawlClock(SystemClock):
    """The machine's clock; without event loop or reactor, as in a script, nothing is called."""

    def call_at(self, when: float, call: Callable[[], object]) -> Call:
        planned: Call = call_later(max(0.0, when - self.monotonic()), call)
        return planned


@dataclass(frozen=True, slots=True)
class Setup:
    """What the parts of an open crawl are created from.

    :ivar jobdir: the job directory, absolute; ``None``: all is in memory.
    :ivar feed_files: the local files that the feeds of a job will write to.
    :ivar tally: how often each stat is to be increased: ``stats.inc_value()`` takes 2.4
        microseconds, several times what it counts.
    """

    crawler: Crawler
    spider: Spider
    engine: Engine
    config: Config
    clock: Clock
    jobdir: str | None
    dupefilter: BaseDupeFilter
    identity: PageIdentity
    feed_files: Sequence[Path]
    entries: Entries
    reports: Reports
    tally: MutableMapping[str, int]


class FedSpider(Spider):
    """A spider that takes requests from a queue, and decides how long it waits for more."""

    @abstractmethod
    def open_queue(self, scheduler: Scheduler) -> None:
        """Connect to the queue: called before *scheduler* opens, when all settings are known.

        :raises AltschedError: it cannot be used.
        """


def is_fed(spider: Spider) -> bool:
    """Whether a spider takes requests from a queue, and decides how long it waits for more."""
    return isinstance(spider, FedSpider) or has_fed_starts(spider)


def has_fed_starts(spider: Spider) -> bool:
    """Whether ``start()`` brings what others have put into a queue: equal ones are not the same."""
    # A spider of scrapy-redis has imported it.
    scrapy_redis: Any = sys.modules.get("scrapy_redis.spiders")
    return scrapy_redis is not None and isinstance(spider, scrapy_redis.RedisMixin)
