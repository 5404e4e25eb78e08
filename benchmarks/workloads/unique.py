"""URLs that are all different, with queries, over many hosts: bursts in, a little less out."""

from __future__ import annotations

from itertools import islice
from typing import Any

from scrapy import Request

from ..contenders import Contender
from ..engine import BudgetExceeded, Clock, Crawl, Scrape, link, start_request
from ..process import bytes_written, other_threads_seconds, resident_at_most
from . import Case, Metric, Outcome, Place, bytes_each, microseconds, work_of

METRICS = (
    Metric("cost", "us a request", is_main=True),
    Metric("processor", "us of processor time"),
    Metric("enqueue", "us an enqueue"),
    Metric("take", "us a request taken"),
    Metric("background", "us a request in other threads"),
    Metric("written", "bytes written a request", digits=0),
    Metric("resident", "MB resident at most", digits=0),
)
HOSTS = 1_000
IN, OUT = 50, 40
BUDGET = 40.0


def cases(scale: float, _: Any) -> list[Case]:
    """One, of 200,000 requests times *scale*."""
    requests = max(IN, int(200_000 * scale))
    return [Case(f"{requests:,}", {"requests": requests})]


def url(number: int, hosts: int) -> str:
    """The URL of a made-up page; no two numbers have the same, and neighbours are far apart."""
    mixed = number * 2_654_435_761 % (1 << 32)  # Knuth's multiplicative hashing
    return (
        f"https://host-{mixed % hosts}.example/catalogue/section-{mixed // hosts % 40}/list.html"
        f"?sort={mixed % 5}&id={number}&lang=en&page={number % 97}"
    )


def bursts(requests: int, first: int = 0) -> Scrape:
    """What callbacks yield: bursts of 50, one for each 40 that are taken.

    :param first: number of the first of the *requests*.
    """
    numbers = iter(range(first, first + requests))
    done = 0

    def scrape(page: Request) -> list[Request]:
        nonlocal done
        done += 1
        if done % OUT != 1:
            return []
        return [link(url(number, HOSTS), page) for number in islice(numbers, IN)]

    return scrape


def run(contender: Contender, place: Place, requests: int) -> Outcome:
    """Enqueue bursts of 50; take 40 after each; take the rest when there are no more."""
    scrape = bursts(requests)
    clock = Clock()
    crawl = Crawl(place.settings(contender), clock, BUDGET)
    before, written = other_threads_seconds(), bytes_written()
    crawl.enqueue([start_request("https://host-0.example/")])
    work = {}
    note = ""
    try:
        crawl.run(scrape)
        work["all"] = work_of(crawl)
    except BudgetExceeded:
        note = f"stopped at {crawl.accepted:,} requests"
    enqueue = microseconds(clock.enqueueing, crawl.accepted)
    take = microseconds(clock.taking, crawl.taken)
    figures = {
        # One that was stopped has taken fewer than were enqueued; the cost is that of taking all.
        "cost": enqueue + take,
        "processor": (enqueue + take) * clock.processor / clock.total,
        "enqueue": enqueue,
        "take": take,
        "background": microseconds(other_threads_seconds() - before, crawl.accepted),
    }
    crawl.close()
    figures["written"] = bytes_each(written, crawl.accepted)
    figures["resident"] = resident_at_most() / 1e6
    return Outcome(figures, work, note=note)
