"""How much of the queue is in memory, and that nobody can tell from the order."""

from __future__ import annotations

import os
import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scrapy_altsched.frontier import Lease, Options, Order
from scrapy_altsched.frontier.local.frontier import LocalFrontier
from scrapy_altsched.frontier.local.persistence import Persistence
from scrapy_altsched.frontier.queue import window
from scrapy_altsched.frontier.queue.window import _LIVE, _LIVE_BYTES, _MOST_BYTES
from scrapy_altsched.frontier.store.store import Store
from scrapy_altsched.maintenance.opening import open_frontier

from ..conftest import one_disk
from ..frontiers import (
    DiskKind,
    MemoryKind,
    journal_of,
    lease_from,
    name_of,
    page,
    problems_of,
    take,
    work_off,
)

# What is shown here is the same with each engine.
disk = one_disk

CAP = 100
PENDING = 50 * CAP
#: Bytes of a payload of which a few dozen are too many.
LARGE = _MOST_BYTES // 20


def options(direction: str, cap: int = CAP) -> Options:
    return Options(order=Order.parse(f"slots/{direction}/fifo"), memory_requests=cap)


def assert_small(frontier: LocalFrontier, cap: int = CAP) -> None:
    in_memory = frontier._queues.window.count
    assert in_memory <= cap * 1.25 + frontier.pressure.changes
    assert in_memory == sum(slot.in_memory for slot in frontier._queues.slots._by_name.values())


def fill(frontier: LocalFrontier, slots: int) -> None:
    for number in range(PENDING):
        frontier.add(page(str(number), f"slot {number % slots}"))
        if number % 90 == 0:
            frontier.commit()
        assert_small(frontier)
    frontier.commit()


def lease_in_turn(frontier: LocalFrontier, slots: int) -> dict[int, list[int]]:
    """Lease and finish all; slot -> numbers in the order they came."""
    order: defaultdict[int, list[int]] = defaultdict(list)
    for count in range(PENDING):
        lease = take(frontier)
        assert_small(frontier)
        number = int(name_of(lease))
        order[number % slots].append(number)
        frontier.finish(lease)
        if count % 90 == 0:
            frontier.commit()
    assert lease_from(frontier) is None
    return order


@pytest.mark.long
@pytest.mark.parametrize("slots", [1, 50, 1_000])
@pytest.mark.parametrize("direction", ["lifo", "fifo"])
@pytest.mark.parametrize("resumed", [False, True])
def test_fifty_times_more_than_fits_is_leased_once_and_in_order(
    disk: DiskKind, slots: int, direction: str, resumed: bool
) -> None:
    frontier = disk.open(options(direction))
    fill(frontier, slots)
    if resumed:
        frontier.close()
        frontier = disk.open(options(direction))
        assert frontier._queues.window.count == 0
    order = lease_in_turn(frontier, slots)
    for slot in range(slots):
        expected = list(range(slot, PENDING, slots))
        assert order[slot] == (expected[::-1] if direction == "lifo" else expected)


