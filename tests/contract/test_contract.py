"""What every frontier promises; a new one is one more entry in ``frontiers.KINDS``."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from scrapy_altsched.errors import ForkedError
from scrapy_altsched.frontier import Entry, Lease, Options, Order, Verdict
from scrapy_altsched.frontier.entry import DeadLetter, Delay
from scrapy_altsched.frontier.local import rework
from scrapy_altsched.frontier.local.frontier import LocalFrontier

from ..frontiers import (
    KINDS,
    DiskKind,
    MemoryKind,
    commit,
    lease_from,
    name_of,
    names,
    page,
    problems_of,
    take,
    take_all,
    work_off,
)

FIFO = Options(order=Order("slots", "fifo"))
LIFO = Options(order=Order("slots", "lifo"))
ONE = Options(order=Order("one", "fifo"))


@pytest.fixture(params=list(KINDS))
def kind(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MemoryKind]:
    kind = KINDS[request.param](tmp_path)
    yield kind
    kind.verify()


@pytest.fixture(params=[name for name, kind in KINDS.items() if kind.knows_downloads])
def local_kind(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MemoryKind]:
    """For what is promised of frontiers only that choose by this process's downloads."""
    kind = KINDS[request.param](tmp_path)
    yield kind
    kind.verify()


@pytest.fixture
def frontier(kind: MemoryKind) -> LocalFrontier:
    """A frontier in Scrapy's default order."""
    return kind.open()


def add(frontier: LocalFrontier, *entries: Entry) -> None:
    """Add entries that must all be accepted, and commit each of them."""
    for entry in entries:
        assert frontier.add(entry) is Verdict.ADDED
        assert frontier.commit()


class Observed(Entry):
    """An entry that counts how often it is completed, and says where it goes only then."""

    __slots__ = ("completed", "error")

    def __init__(self, name: str, unique: bool = True, error: Exception | None = None) -> None:
        super().__init__(name.encode(), unique=unique)
        self.completed = 0
        self.error = error

    def encode(self) -> None:
        self.completed += 1
        if self.error is not None:
            raise self.error
        self.slot = "completed"
        self.priority = 7
        self.payload = b"encoded"


# add


def test_an_added_request_is_pending(frontier: LocalFrontier) -> None:
    assert frontier.add(page("a")) is Verdict.ADDED
    counts = frontier.counts()
    assert (counts.accepted, counts.pending, counts.leased) == (1, 1, 0)


def test_a_request_whose_fingerprint_was_seen_is_refused(frontier: LocalFrontier) -> None:
    add(frontier, page("a"))
    assert frontier.add(page("a", slot="elsewhere", priority=9)) is Verdict.SEEN
    assert frontier.counts().accepted == 1
    assert work_off(frontier) == ["a"]
    assert frontier.add(page("a")) is Verdict.SEEN


def test_a_refusal_before_any_commit_is_the_same(frontier: LocalFrontier) -> None:
    assert frontier.add(page("a")) is Verdict.ADDED
    assert frontier.add(page("a")) is Verdict.SEEN
    assert frontier.counts().accepted == 1


def test_a_request_that_need_not_be_unique_passes_each_time(frontier: LocalFrontier) -> None:
    add(frontier, page("a"), page("a", unique=False), page("a", unique=False))
    assert work_off(frontier) == ["a", "a", "a"]


def test_a_request_that_need_not_be_unique_does_not_become_seen(frontier: LocalFrontier) -> None:
    add(frontier, page("a", unique=False))
    assert work_off(frontier) == ["a"]
    assert not frontier.mark_seen(b"a")


def test_only_an_accepted_entry_is_completed_and_only_once(kind: MemoryKind) -> None:
    frontier = kind.open()
    entries = [Observed("a"), Observed("a"), Observed("a", unique=False), Observed("b")]
    verdicts = [frontier.add(entry) for entry in entries]
    added, seen = Verdict.ADDED, Verdict.SEEN
    assert verdicts == [added, seen, added, added]
    work_off(frontier)
    assert [entry.completed for entry in entries] == [1, 0, 1, 1]


def test_what_complete_fills_in_counts(frontier: LocalFrontier) -> None:
    same_slot = page("less urgent", "completed", priority=6)
    add(frontier, page("another slot"), same_slot, Observed("observed"))
    lease = lease_from(frontier, {"": 1})
    assert lease is not None
    assert (name_of(lease), lease.entry.payload) == ("observed", b"encoded")


