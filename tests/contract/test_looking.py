"""Looking at what waits in a frontier, and where a request is: nothing is changed by it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
import redis

from scrapy_altsched.age import Age
from scrapy_altsched.frontier import Options, Order
from scrapy_altsched.frontier.entry import STARTED, Delay, Place

from ..clocks import ManualClock
from ..frontiers import (
    KINDS,
    LOCAL,
    STORED,
    MemoryKind,
    commit,
    name_of,
    names,
    page,
    take,
    take_all,
)
from ..shared import SettledShared

ORDERS = ("slots/lifo/fifo", "slots/fifo/none", "one/fifo/lifo")


@pytest.fixture(params=LOCAL)
def kind(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MemoryKind]:
    kind = KINDS[request.param](tmp_path)
    yield kind
    kind.verify()


def peek(frontier: Any, slot: str | None = None) -> list[str]:
    return [entry.fingerprint.decode() for entry in frontier.peek(slot)]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("seed", range(3))
def test_it_is_the_order_in_which_requests_are_leased(
    kind: MemoryKind, order: str, seed: int
) -> None:
    rng = Random(seed)
    frontier = kind.open(Options(order=Order.parse(order)))
    leases = []
    for number in range(150):
        slot, priority, start = rng.choice("abc"), rng.choice((0, 0, 1, -1)), rng.random() < 0.2
        stored = rng.random() < 0.9
        frontier.add(page(f"{slot}{number}", slot, priority, start=start, stored=stored))
        if rng.random() < 0.1:
            commit(frontier)
        if rng.random() < 0.2:
            leases.append(take(frontier))
        if leases and rng.random() < 0.2:
            frontier.release(leases.pop())
        if leases and rng.random() < 0.3:
            frontier.finish(leases.pop(0))
    counts, shown = frontier.counts(), peek(frontier)
    assert len(shown) == counts.pending
    assert peek(frontier) == shown
    assert frontier.counts() == counts
    if frontier.pending and order.startswith("slots"):
        assert peek(frontier, "b") == [name for name in shown if name[0] == "b"]
        assert peek(frontier, "none") == []
    assert names(take_all(frontier)) == shown
    assert peek(frontier) == []


def test_slots_that_are_deferred_come_last(kind: MemoryKind) -> None:
    frontier = kind.open(Options(order=Order("slots", "fifo", None)))
    for name in ("a1", "a2", "b1", "c1"):
        frontier.add(page(name, name[0]))
    assert peek(frontier) == ["a1", "b1", "c1", "a2"]
    frontier.defer("a", 100)
    assert peek(frontier) == ["b1", "c1", "a1", "a2"]
    frontier.defer(None, 100)
    assert sorted(peek(frontier)) == ["a1", "a2", "b1", "c1"]


def states(frontier: Any, *names: str) -> dict[str, str]:
    return {name: frontier.locate(name.encode(), "a").state for name in names}


def test_where_each_request_is_before_a_commit_and_after_it(kind: MemoryKind) -> None:
    clock = ManualClock()
    frontier = kind.open(Options(order=Order("slots", "fifo", None), clock=clock))
    for name in ("done", "flying", "held"):
        frontier.add(page(name, "a"))
    frontier.finish(take(frontier))
    flying = take(frontier)
    frontier.hold(take(frontier))
    assert name_of(flying) == "flying"
    for name in ("first", "second"):
        frontier.add(page(name, "a"))
    frontier.add(page("other", "b"))
    later = page("later", "a")
    later.delay = Delay(seconds=100)
    frontier.add(later)
    frontier.mark_seen(b"marked")
    expected = {
        **dict.fromkeys(("flying", "held"), "in flight"),
        **dict.fromkeys(("first", "second", "other"), "pending"),
        "later": "delayed",
        "done": "done",
        "marked": "done",
        "never": "never seen",
    }
    for _ in range(2):
        assert states(frontier, *expected) == expected
        second = frontier.locate(b"second", "b")
        # How many come before it is known of the slot that was asked for.
        assert second == Place("pending", b"payload of second")
        second = frontier.locate(b"second", "a")
        assert second == Place("pending", b"payload of second", ahead=1)
        assert frontier.locate(b"later", "a").at == pytest.approx(clock.wall() + 100, abs=0.01)
        commit(frontier)


@pytest.mark.parametrize("name", STORED)
def test_a_start_request_that_is_not_filtered_leaves_its_claim(tmp_path: Path, name: str) -> None:
    frontier = KINDS[name](tmp_path).open()
    frontier.add(page("start", "a", unique=False, from_start=True))
    frontier.add(page("other", "a", unique=False))
    assert frontier.locate(b"start", "a").state == "pending"
    for lease in [take(frontier), take(frontier)]:
        frontier.finish(lease)
    for _ in range(2):
        assert frontier.locate(b"start", "a") == STARTED
        assert frontier.locate(b"other", "a").state == "never seen"
        commit(frontier)
    frontier.close()


@pytest.mark.parametrize("name", STORED)
def test_when_a_page_was_done_is_told_where_that_is_recorded(tmp_path: Path, name: str) -> None:
    kind, clock = KINDS[name](tmp_path), ManualClock()
    frontier = kind.open(Options(clock=clock, recrawl_after=Age(1_000), records_ages=True))
    frontier.add(page("a"))
    assert frontier.locate(b"a", "").state == "pending"
    lease = take(frontier)
    clock.advance(50)
    frontier.finish(lease)
    commit(frontier)
    found = frontier.locate(b"a", "")
    assert (found.state, found.at) == ("done", pytest.approx(clock.wall(), abs=1))
    kind.verify()


def test_a_worker_of_a_shared_crawl_knows_what_it_has_fetched(client: redis.Redis) -> None:
    frontier = SettledShared(Options(order=Order("slots", "fifo", None)), client)
    for name in ("a1", "a2"):
        frontier.add(page(name, "a"))
    frontier.add(page("a3", "a", stored=False))
    frontier._frontier._server.request_leases()
    frontier._settle()
    assert peek(frontier) == peek(frontier, "a") == ["a3", "a1"]
    assert peek(frontier, "b") == []
    assert frontier.locate(b"a3", "a") == Place("pending")
    assert name_of(take(frontier)) == "a3"
    lease = take(frontier)
    assert frontier.locate(b"a1", "a") == Place("in flight", b"payload of a1")
    assert frontier.locate(b"never", "a") is None
    assert list(frontier.failed()) == []
    frontier.release(lease)
    frontier.close()


def test_what_is_in_flight_is_left_out_though_it_is_behind_what_is_in_memory(
    kind: MemoryKind,
) -> None:
    frontier = kind.open(Options(order=Order("slots", "lifo", None)))
    frontier.add(page("flying", "a"))
    commit(frontier)
    assert name_of(take(frontier)) == "flying"
    for number in range(30):
        frontier.add(page(f"{number}", "a"))
        commit(frontier)
    assert peek(frontier) == [f"{number}" for number in reversed(range(30))]
