"""What a crawl may choose of how its frontier behaves."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from .queue.order import DEFAULT_ORDER, Order
from .store.runs import SCRAPY_ALTSCHED, Components


@dataclass(frozen=True, slots=True)
class Options:
    """How a frontier behaves.

    :ivar order: who is next.
    :ivar max_crashes: deaths of the process while a request is leased alone, with its response in
        hand, that make it a dead letter.
    :ivar patience: seconds for which a request that is leased alone may hold up all others.
    :ivar memory_requests: how many pending requests of a stored queue are kept in memory.
    :ivar skip_started: whether a resumed unfinished job skips start requests that it accepted.
    :ivar components: who keeps what in this run.
    :ivar clock: seconds, monotonic.
    """

    order: Order = DEFAULT_ORDER
    max_crashes: int = 3
    patience: float = 540.0
    memory_requests: int = 100_000
    skip_started: bool = True
    components: Components = SCRAPY_ALTSCHED
    clock: Callable[[], float] = time.monotonic
