"""What a crawl may choose of how its workers share one frontier."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

#: What workers do when nothing is left to crawl: end, or wait for more.
Idle = Literal["finish", "wait"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedOptions:
    """How a worker takes part in a shared crawl.

    :ivar key: the crawl's name on the server; all workers of a crawl have the same.
    :ivar lease_timeout: seconds, by the server's clock, after which the leases of a worker that is
        no longer heard of go to others.
    :ivar prefetch: requests that a worker holds leased at most before it needs them; as many can be
        overtaken by more urgent ones.
    :ivar idle: whether workers end when nothing is left (``"finish"``), or wait for more.
    :ivar restart: whether a crawl that is finished starts again from nothing.
    :ivar request_classes: import paths of the request classes that may be restored from the
        server, besides Scrapy's own.
    :ivar pickle: whether what msgpack cannot encode may be pickled; who can write to the server
        can then run code in each worker.
    :ivar redis: scrapy-redis's settings, by name, as :func:`.connection.connect` takes them.  They
        hold passwords, and are in no ``repr``.
    """

    key: str
    lease_timeout: float = 60.0
    prefetch: int = 100
    idle: Idle = "finish"
    restart: bool = False
    request_classes: tuple[str, ...] = ()
    pickle: bool = False
    redis: Mapping[str, Any] = field(default_factory=dict, repr=False)
