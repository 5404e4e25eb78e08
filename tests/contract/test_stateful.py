"""Any sequence of transitions, commits, crashes and clean ends, against a model in plain lists."""

from __future__ import annotations

import copy
import math
import shutil
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from scrapy_altsched.frontier import Entry, Lease, Options, Order, Verdict
from scrapy_altsched.frontier.changes import Kind
from scrapy_altsched.frontier.entry import DeadLetter, Delay, PageFailure, Reason
from scrapy_altsched.frontier.local import delayed, uncommitted
from scrapy_altsched.frontier.local.persistence import Persistence
from scrapy_altsched.frontier.store.engines import Choice
from scrapy_altsched.frontier.store.lease_log import Evidence
from scrapy_altsched.frontier.store.records import Level, Suspicion
from scrapy_altsched.frontier.suspects import judge

from ..clocks import ManualClock
from ..frontiers import DiskKind, lease_from, problems_of
from ..stores import INSTALLED

MAX_CRASHES = 1
WINDOW = 4
AT_ONCE = 2

NAMES = st.sampled_from("abcdefg")
SLOTS = st.sampled_from(["", "m", "n.example"])
PRIORITIES = st.sampled_from([0, 0, 0, 1, -1, 300, -(2**70)])
BUSY = st.dictionaries(SLOTS, st.integers(0, 2))


@dataclass(eq=False)
class Item:
    name: str
    slot: str
    priority: int
    start: bool
    number: int
    stored: bool
    unique: bool
    #: The place in the sequence of all that has become pending.
    place: int = 0


@dataclass
class Content:
    """What a process's death would leave of a frontier, had it just committed."""

    pending: list[Item] = field(default_factory=list)
    leased: list[Item] = field(default_factory=list)
    #: When each is due, which came first, and the request.
    delayed: list[tuple[int, int, Item]] = field(default_factory=list)
    #: Name -> the request it was seen with, if it was with one.
    seen: dict[str, Item | None] = field(default_factory=dict)
    started: set[tuple[str, int]] = field(default_factory=set)
    done: int = 0
    dead: int = 0
    failed: int = 0

    def alive(self) -> list[Item]:
        return self.pending + self.leased + [item for _, _, item in self.delayed]

    def stored(self) -> Content:
        items = [item for item in self.pending + self.leased if item.stored]
        delayed = [row for row in self.delayed if row[2].stored]
        lost = {item for item in self.alive() if not item.stored}
        seen = {name: item for name, item in self.seen.items() if item not in lost}
        ended = self.done, self.dead, self.failed
        return Content(items, [], delayed, seen, set(self.started), *ended)


class Log:
    """The lines of the log of leases; that a request is over comes with the next line."""

    def __init__(self, *lines: tuple[str, str]) -> None:
        self.lines = [*lines]
        self.over: list[str] = []

    def flush(self) -> None:
        self.lines += [(name, "over") for name in self.over]
        self.over = []

    def write(self, name: str, *what: str) -> None:
        self.flush()
        self.lines += [(name, word) for word in what]

    def evidence(self) -> Evidence:
        leased, received = Counter[str](), Counter[str]()
        alone = None
        for name, what in self.lines:
            if what == "over":
                leased[name] -= 1
                received[name] -= received[name] > 0
                alone = None if alone == name else alone
            elif what == "received":
                received[name] += 1
            else:
                leased[name] += 1
                alone = name if what == "alone" else alone
        in_flight = {name for name, times in leased.items() if times > 0}
        return Evidence(
            {name.encode() for name in in_flight},
            {name.encode() for name in in_flight if received[name]},
            alone.encode() if alone in in_flight and alone is not None else None,
        )


