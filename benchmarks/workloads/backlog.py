"""Ten million URLs seen, of which eight are pending: a crawl that finds more than it fetches.

One of ten pages has 50 new links, and as many old ones.  All else is as in :mod:`.grow`.
"""

from __future__ import annotations

from typing import Any

from ..contenders import OURS, Contender
from . import Case, Metric, Outcome, Place
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
)
_LINKS, _PAGES = 50, 10


def cases(scale: float, options: Any) -> list[Case]:
    """One size, for ours on disk."""
    seen = max(1_000, int(options.grow * scale))
    parameters = {"seen": seen, "step": max(1, seen // STEPS), "links": _LINKS, "pages": _PAGES}
    return [Case(f"{seen:,}", parameters, (OURS,), rounds=1)]


def run(contender: Contender, place: Place, **size: int) -> Outcome:
    """Let it grow, and look at what is on the disk then."""
    outcome = grow(contender, place, **size)
    outcome.figures["seen"] = _bytes_of_seen(place) / size["seen"]
    return outcome


def _bytes_of_seen(place: Place) -> int:
    """Bytes of all tables of the family ``seen``."""
    # It is optional.
    from rocksdict import AccessType, Options, Rdict

    (manifest,) = place.directory.rglob("CURRENT")
    options = Options(raw_mode=True)
    path = str(manifest.parent)
    families = dict.fromkeys(Rdict.list_cf(path, options), options)
    access = AccessType.read_only()
    store = Rdict(path, options, column_families=families, access_type=access)
    seen = store.get_column_family("seen")
    size: int = seen.property_int_value("rocksdb.total-sst-files-size")
    seen.close()
    store.close()
    return size
