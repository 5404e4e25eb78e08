"""The runs of a job, as its samples tell of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter

from ..frontier.store.samples import ENDED, Sample


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
