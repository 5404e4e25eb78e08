"""START HERE.  The frontier: every request of a crawl and its state.

Read :mod:`.contract` for the states, the transitions and what a caller may rely on.  A frontier is
opened in :mod:`scrapy_altsched.maintenance.opening`.  Nothing here knows Scrapy.

A module imports from its own line of this list and from those below it:

1. :mod:`.local`, :mod:`.shared`: the frontier of one process, and that of many workers;
2. :mod:`.suspects`: which request has killed a process;
3. :mod:`.options`, :mod:`.content`: what a crawl may choose, and all that it consists of;
4. :mod:`.queue`: who is next;
5. :mod:`.store`: what a job has on disk;
6. all other modules: the contract, and what it is written in.
"""

from __future__ import annotations

from .contract import Frontier, Verdict, Waiting
from .entry import Counts, Entry, Lease
from .events import Event, OnEvent
from .options import Options
from .queue.order import Order
from .store.runs import Components, Runs

__all__ = [
    "Components",
    "Counts",
    "Entry",
    "Event",
    "Frontier",
    "Lease",
    "OnEvent",
    "Options",
    "Order",
    "Runs",
    "Verdict",
    "Waiting",
]
