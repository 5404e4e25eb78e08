"""What a crawl may choose of how its frontier behaves, and how its workers share one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ..age import Age
from ..limit import Limits
from .clock import Clock, SystemClock
from .queue.order import DEFAULT_ORDER, Order
from .store.engines import Choice
from .store.runs import SCRAPY_ALTSCHED, Components

SYSTEM_CLOCK: Clock = SystemClock()
#: What workers do when nothing is left to crawl: end, or wait for more.
Idle = Literal["finish", "wait"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a frontier behaves.

    :ivar max_crashes: deaths with a request alone in hand that make it a dead letter.
    :ivar patience: seconds for which a request that is leased alone may hold up all others.
    :ivar memory_requests: how many pending requests of a stored queue are kept in memory.
    :ivar keep_failed: how many failed requests are kept; of more, the oldest count as done.
    :ivar records_ages: whether it is recorded from now on when pages are finished.
    :ivar recrawl_after: how old a page has to be to be crawled again; ``None``: it never is.
    :ivar slot_budget: how many unique requests of a download slot are accepted; 0: all.
    :ivar polite: whether a slot with a delay gets no more requests than it can download.
    :ivar retry_failed: whether a run begins with those that an earlier one has left.
    :ivar skip_started: whether a resumed unfinished job skips start requests that it accepted.
    :ivar store: the engine of a new job's store.
    """

    order: Order = DEFAULT_ORDER
    max_crashes: int = 3
    patience: float = 540.0
    memory_requests: int = 100_000
    keep_failed: int = 100_000
    records_ages: bool = False
    recrawl_after: Age | None = None
    slot_budget: int = 0
    polite: bool = False
    retry_failed: bool = False
    skip_started: bool = True
    store: Choice = "auto"
    components: Components = SCRAPY_ALTSCHED
    clock: Clock = SYSTEM_CLOCK


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedOptions:
    """How a worker takes part in a shared crawl.

    :ivar key: the crawl's name on the server; all workers of a crawl have the same.
    :ivar lease_timeout: seconds, by the server's clock, until a silent worker's leases expire.
    :ivar prefetch: requests at most that a worker leases ahead; more urgent ones cannot pass them.
    :ivar idle: whether workers end when nothing is left (``"finish"``), or wait for more.
    :ivar restart: whether a crawl that is finished starts again from nothing.
    :ivar limits: how hard download slots may be asked by all workers together, if this one says so;
        *unpaced*: that each is to ask them as it likes.
    :ivar redis: scrapy-redis's settings, by name, as ``connect`` takes them; passwords among them.
    :ivar words: by which commands find the crawl: the key, and maybe options that name the server.
    """

    key: str
    lease_timeout: float = 60.0
    prefetch: int = 100
    idle: Idle = "finish"
    restart: bool = False
    limits: Limits | None = None
    unpaced: bool = False
    redis: Mapping[str, Any] = field(default_factory=dict, repr=False)
    words: str | None = None
