"""Who is next: the encoding of priorities, the keys, and the choice between slots."""

from __future__ import annotations

import random
import sys
import tracemalloc

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from scrapy_altsched.frontier.queue.order import Order, decode_int, encode_int
from scrapy_altsched.frontier.queue.slots import Slots

from ..frontiers import Downloads

QUICK = settings(deadline=None, print_blob=True)

#: Ints of any size, many of them near the limits where the encoding changes its length.
SMALL = st.integers(-70_000, 70_000)
LARGE = st.builds(
    lambda exponent, offset, sign: sign * ((1 << exponent) + offset),
    st.sampled_from([0, 8, 16, 63, 64, 8 * 0x7D, 8 * 0x7E, 8 * 0x7F, 1024, 1030, 5_000]),
    st.integers(-2, 2),
    st.sampled_from([1, -1]),
)
INTS = st.one_of(SMALL, LARGE, st.integers())

ORDERS = [
    Order(policy, normal, start)
    for policy in ("slots", "one")
    for normal in ("lifo", "fifo")
    for start in ("lifo", "fifo", None)
]
SEQUENCES = st.integers(0, 2**64 - 1)


@QUICK
@given(INTS)
def test_an_int_is_decoded_to_what_was_encoded(number: int) -> None:
    assert decode_int(encode_int(number)) == number


@QUICK
@given(INTS, INTS)
@example(2**1024, 2**1024 + 1)
@example(-(2**1024), -(2**1024) - 1)
@example((1 << 8 * 0x7D) - 1, 1 << 8 * 0x7D)
def test_encoded_ints_compare_as_the_ints_do(one: int, other: int) -> None:
    first, second = encode_int(one), encode_int(other)
    assert (first < second) == (one < other)
    assert (first == second) == (one == other)


@QUICK
@given(INTS, INTS)
def test_no_encoded_int_is_a_prefix_of_another(one: int, other: int) -> None:
    assert one == other or not encode_int(one).startswith(encode_int(other))


def test_neighbours_keep_their_order_wherever_the_length_changes() -> None:
    edges = {sign * (1 << exponent) for exponent in range(0, 1100, 4) for sign in (1, -1)}
    numbers = sorted({edge + offset for edge in edges for offset in (-1, 0, 1)})
    encoded = [encode_int(number) for number in numbers]
    assert encoded == sorted(set(encoded))


@pytest.mark.parametrize(
    ("number", "encoded"),
    [
        (0, "80"),
        (1, "8101"),
        (255, "81ff"),
        (256, "820100"),
        (-1, "7f"),
        (-2, "7efe"),
        (-257, "7dfeff"),
        ((1 << 8 * 0x7D) - 1, "fd" + 0x7D * "ff"),
        (1 << 8 * 0x7D, "ff" + "000000000000007e" + "01" + 0x7D * "00"),
    ],
    ids=lambda value: str(value)[:12],
)
def test_ints_are_encoded_as_in_the_job_directories_that_are_out_there(
    number: int, encoded: str
) -> None:
    assert encode_int(number).hex() == encoded


def test_keys_are_encoded_as_in_the_job_directories_that_are_out_there() -> None:
    order = Order("slots", "lifo", "fifo")
    assert order.encode(5, False, 7).hex() == "7efb" + "00" + "fffffffffffffff8"
    assert order.encode(0, True, 7).hex() == "80" + "01" + "0000000000000007"
    assert str(order) == "slots/lifo/fifo"


@QUICK
@given(st.sampled_from(ORDERS), INTS, st.booleans(), SEQUENCES)
def test_a_key_is_decoded_to_what_was_encoded(
    order: Order, priority: int, start: bool, sequence: int
) -> None:
    own_queue = start and order.start is not None
    assert order.decode(order.encode(priority, start, sequence)) == (priority, own_queue, sequence)


@QUICK
@given(
    st.sampled_from(ORDERS),
    st.lists(st.tuples(INTS, st.booleans(), SEQUENCES), unique_by=lambda item: item[2]),
)
def test_keys_compare_as_the_order_says(
    order: Order, requests: list[tuple[int, bool, int]]
) -> None:
    def place(request: tuple[int, bool, int]) -> tuple[int, bool, int]:
        priority, start, sequence = request
        if order.start is None:
            start = False
        direction = order.start if start else order.normal
        return -priority, start, sequence if direction == "fifo" else -sequence

    by_key = sorted(requests, key=lambda request: order.encode(*request))
    assert by_key == sorted(requests, key=place)


@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_an_order_is_parsed_from_its_own_text(order: Order) -> None:
    assert Order.parse(str(order)) == order


def test_the_policy_says_which_queue_a_request_waits_in() -> None:
    assert Order("slots").slot_of("example.com") == "example.com"
    assert Order("one").slot_of("example.com") == ""


