"""Numbers and sizes far beyond the usual."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
from scrapy import Request

from scrapy_altsched.frontier import Entry, Order
from scrapy_altsched.frontier.local.frontier import Options
from scrapy_altsched.frontier.queue.order import Direction
from scrapy_altsched.frontier.store.journal import Journal
from scrapy_altsched.frontier.store.records import Batch
from scrapy_altsched.maintenance.opening import open_frontier

from ..engines import OURS, StandIn
from ..frontiers import lease_from, problems_of

MIB = 1024 * 1024


@pytest.mark.parametrize("direction", ["lifo", "fifo"])
@pytest.mark.parametrize("sequence", [2**40, 2**63])
def test_a_job_of_any_age_keeps_its_order(
    tmp_path: Path, sequence: int, direction: Direction
) -> None:
    options = Options(order=Order("one", direction, None))
    open_frontier(tmp_path, "spider", options).close()
    journal = Journal(tmp_path, "spider")
    journal.write(Batch(replace(journal.counters(), next_sequence=sequence - 2)))
    journal.close()
    names = [str(number).encode() for number in range(4)]  # two before that number, two after it
    frontier = open_frontier(tmp_path, "spider", options)
    for name in names:
        frontier.add(Entry(name, payload=name))
    frontier.close()
    frontier = open_frontier(tmp_path, "spider", options)
    leased = [lease.entry.payload for _ in names if (lease := lease_from(frontier)) is not None]
    assert leased == (names if direction == "fifo" else names[::-1])
    assert problems_of(frontier) == []
    frontier.close()


def test_ten_thousand_priorities_are_kept_apart(tmp_path: Path) -> None:
    seed = 12
    priorities = [10**40, -(10**40), *range(-5_000, 5_000)]
    random.Random(seed).shuffle(priorities)
    frontier = open_frontier(tmp_path, "spider")
    for priority in priorities:
        name = str(priority).encode()
        frontier.add(Entry(name, priority=priority, payload=name))
    frontier.close()
    frontier = open_frontier(tmp_path, "spider")
    leased = []
    while (lease := lease_from(frontier)) is not None:
        leased.append(int(lease.entry.fingerprint))
        frontier.finish(lease)
    assert leased == sorted(priorities, reverse=True), f"seed {seed}"
    frontier.close(finished=True)


def test_ten_thousand_slots_are_all_there_again(tmp_path: Path) -> None:
    count = 10_000
    frontier = open_frontier(tmp_path, "spider", Options(memory_requests=1_000))
    for number in range(count):
        name = str(number)
        frontier.add(Entry(name.encode(), slot=name, payload=b""))
    frontier.close()
    frontier = open_frontier(tmp_path, "spider", Options(memory_requests=1_000))
    leased = set()
    while (lease := lease_from(frontier)) is not None:
        leased.add(lease.entry.fingerprint)
        frontier.finish(lease)
    assert len(leased) == count
    assert problems_of(frontier) == []
    frontier.close(finished=True)


@pytest.mark.parametrize(
    "request_",
    [
        Request("http://site.test/" + "long/" * (MIB // 5)),
        Request("http://site.test/?" + "&".join(f"{number}=1" for number in range(MIB // 10))),
        Request("http://site.test/", meta={"large": b"\0" * (50 * MIB)}),
        Request("http://site.test/", method="POST", body=b"x" * (10 * MIB)),
    ],
    ids=["URL", "query", "meta", "body"],
)
def test_a_request_of_any_size_is_kept(tmp_path: Path, request_: Request) -> None:
    settings = {**OURS, "JOBDIR": str(tmp_path / "job")}
    stand_in = StandIn(settings)
    assert stand_in.scheduler.enqueue_request(request_)
    assert not stand_in.scheduler.enqueue_request(request_.copy())
    stand_in.scheduler.close("shutdown")
    stand_in = StandIn(settings)
    kept = stand_in.next()
    assert kept is not None
    assert kept.url == request_.url
    assert kept.body == request_.body
    assert kept.meta.get("large") == request_.meta.get("large")
    stand_in.engine.end(kept)
    assert stand_in.next() is None
    stand_in.scheduler.close("finished")
    assert stand_in.stat("altsched/done") == 1
