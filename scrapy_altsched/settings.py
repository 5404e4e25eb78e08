"""Every setting that this package reads, its default and its check, as one frozen Config."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from queuelib import queue as queuelib_queue
from scrapy import pqueues, squeues
from scrapy.utils.misc import load_object

from .canonical import Rules
from .errors import ConfigError
from .frontier import Options, Order
from .frontier.queue.order import DEFAULT_ORDER, Direction, Policy

if TYPE_CHECKING:
    from scrapy import Spider
    from scrapy.settings import BaseSettings

PREFIX = "ALTSCHED_"


def _number(kind: type[int] | type[float], least: float, unit: str) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        number = kind(value)
        is_rounded = isinstance(value, float) and number != value
        if isinstance(value, bool) or is_rounded or not math.isfinite(number) or number < least:
            raise ValueError
        return number

    name = "a whole number" if kind is int else "a number"
    check.__doc__ = f"{name} of {unit}, {least} or more"
    return check


def _flag(value: Any) -> bool:
    """True or False"""
    if isinstance(value, bool):
        return value
    return {"1": True, "true": True, "0": False, "false": False}[str(value).lower()]


def _rules(value: Any) -> Rules:
    """a list of rules, or the path of a JSON or TOML file"""  # noqa: D403  (part of a sentence)
    return Rules.load(value)


def _setting(default: Any, check: Callable[[Any], Any]) -> Any:
    return field(default=default, metadata={"check": check})


@dataclass(frozen=True, slots=True)
class Config:
    """The settings ``ALTSCHED_...``, by their names in lower case without the prefix.

    :ivar commit_interval: seconds between two commits.
    :ivar commit_every: changes (requests added or done) that make a commit due sooner.
    :ivar commit_timeout: seconds of failing commits after which the spider is closed.
    :ivar sync: whether each commit is also forced to the disk, against power cuts.
    :ivar max_crashes: deaths of the process while a request is leased alone, with its response in
        hand, that make it a dead letter.
    :ivar memory_requests: pending requests of a stored queue that are kept in memory.
    :ivar skip_started: whether a resumed unfinished job skips start requests that earlier runs
        accepted; stock does not.
    :ivar url_rules: which URLs mean the same page, without the spider's own rules.
    :ivar trust_stock_seen: whether requests.seen of Scrapy's own filter is trusted even if its
        scheduler did not end cleanly.
    :ivar gc_freeze: whether garbage collections skip objects from before the crawl opened.
    :ivar exit_code: whether the process's exit code says whether the job is finished.
    :ivar order: which request is next, from Scrapy's own settings.
    :ivar patience: seconds for which a request that is leased alone may hold up all others: three
        times DOWNLOAD_TIMEOUT.
    """

    commit_interval: float = _setting(1.0, _number(float, 0.01, "seconds"))
    commit_every: int = _setting(2_000, _number(int, 1, "changes"))
    commit_timeout: float = _setting(600.0, _number(float, 0, "seconds"))
    sync: bool = _setting(False, _flag)
    max_crashes: int = _setting(3, _number(int, 1, "crashes"))
    memory_requests: int = _setting(100_000, _number(int, 1, "requests"))
    skip_started: bool = _setting(True, _flag)
    url_rules: Rules | None = field(default=None, metadata={"check": _rules})
    trust_stock_seen: bool = _setting(False, _flag)
    gc_freeze: bool = _setting(True, _flag)
    exit_code: bool = _setting(False, _flag)
    order: Order = DEFAULT_ORDER
    patience: float = 540.0

    @property
    def frontier(self) -> Options:
        """The part that a frontier needs."""
        return Options(
            order=self.order,
            max_crashes=self.max_crashes,
            patience=self.patience,
            memory_requests=self.memory_requests,
            skip_started=self.skip_started,
        )

    def rules_of(self, spider: Spider | type[Spider] | None) -> Rules:
        """The rules for URLs: those of the setting, then those of a spider's ``url_rules``.

        :raises ConfigError: one of the spider's rules is invalid.
        """
        rules = self.url_rules or Rules()
        more = getattr(spider, "url_rules", None)
        if more is None:
            return rules
        spider_class = spider if isinstance(spider, type) else type(spider)
        return rules.extended(more, name=f"{spider_class.__name__}.url_rules")

    @classmethod
    def from_settings(cls, settings: BaseSettings, *, disk: bool | None, **given: Any) -> Config:
        """Read and check all settings.

        :param disk: whether the queue is kept on disk, which decides which queue settings apply;
            ``None``: none does, as another scheduler keeps the queue.
        :param given: queue classes that override settings, by name of the setting.
        :raises ConfigError: a value is invalid, or a setting is unknown.
        """
        checks = {
            PREFIX + item.name.upper(): item for item in fields(cls) if "check" in item.metadata
        }
        for name in settings:
            if str(name).startswith(PREFIX) and name not in checks:
                near = difflib.get_close_matches(str(name).upper(), checks, 1, 0)[0]
                raise ConfigError(f"Unknown setting {name} (did you mean {near}?).")
        values: dict[str, Any] = {}
        for name, item in checks.items():
            value = settings.get(name)
            if value is None:
                continue
            check = item.metadata["check"]
            try:
                values[item.name] = check(value)
            except ConfigError:
                raise
            except (ValueError, TypeError, KeyError, OverflowError):
                raise ConfigError(
                    f"{name} = {value!r} cannot be used: it must be {check.__doc__}"
                    f" (default: {item.default!r})."
                ) from None
        if disk is not None:
            values["order"] = _read_order(settings, given, disk=disk)
            values["patience"] = 3 * settings.getfloat("DOWNLOAD_TIMEOUT")
        return cls(**values)


def _read_order(settings: BaseSettings, given: dict[str, Any], *, disk: bool) -> Order:
    medium = "DISK" if disk else "MEMORY"
    policy = _read_policy(settings, given)
    normal = _read_direction(f"SCHEDULER_{medium}_QUEUE", settings, given)
    start = _read_direction(f"SCHEDULER_START_{medium}_QUEUE", settings, given)
    if normal is None:
        raise ConfigError(
            f"SCHEDULER_{medium}_QUEUE is not set. Use one of {_queue_names(medium)}."
        )
    if policy == "slots" and settings.getint("CONCURRENT_REQUESTS_PER_IP"):
        raise ConfigError(
            "SCHEDULER_PRIORITY_QUEUE = 'scrapy.pqueues.DownloaderAwarePriorityQueue' does not"
            " support CONCURRENT_REQUESTS_PER_IP. Set the latter to 0, or the former to"
            " 'scrapy.pqueues.ScrapyPriorityQueue'."
        )
    return Order(policy, normal, start)


def _read_policy(settings: BaseSettings, given: dict[str, Any]) -> Policy:
    name = "SCHEDULER_PRIORITY_QUEUE"
    value = given.get(name) or settings[name]
    queue_class = _load(name, value)
    if queue_class is pqueues.DownloaderAwarePriorityQueue:
        return "slots"
    if queue_class is pqueues.ScrapyPriorityQueue:
        return "one"
    raise ConfigError(
        f"{name} = {value!r} is not supported: scrapy_altsched has the order of"
        " 'scrapy.pqueues.DownloaderAwarePriorityQueue' and of"
        " 'scrapy.pqueues.ScrapyPriorityQueue'. Use one of them, or Scrapy's own SCHEDULER."
    )


def _read_direction(name: str, settings: BaseSettings, given: dict[str, Any]) -> Direction | None:
    value = given.get(name) or settings[name]
    queue_class = _load(name, value)
    if queue_class is None:
        return None
    if isinstance(queue_class, type) and queue_class in vars(squeues).values():
        for kind in ("DiskQueue", "SQLiteQueue", "MemoryQueue"):
            if issubclass(queue_class, getattr(queuelib_queue, "Lifo" + kind)):
                return "lifo"
            if issubclass(queue_class, getattr(queuelib_queue, "Fifo" + kind)):
                return "fifo"
    raise ConfigError(
        f"{name} = {value!r} is not supported: scrapy_altsched keeps requests in its own"
        f" store and takes only LIFO or FIFO from this setting. Use one of"
        f" {_queue_names('MEMORY' if 'MEMORY' in name else 'DISK')}, or Scrapy's own SCHEDULER."
    )


def _load(name: str, value: Any) -> Any:
    if not value:
        return None
    try:
        return load_object(value)
    except (ImportError, AttributeError, ValueError, TypeError, NameError) as error:
        raise ConfigError(f"{name} = {value!r} cannot be loaded: {error}.") from error


def _queue_names(medium: str) -> str:
    if medium == "MEMORY":
        return "'scrapy.squeues.LifoMemoryQueue' and 'scrapy.squeues.FifoMemoryQueue'"
    return "'scrapy.squeues.PickleLifoDiskQueue' and 'scrapy.squeues.PickleFifoDiskQueue'"
