"""Ten million URLs seen, of which eight are pending: a crawl that finds more than it fetches.

One of ten pages has 50 new links, and as many old ones.  All else is as in :mod:`.grow`.
"""

from __future__ import annotations

import random
from contextlib import closing
from itertools import islice
from time import thread_time
from typing import Any

from ..contenders import OURS, Contender
from . import Case, Metric, Outcome, Place, microseconds
from .grow import METRICS as OF_GROWTH
from .grow import STEPS
from .grow import run as grow

METRICS = (
    *(
        Metric(metric.name, "us for a new one, a duplicate, and 0.2 taken", is_main=True)
        if metric.is_main
        else metric
        for metric in OF_GROWTH
    ),
    Metric("seen", "bytes on disk a URL seen, in its family"),
    Metric("look_up", "us to look up an old one in the store"),
)
_LINKS, _PAGES = 50, 10
_LOOK_UPS = 50_000


def cases(scale: float, options: Any) -> list[Case]:
    """One size, for ours on disk."""
    seen = max(1_000, int(options.grow * scale))
    parameters = {"seen": seen, "step": max(1, seen // STEPS), "links": _LINKS, "pages": _PAGES}
    return [Case(f"{seen:,}", parameters, (OURS,), rounds=1)]


def run(contender: Contender, place: Place, **size: int) -> Outcome:
    """Let it grow, and look at what is on the disk then."""
    outcome = grow(contender, place, **size)
    outcome.figures.update(_look_at_seen(place, size["seen"]))
    return outcome


def _look_at_seen(place: Place, count: int) -> dict[str, float]:
    # It is optional.
    from scrapy_altsched.frontier.store.rocksdb.database import RocksDatabase

    (manifest,) = place.directory.rglob("CURRENT")
    with closing(RocksDatabase(manifest.parent)) as database:
        database.open_read_only(manifest.parent)
        seen = database.families["seen"]
        size = seen.property_int_value("rocksdb.total-sst-files-size")
        old = list(islice(seen.keys(), 0, None, max(1, count // _LOOK_UPS)))
        random.Random(4).shuffle(old)
        begin = thread_time()
        for key in old:
            assert database.has("seen", key)
        return {"seen": size / count, "look_up": microseconds(thread_time() - begin, len(old))}