def test_an_entry_that_cannot_be_completed_was_never_added(frontier: LocalFrontier) -> None:
    broken = Observed("a", error=ValueError("cannot be encoded"))
    with pytest.raises(ValueError, match="cannot be encoded"):
        frontier.add(broken)
    assert frontier.counts().accepted == 0
    assert frontier.commit()
    broken.error = None
    assert frontier.add(broken) is Verdict.ADDED


def test_an_entry_with_an_impossible_priority_was_never_added(frontier: LocalFrontier) -> None:
    with pytest.raises(TypeError):
        frontier.add(page("a", priority="urgent"))  # type: ignore[arg-type]
    assert frontier.commit()
    assert frontier.add(page("a")) is Verdict.ADDED


@pytest.mark.parametrize("length", [0, 1, 20, 255])
def test_fingerprints_of_any_length_up_to_255_bytes_do(
    frontier: LocalFrontier, length: int
) -> None:
    add(frontier, Entry(b"\xff" * length, payload=b"p"))
    assert frontier.add(Entry(b"\xff" * length, payload=b"p")) is Verdict.SEEN
    assert take(frontier).entry.fingerprint == b"\xff" * length


def test_a_longer_fingerprint_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="255"):
        Entry(b"\xff" * 256)


# mark_seen and forget


def test_marking_says_whether_the_fingerprint_was_seen_before(frontier: LocalFrontier) -> None:
    assert not frontier.mark_seen(b"a")
    assert frontier.mark_seen(b"a")
    frontier.commit()
    assert frontier.mark_seen(b"a")
    add(frontier, page("b"))
    assert frontier.mark_seen(b"b")


def test_what_was_marked_is_refused_and_no_request(frontier: LocalFrontier) -> None:
    frontier.mark_seen(b"a")
    assert frontier.add(page("a")) is Verdict.SEEN
    assert frontier.counts().accepted == 0
    assert lease_from(frontier) is None


def test_a_forgotten_fingerprint_is_accepted_again(frontier: LocalFrontier) -> None:
    assert not frontier.forget(b"a")
    add(frontier, page("a"))
    assert work_off(frontier) == ["a"]
    assert frontier.forget(b"a")
    assert not frontier.forget(b"a")
    assert frontier.add(page("a")) is Verdict.ADDED
    assert work_off(frontier) == ["a"]


@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("commits", [True, False])
def test_forgetting_a_pending_request_leaves_it_pending(
    frontier: LocalFrontier, stored: bool, commits: bool
) -> None:
    frontier.add(page("a", stored=stored))
    if commits:
        frontier.commit()
    assert frontier.forget(b"a")
    assert problems_of(frontier) == []
    assert work_off(frontier) == ["a"]
    # It was forgotten when it was pending, and being done does not bring it back.
    frontier.commit()
    assert not frontier.mark_seen(b"a")


def test_forgetting_one_fingerprint_leaves_all_others(frontier: LocalFrontier) -> None:
    add(frontier, page("a"), page("ab"), page("b"))
    frontier.forget(b"a")
    assert frontier.mark_seen(b"ab")
    assert frontier.mark_seen(b"b")


@pytest.mark.parametrize("commits", [True, False])
def test_what_is_still_to_be_crawled_is_told_from_what_is_not(
    local_kind: MemoryKind, commits: bool
) -> None:
    frontier = local_kind.open()
    for name in "abcd":
        frontier.add(page(name))
    late = page("e")
    late.delay = Delay(3_600.0)
    frontier.add(late)
    done, held = take(frontier), take(frontier)
    frontier.finish(done)
    frontier.hold(held)
    take(frontier)
    frontier.mark_seen(b"marked")
    if commits:
        frontier.commit()
    wanted = {b"a", b"b", b"c", b"d", b"e", b"marked", b"never seen"}
    found = set().union(*frontier.find_waiting(wanted))
    assert found == {b"a", b"b", b"c", b"d", b"e"} - {done.entry.fingerprint}
    assert set().union(*frontier.find_waiting({b"marked"})) == set()


def test_what_has_ended_since_the_last_commit_is_not_to_be_crawled(disk: DiskKind) -> None:
    frontier = disk.open()
    add(frontier, page("a"), page("b"), page("c"))
    frontier.commit()
    ended, leased = take(frontier), take(frontier)
    frontier.finish(ended)
    found = set().union(*frontier.find_waiting({b"a", b"b", b"c"}))
    assert found == {b"a", b"b", b"c"} - {ended.entry.fingerprint}
    assert leased.entry.fingerprint in found