class Model:
    """A disk frontier's behaviour; of its making is only what a death tells."""

    def __init__(self, order: Order, clock: ManualClock) -> None:
        self.order = order
        self.clock = clock
        self.now = Content()
        self.suspicions: dict[bytes, Suspicion] = {}
        self.in_hand: list[Item] = []
        self.alone: Item | None = None
        self.sequence = 0
        self.commit()
        self.resume()

    def resume(self) -> None:
        self.now = copy.deepcopy(self.saved)
        self.started_before = set(self.now.started)
        self.yields: Counter[str] = Counter()
        self.waiting: list[Item] = []
        self.blamed: list[Item] = []
        self.in_hand = []
        self.beside: list[Item] = []
        self.next_at = 0.0
        self.alone = None
        self.company = False
        self.last: str | None = None
        self.commit()

    def commit(self, changed: bool = True) -> None:
        self.saved = self.now.stored()
        self.lost = len(self.now.alive()) - len(self.saved.alive())
        self.saved_suspicions = dict(self.suspicions)
        if changed:
            self.log = Log()
            for item in self.now.leased:
                self.log.write(item.name, "alone" if item is self.alone else "leased")
                if item in self.in_hand:
                    self.log.write(item.name, "received")

    def crash(self) -> None:
        self.suspicions = judge(self.saved_suspicions, self.log.evidence())
        lost = self.lost
        self.resume()
        self.lost = lost

    def close(self, finished: bool) -> None:
        self.commit()
        lost = self.lost
        if finished:
            self.suspicions = {}
            self.saved.started = set()
        self.resume()
        self.lost = lost

    def add(self, item: Item, from_start: bool, delay: float | None) -> Verdict:
        now = self.now
        occurrence = item.name, self.yields[item.name]
        if from_start and occurrence in self.started_before:
            self.yields[item.name] += 1
            return Verdict.STARTED
        if item.unique and item.name in now.seen:
            return Verdict.SEEN
        if item.unique:
            now.seen[item.name] = item
        if from_start:
            self.yields[item.name] += 1
            now.started.add(occurrence)
        self.accept(item, delay)
        return Verdict.ADDED

    def accept(self, item: Item, delay: float | None) -> None:
        self.sequence += 1
        item.place = self.sequence
        if delay:
            due = math.ceil((self.clock.wall() + delay) * 1000)
            self.now.delayed.append((due, self.sequence, item))
        else:
            self.now.pending.append(item)
        self.company |= self.alone is not None

    def place(self, item: Item) -> tuple[int, bool, int]:
        own_queue = item.start and self.order.start is not None
        direction = self.order.start if own_queue else self.order.normal
        return -item.priority, own_queue, item.place if direction == "fifo" else -item.place

    def slot(self, item: Item) -> str:
        return item.slot if self.order.policy == "slots" else ""

    def choose(self, candidates: list[Item], busy: Mapping[str, int]) -> Item:
        names = sorted({self.slot(item) for item in candidates})
        fewest = min(busy.get(name, 0) for name in names) if len(names) > 1 else None
        free = [name for name in names if fewest is None or busy.get(name, 0) == fewest]
        later = [name for name in free if self.last is not None and name > self.last]
        self.last_choice = (later or free)[0]
        return min((i for i in candidates if self.slot(i) == self.last_choice), key=self.place)

    def level(self, item: Item) -> Level:
        return self.suspicions.get(item.name.encode(), Suspicion()).level

    def pace(self, item: Item) -> float:
        """Seconds after which a suspect lets the next one in."""
        narrowed = self.suspicions.get(item.name.encode(), Suspicion()).narrowed
        alike = sum(
            against.level is Level.SUSPECT and against.narrowed == narrowed
            for against in self.suspicions.values()
        )
        after, all_within = (1.0, 30.0) if narrowed else (0.2, 3.0)
        return min(after, all_within / max(alike, 1))

    def lease(self, busy: Mapping[str, int]) -> Item | None:
        for row in sorted(self.now.delayed, key=lambda row: row[:2])[:AT_ONCE]:
            if row[0] <= self.clock.wall() * 1000:
                self.now.delayed.remove(row)
                self.sequence += 1
                row[2].place = self.sequence
                self.now.pending.append(row[2])
        item = self.lease_next(busy)
        if item is None:
            self.log.flush()
        return item

    def lease_next(self, busy: Mapping[str, int]) -> Item | None:
        now = self.now
        while self.alone is None or self.company:
            aside = [*self.waiting, *self.blamed]
            candidates = [item for item in now.pending if item not in aside]
            if self.waiting and self.clock.now >= self.next_at:
                self.beside.append(self.waiting.pop(0))
                self.next_at = self.clock.now + self.pace(self.beside[-1])
                return self.give(self.beside[-1])
            if self.blamed and not now.leased and not self.waiting and not candidates:
                self.alone, self.company = self.blamed.pop(0), False
                return self.give(self.alone, "alone")
            if not candidates:
                return None
            item = self.choose(candidates, busy)
            self.last = self.last_choice
            against = self.suspicions.get(item.name.encode(), Suspicion())
            if against.level is Level.FREE:
                return self.give(item)
            if against.level is Level.SUSPECT:
                self.waiting.append(item)
            elif against.in_hand < MAX_CRASHES and against.downloading < 20:
                self.blamed.append(item)
            else:
                now.pending.remove(item)
                now.dead += 1
                self.log.over.append(item.name)
                self.clear(item)
        return None

    def give(self, item: Item, how: str = "leased") -> Item:
        self.now.pending.remove(item)
        self.now.leased.append(item)
        self.log.write(item.name, how)
        return item

    def receive(self, item: Item) -> None:
        self.in_hand.append(item)
        self.log.write(item.name, "received")

    def clear(self, item: Item) -> None:
        if self.suspicions.pop(item.name.encode(), None) is not None:
            for queue in (self.waiting, self.blamed):
                for other in [other for other in queue if other.name == item.name]:
                    queue.remove(other)
                    self.waiting.append(other)

    def discard(self, name: str) -> int:
        now, before = self.now, len(self.now.alive())
        aside = [*self.waiting, *self.blamed]

        def stays(item: Item) -> bool:
            return item.name[0] != name or item in aside or not item.stored

        gone = [it for it in now.alive() if it not in now.leased and not stays(it)]
        now.pending = [item for item in now.pending if stays(item)]
        now.delayed = [row for row in now.delayed if stays(row[2])]
        out = {item.name for item in (*aside, *self.beside, self.alone) if item is not None}
        for item in gone:
            if item.name not in out:
                self.clear(item)
        return before - len(now.alive())

    def end(
        self, item: Item, how: str, then: Item | None = None, delay: float | None = None
    ) -> None:
        now = self.now
        now.leased.remove(item)
        self.in_hand = [other for other in self.in_hand if other is not item]
        self.log.over.append(item.name)
        if item in self.beside:
            if item is self.beside[-1]:
                self.next_at = 0.0
            self.beside.remove(item)
        self.alone = None if item is self.alone else self.alone
        if how == "release":
            now.pending.append(item)
            return
        now.done += how in ("finish", "again")
        now.dead += how == "bury"
        now.failed += how == "fail"
        if then is not None:
            self.accept(then, delay)
        self.clear(item)


