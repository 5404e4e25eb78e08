"""The runs of a job, and the workers of a shared crawl, as samples tell of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from operator import attrgetter
from typing import Literal

from ..frontier.history import Sample, WorkerCounts
from ..frontier.store.samples import ENDED
from ..inflection import counted


@dataclass(frozen=True, slots=True)
class SampledRun:
    """One run.

    :ivar began: when its first sample was taken; *last*: its last one; in seconds since the epoch.
    :ivar end: how it ended: "finished", "stopped", "unsaved" (it could not save its end) or "died";
        ``None``: it has not.
    """

    number: int
    began: float
    last: float
    end: str | None


def runs_of(samples: Sequence[Sample], *, lives: bool) -> list[SampledRun]:
    """All runs of which there are samples; *lives*: whether the last one may go on."""
    runs = []
    for number, group in groupby(samples, attrgetter("run")):
        own = list(group)
        end = own[-1].state if own[-1].state in ENDED else "died"
        is_open = lives and end == "died" and own[-1] is samples[-1]
        runs.append(SampledRun(number, own[0].at, own[-1].at, None if is_open else end))
    return runs


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that has happened at a time, in seconds since the epoch, as words."""

    kind: Literal["start", "end", "death"]
    at: float
    words: str


def marks_of_runs(runs: Sequence[SampledRun]) -> Iterator[Mark]:
    """Where runs have begun and ended."""
    for run in runs:
        yield Mark("start", run.began, f"run {run.number:,} began")
        if run.end is not None:
            words = "ended without saving its end" if run.end == "unsaved" else run.end
            is_clean = run.end in ("finished", "stopped")
            yield Mark("end" if is_clean else "death", run.last, f"run {run.number:,} {words}")


def marks_of_workers(samples: Sequence[Sample]) -> Iterator[Mark]:
    """Where workers of a shared crawl have begun and ended: with the first sample that says so."""
    counts = [(it.at, it.workers) for it in samples if it.workers is not None]
    for (_, old), (at, new) in pairwise([(0.0, WorkerCounts(0, 0, 0)), *counts]):
        if (begun := new.begun - old.begun) > 0:
            yield Mark("start", at, f"{counted(begun, 'worker')} began")
        if (ended := new.ended - old.ended) > 0:
            yield Mark("end", at, f"{counted(ended, 'worker')} ended")
        if (died := new.died - old.died) > 0:
            yield Mark("death", at, f"{counted(died, 'worker')} died")
