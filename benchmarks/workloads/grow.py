"""Ten million URLs seen and one million pending, over 1,000 hosts: does it stay flat?

For each new request there is one duplicate, of any that came before, and nine of ten are taken.  At
the end, our scheduler on disk is left as after a kill: it is opened again after that, and once more
after a clean end.  Others are closed, as they could not be opened again otherwise.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from scrapy import Request

from scrapy_altsched.frontier.store.sqlite.database import SqliteDatabase

from ..contenders import CONTENDERS, OURS, STORES, Contender
from ..engine import BudgetExceeded, Clock, Crawl, collections_timed, link, start_request
from ..process import bytes_on_disk, other_threads_seconds, resident, resident_at_most
from . import Case, Metric, Outcome, Place, bytes_each, microseconds
from .unique import HOSTS, url

METRICS = (
    Metric("cost", "us for a new one, a duplicate, and 0.9 taken", is_main=True),
    Metric("new", "us a new one"),
    Metric("duplicate", "us a duplicate"),
    Metric("take", "us one taken"),
    Metric("background", "us in other threads"),
    Metric("longest", "ms, longest call"),
    Metric("longest_processor", "ms of processor time, longest call"),
    Metric("longest_own", "the same without garbage collection"),
    Metric("longest_collection", "ms, longest garbage collection"),
    Metric("resident", "MB resident at most", digits=0),
    Metric("disk", "MB on disk", digits=0),
    Metric("written", "bytes written a new one, so far", digits=0),
    Metric("open_killed", "s to open after a kill", digits=3),
    Metric("open", "s to open", digits=3),
    Metric("open_resident", "MB more when open"),
)
#: Of a :class:`Clock`, in seconds: the longest since the last look.
_LONGEST = ("longest", "longest_processor", "longest_own", "longest_collection")
#: The part of the size that the peers get: the time is better spent on the goals.
PEERS = 0.1
PEERS_BUDGET = 30.0
STEPS = 40
#: New links, and as many old ones, of one page that has any; and how many pages there are to one
#: that has.
_LINKS, _PAGES = 10, 9


def cases(scale: float, options: Any) -> list[Case]:
    """The full size for ours on disk, if it suits the store; a tenth of it for all."""
    seen = max(1_000, int(options.grow * scale))
    full = STORES if seen <= SqliteDatabase.SUITS else (OURS,)
    step = max(1, seen // STEPS)
    return [
        Case(f"{size:,}", {"seen": size, "step": step}, names, rounds=1)
        for size, names in ((int(seen * PEERS), ()), (seen, full))
    ]


def run(
    contender: Contender,
    place: Place,
    seen: int,
    step: int,
    links: int = _LINKS,
    pages: int = _PAGES,
) -> Outcome:
    """Fill in one process, open in others."""
    name = next(name for name, found in CONTENDERS.items() if found is contender)
    where = {"contender": name, "directory": str(place.directory), "redis": place.redis_url}
    size = {"seen": seen, "step": step, "links": links, "pages": pages}
    outcome = Outcome(**_in_process({**where, "size": size}))
    if name in STORES:
        outcome.figures["open_killed"] = _in_process(where)["open"]
    if contender.on_disk:
        figures = _in_process(where)
        outcome.figures["open"] = figures["open"]
        outcome.figures["open_resident"] = figures["resident"]
    return outcome


def _in_process(order: dict[str, Any]) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", __spec__.name, json.dumps(order)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


class _Grown(Exception):  # noqa: N818  (it is no error)
    """The full size is reached."""


class _Growth:
    """A frontier that grows, and what that costs at each step.

    :param seen: how many requests are to be accepted.
    :param step: how many between two looks.
    :param links: new ones, and as many old ones, of a page that has any.
    :param pages: how many there are to one that has links.
    """

    def __init__(
        self, crawl: Crawl, directory: Path, seen: int, step: int, links: int, pages: int
    ) -> None:
        self._crawl = crawl
        self._links = links
        self._per_page = pages
        self._directory = directory
        self._seen = seen
        self._step = step
        self._next_look = step
        self._number = self._pages = 0
        self._rng = random.Random(3)
        self._new = self._duplicate = 0.0
        self._last = dict.fromkeys(("new", "duplicate", "take", "background"), 0.0)
        self._last_size = 0
        self.longest = dict.fromkeys(_LONGEST, 0.0)
        self.series: list[dict[str, float]] = []
        self.work: dict[str, str] = {}

    def scrape(self, page: Request) -> list[Request]:
        """New and old links, on some pages."""
        self._pages += 1
        if self._pages % self._per_page == 1:
            numbers = range(self._number, self._number + self._links)
            self._number += self._links
            before = self._crawl.clock.enqueueing
            self._crawl.enqueue([link(url(number, HOSTS), page) for number in numbers])
            between = self._crawl.clock.enqueueing
            old = [self._rng.randrange(self._number) for _ in range(self._links)]
            self._crawl.enqueue([link(url(number, HOSTS), page) for number in old])
            self._new += between - before
            self._duplicate += self._crawl.clock.enqueueing - between
            if self._number >= self._next_look:
                self._next_look += self._step
                self.look()
            if self._number >= self._seen:
                raise _Grown
        return []

    def look(self) -> None:
        """Record what the requests since the last look cost, and the current sizes."""
        clock = self._crawl.clock
        now = {
            "new": self._new,
            "duplicate": self._duplicate,
            "take": clock.taking,
            "background": other_threads_seconds(),
        }
        number = self._number - self._last_size
        spent = {name: microseconds(now[name] - self._last[name], number) for name in now}
        cost = spent["new"] + spent["duplicate"] + spent["take"]
        spent["take"] *= self._links / self._per_page
        place = {
            "size": self._number,
            **{name: getattr(clock, name) * 1e3 for name in _LONGEST},
            "resident": resident() / 1e6,
            "disk": bytes_on_disk(self._directory) / 1e6,
            "written": bytes_each(0, self._number),
        }
        self.series.append({**place, "cost": cost, **spent})
        self._last, self._last_size = now, self._number
        for name in _LONGEST:
            self.longest[name] = max(self.longest[name], getattr(clock, name))
            setattr(clock, name, 0.0)
        crawl = self._crawl
        counts = f"{crawl.accepted} accepted, {crawl.refused} refused, {crawl.taken} taken"
        self.work[str(self._number)] = counts


def _fill(settings: dict[str, Any], directory: Path, size: dict[str, int], budget: float) -> Crawl:
    """Let a frontier grow and print the result."""
    clock = Clock(each=True)
    crawl = Crawl(settings, clock, budget)
    growth = _Growth(crawl, directory, **size)
    note = ""
    crawl.enqueue([start_request("https://start.example/")])
    try:
        with collections_timed(clock):
            crawl.run(growth.scrape)
    except _Grown:
        pass
    except BudgetExceeded:
        note = f"stopped at {crawl.accepted:,}"
        growth.look()
        growth.work.popitem()
    figures = dict(growth.series[-1])
    figures.update({name: seconds * 1e3 for name, seconds in growth.longest.items()})
    figures["resident"] = resident_at_most() / 1e6
    print(json.dumps(asdict(Outcome(figures, growth.work, growth.series, note))), flush=True)
    return crawl


def _open(settings: dict[str, Any]) -> Crawl:
    """Open what another process has filled, and print what that took."""
    crawl = Crawl(settings)
    print(json.dumps({"open": crawl.opened_in, "resident": crawl.opened_with / 1e6}), flush=True)
    return crawl


def main() -> None:
    """Do what the first argument says."""
    order = json.loads(sys.argv[1])
    contender = CONTENDERS[order["contender"]]
    directory = Path(order["directory"])
    settings = contender.settings_in(directory, order["redis"])
    if "size" not in order:
        _open(settings).close()
        return
    is_ours = order["contender"] in STORES
    budget = float("inf") if is_ours else PEERS_BUDGET
    crawl = _fill(settings, directory, order["size"], budget)
    if is_ours:
        os._exit(0)  # nothing more is written, as after a SIGKILL
    crawl.close()


if __name__ == "__main__":
    main()