def test_nothing_is_read_once_all_are_found(
    disk: DiskKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rework, "_READ_PORTION", 1)
    frontier = disk.open(ONE)
    add(frontier, *map(page, "abcdef"))
    portions = {it: list(frontier.find_waiting({it})) for it in (b"absent", b"a", b"f")}
    # To find what is not stored is a step by itself, for delayed and for pending ones.
    assert portions[b"absent"] == [set()] * (3 + 6)
    assert portions[b"a"] == [set()] * 3 + [{b"a"}]
    assert portions[b"f"] == [set()] * (3 + 5) + [{b"f"}]
    assert list(frontier.find_waiting(set())) == [set()]


def test_a_discard_from_a_long_queue_in_memory_leaves_all_others(
    disk: DiskKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rework, "_IN_MEMORY", 2)
    frontier = disk.open(ONE)
    add(frontier, *map(page, "abcdef"))
    commit(frontier)
    add(frontier, page("new"))
    steps = frontier.discard(lambda _, entry: entry.fingerprint in (b"b", b"e"))
    # What is not stored stays in memory whatever is taken out of it.
    assert next(steps) == 0
    assert frontier._queues.window.count <= 3
    assert sum(steps) == 2
    assert sorted(work_off(frontier)) == ["a", "c", "d", "f", "new"]


def test_how_many_pages_are_seen(kind: MemoryKind, frontier: LocalFrontier) -> None:
    def add_and_count(*entries: Entry) -> int | None:
        for entry in entries:
            frontier.add(entry)
        return frontier.counts().seen

    assert add_and_count() == 0
    assert add_and_count(page("a"), page("b"), page("a")) == 2
    # What is not filtered is not seen; and a start request of that kind is known by its claim.
    again = page("c", unique=False), page("d", unique=False, from_start=True)
    assert add_and_count(*again, *again) == 2
    frontier.mark_seen(b"marked")
    frontier.mark_seen(b"a")
    assert frontier.counts().seen == 3
    frontier.commit()
    for name in ("a", "b", "none"):
        frontier.forget(name.encode())
    assert frontier.counts().seen == 1
    assert add_and_count(page("b")) == 2
    frontier.commit()
    assert len(work_off(frontier)) == 2 + 3 + 2
    assert frontier.counts().seen == 2
    frontier.close()
    if kind.survives:
        assert kind.open().counts().seen == 2


# lease: order within a slot


def test_nothing_to_lease_is_none(frontier: LocalFrontier) -> None:
    assert lease_from(frontier) is None
    assert lease_from(frontier, {"a": 1}) is None


def test_a_lease_holds_what_was_added(frontier: LocalFrontier) -> None:
    add(frontier, page("a", unique=False))
    entry = take(frontier).entry
    assert (entry.fingerprint, entry.payload, entry.unique) == (b"a", b"payload of a", False)


def test_leased_requests_have_keys_of_their_own(frontier: LocalFrontier) -> None:
    add(frontier, *(page("same", slot, unique=False) for slot in "aabbcc"))
    assert len({lease.key for lease in take_all(frontier)}) == 6


@pytest.mark.parametrize("seed", range(3))
def test_the_highest_priority_is_first_however_large_it_is(kind: MemoryKind, seed: int) -> None:
    priorities = [0, 1, -1, 255, 256, -255, -256, -257, 2**63, -(2**63), 2**64, -(2**64)]
    priorities += [2**1024, -(2**1024), 2**1025, -(2**1025)]
    random.Random(seed).shuffle(priorities)
    frontier = kind.open(FIFO)
    add(frontier, *(page(f"{priority:x}"[:200], priority=priority) for priority in priorities))
    expected = sorted(priorities, reverse=True)
    assert work_off(frontier) == [f"{priority:x}"[:200] for priority in expected]


@pytest.mark.parametrize(("options", "expected"), [(LIFO, "cba"), (FIFO, "abc")])
def test_equal_priorities_are_last_or_first_in_first_out(
    kind: MemoryKind, options: Options, expected: str
) -> None:
    frontier = kind.open(options)
    add(frontier, *(page(name) for name in "abc"))
    assert "".join(work_off(frontier)) == expected


