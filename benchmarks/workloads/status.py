"""``scrapy altsched status`` of a large job: how long it takes, and how much memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from time import perf_counter
from typing import Any

from scrapy_altsched.frontier import Entry, Options
from scrapy_altsched.maintenance.opening import open_frontier
from tests.frontiers import take

from ..contenders import STORES, Contender
from . import Case, Metric, Outcome, Place

METRICS = (
    Metric("seconds", "s", is_main=True, digits=2),
    Metric("resident", "MB resident at most", digits=0),
    Metric("seconds_slots", "s with --slots", digits=2),
    Metric("resident_slots", "MB with --slots", digits=0),
)
#: Of so many URLs seen, one is pending; and there are so many for each slot.
_SEEN_EACH, _SLOT_EACH = 10, 100
_COMMIT_EACH = 2_000


def cases(scale: float, options: Any) -> list[Case]:
    """One size: a tenth of it pending, over a tenth as many slots."""
    seen = max(1_000, int(options.grow * scale))
    return [Case(f"{seen:,} seen", {"seen": seen}, STORES[:1], rounds=1)]


def run(contender: Contender, place: Place, seen: int) -> Outcome:
    """Fill a job in a process of its own, and look at it from others."""
    settings = place.settings(contender)
    job = settings["JOBDIR"]
    order = {"job": job, "store": settings["ALTSCHED_STORE"], "seen": seen}
    _run("-W", "ignore", "-m", __spec__.name, json.dumps(order))
    figures = {}
    for suffix, options in (("", []), ("_slots", ["--slots"])):
        seconds, resident = _run("-m", "scrapy", "altsched", "status", job, *options)
        figures |= {f"seconds{suffix}": seconds, f"resident{suffix}": resident / 1e6}
    return Outcome(figures)


def _run(*arguments: str) -> tuple[float, int]:
    """Seconds that Python took with *arguments*, and bytes of memory that it had at most."""
    begin = perf_counter()
    process = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = perf_counter() - begin
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"a command has ended with exit code {process.returncode}")
    return seconds, usage.ru_maxrss * 1024


def main() -> None:
    """Fill a job, as the first argument says."""
    order = json.loads(sys.argv[1])
    seen = order["seen"]
    slots = max(1, seen // _SLOT_EACH)
    frontier = open_frontier(order["job"], "status", Options(store=order["store"]))
    for number in range(seen):
        slot = f"host-{number % slots}.example"
        name = f"https://{slot}/{number}"
        frontier.add(Entry(name.encode(), slot, payload=bytes(300)))
        if number % _SEEN_EACH:
            frontier.finish(take(frontier))
        if number % _COMMIT_EACH == 0:
            frontier.commit()
    frontier.close()


if __name__ == "__main__":
    main()
