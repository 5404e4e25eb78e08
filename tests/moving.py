"""Crawls with requests in every state, and moving them from place to place."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import redis
from scrapy import Request
from scrapy.utils.request import fingerprint

from scrapy_altsched.frontier import Entry, Options, Order
from scrapy_altsched.frontier.content import Content
from scrapy_altsched.frontier.entry import Cause, DeadLetter, Delay, PageFailure, Reason
from scrapy_altsched.frontier.queue.order import DEFAULT_ORDER
from scrapy_altsched.frontier.shared.content import CrawlReader, fill_crawl
from scrapy_altsched.frontier.store.engines import Choice
from scrapy_altsched.frontier.store.journal import Journal
from scrapy_altsched.frontier.store.view import View
from scrapy_altsched.maintenance.exporting import read_job
from scrapy_altsched.maintenance.filling import fill_job, recoded
from scrapy_altsched.maintenance.lines import from_lines, to_lines
from scrapy_altsched.maintenance.opening import open_frontier
from scrapy_altsched.requests.carrying import pickled, portable
from scrapy_altsched.requests.codec import PICKLED, wrap
from scrapy_altsched.requests.identity import NOTE
from scrapy_altsched.resume.spider_state import STATE

from .frontiers import OWNER, take

#: As of a project without rules.
FINGERPRINTS = b'{"class": "scrapy.utils.request.RequestFingerprinter", "rules": ""}'


_COUNT = 60


def entry_of(number: int, **more: Any) -> Entry:
    """A request as a job has it, of one of seven hosts and one of three priorities."""
    slot, priority = f"host{number % 7}.test", number % 3 - 1
    request = Request(f"http://{slot}/{number}", priority=priority)
    meta = {"depth": number, "pair": (1, 2), "raw": b"\xff"}
    fields = {"url": request.url, "priority": priority, "meta": meta, "callback": "parse"}
    payload = wrap(pickle.dumps(fields, 4), PICKLED)
    return Entry(fingerprint(request), slot, priority, payload=payload, **more)


def make_job(
    path: Path, engine: Choice = "auto", order: Order = DEFAULT_ORDER, *, owner: str = OWNER
) -> None:
    """A job with requests in every state, some of which were leased when it was stopped."""
    options = Options(store=engine, order=order, slot_budget=1_000)
    frontier = open_frontier(path, owner, options)
    for number in range(_COUNT):
        start = number < 5
        frontier.add(entry_of(number, start=start, from_start=start, unique=number % 5 > 0))
    for number in range(_COUNT, _COUNT + 5):
        frontier.add(entry_of(number, delay=Delay(until=4_000_000_000 + number)))
    for _ in range(_COUNT // 6):
        frontier.finish(take(frontier))
    for reason in Reason:
        lease = take(frontier)
        lease.failure = PageFailure(reason, f"{reason.name}: \u00e9", 503, 3)
        frontier.finish(lease)
    for cause in Cause:
        frontier.dead_letter(take(frontier), DeadLetter(f"why {cause.name}", cause))
    take(frontier)
    frontier.mark_seen(b"a page of no request")
    frontier.commit({NOTE: FINGERPRINTS, STATE: pickle.dumps({"a": {1}}, 4)})
    frontier.close()


@contextmanager
def job_at(path: Path, owner: str = OWNER) -> Iterator[Content]:
    """All of the job in a directory, as the command reads it."""
    with View(path / "frontier") as view:
        yield read_job(view, owner, NOTE, STATE)


def lines_of(path: Path) -> list[str]:
    """The lines of the job in a directory."""
    with job_at(path) as content:
        return list(to_lines(content, as_stored=False))


def crawl_lines_of(client: redis.Redis, key: str) -> list[str]:
    """The lines of a shared crawl."""
    return list(to_lines(CrawlReader(client, key).content(NOTE), as_stored=False))


def content_of(lines: list[str], *, trusted: bool = False) -> Content:
    """The crawl of these lines, as the command reads it from a file."""
    texts = [line.encode() for line in lines]
    return from_lines(texts, "the file", (NOTE, STATE), STATE, trusted=trusted)


def fill(path: Path, content: Content, engine: Choice = "auto") -> None:
    """Make a job of a crawl, as the command does."""

    def fill_store(store: Any) -> None:
        fill_job(store, recoded(content, pickled, "a job directory"))

    Journal(path, OWNER, fill_store, engine=engine).close()


def fill_from_lines(path: Path, lines: list[str], engine: Choice = "auto") -> None:
    """Make a job of lines."""
    fill(path, content_of(lines), engine)


def fill_server(client: redis.Redis, key: str, content: Content, order: Order) -> None:
    """Make a shared crawl of a crawl."""
    fill_crawl(client, key, recoded(content, portable, "a server"), order, NOTE, are_sha1=True)


def parts_of(lines: list[str], *without: str) -> list[str]:
    """What the lines say of requests, in the order of sequence numbers and states."""
    found = [json.loads(line) for line in lines[1:-1]]
    requests = [line for line in found if "state" in line]
    for line in requests:
        for name in without:
            line.pop(name, None)
    return [json.dumps(it) for it in sorted(requests, key=lambda it: (it["state"], it["sequence"]))]
