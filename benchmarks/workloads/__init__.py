"""What the schedulers are given; one module each.

A workload's module has ``METRICS``, what it measures; ``cases(scale, options)``, its sizes; and
``run(contender, place, **case)``, which does one of them in its own process.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..process import bytes_written

if TYPE_CHECKING:
    from ..contenders import Contender
    from ..engine import Crawl

#: In the order in which they are done.
WORKLOADS = (
    "stream",
    "unique",
    "hosts",
    "crawl",
    "grow",
    "backlog",
    "delayed",
    "slow_hosts",
    "outage",
    "trap",
    "status",
    "shared",
    "shared_memory",
    "shared_workers",
    "shared_pace",
    "shared_budget",
)


@dataclass(frozen=True)
class Metric:
    """A column of a workload's table; less is better in all of them.

    :ivar name: key of the figure.
    :ivar title: what it is, and in which unit.
    :ivar is_main: whether the table gives ratios of it.
    :ivar digits: after the decimal point.
    """

    name: str
    title: str
    is_main: bool = False
    digits: int = 1


@dataclass(frozen=True)
class Case:
    """One size of a workload.

    :ivar title: its name in the table.
    :ivar parameters: keyword arguments of the workload's ``run``.
    :ivar contenders: names of those that it is for; empty: all.
    :ivar rounds: how often it is done at most.
    """

    title: str
    parameters: dict[str, Any]
    contenders: tuple[str, ...] = ()
    rounds: int = 1000


@dataclass(frozen=True)
class Place:
    """Where one run of a workload happens.

    :ivar directory: empty; on the disk that is measured.
    :ivar redis_url: of an empty Redis server, if the contender needs one.
    """

    directory: Path
    redis_url: str | None = None

    def settings(self, contender: Contender) -> dict[str, Any]:
        """The settings of a crawl here."""
        return contender.settings_in(self.directory, self.redis_url)


@dataclass
class Outcome:
    """The result of one run of a workload.

    :ivar figures: by names of metrics.
    :ivar work: name -> what was done by then; the same for all contenders, or they are not
        comparable.
    :ivar series: figures at growing sizes, each with its ``size``.
    :ivar note: a remark on the figures.
    """

    figures: dict[str, float]
    work: dict[str, str] = field(default_factory=dict)
    series: list[dict[str, float]] = field(default_factory=list)
    note: str = ""


def microseconds(seconds: float, number: int) -> float:
    """Of *seconds*, how many microseconds each of a *number* of things took.

    Differences of clocks may come out a little below 0.
    """
    return max(seconds, 0.0) / max(number, 1) * 1e6


def bytes_each(before: int, number: int) -> float:
    """Of the bytes written since there were *before*, how many each of *number* things took."""
    return (bytes_written() - before) / max(number, 1)


def work_of(crawl: Crawl) -> str:
    """What a crawl has done: how many requests, and which."""
    counts = f"{crawl.accepted} accepted, {crawl.refused} refused, {crawl.taken} taken"
    return f"{counts}, digest {crawl.digest:016x}"
