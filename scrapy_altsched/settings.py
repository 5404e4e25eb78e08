"""Every setting that this package reads, its default and its check, as one frozen Config."""

from __future__ import annotations

import difflib
import importlib.util
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from shlex import quote
from typing import TYPE_CHECKING, Any, Literal, get_args

from scrapy import Request, pqueues, squeues
from scrapy.utils.misc import load_object
from scrapy.utils.python import global_object_name

from .age import MUST_BE as AGE_MUST_BE
from .age import Age
from .canonical import Rules
from .command_line import given_options
from .errors import ConfigError
from .frontier import Options, Order
from .frontier.options import Idle, SharedOptions
from .frontier.queue.order import DEFAULT_ORDER, Direction, Policy
from .frontier.store.engines import Choice
from .redis_client import SETTINGS as REDIS_SETTINGS
from .worker import check_name

if TYPE_CHECKING:
    from scrapy import Spider
    from scrapy.settings import BaseSettings

PREFIX = "ALTSCHED_"
#: How to choose between download slots.
PolicyName = Literal["stock", "polite"]
_QUEUES = {
    "MEMORY": "'scrapy.squeues.LifoMemoryQueue' and 'scrapy.squeues.FifoMemoryQueue'",
    "DISK": "'scrapy.squeues.PickleLifoDiskQueue' and 'scrapy.squeues.PickleFifoDiskQueue'",
}


def _setting(default: Any, must_be: str, check: Callable[[Any], Any]) -> Any:
    """A field whose values are *must_be*, or *check* raises ValueError, TypeError or KeyError."""
    return field(default=default, metadata={"must_be": must_be, "check": check})


def _number(default: float, least: float, unit: str) -> Any:
    kind = type(default)

    def check(value: Any) -> float:
        number = kind(value)
        is_rounded = isinstance(value, float) and number != value
        if isinstance(value, bool) or is_rounded or not math.isfinite(number) or number < least:
            raise ValueError
        return number

    number = "a whole number" if kind is int else "a number"
    return _setting(default, f"{number} of {unit}, {least} or more", check)


def _flag(default: bool) -> Any:
    def check(value: Any) -> bool:
        if isinstance(value, bool):
            return value
        return {"1": True, "true": True, "0": False, "false": False}[str(value).lower()]

    return _setting(default, "True or False", check)


_KEY = "a name of 1 to 200 characters, without { and }"


def _check_key(value: Any) -> str:
    # Braces mark the part of a key that a Redis Cluster chooses a node by.
    if not isinstance(value, str) or not 1 <= len(value) <= 200 or set(value) & set("{}"):
        raise ValueError
    return value


def _check_path(value: Any) -> str:
    if not (path := os.fspath(value)) or not isinstance(path, str) or path.endswith("/"):
        raise ValueError
    return path


def _check_request_classes(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",") if part.strip()]
    elif not isinstance(value, list | tuple):
        raise ValueError
    paths = []
    for item in value:
        found = _load(f"{PREFIX}SHARED_REQUEST_CLASSES", item)
        if not isinstance(found, type) or not issubclass(found, Request):
            raise ValueError
        paths.append(global_object_name(found))
    return tuple(paths)