# The choice between slots


def choose_naively(names: set[str], busy: dict[str, int], last: str | None) -> str | None:
    """Fewest downloads first; among equals the first name after the last one taken, or the first.

    This is Scrapy's ``DownloaderAwarePriorityQueue`` in words; with one slot there is no choice.
    """
    if not names:
        return None
    fewest = min(busy.get(name, 0) for name in names)
    equals = sorted(name for name in names if busy.get(name, 0) == fewest)
    return next((name for name in equals if last is not None and name > last), equals[0])


@pytest.mark.long
@QUICK
@given(st.data())
def test_slots_are_chosen_as_the_rule_says(data: st.DataObject) -> None:
    name_of_slot = st.sampled_from(["", "a", "aa", "b", "c", "d.example", "é", "z"])
    slots = Slots()
    count: dict[str, int] = {}
    last: str | None = None
    for _ in range(data.draw(st.integers(1, 40))):
        name = data.draw(name_of_slot)
        if data.draw(st.booleans()):
            slots.increase(slots.get(name))
            count[name] = count.get(name, 0) + 1
        elif count.get(name):
            slots.decrease(slots.get(name))
            count[name] -= 1
            slots.drop_if_empty(slots.get(name))
        busy = data.draw(st.dictionaries(name_of_slot, st.integers(0, 3)))
        names = {name for name, pending in count.items() if pending}
        chosen = slots.choose(Downloads(busy))
        expected = choose_naively(names, busy, last)
        assert (chosen.name if chosen else None) == expected
        if chosen is not None and data.draw(st.booleans()):
            slots.lease(chosen)
            slots.increase(chosen)
            last = chosen.name


def test_a_thousand_slots_are_chosen_as_the_rule_says() -> None:
    rng = random.Random(1)
    slots = Slots()
    count = {f"{number}.example": rng.randrange(1, 4) for number in range(1_000)}
    for name, pending in count.items():
        for _ in range(pending):
            slots.increase(slots.get(name))
    last: str | None = None
    while names := {name for name, pending in count.items() if pending}:
        busy = {name: rng.randrange(1, 3) for name in rng.sample(sorted(count), 16)}
        if len(names) < 30:
            busy.update(dict.fromkeys(names, 2))
        expected = choose_naively(names, busy, last)
        slot = slots.choose(Downloads(busy))
        assert slot is not None
        assert slot.name == expected
        slots.lease(slot)
        slots.end_lease(slot)
        last = slot.name
        count[last] -= 1
        slots.drop_if_empty(slot)
        if rng.random() < 0.2:
            name = rng.choice(list(count))
            slots.increase(slots.get(name))
            count[name] += 1


def test_a_slot_is_forgotten_only_when_nothing_of_it_is_left() -> None:
    slots = Slots()
    slot = slots.get("a")
    first_id = slot.prefix
    slots.increase(slot)
    assert not slots.drop_if_empty(slot)
    slots.decrease(slot)
    slot.leased = 1
    assert not slots.drop_if_empty(slot)
    slot.leased, slot.stored = 0, 1
    assert not slots.drop_if_empty(slot)
    assert slots.get("a") is slot
    slot.stored = 0
    assert slots.drop_if_empty(slot)
    assert not slots._by_name
    assert slots.get("a").prefix != first_id


def test_a_forgotten_slot_does_not_take_the_next_one_of_its_name_with_it() -> None:
    slots = Slots()
    old = slots.get("a")
    assert slots.drop_if_empty(old)
    slots.increase(slots.get("a"))
    assert not slots.drop_if_empty(old)
    assert slots.choose(Downloads({})) is slots.get("a")


def test_a_slot_takes_at_most_300_bytes_of_memory() -> None:
    names = [f"host{number}.example.org" for number in range(20_000)]
    slots = Slots()
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for name in names:
        slot = slots.get(name)
        slot.bound = b""
        slots.increase(slot)
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (after - before) / len(names) + sys.getsizeof(names[-1]) <= 300


def test_slots_that_are_empty_again_leave_little_in_memory() -> None:
    names = [f"host{number}.example.org" for number in range(20_000)]
    slots = Slots()
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for name in names:
        slots.increase(slots.get(name))
    most = 0.0
    # The dict of slots stays as large as it was: below half, it is most of what there is.
    for left in range(len(names) - 1, len(names) // 2, -1):
        slot = slots.get(names[left])
        slots.decrease(slot)
        slots.drop_if_empty(slot)
        now, _ = tracemalloc.get_traced_memory()
        most = max(most, (now - before) / left)
    tracemalloc.stop()
    assert most + sys.getsizeof(names[-1]) <= 300
