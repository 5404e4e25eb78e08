"""What is made of the requests that arrived: figures, what is wrong with them, and tables."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from rich.box import SIMPLE_HEAD
from rich.table import Table

from ..site import Arrival
from .cases import KINDS, Case, Kind, count, page_paths
from .crawl import Crawled

#: Seconds by which a busy machine may shorten a gap.
TOLERANCE = 0.05
#: Parts of the gaps that are shorter than what is shown of them.
_PARTS = (0.05, 0.5, 0.95)
_TITLES: dict[Kind, str] = {
    "delays": "Delays: gaps between two requests to a host, in seconds",
    "caps": "Caps: requests that are open at a host",
    "speed": "Many hosts",
}
_COLUMNS: dict[Kind, tuple[str, ...]] = {
    "delays": (
        *("workers", "delay", "hosts", "faults", "requests", "a second"),
        *("smallest", "5 %", "50 %", "95 %"),
    ),
    "caps": ("workers", "cap", "hosts", "faults", "requests", "a second", "most open"),
    "speed": ("workers", "delay", "hosts", "one pace", "requests", "a second", "smallest"),
}


@dataclass(frozen=True)
class Figures:
    """Of one crawl.

    :ivar requests: how many arrived.
    :ivar speed: requests a second, between the first and the last one.
    :ivar gaps: seconds between two requests to one host, over all hosts, in ascending order.
    :ivar most_open: how many were open at one host at once.
    :ivar missing: pages that were never asked for.
    """

    requests: int
    speed: float
    gaps: list[float]
    most_open: int
    missing: int


@dataclass(frozen=True)
class Result:
    """A case, what came of it, and its figures."""

    case: Case
    crawled: Crawled
    figures: Figures


def make_figures(case: Case, arrivals: Sequence[Arrival]) -> Figures:
    """Look at all requests of a crawl, in the order in which they arrived."""
    times: defaultdict[str, list[int]] = defaultdict(list)
    for arrival in arrivals:
        times[arrival.host].append(arrival.time)
    took = (arrivals[-1].time - arrivals[0].time) / 1e9 if arrivals else 0.0
    fetched = {(arrival.host, arrival.path) for arrival in arrivals}
    paths = page_paths(case.pages)
    pages = {(f"host-{number}.test", path) for number in range(case.hosts) for path in paths}
    return Figures(
        requests=len(arrivals),
        speed=(len(arrivals) - 1) / took if took else math.nan,
        gaps=sorted(
            (after - before) / 1e9
            for of_host in times.values()
            for before, after in pairwise(of_host)
        ),
        most_open=max((arrival.open for arrival in arrivals), default=0),
        missing=len(pages - fetched),
    )


def find_problems(result: Result) -> list[str]:
    """What is wrong, as sentences."""
    case, figures = result.case, result.figures
    found = []
    least = case.delay / 2 - TOLERANCE
    short = [gap for gap in figures.gaps if gap < least]
    if case.has_pace and case.delay and short:
        found.append(
            f"{len(short):,} of {count(len(figures.gaps), 'gap')} are under {least:g} s, the"
            f" smallest is {short[0]:.3f} s."
        )
    if case.kind == "caps" and case.has_pace and figures.most_open > case.cap:
        found.append(f"{count(figures.most_open, 'request')} were open at once at one host.")
    if figures.missing:
        found.append(
            f"{figures.missing:,} of {count(case.hosts * case.pages, 'page')} are missing."
        )
    return [f"{case.title}: {problem}" for problem in [*found, *result.crawled.problems]]


def make_tables(results: Sequence[Result]) -> list[Table]:
    """A table for each kind of case that there are results of."""
    tables = []
    for kind in KINDS:
        rows = [_make_row(result) for result in results if result.case.kind == kind]
        if rows:
            table = Table(
                title=_TITLES[kind],
                title_justify="left",
                box=SIMPLE_HEAD,
                padding=0,
                pad_edge=False,
            )
            for heading in _COLUMNS[kind]:
                # "suspended, killed" takes two lines, so that all fit in a narrow terminal.
                width = len("suspended,") if heading == "faults" else None
                table.add_column(heading, justify="right", width=width, no_wrap=width is None)
            for row in rows:
                table.add_row(*row)
            tables.append(table)
    return tables


def _make_row(result: Result) -> list[str]:
    case, figures = result.case, result.figures
    middle = {
        "delays": [
            f"{case.delay:g}",
            f"{case.hosts:,}",
            ", ".join(result.crawled.faults) or "none",
        ],
        "caps": [str(case.cap), f"{case.hosts:,}", ", ".join(result.crawled.faults) or "none"],
        "speed": [f"{case.delay:g}", f"{case.hosts:,}", "yes" if case.has_pace else "no"],
    }
    smallest = _format_gap(figures.gaps, 0)
    end = {
        "delays": [smallest, *(_format_gap(figures.gaps, part) for part in _PARTS)],
        "caps": [str(figures.most_open)],
        "speed": [smallest],
    }
    counts = [f"{figures.requests:,}", f"{figures.speed:,.1f}"]
    return [str(case.workers), *middle[case.kind], *counts, *end[case.kind]]


def _format_gap(gaps: Sequence[float], part: float) -> str:
    """The gap that this part of all gaps is shorter than."""
    return f"{gaps[min(len(gaps) - 1, int(part * len(gaps)))]:.3f}" if gaps else ""
