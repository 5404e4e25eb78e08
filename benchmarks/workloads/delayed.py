"""A million requests that wait for their time, against a million that do not: memory and cost.

They are given to a frontier without Scrapy around it.  All that wait are due at the same time, and
taken from then on.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from time import perf_counter
from typing import Any, TypeVar

from scrapy_altsched.errors import StoreStalledError
from scrapy_altsched.frontier import Entry, Options
from scrapy_altsched.frontier.contract import Frontier
from scrapy_altsched.frontier.entry import Delay
from scrapy_altsched.maintenance.opening import open_frontier
from tests.clocks import ManualClock
from tests.frontiers import take

from ..contenders import STORES, Contender
from ..process import resident
from . import Case, Metric, Outcome, Place, microseconds
from .unique import HOSTS, url

METRICS = (
    Metric("cost", "us a request, in and out", is_main=True),
    Metric("in", "us a request in"),
    Metric("out", "us a request out"),
    Metric("resident", "MB more when all are in", digits=0),
    Metric("lease", "ms, longest lease"),
    Metric("commit", "ms, longest commit"),
)
_Result = TypeVar("_Result")
#: Seconds until all that are delayed are due.
_DAY = 86_400.0
#: Changes from one commit to the next: the default of ALTSCHED_COMMIT_EVERY.
_COMMIT_EVERY = 2_000


def cases(scale: float, _: Any) -> list[Case]:
    """A million of both, times *scale*."""
    requests = max(100, int(1_000_000 * scale))
    return [
        Case(f"{requests:,} {kind}", {"requests": requests, "kind": kind}, STORES, rounds=1)
        for kind in ("pending", "delayed")
    ]


def run(contender: Contender, place: Place, requests: int, kind: str) -> Outcome:
    """Add all, let a day pass, and take all."""
    settings = place.settings(contender)
    clock = ManualClock()
    delay = Delay(until=clock.wall() + _DAY) if kind == "delayed" else None
    options = Options(store=settings["ALTSCHED_STORE"], clock=clock)
    frontier = open_frontier(settings["JOBDIR"], "delayed", options)
    watch, before = _Stopwatch(), resident()
    for number in range(requests):
        name = url(number, HOSTS)
        slot = name.split("/", 3)[2]
        entry = Entry(name.encode(), slot, payload=bytes(300), delay=delay)
        watch.time("add", lambda entry=entry: frontier.add(entry))
        _commit_if_full(frontier, watch)
    more, added = resident() - before, watch.total
    clock.now += _DAY
    for _ in range(requests):
        lease = watch.time("lease", lambda: take(frontier))
        watch.time("finish", lambda lease=lease: frontier.finish(lease))
        _commit_if_full(frontier, watch)
    left = frontier.counts().left
    frontier.close()
    figures = {
        "cost": microseconds(watch.total, requests),
        "in": microseconds(added, requests),
        "out": microseconds(watch.total - added, requests),
        "resident": more / 1e6,
        "lease": watch.longest["lease"] * 1e3,
        "commit": watch.longest["commit"] * 1e3,
    }
    return Outcome(figures, {"all": f"{requests} taken, {left} left"})


class _Stopwatch:
    """Seconds that calls took: in all, and the longest of each kind."""

    def __init__(self) -> None:
        self.total = 0.0
        self.longest: defaultdict[str, float] = defaultdict(float)

    def time(self, kind: str, call: Callable[[], _Result]) -> _Result:
        """Make a call, and count its time."""
        begin = perf_counter()
        try:
            return call()
        finally:
            seconds = perf_counter() - begin
            self.total += seconds
            self.longest[kind] = max(self.longest[kind], seconds)


def _commit_if_full(frontier: Frontier, watch: _Stopwatch) -> None:
    """Commit, if enough has changed, as soon as the store takes it."""
    while frontier.pressure.urgent or frontier.pressure.changes >= _COMMIT_EVERY:
        try:
            watch.time("commit", frontier.commit)
        except StoreStalledError:
            time.sleep(0.01)