@pytest.mark.parametrize("policy", ["slots", "one"])
@pytest.mark.parametrize(
    ("normal", "start", "expected"),
    [
        ("lifo", "fifo", "high 3 1 0 2 low"),
        ("fifo", "fifo", "high 1 3 0 2 low"),
        ("lifo", "lifo", "high 3 1 2 0 low"),
        ("fifo", "lifo", "high 1 3 2 0 low"),
        ("lifo", None, "high 3 2 1 0 low"),
        ("fifo", None, "high 0 1 2 3 low"),
    ],
)
def test_start_requests_come_after_others_of_equal_priority(
    kind: MemoryKind, policy: str, normal: str, start: str | None, expected: str
) -> None:
    order = Order.parse(f"{policy}/{normal}/{start or 'none'}")
    frontier = kind.open(Options(order=order))
    entries = [page("low", priority=-1), page("high", priority=1, start=True)]
    entries += [page(str(number), start=number % 2 == 0) for number in range(4)]
    add(frontier, *entries)
    assert work_off(frontier) == expected.split()


# lease: choice between slots


def test_the_slot_with_the_fewest_downloads_is_next(local_kind: MemoryKind) -> None:
    frontier = local_kind.open(FIFO)
    add(frontier, page("a", "A", priority=9), page("b", "B"), page("c", "C", priority=5))
    busy = {"A": 2, "B": 1, "C": 3, "D": 0}
    leases = [lease_from(frontier, busy) for _ in range(4)]
    assert [lease and name_of(lease) for lease in leases] == ["b", "a", "c", None]


def test_equally_busy_slots_have_turns_by_name(local_kind: MemoryKind) -> None:
    frontier = local_kind.open(FIFO)
    add(frontier, *(page(f"{slot}{number}", slot) for number in range(3) for slot in "ba"))
    assert names(take_all(frontier)) == ["a0", "b0", "a1", "b1", "a2", "b2"]


def test_turns_go_on_after_the_last_slot_also_if_it_is_empty_now(local_kind: MemoryKind) -> None:
    frontier = local_kind.open(FIFO)
    add(frontier, page("b0", "b"), page("d0", "d"), page("d1", "d"))
    assert name_of(take(frontier)) == "b0"
    add(frontier, page("a0", "a"), page("c0", "c"))
    assert names(take_all(frontier)) == ["c0", "d0", "a0", "d1"]


def test_equally_busy_slots_have_turns_among_themselves(local_kind: MemoryKind) -> None:
    frontier = local_kind.open(FIFO)
    add(frontier, *(page(f"{slot}{number}", slot) for number in range(2) for slot in "abc"))
    busy = {"a": 2, "b": 1, "c": 1}
    order = [lease_from(frontier, busy) for _ in range(6)]
    assert [lease and name_of(lease) for lease in order] == ["b0", "c0", "b1", "c1", "a0", "a1"]


def test_with_one_queue_slots_do_not_matter(kind: MemoryKind) -> None:
    frontier = kind.open(ONE)
    add(frontier, page("1", "b"), page("2", "a"), page("0", "c", priority=1), page("3", "b"))
    busy = {"": 5, "a": 1, "b": 2, "c": 3}
    order = [lease_from(frontier, busy) for _ in range(4)]
    assert [lease and name_of(lease) for lease in order] == ["0", "1", "2", "3"]


@pytest.mark.parametrize("slot", ["", "ümläut.example", "\ud800", "a\x00b", "x" * 5_000])
def test_a_slot_may_have_any_name(kind: MemoryKind, slot: str) -> None:
    frontier = kind.open(FIFO)
    add(frontier, page("a", slot), page("b", slot), page("c", "another"))
    if kind.survives:
        frontier.close()
        frontier = kind.open(FIFO)
    if kind.knows_downloads:
        first = lease_from(frontier, {"another": 1})
        second = lease_from(frontier, {slot: 1})
        assert first is not None
        assert second is not None
        assert [name_of(first), name_of(second)] == ["a", "c"]
    else:
        # Slots have turns, whichever is first.
        assert sorted(names(take_all(frontier))[:2]) == ["a", "c"]


# finish, release, dead_letter


def test_a_finished_request_is_done_and_stays_seen(frontier: LocalFrontier) -> None:
    add(frontier, page("a"))
    frontier.finish(take(frontier))
    frontier.commit()
    counts = frontier.counts()
    assert (counts.pending, counts.leased, counts.done) == (0, 0, 1)
    assert lease_from(frontier) is None
    assert frontier.add(page("a")) is Verdict.SEEN


