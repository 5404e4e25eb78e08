"""What is measured: Scrapy's own queues, scrapy-redis, and scrapy_altsched."""

from __future__ import annotations

import importlib.util
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from queuelib import queue
from scrapy import squeues
from scrapy.utils.request import request_from_dict

from tests.servers import RedisServer, find_binary

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.crawler import Crawler
    from typing_extensions import Self

_SLOTS = "scrapy.pqueues.DownloaderAwarePriorityQueue"
_ONE = "scrapy.pqueues.ScrapyPriorityQueue"
_STOCK: dict[str, Any] = {"ADDONS": {}}
_ALTSCHED: dict[str, Any] = {
    "SCHEDULER": "scrapy_altsched.Scheduler",
    "DUPEFILTER_CLASS": "scrapy_altsched.DupeFilter",
}


@dataclass(frozen=True)
class Contender:
    """A scheduler as its users would configure it.

    :ivar title: its name in tables and plots.
    :ivar settings: what selects it.
    :ivar on_disk: whether it gets a JOBDIR.
    :ivar needs_redis: whether it gets the URL of a Redis server.
    :ivar rounds: how often it is measured at most; fewer for a very slow one.
    :ivar missing: why it cannot be measured here; empty if it can.
    """

    title: str
    settings: dict[str, Any] = field(default_factory=dict)
    on_disk: bool = False
    needs_redis: bool = False
    rounds: int = 1000
    missing: Callable[[], str] = lambda: ""

    def settings_in(self, directory: Path, redis_url: str | None) -> dict[str, Any]:
        """The settings of a crawl whose files go into *directory*."""
        settings = dict(self.settings)
        if self.on_disk:
            settings["JOBDIR"] = str(directory / "job")
        if self.needs_redis:
            settings["REDIS_URL"] = redis_url
        return settings


def _missing_rocksdict() -> str:
    return "" if importlib.util.find_spec("rocksdict") else "rocksdict is not installed"


def _missing_redis() -> str:
    if importlib.util.find_spec("scrapy_redis") is None:
        return "scrapy-redis is not installed"
    try:
        find_binary()
    except RuntimeError as error:
        return str(error).removesuffix(".")
    return ""


def _queue_of_queuelib(base: type) -> type:
    """What users of a Scrapy without SQLite queues have: queuelib's, extended to keep requests."""

    class SQLiteQueue(base):  # type: ignore[misc]
        def __init__(self, crawler: Crawler, key: str) -> None:
            self._spider = crawler.spider
            Path(key).parent.mkdir(parents=True, exist_ok=True)
            super().__init__(key)

        @classmethod
        def from_crawler(cls, crawler: Crawler, key: str) -> Self:
            return cls(crawler, key)

        def push(self, request: Request) -> None:
            super().push(pickle.dumps(request.to_dict(spider=self._spider), protocol=4))

        def pop(self) -> Request | None:
            row = super().pop()
            return request_from_dict(pickle.loads(row), spider=self._spider) if row else None

    return SQLiteQueue


def _sqlite(direction: str) -> type:
    own = getattr(squeues, f"Pickle{direction}SQLiteQueue", None)
    return own or _queue_of_queuelib(getattr(queue, f"{direction}SQLiteQueue"))


#: By their names for ``--contenders``, in the order of tables.
CONTENDERS = {
    "stock-memory": Contender("Scrapy, memory", _STOCK),
    "stock-disk": Contender("Scrapy, disk", _STOCK, on_disk=True),
    "stock-disk-one": Contender(
        "Scrapy, disk, one queue", {**_STOCK, "SCHEDULER_PRIORITY_QUEUE": _ONE}, on_disk=True
    ),
    "stock-sqlite": Contender(
        "Scrapy, SQLite",
        {
            **_STOCK,
            "SCHEDULER_DISK_QUEUE": _sqlite("Lifo"),
            "SCHEDULER_START_DISK_QUEUE": _sqlite("Fifo"),
        },
        on_disk=True,
        rounds=1,
    ),
    "scrapy-redis": Contender(
        "scrapy-redis",
        {
            **_STOCK,
            "SCHEDULER": "scrapy_redis.scheduler.Scheduler",
            "DUPEFILTER_CLASS": "scrapy_redis.dupefilter.RFPDupeFilter",
            "SCHEDULER_PERSIST": True,
        },
        needs_redis=True,
        missing=_missing_redis,
    ),
    "altsched-memory": Contender("scrapy_altsched, memory", _ALTSCHED),
    "altsched-disk": Contender(
        "scrapy_altsched, disk",
        {**_ALTSCHED, "ALTSCHED_STORE": "rocksdb"},
        on_disk=True,
        missing=_missing_rocksdict,
    ),
    "altsched-sqlite": Contender(
        "scrapy_altsched, SQLite", {**_ALTSCHED, "ALTSCHED_STORE": "sqlite"}, on_disk=True
    ),
    "altsched-shared": Contender(
        "scrapy_altsched, shared",
        {**_ALTSCHED, "ALTSCHED_SHARED": True},
        needs_redis=True,
        missing=_missing_redis,
    ),
}
#: The one with goals to reach; it commits.
OURS = "altsched-disk"
#: Ours on disk, by the engines of their stores.
STORES = (OURS, "altsched-sqlite")
#: Those of many machines.
SHARED = ("scrapy-redis", "altsched-shared")


@contextmanager
def redis_server(directory: Path) -> Iterator[str]:
    """A Redis server of its own, reached by a socket in *directory*; its URL.

    It keeps nothing on disk, which is the fastest that Redis can be.

    :raises RuntimeError: it does not start.
    """
    with RedisServer(directory / "redis", unix_socket=True) as server:
        yield f"unix://{server.socket}"
