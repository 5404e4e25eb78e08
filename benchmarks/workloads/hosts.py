"""More and more hosts, all in, then all out: what does it cost to choose among them?"""

from __future__ import annotations

import random
from typing import Any

from scrapy import Request

from ..contenders import CONTENDERS, STORES, Contender
from ..engine import BudgetExceeded, Clock, Crawl, link, start_request
from ..process import bytes_written, open_files, resident
from . import Case, Metric, Outcome, Place, bytes_each, microseconds, work_of

METRICS = (
    Metric("take", "us a request taken", is_main=True),
    Metric("enqueue", "us an enqueue"),
    Metric("files", "open files", digits=0),
    Metric("resident", "MB resident", digits=0),
    Metric("written", "bytes written a request", digits=0),
)
SIZES = (100, 1_000, 10_000, 100_000)
#: Requests at the least, so that few hosts are measured as well as many.
REQUESTS = 20_000
#: Hosts of the case that the largest one is compared with: as many requests, few hosts.
FEW = 100
#: Seconds that peers have to take them.
PEERS_BUDGET = 8.0
_AT_ONCE = 200


def cases(scale: float, _: Any) -> list[Case]:
    """One for each number of hosts."""
    found = []
    for size in SIZES:
        hosts = max(2, int(size * scale))
        requests = max(hosts, int(REQUESTS * scale))
        found.append(Case(f"{hosts:,} hosts", {"hosts": hosts, "requests": requests}))
    few = max(2, int(FEW * scale))
    title = f"{few:,} hosts, {requests:,} requests"
    return [*found, Case(title, {"hosts": few, "requests": requests}, STORES)]


def run(contender: Contender, place: Place, hosts: int, requests: int) -> Outcome:
    """Enqueue as many requests for each host, in random order; then take all of them."""
    order = list(range(requests))
    random.Random(2).shuffle(order)
    figures: dict[str, float] = {}
    clock = Clock()
    before = bytes_written()
    crawl = Crawl(place.settings(contender), clock)

    def scrape(page: Request) -> list[Request]:
        """All come from the first page, and so while one request is in flight."""
        if not figures:
            for first in range(0, requests, _AT_ONCE):
                numbers = order[first : first + _AT_ONCE]
                crawl.enqueue(
                    [link(f"https://host-{n % hosts}.example/page-{n}.html", page) for n in numbers]
                )
            figures["files"] = open_files()
            figures["resident"] = resident() / 1e6
            if contender not in [CONTENDERS[name] for name in STORES]:
                crawl.allow(PEERS_BUDGET)
        return []

    crawl.enqueue([start_request("https://start.example/")])
    work = {}
    note = ""
    try:
        crawl.run(scrape)
        work["all"] = work_of(crawl)
    except BudgetExceeded:
        note = f"stopped at {crawl.taken:,} taken"
    work["in"] = f"{crawl.accepted} accepted, {crawl.refused} refused"
    figures["take"] = microseconds(clock.taking, crawl.taken)
    figures["enqueue"] = microseconds(clock.enqueueing, crawl.accepted)
    crawl.close()
    figures["written"] = bytes_each(before, crawl.accepted)
    return Outcome(figures, work, [{"size": hosts, **figures}], note)