_ENDS = (Kind.DONE, Kind.DIED, Kind.FAILED, Kind.DISCARDED)


class Machine(RuleBasedStateMachine):
    policy_and_direction: str
    engine: Choice
    base: Path

    @initialize(
        start=st.sampled_from(["fifo", "lifo", "none"]),
        batch=st.sampled_from([3, 5_000]),
        batch_bytes=st.sampled_from([1, 40, 1_000_000]),
    )
    def begin(self, start: str, batch: int, batch_bytes: int) -> None:
        uncommitted.BATCH, uncommitted.BATCH_BYTES = batch, batch_bytes
        order = Order.parse(f"{self.policy_and_direction}/{start}")
        self.clock = ManualClock()
        self.options = Options(
            order=order, max_crashes=MAX_CRASHES, memory_requests=WINDOW, clock=self.clock
        )
        self.directory = Path(tempfile.mkdtemp(dir=self.base))
        self.disk = DiskKind(self.directory, self.engine)
        self.frontier = self.disk.open(self.options)
        self.model = Model(order, self.clock)
        self.leases: dict[Item, Lease] = {}
        self.number = 0

    # Rules

    @rule(
        name=NAMES,
        slot=SLOTS,
        priority=PRIORITIES,
        start=st.booleans(),
        stored=st.sampled_from([True, True, True, False]),
        unique=st.sampled_from([True, True, True, False]),
        from_start=st.sampled_from([True, False, False]),
        delay=st.sampled_from([None, None, None, None, 0.0, 0.15, 0.15, 1.0, 3.0]),
        times=st.sampled_from([1, 1, 1, 9]),
    )
    def add(  # type: ignore[no-untyped-def]
        self, name, slot, priority, start, stored, unique, from_start, delay, times
    ) -> None:
        for time in range(times):
            self.number += 1
            named = name if time == 0 else f"{name} {self.number}"
            item = Item(named, slot, priority, start, self.number, stored, unique)
            expected = self.model.add(item, from_start and stored, delay)
            payload = str(self.number).encode() if stored else None
            first_time, wait = from_start and stored, None if delay is None else Delay(delay)
            entry = Entry(
                named.encode(), slot, priority, start, payload, item, unique, first_time, wait
            )
            assert self.frontier.add(entry) is expected

    @rule(busy=BUSY, times=st.sampled_from([1, 1, 5]))
    def lease(self, busy: dict[str, int], times: int) -> None:
        for _ in range(times):
            self.lease_one(busy)

    def lease_one(self, busy: Mapping[str, int]) -> Item | None:
        item = self.model.lease(busy)
        lease = lease_from(self.frontier, busy)
        if item is None:
            assert lease is None
            return None
        assert lease is not None
        assert lease.entry.fingerprint == item.name.encode()
        assert lease.entry.payload == (str(item.number).encode() if item.stored else None)
        assert lease.key not in {other.key for other in self.leases.values()}
        self.leases[item] = lease
        return item

    @precondition(lambda self: self.leases)
    @rule(
        which=st.integers(0, 100),
        how=st.sampled_from(["finish", "finish", "release", "bury", "again", "again", "fail"]),
        delay=st.sampled_from([None, 0.15, 1.0]),
    )
    def end(self, which: int, how: str, delay: float | None = None) -> None:
        item = list(self.leases)[which % len(self.leases)]
        lease = self.leases.pop(item)
        if how == "again":
            self.number += 1
            then = replace(item, number=self.number, priority=item.priority - 1, stored=True)
            self.model.end(item, how, then, delay)
            wait = None if delay is None else Delay(delay)
            payload = str(self.number).encode()
            entry = Entry(item.name.encode(), then.slot, then.priority, then.start, payload, then)
            entry.unique, entry.delay = False, wait
            self.frontier.finish(lease, entry)
            return
        self.model.end(item, how)
        if how == "bury":
            self.frontier.dead_letter(lease, DeadLetter("why"))
        elif how == "fail":
            lease.failure = PageFailure(Reason.STATUS, "why", 503, 3)
            self.frontier.finish(lease)
        else:
            getattr(self.frontier, how)(lease)

    @precondition(lambda self: self.leases)
    @rule(which=st.integers(0, 100))
    def receive(self, which: int) -> None:
        item = list(self.leases)[which % len(self.leases)]
        if item not in self.model.in_hand:
            self.model.receive(item)
            self.frontier.run.note_response(self.leases[item])

    @rule(seconds=st.sampled_from([0.11, 0.2, 1.0]))
    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(name=NAMES)
    def mark_seen(self, name: str) -> None:
        assert self.frontier.mark_seen(name.encode()) == (name in self.model.now.seen)
        self.model.now.seen.setdefault(name, None)

    @rule(name=NAMES)
    def forget(self, name: str) -> None:
        was_seen = name in self.model.now.seen
        assert self.frontier.forget(name.encode()) == was_seen
        if was_seen:
            del self.model.now.seen[name]

    @rule(name=NAMES)
    def discard(self, name: str) -> None:
        expected = self.model.discard(name)
        parts = self.frontier.discard(lambda _, entry: entry.fingerprint[:1] == name.encode())
        assert sum(parts) == expected

    @rule()
    def commit(self) -> None:
        changed = self.frontier.has_changes()
        while not self.frontier.commit():
            pass
        self.model.commit(changed)

    @rule()
    def check(self) -> None:
        changed = self.frontier.has_changes()
        assert problems_of(self.frontier) == []
        self.model.commit(changed)

    @rule(leases=st.integers(0, 3), received=st.integers(0, 2))
    def crash(self, leases: int, received: int) -> None:
        for _ in range(leases):
            self.lease_one({})
        for number in range(min(received, len(self.leases))):
            self.receive(number)
        self.disk.crash(self.frontier)
        self.model.crash()
        self.reopen(resumed=True)

    @rule(finished=st.sampled_from([False, False, True]))
    def close(self, finished: bool) -> None:
        self.frontier.close(finished=finished)
        self.model.close(finished)
        self.reopen(resumed=not finished)

    def reopen(self, *, resumed: bool) -> None:
        self.leases = {}
        self.frontier = self.disk.open(self.options)
        assert self.frontier.job.resumed == resumed
        assert self.frontier._suspects.suspicions == self.model.suspicions
        assert self.frontier.job.lost_in_memory == self.model.lost
        self.model.lost = 0

    # What must always hold

    @invariant()
    def counts_agree(self) -> None:
        now = self.model.now
        counts = self.frontier.counts()
        found = counts.pending, counts.leased, counts.done, counts.dead, counts.memory_only
        memory_only = sum(not item.stored for item in now.alive())
        assert found == (len(now.pending), len(now.leased), now.done, now.dead, memory_only)
        assert (counts.delayed, counts.failed) == (len(now.delayed), now.failed)
        assert counts.seen == len(now.seen)
        assert counts.unaccounted == 0
        assert isinstance(self.frontier._kept, Persistence)
        uncommitted = self.frontier._kept
        changes = [*uncommitted._deferred, *uncommitted._list]
        ends = [change for change in changes if change[0] in _ENDS]
        ended = {key for _, key, *_ in ends}
        added = (Kind.ADDED_UNIQUE, Kind.ADDED, Kind.DUE)
        accepted = [(change[1], change[3]) for change in changes if change[0] in added]
        follows = [change for change in ends if change[0] is Kind.DONE and change[3] is not None]
        accepted += [(change[4][0], change[3]) for change in follows]
        alive = [entry for key, entry in accepted if key not in ended]
        single = (Kind.MARKED, Kind.FORGOTTEN, Kind.SKIPPED)
        others = [change for change in changes if change[0] in single]
        assert self.frontier.pressure.changes == len(alive) + len(ends) + len(others)
        dead = [change[3] for change in ends if change[0] is Kind.DIED]
        entries = [entry for entry in (*alive, *dead) if entry is not None]
        assert uncommitted.size == sum(len(entry.payload or b"") for entry in entries)

    def teardown(self) -> None:
        if not hasattr(self, "frontier"):
            return
        while self.leases:
            self.end(0, "finish")
        while (item := self.lease_one({})) is not None or self.model.now.delayed:
            self.counts_agree()
            if item is None:
                self.clock.advance(0.5)
            else:
                self.end(0, "finish")
        self.counts_agree()
        assert self.model.now.alive() == []
        assert problems_of(self.frontier) == []
        self.frontier.close()
        shutil.rmtree(self.directory)


#: Engine, policy and direction of those that `make test` runs.
SOON = {("rocksdb", "slots", "lifo"), ("sqlite", "one", "lifo")}


@pytest.mark.parametrize(
    ("engine", "policy", "direction"),
    [
        pytest.param(*case, marks=() if case in SOON else pytest.mark.long)
        for case in product(INSTALLED, ["slots", "one"], ["lifo", "fifo"])
    ],
)
def test_the_disk_frontier_behaves_as_the_model(
    engine: Choice, policy: str, direction: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delayed, "_AT_ONCE", AT_ONCE)
    for limit in ("BATCH", "BATCH_BYTES"):  # each example sets its own
        monkeypatch.setattr(uncommitted, limit, getattr(uncommitted, limit))

    class OneOrder(Machine):
        policy_and_direction = f"{policy}/{direction}"
        base = tmp_path

    OneOrder.engine = engine

    run_state_machine_as_test(
        OneOrder,
        settings=settings(
            max_examples=12,
            stateful_step_count=50,
            deadline=None,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