@pytest.mark.parametrize("options", [LIFO, FIFO])
@pytest.mark.parametrize("commits", [True, False])
def test_a_released_request_is_back_at_its_old_place(
    kind: MemoryKind, options: Options, commits: bool
) -> None:
    frontier = kind.open(options)
    add(frontier, *(page(str(number), priority=number % 3) for number in range(9)))
    leases = list(take_all(frontier))
    expected = [name_of(lease) for lease in leases]
    random.Random(1).shuffle(leases)
    for lease in leases:
        frontier.release(lease)
        if commits:
            frontier.commit()
    counts = frontier.counts()
    assert (counts.pending, counts.leased, counts.done) == (9, 0, 0)
    assert work_off(frontier) == expected


def test_a_released_request_is_what_it_was(frontier: LocalFrontier) -> None:
    add(frontier, page("a", unique=False))
    frontier.release(take(frontier))
    frontier.commit()
    entry = take(frontier).entry
    assert (entry.fingerprint, entry.payload, entry.unique) == (b"a", b"payload of a", False)


def test_a_request_may_be_released_before_it_was_ever_committed(frontier: LocalFrontier) -> None:
    frontier.add(page("a"))
    frontier.release(take(frontier))
    frontier.commit()
    assert work_off(frontier) == ["a"]


@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("commits", [True, False])
def test_a_dead_letter_is_dead_and_stays_seen(
    frontier: LocalFrontier, stored: bool, commits: bool
) -> None:
    frontier.add(page("a", stored=stored))
    if commits:
        frontier.commit()
    frontier.dead_letter(take(frontier), DeadLetter("it cannot be worked on"))
    frontier.commit()
    counts = frontier.counts()
    assert (counts.pending, counts.leased, counts.done, counts.dead) == (0, 0, 0, 1)
    assert lease_from(frontier) is None
    assert frontier.add(page("a")) is Verdict.SEEN


# Requests that live in memory only


def test_memory_only_requests_have_their_place_in_the_order(local_kind: MemoryKind) -> None:
    frontier = local_kind.open(FIFO)
    add(frontier, *(page(str(number), stored=number % 2 == 0) for number in range(6)))
    assert work_off(frontier) == list("012345")


def test_a_memory_only_lease_holds_the_very_object(frontier: LocalFrontier) -> None:
    entry = page("a", stored=False)
    entry.request = request = object()
    add(frontier, entry)
    lease = take(frontier)
    assert lease.entry.request is request
    frontier.release(lease)
    frontier.commit()
    assert take(frontier).entry.request is request


def test_memory_only_requests_are_counted_until_they_are_done(frontier: LocalFrontier) -> None:
    add(frontier, page("a", stored=False), page("b", stored=False), page("c"))
    assert frontier.counts().memory_only == 2
    leases = list(take_all(frontier))
    assert frontier.counts().memory_only == 2
    for lease in leases:
        frontier.finish(lease)
        frontier.commit()
    assert frontier.counts().memory_only == 0
    assert frontier.mark_seen(b"a")


@pytest.mark.parametrize("stored", [True, False])
def test_a_held_request_stays_leased_until_it_is_finished(
    frontier: LocalFrontier, stored: bool
) -> None:
    add(frontier, page("a", stored=stored), page("b"))
    for lease in take_all(frontier):
        if lease.entry.fingerprint == b"a":
            held = lease
            frontier.hold(lease)
        else:
            frontier.finish(lease)
    frontier.commit()
    counts = frontier.counts()
    assert (counts.pending, counts.leased, counts.done) == (0, 1, 1)
    frontier.finish(held)
    frontier.commit()
    counts = frontier.counts()
    assert (counts.leased, counts.done, counts.memory_only, counts.unaccounted) == (0, 2, 0, 0)


# counts, commit, close


