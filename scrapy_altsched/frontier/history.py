"""How a crawl stood over its whole life: samples, and which of them go when there are too many.

Where they are kept is the stores' affair: the file :file:`altsched.samples` of a job, a list on the
server of a shared crawl.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TypeVar

from .entry import Counts

#: Most samples of a crawl: an hour, of one a second.
MOST = 3_600
#: Fewest seconds between two samples, before any went.
GRAIN = 1

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class WorkerCounts:
    """The workers of a shared crawl, so far.

    :ivar begun: how many have begun; *ended*: ended cleanly; *died*: were not heard of any more.
    """

    begun: int
    ended: int
    died: int


@dataclass(frozen=True, slots=True)
class Sample:
    """How a crawl stood once.

    :ivar at: when, in seconds since the epoch.
    :ivar run: number of the job's run; of a shared crawl, of the time in which it has had workers
        without a break.
    :ivar state: "stopped", "finished" or "unsaved" if the run had noted its end, else "running".
    :ivar duplicates: requests that the run had refused as seen.
    :ivar workers: of a shared crawl: how many it has had by then.
    :ivar next_sequence: of a shared crawl: the sequence number that the next request gets.
    """

    at: float
    run: int
    state: str
    counts: Counts
    duplicates: int = 0
    workers: WorkerCounts | None = None
    next_sequence: int = 0


def thin(items: Sequence[_T], run_of: Callable[[_T], int]) -> list[_T]:
    """Every second one of *items*, which are in order, and the first and the last of each run.

    If that is most of them, as of many short runs, only those of every second run, or fourth, and
    so on, by their numbers; and of the first and the last run.
    """
    runs = []
    for number, group in groupby(items, run_of):
        own = list(group)
        runs.append((number, [*own[:-1:2], own[-1]]))
    ends, step = (runs[0][0], runs[-1][0]), 1
    while True:
        kept = [
            item for number, own in runs if number % step == 0 or number in ends for item in own
        ]
        if len(kept) <= len(items) * 3 // 4 or step > max(ends):
            return kept
        step *= 2
