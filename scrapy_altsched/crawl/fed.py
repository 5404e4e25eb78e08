"""Spiders that are fed: they take requests from a queue on a server, and end when they see fit."""

from __future__ import annotations

import sys
from abc import abstractmethod
from typing import TYPE_CHECKING, Any

from scrapy import Spider

if TYPE_CHECKING:
    from ..scheduler import Scheduler


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