@dataclass(frozen=True, slots=True)
class Config:
    """The settings ``ALTSCHED_...``, by their names in lower case without the prefix.

    docs/settings.rst says what each of them does.  The last four follow from other settings:

    :ivar keeps_interval: whether *commit_interval* was set, and counts even if commits cost less.
    :ivar order: which request is next, from Scrapy's own settings.
    :ivar patience: seconds for which a request that is leased alone may hold up all others: three
        times DOWNLOAD_TIMEOUT.
    :ivar redis: scrapy-redis's settings that are set, by name; only if the crawl is shared.  And
        the options that give them to other commands, where the project does not.
    """

    commit_interval: float = _number(1.0, 0.01, "seconds")
    commit_every: int = _number(2_000, 1, "changes")
    commit_timeout: float = _number(600.0, 0, "seconds")
    sync: bool = _flag(False)
    wait_at_close: bool = _flag(True)
    retry_delay: float = _number(0.0, 0, "seconds")
    retry_delay_max: float = _number(3_600.0, 0, "seconds")
    max_crashes: int = _number(3, 1, "crashes")
    memory_requests: int = _number(100_000, 1, "requests")
    policy: PolicyName = _setting(  # noqa: RUF009  (a field)
        "stock", "one of 'stock' and 'polite'", {"stock": "stock", "polite": "polite"}.__getitem__
    )
    recrawl_after: Age | None = _setting(None, AGE_MUST_BE, Age.parse)  # noqa: RUF009  (a field)
    slot_budget: int = _number(0, 0, "requests")
    breaker: int = _number(0, 0, "answers")
    breaker_delay: float = _number(60.0, 0.01, "seconds")
    keep_failed: int = _number(100_000, 0, "requests")
    keep_parent: bool = _flag(False)
    retry_failed_next_run: bool = _flag(False)
    skip_started: bool = _flag(True)
    store: Choice = _setting(  # noqa: RUF009  (a field)
        "auto",
        "one of 'auto', 'rocksdb' and 'sqlite'",
        {name: name for name in get_args(Choice)}.__getitem__,
    )
    url_rules: Rules | None = _setting(  # noqa: RUF009  (a field)
        None, "a list of rules, or the path of a JSON or TOML file", Rules.load
    )
    archive: str | None = _setting(None, "the path of a file", _check_path)
    archive_size: int = _number(100_000_000, 1, "bytes")
    trust_stock_seen: bool = _flag(False)
    log_progress: bool = _flag(True)
    gc_freeze: bool = _flag(True)
    exit_code: bool = _flag(False)
    shared: bool = _flag(False)
    shared_key: str | None = _setting(None, _KEY, _check_key)
    lease_timeout: float = _number(60.0, 1, "seconds")
    shared_prefetch: int = _number(100, 1, "requests")
    shared_idle: Idle = _setting(  # noqa: RUF009  (a field)
        "finish", "one of 'finish' and 'wait'", {"finish": "finish", "wait": "wait"}.__getitem__
    )
    shared_restart: bool = _flag(False)
    shared_pace: bool = _flag(True)
    shared_request_classes: tuple[str, ...] = _setting(
        (), "a list of request classes, or of their import paths", _check_request_classes
    )
    shared_pickle: bool = _flag(False)
    shared_worker: str | None = _setting(
        None, "text of letters, digits, '.', '_' and '-'", check_name
    )
    keeps_interval: bool = False
    order: Order = DEFAULT_ORDER
    patience: float = 540.0
    redis: Mapping[str, Any] = field(default_factory=dict, repr=False)
    redis_options: tuple[str, ...] = ()

    @property
    def frontier(self) -> Options:
        return Options(
            order=self.order,
            max_crashes=self.max_crashes,
            patience=self.patience,
            memory_requests=self.memory_requests,
            slot_budget=self.slot_budget,
            recrawl_after=self.recrawl_after,
            polite=self.policy == "polite",
            keep_failed=self.keep_failed,
            retry_failed=self.retry_failed_next_run,
            skip_started=self.skip_started,
            store=self.store,
        )

    def shared_options(self, spider_name: str) -> SharedOptions | None:
        """``None``: not shared; ConfigError: neither a setting nor the spider's name names it."""
        if not self.shared:
            return None
        try:
            key = self.shared_key or _check_key(spider_name)
        except ValueError:
            raise ConfigError(
                f"The spider's name {spider_name!r} cannot be the name of a shared crawl: set"
                f" {PREFIX}SHARED_KEY to {_KEY}."
            ) from None
        return SharedOptions(
            key=key,
            lease_timeout=self.lease_timeout,
            prefetch=self.shared_prefetch,
            idle=self.shared_idle,
            restart=self.shared_restart,
            redis=self.redis,
            words=" ".join([quote(key), *self.redis_options]),
        )

    def rules_of(self, spider: Spider | type[Spider] | None) -> Rules:
        """The rules for URLs: those of the setting, then those of a spider's ``url_rules``."""
        # Rules that are only about ages count as none where it is about fingerprints.
        own = Rules() if self.url_rules is None else self.url_rules
        return own.with_spider(spider)

    @classmethod
    def from_settings(cls, settings: BaseSettings, *, disk: bool | None, **given: Any) -> Config:
        """Read and check all settings.

        :param disk: whether the queue is on disk; ``None``: another scheduler keeps it.
        :param given: queue classes that override settings, by name of the setting.
        :raises ConfigError: a value is invalid, or a setting is unknown.
        """
        known = {PREFIX + item.name.upper(): item for item in fields(cls) if item.metadata}
        for name in settings:
            if str(name).startswith(PREFIX) and name not in known:
                near = difflib.get_close_matches(str(name).upper(), known, 1, 0)[0]
                raise ConfigError(f"Unknown setting {name} (did you mean {near}?).")
        values: dict[str, Any] = {}
        for name, item in known.items():
            if (value := settings.get(name)) is None:
                continue
            try:
                values[item.name] = item.metadata["check"](value)
            except ConfigError:
                raise
            except (ValueError, TypeError, KeyError, OverflowError):
                raise ConfigError(
                    f"{name} = {value!r} cannot be used: it must be {item.metadata['must_be']}"
                    f" (default: {item.default!r})."
                ) from None
        values["keeps_interval"] = "commit_interval" in values
        if disk is not None:
            # A shared crawl is stored, whether this worker has a job directory or not.
            medium = "DISK" if disk or values.get("shared") else "MEMORY"
            values["order"] = _read_order(settings, given, medium)
            values["patience"] = 3 * settings.getfloat("DOWNLOAD_TIMEOUT")
            if values.get("policy") == "polite":
                _require_slots(values, f"{PREFIX}POLICY = 'polite'")
            if values.get("shared") and (budget := values.get("slot_budget", 0)):
                _require_slots(values, f"{PREFIX}SLOT_BUDGET = {budget}, in a shared crawl,")
        if values.get("shared"):
            _check_shared(values)
            values["redis"] = read_redis(settings)
            values["redis_options"] = server_options(settings)
        return cls(**values)


