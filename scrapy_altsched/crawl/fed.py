"""Which spiders are fed: they take requests from a queue on a server, and end when they see fit."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scrapy import Spider

#: Module and name of the classes of such spiders; neither has to be imported.
_SCRAPY_REDIS = ("scrapy_redis.spiders", "RedisMixin")
_OURS = ("scrapy_altsched.feeding.mixin", "RedisQueueMixin")


def is_fed(spider: Spider) -> bool:
    """Whether a spider takes requests from a queue, and decides how long it waits for more."""
    return has_fed_starts(spider) or _inherits(spider, _OURS)


def has_fed_starts(spider: Spider) -> bool:
    """Whether ``start()`` brings what others have put into a queue: equal ones are not the same."""
    return _inherits(spider, _SCRAPY_REDIS)


def _inherits(spider: Spider, name: tuple[str, str]) -> bool:
    """Whether a class of that module and name is among those of a spider."""
    return any((parent.__module__, parent.__name__) == name for parent in type(spider).__mro__)
