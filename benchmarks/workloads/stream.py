"""Two real sites, from their first pages to the end: of 100 links, 99 are duplicates."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from scrapy import Request

from ..contenders import Contender
from ..engine import Clock, Crawl, Scrape, link, start_request
from ..process import bytes_written, resident_at_most
from . import Case, Metric, Outcome, Place, bytes_each, microseconds, work_of

ROOT = Path(__file__).resolve().parents[2]
RECORDINGS = {
    "python-docs": ROOT / "example_project" / "data" / "python-docs-links.jsonl.gz",
    "sqlite-docs": ROOT / "benchmarks" / "data" / "sqlite-docs-links.jsonl.gz",
}
METRICS = (
    Metric("cost", "us a link", is_main=True),
    Metric("processor", "us of processor time"),
    Metric("enqueue", "us an enqueue"),
    Metric("take", "us a request taken"),
    Metric("written", "bytes written a request taken", digits=0),
    Metric("resident", "MB resident at most", digits=0),
)
BUDGET = 120.0


def cases(scale: float, _: Any) -> list[Case]:
    """The two sites, of each the first *scale* of its recorded pages."""
    return [Case(name, {"recording": name, "scale": scale}) for name in RECORDINGS]


def read(recording: str, scale: float) -> tuple[str, Scrape]:
    """The first page's URL, and what the callback of each page yields."""
    with gzip.open(RECORDINGS[recording], "rt", encoding="utf-8") as lines:
        pages = [json.loads(line) for line in lines]
    pages = pages[: max(1, int(len(pages) * scale))]
    origin = pages[0][0].rpartition("/")[0] + "/"
    # Links to other sites do not reach a scheduler: the offsite middleware is on by default.
    links = {url: [to for to in hrefs if to.startswith(origin)] for url, hrefs in pages}

    def scrape(page: Request) -> list[Request]:
        return [link(url, page) for url in links.get(page.url.partition("#")[0], ())]

    return pages[0][0], scrape


def run(contender: Contender, place: Place, recording: str, scale: float) -> Outcome:
    """Enqueue every page's links, in the order in which the scheduler gives out pages."""
    first, scrape = read(recording, scale)
    clock = Clock()
    before = bytes_written()
    crawl = Crawl(place.settings(contender), clock, BUDGET)
    crawl.enqueue([start_request(first)])
    crawl.run(scrape)
    crawl.close()
    calls = crawl.accepted + crawl.refused
    figures = {
        "cost": microseconds(clock.total, calls),
        "processor": microseconds(clock.processor, calls),
        "enqueue": microseconds(clock.enqueueing, calls),
        "take": microseconds(clock.taking, crawl.taken),
        "written": bytes_each(before, crawl.taken),
        "resident": resident_at_most() / 1e6,
    }
    return Outcome(figures, {"all": work_of(crawl)})