def server_options(settings: BaseSettings) -> tuple[str, ...]:
    """Options that commands need to find the server of shared crawls: it is not the project's."""
    return tuple(given_options(settings, REDIS_SETTINGS, "spider"))


def read_redis(settings: BaseSettings, user: str = f"{PREFIX}SHARED") -> dict[str, Any]:
    """scrapy-redis's settings that are set, by name; ConfigError: *user* cannot use a server."""
    missing = [name for name in ("redis", "msgpack") if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"{user} needs the package {missing[0]!r}, which is not installed: run"
            " pip install scrapy-altsched[redis]"
        )
    values = {name: settings[name] for name in REDIS_SETTINGS if settings[name] is not None}
    try:
        values["REDIS_PARAMS"] = settings.getdict("REDIS_PARAMS")
    except (ValueError, TypeError):
        # The value is not shown: it may have a password in it.
        message = "REDIS_PARAMS cannot be used: it must be a dict, or JSON of one."
        raise ConfigError(message) from None
    return values


def _read_order(settings: BaseSettings, given: dict[str, Any], medium: str) -> Order:
    name = "SCHEDULER_PRIORITY_QUEUE"
    value = given.get(name) or settings[name]
    queue_class = _load(name, value)
    policy: Policy = "one"
    if queue_class is pqueues.DownloaderAwarePriorityQueue:
        policy = "slots"
        if settings.getint("CONCURRENT_REQUESTS_PER_IP"):
            raise ConfigError(
                f"{name} = 'scrapy.pqueues.DownloaderAwarePriorityQueue' does not support"
                " CONCURRENT_REQUESTS_PER_IP. Set the latter to 0, or the former to"
                " 'scrapy.pqueues.ScrapyPriorityQueue'."
            )
    elif queue_class is not pqueues.ScrapyPriorityQueue:
        raise ConfigError(
            f"{name} = {value!r} is not supported: scrapy_altsched has the order of"
            " 'scrapy.pqueues.DownloaderAwarePriorityQueue' and of"
            " 'scrapy.pqueues.ScrapyPriorityQueue'. Use one of them, or Scrapy's own SCHEDULER."
        )
    directions: list[Direction | None] = []
    for name in (f"SCHEDULER_{medium}_QUEUE", f"SCHEDULER_START_{medium}_QUEUE"):
        value = given.get(name) or settings[name]
        directions.append(_direction_of(queue_class := _load(name, value)))
        if queue_class is not None and directions[-1] is None:
            raise ConfigError(
                f"{name} = {value!r} is not supported: scrapy_altsched keeps requests in its own"
                f" store and takes only LIFO or FIFO from this setting. Use one of"
                f" {_QUEUES[medium]}, or Scrapy's own SCHEDULER."
            )
    normal, start = directions
    if normal is None:
        raise ConfigError(f"SCHEDULER_{medium}_QUEUE is not set. Use one of {_QUEUES[medium]}.")
    return Order(policy, normal, start)


def _require_slots(values: dict[str, Any], setting: str) -> None:
    """Raise a ConfigError if requests do not wait in the queues of their download slots."""
    if values["order"].policy != "slots":
        raise ConfigError(
            f"{setting} is about download slots, and SCHEDULER_PRIORITY_QUEUE ="
            " 'scrapy.pqueues.ScrapyPriorityQueue' has none. Set the latter to"
            " 'scrapy.pqueues.DownloaderAwarePriorityQueue'."
        )


def _check_shared(values: dict[str, Any]) -> None:
    if values.get("policy") == "polite" and not values.get("shared_pace", True):
        raise ConfigError(
            f"{PREFIX}POLICY = 'polite' needs the pace of a shared crawl, which {PREFIX}SHARED_PACE"
            " = False turns off: unset one of them."
        )


def _direction_of(queue_class: Any) -> Direction | None:
    # By the names in that module: those of the classes themselves do not tell.
    name = next((name for name, known in vars(squeues).items() if known is queue_class), "")
    return "lifo" if "Lifo" in name else "fifo" if "Fifo" in name else None


def _load(name: str, value: Any) -> Any:
    if not value:
        return None
    try:
        return load_object(value)
    except (ImportError, AttributeError, ValueError, TypeError, NameError) as error:
        raise ConfigError(f"{name} = {value!r} cannot be loaded: {error}.") from error
