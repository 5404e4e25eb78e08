"""START HERE.  The frontier: every request of a crawl and its state.

Read :mod:`.contract` for the states, the transitions and what a caller may rely on; then

* :mod:`.changes`: what waits to become durable;
* :mod:`.options`: what a crawl may choose;
* :mod:`.queue`: who is next;
* :mod:`.local`: the frontier of one process, in memory, with or without a store;
* :mod:`.store`: what it has on disk, in RocksDB.

A frontier is opened in :mod:`scrapy_altsched.maintenance.opening`.  Nothing here knows Scrapy.
"""

from __future__ import annotations

from .clock import Clock
from .contract import Frontier, Gate, Reason, Verdict, Waiting
from .entry import Counts, Entry, Lease
from .events import DeadLettered, Event, Isolated, IsolationEnded, OnEvent
from .options import Options
from .queue.order import Order
from .store.runs import Components, Runs

__all__ = [
    "Clock",
    "Components",
    "Counts",
    "DeadLettered",
    "Entry",
    "Event",
    "Frontier",
    "Gate",
    "Isolated",
    "IsolationEnded",
    "Lease",
    "OnEvent",
    "Options",
    "Order",
    "Reason",
    "Runs",
    "Verdict",
    "Waiting",
]