@pytest.mark.parametrize("seed", range(3))
def test_a_queue_that_is_cut_at_the_end_of_its_heap_keeps_its_order(
    disk: DiskKind, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(window, "_DROP", 7)
    rng = random.Random(seed)
    frontier = disk.open(Options(order=Order.parse("slots/fifo/fifo")))
    priorities = {str(number): rng.randrange(-20, 20) for number in range(120)}
    for count, (name, priority) in enumerate(priorities.items()):
        frontier.add(page(name, priority=priority))
        if count == 100:
            frontier.commit()
    in_memory = frontier._queues.window
    cuts = 0
    while in_memory.cut(30):
        cuts += 1
        assert_small(frontier)
    assert cuts == 13  # 7 at most with each
    assert in_memory.count == 30
    assert work_off(frontier) == sorted(priorities, key=lambda name: -priorities[name])


def test_the_memory_is_bounded_while_requests_come_and_go(disk: DiskKind) -> None:
    rng = random.Random(1)
    frontier = disk.open(options("lifo"))
    fill(frontier, 300)
    leased: list[str] = []
    leases: list[Lease] = []
    for number in range(PENDING, PENDING + 3_000):
        frontier.add(page(str(number), f"slot {number % 300}", priority=rng.randrange(-2, 3)))
        lease = take(frontier)
        assert_small(frontier)
        leases.append(lease)
        if len(leases) == 16:
            ended = leases.pop(rng.randrange(16))
            if rng.random() < 0.2:
                frontier.release(ended)
            else:
                leased.append(name_of(ended))
                frontier.finish(ended)
        if number % 50 == 0:
            frontier.commit()
    for lease in leases:
        frontier.release(lease)
    leased += work_off(frontier)
    assert sorted(map(int, leased)) == list(range(PENDING + 3_000))


@pytest.mark.parametrize("direction", ["lifo", "fifo"])
@pytest.mark.parametrize("priorities", [1, 1_000_000])
def test_a_large_window_drops_few_requests_at_once(
    disk: DiskKind, direction: str, priorities: int
) -> None:
    cap = 30_000
    frontier = disk.open(options(direction, cap))
    choose = random.Random(1)
    numbers = {str(number): choose.randrange(priorities) for number in range(cap)}
    for number, priority in enumerate(numbers.values()):
        frontier.add(page(str(number), priority=priority))
        if number % 2_000 == 0:
            frontier.commit()
    while not frontier.commit():
        pass
    assert frontier._queues.window.count == cap
    frontier.add(page("one more", priority=-1))
    # Where the cut is made is known from a sample.
    assert cap - 6_500 < frontier._queues.window.count < cap - 3_500
    age = -1 if direction == "lifo" else 1
    expected = sorted(numbers, key=lambda name: (-numbers[name], age * int(name)))
    assert work_off(frontier) == [*expected, "one more"]


def test_few_slots_are_cut_at_once(disk: DiskKind) -> None:
    cap, slots = 30_000, 100
    frontier = disk.open(options("fifo", cap))
    for number in range(cap):
        frontier.add(page(str(number), f"slot {number % slots}"))
        if number % 2_000 == 0:
            frontier.commit(wait=True)
    while not frontier.commit(wait=True):
        pass
    frontier.add(page("one more", "slot 0"))
    lengths = [slot.in_memory for slot in frontier._queues.slots._by_name.values()]
    assert sum(lengths) == frontier._queues.window.count == cap - 5_000
    # Each of them costs a pass over all of its keys.
    assert sum(length < cap // slots for length in lengths) < slots // 2
    assert min(lengths) >= cap // slots // 2


def test_a_window_full_of_bytes_drops_few_requests_at_once(disk: DiskKind) -> None:
    frontier = disk.open(options("fifo", cap=30_000))
    size = _MOST_BYTES // 20_000
    for number in range(20_050):
        entry = page(str(number))
        entry.payload = bytes(size)
        frontier.add(entry)
        if number % 100 == 0:
            frontier.commit(wait=True)
        if number > 18_000:
            # Not half of them, as would be right if a few large ones were to blame.
            assert frontier._queues.window.count > 13_000
    while not frontier.commit(wait=True):
        pass
    assert frontier._queues.window.count < 20_000


def test_more_slots_than_requests_that_fit_still_fit(disk: DiskKind) -> None:
    frontier = disk.open(options("fifo", cap=10))
    for number in range(500):
        frontier.add(page(f"{number:03}", f"slot {number:03}"))
        frontier.add(page(f"{number:03} again", f"slot {number:03}"))
        frontier.commit(wait=True)
        assert_small(frontier, 10)
    done: list[str] = []
    while (lease := lease_from(frontier)) is not None:
        assert_small(frontier, 10)
        done.append(name_of(lease))
        frontier.finish(lease)
        frontier.commit(wait=True)
    assert done[:500] == [f"{number:03}" for number in range(500)]
    assert done[500:] == [f"{number:03} again" for number in range(500)]


def test_what_is_not_committed_stays_in_memory(disk: DiskKind) -> None:
    frontier = disk.open(options("fifo", cap=20))
    for number in range(500):
        frontier.add(page(f"{number:03}"))
    assert frontier._queues.window.count == 500
    frontier.commit()
    assert_small(frontier, 20)
    assert work_off(frontier) == [f"{number:03}" for number in range(500)]


def test_what_is_committed_makes_room_for_what_is_not(disk: DiskKind) -> None:
    frontier = disk.open(options("fifo", cap=20))
    for number in range(500):
        frontier.add(page(f"uncommitted {number}"))
    work_off(frontier)
    for number in range(20):
        frontier.add(page(f"first {number:02}"))
    frontier.commit()
    assert frontier._queues.window.count == 20
    for number in range(15):
        frontier.add(page(f"second {number:02}"))
        assert frontier._queues.window.count <= 15 + frontier.pressure.changes
    expected = [f"first {number:02}" for number in range(20)]
    assert work_off(frontier) == expected + [f"second {number:02}" for number in range(15)]


def test_room_is_not_made_with_the_request_that_is_asked_for(disk: DiskKind) -> None:
    frontier = disk.open(options("fifo", cap=4))
    frontier.add(page("a1", "a"))
    frontier.add(page("a2", "a", stored=False))
    frontier.commit()
    # These cannot make room either.
    for slot in "bcd":
        frontier.add(page(slot, slot, stored=False))
    frontier.commit()
    assert frontier._queues.window.count == 4
    assert work_off(frontier) == ["a1", "b", "c", "d", "a2"]


def test_memory_only_requests_are_never_dropped(disk: DiskKind) -> None:
    frontier = disk.open(options("fifo", cap=4))
    for number in range(60):
        frontier.add(page(f"{number:02}", stored=number % 3 == 0))
        frontier.commit()
    assert work_off(frontier) == [f"{number:02}" for number in range(60)]


@pytest.mark.parametrize("slots", [1, 50])
@pytest.mark.parametrize("direction", ["lifo", "fifo"])
def test_the_memory_is_bounded_by_bytes_too(disk: DiskKind, slots: int, direction: str) -> None:
    frontier = disk.open(options(direction, cap=10_000))
    sizes = [LARGE, 10, 10, 3 * LARGE, 10]

    def commit_all() -> None:
        while not frontier.commit(wait=True):
            pass

    def assert_few_bytes() -> None:
        # What is not committed comes on top, and what one read brings.
        assert frontier._queues.window.size <= 1.25 * _MOST_BYTES + 8 * LARGE

    for number in range(100):
        entry = page(f"{number:03}", f"slot {number % slots}")
        entry.payload = bytes(sizes[number % 5])
        frontier.add(entry)
        if number % 4 == 0:
            commit_all()
        assert_few_bytes()
    commit_all()
    found = []
    while (lease := lease_from(frontier)) is not None:
        assert_few_bytes()
        assert lease.entry.payload is not None
        assert len(lease.entry.payload) == sizes[int(name_of(lease)) % 5]
        found.append(name_of(lease))
        frontier.finish(lease)
        commit_all()
    assert frontier._queues.window.size == 0
    assert len(found) == 100
    for slot in range(slots):
        in_slot = [name for name in found if int(name) % slots == slot]
        assert in_slot == sorted(in_slot, reverse=direction == "lifo")


def test_only_the_newest_requests_and_small_ones_keep_their_object(disk: DiskKind) -> None:
    frontier = disk.open(options("lifo", cap=10 * _LIVE))
    for number in range(_LIVE + 100):
        entry = page(str(number))
        entry.request = f"request of {number}"
        if number % 100 == 99:
            entry.payload = bytes(_LIVE_BYTES + 1)
        frontier.add(entry)
        # What becomes old before it is committed keeps none either.
        if number == 50:
            frontier.commit()
    for number in reversed(range(_LIVE + 100)):
        lease = take(frontier)
        assert name_of(lease) == str(number)
        is_kept = number >= 100 and number % 100 != 99
        assert lease.entry.request == (f"request of {number}" if is_kept else None)
        expected = bytes(_LIVE_BYTES + 1) if number % 100 == 99 else f"payload of {number}".encode()
        assert lease.entry.payload == expected
        frontier.finish(lease)


@pytest.mark.parametrize("is_late", [False, True])
def test_an_older_request_that_is_written_is_held_where_there_is_nothing_but_bytes(
    disk: DiskKind, is_late: bool
) -> None:
    frontier = disk.open(options("lifo", cap=10 * _LIVE))
    for number in range(_LIVE + 100):
        entry = page(str(number))
        entry.request = f"request of {number}"
        frontier.add(entry)
        if number % 50 == 49 and not is_late:
            frontier.commit(wait=True)
    while not frontier.commit(wait=True):
        pass
    window = frontier._queues.window
    assert window.count == _LIVE + 100
    assert len(window._entries) == _LIVE
    assert {type(value) for value in window._values.values()} == {bytes}


def test_what_a_failed_write_has_stored_is_not_leased_twice(disk: DiskKind) -> None:
    frontier = disk.open(options("fifo", cap=4))
    frontier.add(page("stored 1"))
    frontier.add(page("stored 2"))
    frontier.close()
    frontier = disk.open(options("fifo", cap=4))
    for number in range(5):
        frontier.add(page(f"new {number}"))
    journal = journal_of(frontier)
    assert isinstance(frontier._kept, Persistence)
    counters = replace(frontier.run.counters)
    Store.write(journal, frontier._kept.prepare(counters).batch)
    journal.commit_number -= 1
    names = [name_of(take(frontier)) for _ in range(7)]
    assert names == ["stored 1", "stored 2", *(f"new {number}" for number in range(5))]


@pytest.mark.parametrize("end", [LocalFrontier.finish, LocalFrontier.release, None])
def test_what_is_stored_but_not_pending_is_not_read_again(
    disk: DiskKind, end: Callable[[LocalFrontier, Lease], None] | None
) -> None:
    frontier = disk.open(options("lifo", cap=4))
    frontier.add(page("last", priority=-1))
    frontier.add(page("first"))
    frontier.commit()
    first = take(frontier)
    for number in range(3):
        frontier.add(page(str(number)))
    frontier.commit()
    if end is not None:
        end(frontier, first)
    # More urgent ones, not committed, push the far end of the queue out of memory.
    for number in range(3, 6):
        frontier.add(page(str(number)))
    expected = ["5", "4", "3", "2", "1", "0", "last"]
    if end is LocalFrontier.release:
        expected.insert(-1, "first")
    assert work_off(frontier) == expected


def test_what_stays_in_memory_while_more_is_read_keeps_its_order(disk: DiskKind) -> None:
    frontier = disk.open(options("fifo", cap=4))
    for number in range(9):
        frontier.add(page(f"stored {number}"))
    frontier.commit()
    first = take(frontier)
    for number in range(9):
        frontier.add(page(f"urgent {number}", priority=1))
    frontier.commit()
    frontier.release(first)
    assert name_of(take(frontier)) == "urgent 0"
    for number in range(9):
        frontier.add(page(f"uncommitted {number}", start=True))
    assert work_off(frontier) == [
        *(f"urgent {number}" for number in range(1, 9)),
        *(f"stored {number}" for number in range(9)),
        *(f"uncommitted {number}" for number in range(9)),
    ]


@pytest.mark.parametrize("cap", [1, 2, 3, 7, 8, 9])
def test_the_smallest_windows_do(disk: DiskKind, cap: int) -> None:
    frontier = disk.open(options("lifo", cap=cap))
    for number in range(40):
        frontier.add(page(f"{number:02}"))
        frontier.commit()
    assert work_off(frontier) == [f"{number:02}" for number in range(39, -1, -1)]


# With the same operations, a memory frontier gives the same leases

OPERATIONS = st.lists(
    st.one_of(
        st.tuples(
            st.just("add"),
            st.integers(1, 12),
            st.sampled_from(["", "a", "b"]),
            st.sampled_from([0, 0, 0, 1, -1]),
            st.booleans(),
            st.sampled_from([True, True, True, False]),
        ),
        st.tuples(
            st.just("lease"), st.integers(1, 8), st.dictionaries(st.sampled_from("ab"), st.just(1))
        ),
        st.tuples(st.sampled_from(["finish", "release"]), st.integers(0, 30)),
        st.tuples(st.just("commit")),
    ),
    max_size=60,
)


@pytest.mark.long
@settings(
    deadline=None,
    max_examples=60,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(
    operations=OPERATIONS,
    order=st.sampled_from(
        ["slots/lifo/fifo", "slots/fifo/lifo", "slots/lifo/none", "one/lifo/fifo", "one/fifo/none"]
    ),
    cap=st.integers(1, 9),
)
def test_a_small_window_leases_as_a_memory_frontier_does(
    tmp_path_factory: pytest.TempPathFactory,
    operations: list[tuple],  # type: ignore[type-arg]
    order: str,
    cap: int,
) -> None:
    directory = tmp_path_factory.mktemp("window")
    options = Options(order=Order.parse(order), memory_requests=cap)
    frontiers = [MemoryKind(directory).open(options), DiskKind(directory).open(options)]
    leases: list[tuple[Lease, ...]] = []
    number = 0

    def lease(busy: dict[str, int]) -> bool:
        pair = [lease_from(frontier, busy) for frontier in frontiers]
        found = [lease and name_of(lease) for lease in pair]
        assert found[0] == found[1]
        if pair[0] is not None:
            leases.append(tuple(pair))  # type: ignore[arg-type]
        return pair[0] is not None

    for name, *arguments in operations:
        if name == "add":
            times, slot, priority, start, stored = arguments
            for _ in range(times):
                number += 1
                for frontier in frontiers:
                    frontier.add(page(str(number), slot, priority, start=start, stored=stored))
        elif name == "lease":
            times, busy = arguments
            for _ in range(times):
                lease(busy)
        elif name == "commit":
            for frontier in frontiers:
                assert problems_of(frontier) == []
        elif leases:
            pair = leases.pop(arguments[0] % len(leases))
            for frontier, held in zip(frontiers, pair, strict=True):
                getattr(frontier, name)(held)
    while lease({}):
        pass
    for frontier in frontiers:
        frontier.close()


@pytest.mark.parametrize("order", ["one/fifo/fifo", "one/lifo/fifo", "slots/fifo/lifo"])
@pytest.mark.parametrize("cap", [3, 8, 20])
def test_a_small_window_leases_as_a_memory_frontier_does_for_long(
    disk: DiskKind, tmp_path: Path, order: str, cap: int
) -> None:
    rng = random.Random(f"{order} {cap}")
    options = Options(order=Order.parse(order), memory_requests=cap)
    memory, stored = MemoryKind(tmp_path).open(options), disk.open(options)
    leases: list[tuple[Lease, Lease]] = []
    number = 0
    for _ in range(1_500):
        operation = rng.choice(["add", "lease", "lease", "finish", "finish", "release", "commit"])
        for _ in range(rng.choice([1, 1, 2, 5, 12])):
            if operation == "add":
                number += 1
                slot, priority = rng.choice("ab"), rng.choice([0, 0, 0, 1, -1])
                start, in_store = rng.random() < 0.3, rng.random() < 0.9
                for frontier in (memory, stored):
                    frontier.add(page(str(number), slot, priority, start=start, stored=in_store))
            elif operation == "lease" and memory.pending:
                one, other = take(memory), take(stored)
                assert name_of(one) == name_of(other)
                leases.append((one, other))
            elif operation in ("finish", "release") and leases:
                one, other = leases.pop(rng.randrange(len(leases)))
                getattr(memory, operation)(one)
                getattr(stored, operation)(other)
        if operation == "commit":
            stored.commit()
    assert memory.counts() == stored.counts()
    assert work_off(memory) == work_off(stored)
    assert number > 500


# Open files


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208


def test_the_number_of_open_files_does_not_grow_with_slots(tmp_path: Path) -> None:
    def count_with(slots: int) -> int:
        before = open_files()
        frontier = open_frontier(tmp_path / str(slots), "spider", options("fifo"))
        for number in range(2 * slots):
            frontier.add(page(str(number), f"{number % slots}.example"))
        frontier.commit()
        assert lease_from(frontier) is not None
        opened = open_files() - before
        frontier.close()
        assert open_files() == before
        return opened

    assert count_with(2_000) <= count_with(20) + 5
