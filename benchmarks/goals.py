"""The goals, as ratios of medians of one run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from statistics import mean

from .contenders import OURS, SHARED, STORES
from .summary import Results
from .workloads.crawl import WATCHED


@dataclass(frozen=True)
class Goal:
    """A goal, and the value that was measured.

    :ivar what: in words.
    :ivar bound: what it has to be.
    :ivar value: what it is.
    :ivar at_least: whether *bound* is a minimum, and not a maximum.
    """

    what: str
    bound: float
    value: float
    at_least: bool = False

    @property
    def is_reached(self) -> bool:
        """Whether the value is within the bound."""
        return self.value >= self.bound if self.at_least else self.value <= self.bound


def goals(results: Results) -> list[Goal]:
    """All goals whose figures were measured."""
    return [
        *_times_faster(results, "stream", "python-docs", "cost", "stock-disk", 8),
        *_times_faster(results, "stream", "python-docs", "cost", "stock-memory", 7),
        *_times_faster(results, "stream", "sqlite-docs", "cost", "stock-disk", 8),
        *_times_faster(results, "stream", "sqlite-docs", "cost", "stock-memory", 7),
        *_times_faster(results, "unique", "200,000", "cost", "stock-disk", 6),
        *_times_faster(results, "unique", "200,000", "cost", "stock-disk-one", 1.8),
        *_times_faster(results, "hosts", "10,000 hosts", "take", "stock-disk", 50),
        *_sqlite(results),
        *_hosts(results),
        *_grow(results),
        *_at_most(results),
        *_crawl(results),
        *_shared(results),
    ]


def _figure(results: Results, workload: str, case: str, contender: str, name: str) -> float | None:
    summary = results.get(workload, {}).get(case, {}).get(contender)
    return summary.figures.get(name) if summary is not None else None


def _times_faster(
    results: Results,
    workload: str,
    case: str,
    name: str,
    peer: str,
    bound: float,
    contender: str = OURS,
) -> Iterator[Goal]:
    ours = _figure(results, workload, case, contender, name)
    theirs = _figure(results, workload, case, peer, name)
    if ours and theirs:
        who = "" if contender == OURS else f"{contender}, "
        what = f"{workload}, {case}: {who}times faster than {peer}"
        yield Goal(what, bound, theirs / ours, True)


def _sqlite(results: Results) -> Iterator[Goal]:
    """On SQLite, ours is to be faster than Scrapy's own, whatever it is given."""
    for workload, cases in results.items():
        name = "take" if workload == "hosts" else "cost"
        for case in cases:
            yield from _times_faster(results, workload, case, name, "stock-sqlite", 1, STORES[1])


def _hosts(results: Results) -> Iterator[Goal]:
    what = "hosts: taking one at 100,000 hosts, against 100"
    yield from _growth(results, "100 hosts", "take", what, 1.5)
    # With as many requests in both, the same number of tables is open, and read from.
    few = "100 hosts, 100,000 requests"
    yield from _growth(results, few, "take", f"{what} with as many requests", 1.5)
    yield from _growth(results, few, "files", "hosts: open files at 100,000 hosts, against 100", 1)


def _growth(results: Results, few: str, name: str, what: str, bound: float) -> Iterator[Goal]:
    least = _figure(results, "hosts", few, OURS, name)
    most = _figure(results, "hosts", "100,000 hosts", OURS, name)
    if least and most:
        yield Goal(what, bound, most / least)


def _grow(results: Results) -> Iterator[Goal]:
    found = [cases[OURS] for cases in results.get("grow", {}).values() if OURS in cases]
    if not found or not found[-1].outcomes:
        return
    summary = found[-1]
    series = summary.outcomes[0].series
    size = series[-1]["size"]
    early = mean(row["cost"] for row in series if size / 20 < row["size"] <= size / 10)
    late = mean(row["cost"] for row in series if size - size / 20 < row["size"])
    figures = summary.figures
    yield Goal("grow: cost of a request at the end, against that at a tenth", 1.5, late / early)
    yield Goal("grow: MB resident in all", 250, figures["resident"])
    yield Goal("grow: ms, longest call", 50, figures["longest"])
    yield Goal("grow: ms of processor time, the same", 50, figures["longest_processor"])
    yield Goal("grow: the same without garbage collection", 50, figures["longest_own"])
    yield Goal("grow: s to open", 0.5, max(figures["open"], figures["open_killed"]))
    yield Goal("grow: MB more when open", 60, figures["open_resident"])


#: Workload, figure, what it is, and what it is to be at most, for ours in both stores.
_AT_MOST = (
    ("backlog", "written", "bytes written a new one", 350),
    ("backlog", "duplicate", "us an old duplicate", 9),
    ("backlog", "look_up", "us of it, to look it up in the store", 9),
    ("backlog", "seen", "bytes on disk a URL seen", 16),
    ("delayed", "longest", "ms, longest call", 50),
    ("delayed", "longest_processor", "ms of processor time, the same", 50),
    ("outage", "missing", "pages that were not crawled", 0),
    ("trap", "stall", "ms, longest wait of the reactor", 50),
    ("status", "seconds", "s", 1),
    ("status", "resident", "MB resident", 100),
    ("status", "seconds_slots", "s with --slots", 3),
)


def _at_most(results: Results) -> Iterator[Goal]:
    for workload, name, what, bound in _AT_MOST:
        for case, contender in product(results.get(workload, {}), STORES):
            value = _figure(results, workload, case, contender, name)
            if value is not None:
                who = "" if contender == OURS else f", {contender}"
                yield Goal(f"{workload}, {case}{who}: {what}", bound, value)


def _crawl(results: Results) -> Iterator[Goal]:
    for name, what in (("seconds", "time"), ("processor", "processor time")):
        ours = _figure(results, "crawl", "python-docs", OURS, name)
        theirs = _figure(results, "crawl", "python-docs", "stock-disk", name)
        if ours and theirs:
            yield Goal(f"crawl: {what}, against stock-disk", 1.02, ours / theirs)
    alone, watched = (
        _figure(results, "crawl", case, OURS, "processor") for case in ("python-docs", WATCHED)
    )
    if alone and watched:
        yield Goal("crawl: processor time when it is watched, against alone", 1.01, watched / alone)


def _shared(results: Results) -> Iterator[Goal]:
    theirs, ours = SHARED
    for case, times in (("python-docs", 15.0), ("200,000", 4.0)):
        found = [_figure(results, "shared", case, name, "cost") for name in (theirs, ours)]
        if found[0] and found[1]:
            yield Goal(
                f"shared, {case}: times faster than {theirs}", times, found[0] / found[1], True
            )
        trips = _figure(results, "shared", case, ours, "trips")
        if trips:
            yield Goal(f"shared, {case}: round trips a request", 0.02, trips)
    seen = _figure(results, "shared_memory", "1,000,000 seen", ours, "bytes")
    if seen:
        yield Goal("shared: bytes a seen URL", 25, seen)
    case = "100,000 pending"
    found = [_figure(results, "shared_memory", case, name, "bytes") for name in (theirs, ours)]
    if found[0] and found[1]:
        yield Goal(f"shared: bytes a pending request, against {theirs}", 1.1, found[1] / found[0])
    for case in results.get("shared_workers", {}):
        longest = _figure(results, "shared_workers", case, ours, "longest")
        if longest:
            yield Goal(f"shared, {case}: ms, longest call", 50, longest)