@pytest.mark.parametrize("seed", range(5))
def test_counts_add_up_after_any_transitions(kind: MemoryKind, seed: int) -> None:
    rng = random.Random(seed)
    frontier = kind.open()
    tally = {"accepted": 0, "pending": 0, "leased": 0, "done": 0, "dead": 0}
    leases = []
    for number in range(300):
        choice = rng.random()
        if choice < 0.45:
            stored, unique = rng.random() < 0.8, rng.random() < 0.8
            frontier.add(page(str(number), str(number % 7), stored=stored, unique=unique))
            tally["accepted"] += 1
            tally["pending"] += 1
        elif choice < 0.75:
            lease = lease_from(frontier)
            assert (lease is None) == (tally["pending"] == 0)
            if lease is not None:
                leases.append(lease)
                tally["pending"] -= 1
                tally["leased"] += 1
        elif choice < 0.95 and leases:
            lease = leases.pop(rng.randrange(len(leases)))
            end, becomes = rng.choice(
                [
                    (frontier.finish, "done"),
                    (frontier.release, "pending"),
                    (lambda lease: frontier.dead_letter(lease, DeadLetter("why")), "dead"),
                ]
            )
            end(lease)
            tally["leased"] -= 1
            tally[becomes] += 1
        else:
            assert problems_of(frontier) == []
        counts = frontier.counts()
        assert {name: getattr(counts, name) for name in tally} == tally
        assert counts.unaccounted == 0
        assert frontier.pending == tally["pending"]


def test_a_commit_leaves_nothing_to_write(frontier: LocalFrontier) -> None:
    assert frontier.commit()
    frontier.add(page("a"))
    frontier.add(page("b", stored=False))
    frontier.mark_seen(b"c")
    frontier.release(take(frontier))
    frontier.finish(take(frontier))
    assert frontier.commit()
    assert not frontier.has_changes()
    assert frontier.pressure.changes == 0
    number = frontier.run.commit_number
    assert frontier.commit()
    assert frontier.run.commit_number == number


def test_closing_twice_is_closing_once(frontier: LocalFrontier) -> None:
    add(frontier, page("a"))
    take(frontier)
    frontier.close()
    frontier.close(finished=True)


VERBS: dict[str, Callable[[LocalFrontier, Lease], object]] = {
    "add": lambda frontier, _: frontier.add(page("b")),
    "mark_seen": lambda frontier, _: frontier.mark_seen(b"b"),
    "lease": lambda frontier, _: lease_from(frontier),
    "finish": lambda frontier, lease: frontier.finish(lease),
    "hold": lambda frontier, lease: frontier.hold(lease),
    "release": lambda frontier, lease: frontier.release(lease),
    "dead_letter": lambda frontier, lease: frontier.dead_letter(lease, DeadLetter("why")),
    "forget": lambda frontier, _: frontier.forget(b"a"),
    "find_waiting": lambda frontier, _: list(frontier.find_waiting(set())),
    "counts": lambda frontier, _: frontier.counts(),
    "commit": lambda frontier, _: frontier.commit(),
    "close": lambda frontier, _: frontier.close(),
    "abandon": lambda frontier, _: frontier.abandon(),
    "recover": lambda frontier, _: frontier.run.recover(),
}


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_every_verb_is_refused_in_a_forked_child(frontier: LocalFrontier) -> None:
    add(frontier, page("a"), page("z"))
    lease = take(frontier)
    for name, verb in VERBS.items():
        child = os.fork()
        if child == 0:
            status = 1
            try:
                verb(frontier, lease)
            except ForkedError as error:
                status = 0 if str(os.getppid()) in str(error) else 2
            except BaseException:
                status = 3
            finally:
                os._exit(status)
        _, status = os.waitpid(child, 0)
        assert (name, os.waitstatus_to_exitcode(status)) == (name, 0)
    counts = frontier.counts()
    assert (counts.accepted, counts.pending, counts.leased) == (2, 1, 1)
    frontier.finish(lease)
    assert problems_of(frontier) == []


# Durability


@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if kind.survives])
def test_what_was_added_is_durable_from_the_next_commit_on(name: str, tmp_path: Path) -> None:
    kind = KINDS[name](tmp_path)
    frontier = kind.open()
    positions = [frontier.position]
    for number in range(3):
        assert frontier.is_durable(positions[-1])
        frontier.add(page(str(number)))
        positions.append(frontier.position)
        # A shared frontier sends what is new without a commit.
        assert frontier.is_durable(positions[-1]) is (name == "shared")
        assert frontier.commit()
    assert frontier.is_durable(positions[-1])
    assert sorted(set(positions)) == positions
    kind.verify()


def test_what_the_server_has_not_answered_is_not_durable(tmp_path: Path) -> None:
    kind = KINDS["shared"](tmp_path)
    frontier = kind.open()
    worker = frontier._frontier
    worker.add(page("new"))
    assert not worker.is_durable(worker.position)
    frontier.send()
    assert worker.is_durable(worker.position)
    kind.verify()
