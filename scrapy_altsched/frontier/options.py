"""What a crawl may choose of how its frontier behaves."""

from __future__ import annotations

from dataclasses import dataclass

from .clock import Clock, SystemClock
from .queue.order import DEFAULT_ORDER, Order
from .store.runs import SCRAPY_ALTSCHED, Components

SYSTEM_CLOCK: Clock = SystemClock()


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a frontier behaves.

    :ivar order: who is next.
    :ivar max_crashes: deaths of the process while a request is leased alone, with its response in
        hand, that make it a dead letter.
    :ivar patience: seconds for which a request that is leased alone may hold up all others.
    :ivar memory_requests: how many pending requests of a stored queue are kept in memory.
    :ivar skip_started: whether a resumed unfinished job skips start requests that it accepted.
    :ivar components: who keeps what in this run.
    :ivar clock: the crawl's.
    """

    order: Order = DEFAULT_ORDER
    max_crashes: int = 3
    patience: float = 540.0
    memory_requests: int = 100_000
    skip_started: bool = True
    components: Components = SCRAPY_ALTSCHED
    clock: Clock = SYSTEM_CLOCK
