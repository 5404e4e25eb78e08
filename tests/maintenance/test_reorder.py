"""Another order for a stored queue: as if it had been so from the beginning, or not at all."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from scrapy_altsched.errors import CodecError
from scrapy_altsched.frontier import Entry, Options, Order
from scrapy_altsched.frontier.contract import Locate
from scrapy_altsched.frontier.local.frontier import LocalFrontier
from scrapy_altsched.maintenance.opening import open_frontier

from ..frontiers import (
    OWNER,
    DiskKind,
    journal_of,
    lease_from,
    problems_of,
    suspicions_of,
    work_off,
)

CHUNK = 7
pytestmark = pytest.mark.usefixtures("small_chunks")
#: More than two chunks, and one request over.
REQUESTS = 3 * CHUNK + 1

LIFO, FIFO = "slots/lifo/fifo", "slots/fifo/fifo"
CHANGES = [
    (LIFO, FIFO),
    (FIFO, LIFO),
    (LIFO, "one/lifo/fifo"),
    ("one/lifo/fifo", LIFO),
    ("one/fifo/fifo", "slots/lifo/none"),
    ("slots/lifo/none", LIFO),
    (LIFO, "slots/lifo/none"),
    ("one/fifo/none", "one/fifo/fifo"),
    ("slots/fifo/lifo", "slots/fifo/fifo"),
    ("slots/lifo/none", "one/fifo/lifo"),
]


def options(order: str) -> Options:
    return Options(order=Order.parse(order))


def locate(payload: bytes) -> tuple[str, bool]:
    """What the scheduler finds out by restoring the request."""
    slot, start, _ = payload.decode().split()
    return slot, start == "True"


def entries() -> list[Entry]:
    """Requests of any slot, priority and queue; their payload says what a request itself knows."""
    rng = random.Random(1)
    found = []
    for number in range(REQUESTS):
        slot = rng.choice(["a.example", "b.example", "c.example"])
        start = rng.random() < 0.4
        priority = rng.choice([0, 0, 0, 5, -(2**70)])
        payload = f"{slot} {start} {number}".encode()
        found.append(Entry(f"{number:02}".encode(), slot, priority, start, payload))
    return found


def fill(frontier: LocalFrontier) -> None:
    for entry in entries():
        frontier.add(entry)


def order_if_always(order: str) -> list[str]:
    """How a frontier that was never in another order leases."""
    frontier = open_frontier(None, OWNER, options(order))
    fill(frontier)
    return work_off(frontier)


@pytest.mark.parametrize(("old", "new"), CHANGES)
def test_the_order_is_as_if_it_had_always_been_so(disk: DiskKind, old: str, new: str) -> None:
    frontier = disk.open(options(old))
    fill(frontier)
    frontier.close()
    before = frontier.run.commit_number
    frontier = open_frontier(disk.path, OWNER, options(new), locate=locate)
    # No batch is larger than a chunk, and the last one, with the rest, makes it all true.
    assert frontier.run.commit_number == before + REQUESTS // CHUNK + 2
    assert problems_of(frontier) == []
    assert frontier.counts().pending == REQUESTS
    assert work_off(frontier) == order_if_always(new)
    frontier.close(finished=True)


@pytest.mark.parametrize(("old", "new"), CHANGES)
def test_an_order_that_is_changed_and_changed_back_is_as_before(
    disk: DiskKind, old: str, new: str
) -> None:
    frontier = disk.open(options(old))
    fill(frontier)
    frontier.close()
    for order in (new, old):
        frontier = open_frontier(disk.path, OWNER, options(order), locate=locate)
        frontier.close()
    assert work_off(disk.open(options(old))) == order_if_always(old)


def test_what_is_added_after_the_change_has_its_place_among_the_others(disk: DiskKind) -> None:
    first, second = entries()[:10], entries()[10:]
    frontier = disk.open(options(LIFO))
    for entry in first:
        frontier.add(entry)
    frontier.close()
    frontier = open_frontier(disk.path, OWNER, options("one/fifo/lifo"), locate=locate)
    for entry in second:
        frontier.add(entry)
    assert work_off(frontier) == order_if_always("one/fifo/lifo")
    frontier.close()
    disk.open(options("one/fifo/lifo"))


@pytest.mark.parametrize(("old", "new"), CHANGES)
def test_an_unchanged_order_asks_nothing_and_writes_nothing_anew(
    disk: DiskKind, old: str, new: str
) -> None:
    def never(payload: bytes) -> tuple[str, bool]:
        raise AssertionError("nothing is to be located")

    frontier = disk.open(options(old))
    fill(frontier)
    frontier.close()
    number = frontier.run.commit_number
    frontier = open_frontier(disk.path, OWNER, options(old), locate=never)
    assert frontier.run.commit_number == number + 1
    frontier.close()


def locate_and_copy(disk: DiskKind, moments: set[int], images: list[Path]) -> Locate:
    """A :func:`locate` that copies the files as they are when it is asked the n-th time."""
    asked = 0

    def ask(payload: bytes) -> tuple[str, bool]:
        nonlocal asked
        if asked in moments:
            images.append(disk.image())
        asked += 1
        return locate(payload)

    return ask


@pytest.mark.long
@pytest.mark.parametrize(("old", "new"), CHANGES)
def test_a_death_in_the_middle_leaves_the_old_order(disk: DiskKind, old: str, new: str) -> None:
    images: list[Path] = []
    # Nothing is written yet, one chunk is, all chunks are.
    ask = locate_and_copy(disk, {0, CHUNK, REQUESTS - 1}, images)
    frontier = disk.open(options(old))
    fill(frontier)
    frontier.close()
    frontier = open_frontier(disk.path, OWNER, options(new), locate=ask)
    frontier.close()
    changed = disk.path
    assert len(images) == (3 if locates(old, new) else 0)
    for image in images:
        disk.path = image
        frontier = disk.open(options(old))
        assert problems_of(frontier) == []
        counts = frontier.counts()
        assert (counts.accepted, counts.pending) == (REQUESTS, REQUESTS)
        assert sum(1 for _ in journal_of(frontier).pending()) == REQUESTS
        assert work_off(frontier) == order_if_always(old)
        frontier.close()
    disk.path = changed


def locates(old: str, new: str) -> bool:
    """Whether the request itself has to be asked where it belongs."""
    one, other = Order.parse(old), Order.parse(new)
    return one.policy != other.policy or (one.start is None) != (other.start is None)


@pytest.mark.parametrize("third", ["one/lifo/fifo", "slots/fifo/none", "slots/lifo/lifo"])
def test_after_a_death_in_the_middle_a_third_order_is_not_mixed_with_the_second(
    disk: DiskKind, third: str
) -> None:
    images: list[Path] = []
    ask = locate_and_copy(disk, {REQUESTS - 1}, images)
    frontier = disk.open(options(LIFO))
    fill(frontier)
    frontier.close()
    open_frontier(disk.path, OWNER, options("slots/fifo/none"), locate=ask).close()
    [disk.path] = images
    frontier = open_frontier(disk.path, OWNER, options(third), locate=locate)
    assert problems_of(frontier) == []
    assert work_off(frontier) == order_if_always(third)
    frontier.close()
    disk.open(options(third))


def test_suspects_and_counts_outlive_the_change(disk: DiskKind) -> None:
    frontier = disk.open(options(LIFO))
    fill(frontier)
    for _ in range(3):
        lease = lease_from(frontier)
        assert lease is not None
        frontier.finish(lease)
    frontier.commit()
    suspect = lease_from(frontier)
    assert suspect is not None
    frontier.run.note_response(suspect)
    before = frontier.counts()
    disk.crash(frontier)
    frontier = open_frontier(disk.path, OWNER, options("one/lifo/fifo"), locate=locate)
    counts = frontier.counts()
    assert (counts.accepted, counts.done) == (before.accepted, before.done)
    assert counts.pending == before.pending + before.leased
    assert [*frontier._suspects.suspicions] == [suspect.entry.fingerprint]
    assert suspicions_of(frontier) == (1, 0)
    while (lease := lease_from(frontier)) is not None:
        frontier.finish(lease)
    assert suspicions_of(frontier) == (0, 0)
    assert frontier.counts().pending == 0
    frontier.close()
    disk.open(options("one/lifo/fifo"))


def test_a_request_that_cannot_be_located_keeps_its_queue(disk: DiskKind) -> None:
    def locate_some(payload: bytes) -> tuple[str, bool]:
        if payload.endswith(b"7"):
            raise CodecError("cannot be restored")
        return locate(payload)

    frontier = disk.open(options(LIFO))
    fill(frontier)
    frontier.close()
    frontier = open_frontier(disk.path, OWNER, options("one/lifo/fifo"), locate=locate_some)
    assert sorted(work_off(frontier)) == [f"{number:02}" for number in range(REQUESTS)]
    frontier.close()
    disk.open(options("one/lifo/fifo"))


def test_without_a_way_to_locate_requests_only_their_direction_changes(disk: DiskKind) -> None:
    frontier = disk.open(options(LIFO))
    fill(frontier)
    frontier.close()
    frontier = disk.open(options("one/fifo/fifo"))
    assert work_off(frontier) == order_if_always("one/fifo/fifo")
