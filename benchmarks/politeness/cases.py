"""What is tried: delays, caps, and many hosts."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Kind = Literal["delays", "caps", "speed"]
KINDS: tuple[Kind, ...] = ("delays", "caps", "speed")
#: Of the time that a case may take, how much it would take if workers kept to the pace exactly.
_SHARE = 0.6
#: Pages a second that any number of workers fetch from many hosts, even on a slow machine.
_SPEED = 200
#: What is chosen if nothing is said.
DELAYS, HOSTS, WORKERS = (0.25, 1.0), (1, 100), (1, 3, 4)
CAPS, CAP_WORKERS = (1, 4, 8), (1, 4)
SPEED_HOSTS, SPEED_DELAY, SPEED_WORKERS = 1_000, 0.25, (1, 4)


@dataclass(frozen=True)
class Case:
    """One crawl.

    :ivar kind: what it is about.
    :ivar workers: how many crawl.
    :ivar hosts: how many the site has.
    :ivar pages: how many each host has.
    :ivar delay: DOWNLOAD_DELAY.
    :ivar cap: CONCURRENT_REQUESTS_PER_DOMAIN.
    :ivar concurrency: CONCURRENT_REQUESTS, of each worker.
    :ivar latency: seconds from a request's arrival to its answer.
    :ivar has_faults: whether a worker is killed, and another one suspended for a while.
    :ivar has_pace: whether the workers are to keep one pace together.
    """

    kind: Kind
    workers: int
    hosts: int
    pages: int
    delay: float = 0.0
    cap: int = 8
    concurrency: int = 100
    latency: float = 0.05
    has_faults: bool = False
    has_pace: bool = True

    @property
    def prefetch(self) -> int:
        """How many requests a worker leases ahead: so few that there are some for all workers."""
        return max(4, min(100, self.hosts * self.pages // (4 * self.workers)))

    @property
    def title(self) -> str:
        """What it is called while it runs."""
        pace = {"delays": f"delay {self.delay:g} s", "caps": f"cap {self.cap}"}
        parts = [
            pace.get(self.kind, f"one pace {'on' if self.has_pace else 'off'}"),
            count(self.hosts, "host"),
            count(self.workers, "worker"),
        ]
        return ", ".join([*parts, "faults"] if self.has_faults else parts)


def count(number: int, noun: str) -> str:
    """The number and its noun, in the plural if need be."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def page_paths(pages: int) -> list[str]:
    """The paths of a host's pages; the first one leads to all others."""
    return [f"/{number}.html" for number in range(pages)]


def choose_cases(options: argparse.Namespace, *, can_pace: bool) -> list[Case]:
    """The cases that were asked for.

    :param can_pace: whether there is a setting that turns the common pace off.
    """
    makers = {"delays": _delay_cases, "caps": _cap_cases, "speed": _speed_cases}
    cases = [case for kind in KINDS if kind in options.only for case in makers[kind](options)]
    # Without it, there is nothing to compare.
    return [case for case in cases if can_pace or case.kind != "speed" or not case.has_pace]


def _delay_cases(options: argparse.Namespace) -> Iterator[Case]:
    time = options.seconds * _SHARE
    for hosts in options.hosts:
        for delay in options.delays:
            pages = max(2, int(time * min(1 / delay, _SPEED / hosts)))
            for workers in options.workers or WORKERS:
                for has_faults in options.faults:
                    yield Case(
                        "delays",
                        workers,
                        hosts,
                        pages,
                        delay=delay,
                        # Workers take as many into their downloaders, where no other gets at them.
                        concurrency=max(4, min(hosts, 100)),
                        has_faults=has_faults,
                    )


def _cap_cases(options: argparse.Namespace) -> Iterator[Case]:
    latency = 0.2
    for cap in options.caps:
        pages = max(2, int(options.seconds * _SHARE * min(cap / latency, _SPEED)))
        for workers in options.workers or CAP_WORKERS:
            yield Case(
                "caps", workers, 1, pages, cap=cap, concurrency=max(4, 2 * cap), latency=latency
            )


def _speed_cases(options: argparse.Namespace) -> Iterator[Case]:
    pages = max(2, int(options.seconds * _SPEED / SPEED_HOSTS))
    for workers in options.workers or SPEED_WORKERS:
        for has_pace in (True, False):
            yield Case("speed", workers, SPEED_HOSTS, pages, delay=SPEED_DELAY, has_pace=has_pace)
