"""Any sequence of what several workers do on one server, crashes included, against plain lists."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import redis
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
from scrapy_altsched.frontier.entry import DeadLetter, PageFailure, Reason
from scrapy_altsched.frontier.events import LeaseLost
from scrapy_altsched.frontier.shared.batches import Reply, parse_reply
from scrapy_altsched.frontier.shared.exchange import read_batch_script
from scrapy_altsched.frontier.shared.keys import slot_id_of
from scrapy_altsched.frontier.shared.steering import SteeredCrawl
from scrapy_altsched.frontier.store.job_run import MemoryRun
from scrapy_altsched.frontier.store.states import decode_value
from scrapy_altsched.redis_client import CLOCK

from ..frontier.shared.model import Kept
from ..servers import RedisServer
from ..shared import LEASE_TIMEOUT, SettledShared

WORKERS = 3
NAMES = st.sampled_from("abcdefg")
SLOTS = st.sampled_from(["", "m", "n.example"])
PRIORITIES = st.sampled_from([0, 0, 0, 1, -1, 300, -(2**70)])
WHO = st.integers(0, WORKERS - 1)

_PLAYED_CLOCK = "local function clock() return tonumber(ARGV[2]) end\n"
_SCRIPT = read_batch_script()


class Server:
    """The real one, with a clock of the test's own."""

    def __init__(self, client: redis.Redis) -> None:
        self.client = client
        self._sha = client.script_load(_SCRIPT.replace(CLOCK, _PLAYED_CLOCK))
        self.now = 1_000_000

    def answer(self, batch: Any) -> Reply:
        arguments: list[Any] = [len(batch.keys), *batch.keys, batch.blob, self.now]
        blob: bytes = self.client.evalsha(self._sha, *arguments)
        return parse_reply(blob)


class Wire:
    """The way to the server; whoever waits for an answer has it."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._batch: Any = None

    def send(self, batch: Any) -> None:
        self._batch = batch

    def take(self, timeout: float = 0.0) -> Reply | None:
        if not timeout or self._batch is None:
            return None
        batch, self._batch = self._batch, None
        return self._server.answer(batch)

    def close(self) -> None:
        self._batch = None


@dataclass(eq=False)
class Item:
    name: str
    slot: str
    priority: int
    start: bool
    number: int


@dataclass
class Load:
    leased: int = 0
    tick: int = 0


@dataclass
class Model:
    """What the server has, in plain lists."""

    order: Order
    pending: list[Item] = field(default_factory=list)
    seen: set[str] = field(default_factory=set)
    #: Start requests that need not be unique: name, and how many equal ones there were before.
    claimed: set[tuple[str, int]] = field(default_factory=set)
    loads: dict[str, Load] = field(default_factory=dict)
    tick: int = 0
    accepted: int = 0
    done: int = 0
    dead: int = 0
    failed: int = 0
    is_paused: bool = False

    def slot(self, item: Item) -> str:
        return item.slot if self.order.policy == "slots" else ""

    def put(self, item: Item) -> None:
        self.pending.append(item)
        self.loads.setdefault(self.slot(item), Load())

    def place(self, item: Item) -> tuple[int, bool, int]:
        own_queue = item.start and self.order.start is not None
        direction = self.order.start if own_queue else self.order.normal
        return -item.priority, own_queue, item.number if direction == "fifo" else -item.number

    def lease(self) -> Item | None:
        slots = {self.slot(item) for item in self.pending}
        if not slots or self.is_paused:
            return None
        key = self.loads
        slot = min(slots, key=lambda name: (key[name].leased, key[name].tick, slot_id_of(name)))
        item = min((item for item in self.pending if self.slot(item) == slot), key=self.place)
        self.pending.remove(item)
        self.tick += 1
        self.loads[slot].leased += 1
        self.loads[slot].tick = self.tick
        return item

    def free(self, item: Item) -> None:
        """A lease is over."""
        self.loads[self.slot(item)].leased -= 1
        self.forget_slot(item)

    def forget_slot(self, item: Item) -> None:
        """A slot with nothing pending or leased is forgotten."""
        slot = self.slot(item)
        if not self.loads[slot].leased and slot not in map(self.slot, self.pending):
            del self.loads[slot]


class Machine(RuleBasedStateMachine):
    policy_and_direction: str
    client: redis.Redis

    @initialize(start=st.sampled_from(["fifo", "lifo", "none"]))
    def begin(self, start: str) -> None:
        self.client.flushall()
        self.order = Order.parse(f"{self.policy_and_direction}/{start}")
        self.server, self.operator = Server(self.client), SteeredCrawl(self.client, "test")
        self.model = Model(self.order)
        self.records = [Kept(MemoryRun()) for _ in range(WORKERS)]
        self.workers = [self.open(record) for record in self.records]
        #: What each worker has leased, in the order of leases.
        self.leases: list[dict[Item, Lease]] = [{} for _ in range(WORKERS)]
        #: Leases that went to others.
        self.lost: list[tuple[int, Lease]] = []
        self.claims = [0] * WORKERS
        self.yields: list[dict[str, int]] = [{} for _ in range(WORKERS)]
        self.number = 0

    def open(self, record: Kept) -> Any:
        wire = Wire(self.server)
        return SettledShared(Options(order=self.order), self.client, wire, record)

    @rule(
        who=WHO,
        name=NAMES,
        slot=SLOTS,
        priority=PRIORITIES,
        start=st.booleans(),
        unique=st.sampled_from([True, True, False]),
        from_start=st.sampled_from([True, False, False]),
        times=st.sampled_from([1, 1, 1, 9]),
    )
    def add(  # type: ignore[no-untyped-def]
        self, who, name, slot, priority, start, unique, from_start, times
    ) -> None:
        for time in range(times):
            self.number += 1
            named = name if time == 0 else f"{name} {self.number}"
            item = Item(named, slot, priority, start, self.number)
            expected = self.expect(who, item, unique, from_start)
            payload = str(self.number).encode()
            entry = Entry(named.encode(), slot, priority, start, payload, item, unique, from_start)
            assert self.workers[who].add(entry) is expected

    def expect(self, who: int, item: Item, unique: bool, from_start: bool) -> Verdict:
        model, yields = self.model, self.yields[who]
        if unique:
            if item.name in model.seen:
                return Verdict.SEEN
            model.seen.add(item.name)
        elif from_start:
            claim = item.name, yields.get(item.name, 0)
            yields[item.name] = claim[1] + 1
            if claim in model.claimed:
                return Verdict.STARTED
            model.claimed.add(claim)
        model.accepted += 1
        model.put(item)
        return Verdict.ADDED

    @rule(who=WHO, times=st.sampled_from([1, 1, 5]))
    def lease(self, who: int, times: int) -> None:
        for _ in range(times):
            self.lease_one(who)

    def lease_one(self, who: int) -> Item | None:
        item = self.model.lease()
        lease = self.workers[who].lease()
        if item is None:
            assert not isinstance(lease, Lease)
            return None
        assert isinstance(lease, Lease)
        assert lease.entry.fingerprint == item.name.encode()
        assert lease.entry.payload == str(item.number).encode()
        self.leases[who][item] = lease
        return item

    @precondition(lambda self: any(self.leases))
    @rule(
        which=st.integers(0, 100),
        how=st.sampled_from(["finish", "finish", "release", "die", "fail"]),
    )
    def end(self, which: int, how: str) -> None:
        held = [(who, item) for who in range(WORKERS) for item in self.leases[who]]
        who, item = held[which % len(held)]
        lease = self.leases[who].pop(item)
        if how == "die":
            self.workers[who].dead_letter(lease, DeadLetter("why"))
        elif how == "fail":
            lease.failure = PageFailure(Reason.DOWNLOAD, "why")
            self.workers[who].finish(lease)
        else:
            getattr(self.workers[who], how)(lease)
        self.model.done += how == "finish"
        self.model.dead += how == "die"
        self.model.failed += how == "fail"
        if how == "release":
            self.model.put(item)
        self.model.free(item)

    @precondition(lambda self: self.lost)
    @rule(which=st.integers(0, 100), how=st.sampled_from(["finish", "release"]))
    def end_late(self, which: int, how: str) -> None:
        """What a worker says of a lease that it has lost does not count."""
        who, lease = self.lost.pop(which % len(self.lost))
        getattr(self.workers[who], how)(lease)

    @rule(who=WHO, name=NAMES)
    def mark_seen(self, who: int, name: str) -> None:
        assert self.workers[who].mark_seen(name.encode()) == (name in self.model.seen)
        self.model.seen.add(name)

    @rule(who=WHO, name=NAMES)
    def forget(self, who: int, name: str) -> None:
        assert self.workers[who].forget(name.encode()) == (name in self.model.seen)
        self.model.seen.discard(name)
        # Others trust what they know until they hear from the server.
        self.hear()

    def hear(self) -> None:
        """Have all workers hear from the server."""
        for worker in self.workers:
            worker.send()

    @rule()
    def pause_or_resume(self) -> None:
        """What is in flight stays so, and nothing else is leased."""
        assert self.operator.resume() if self.model.is_paused else self.operator.pause()
        self.model.is_paused = not self.model.is_paused
        self.hear()

    @precondition(lambda self: self.model.pending)
    @rule(which=st.integers(0, 100))
    def discard(self, which: int) -> None:
        """As if it had never been accepted; its page stays seen."""
        model = self.model
        item = model.pending[which % len(model.pending)]
        payload = str(item.number).encode()
        chosen = [it for it in self.operator.waiting() if decode_value(it.row).payload == payload]
        assert self.operator.discard(chosen) == len(chosen) == 1
        assert self.operator.discard(chosen) == 0
        model.pending.remove(item)
        model.accepted -= 1
        model.forget_slot(item)
        self.hear()

    @rule(who=WHO)
    def crash(self, who: int) -> None:
        """A worker dies, and has its leases back when it is started again."""
        self.workers[who].abandon()
        self.workers[who] = worker = self.open(self.records[who])
        self.yields[who] = {}
        self.lost = [(other, lease) for other, lease in self.lost if other != who]
        if self.model.is_paused:
            # None of them has begun here.
            self.give_back(who)
            return
        leases = {}
        for item in sorted(self.leases[who], key=self.model.place):
            leases[item.number] = item
        self.leases[who] = {}
        for _ in range(len(leases)):
            lease = worker.lease()
            assert isinstance(lease, Lease)
            item = leases.pop(int(lease.entry.payload or b""))
            self.leases[who][item] = lease

    @rule(who=WHO)
    def leave(self, who: int) -> None:
        """A worker ends cleanly: others have what it had leased, at once."""
        self.workers[who].close()
        self.give_back(who)
        self.lost = [(other, lease) for other, lease in self.lost if other != who]
        self.records[who] = Kept(MemoryRun())
        self.workers[who] = self.open(self.records[who])
        self.yields[who] = {}

    @rule(who=WHO)
    def expire(self, who: int) -> None:
        """A worker stands still for so long that others have what it had leased."""
        others = [worker for number, worker in enumerate(self.workers) if number != who]
        for share in (0.6, 0.6):
            self.server.now += int(LEASE_TIMEOUT * share)
            for worker in others:
                worker.send()
        for worker in others:
            worker.send()
        self.lost += [(who, lease) for lease in self.leases[who].values()]
        had = len(self.leases[who])
        self.give_back(who)
        worker = self.workers[who]
        worker.events.clear()
        worker.send()
        assert had >= sum(isinstance(event, LeaseLost) for event in worker.events)

    def give_back(self, who: int) -> None:
        for item in self.leases[who]:
            self.model.put(item)
            self.model.free(item)
        self.leases[who] = {}

    @invariant()
    def counts_agree(self) -> None:
        model, worker = self.model, self.workers[0]
        worker.send()
        counts = worker.counts()
        leased = sum(map(len, self.leases))
        assert (counts.pending, counts.leased) == (len(model.pending), leased)
        ended = model.done, model.dead, model.failed
        assert (counts.done, counts.dead, counts.failed) == ended
        assert counts.accepted == model.accepted
        assert counts.seen == len(model.seen)
        assert counts.unaccounted == 0

    def teardown(self) -> None:
        if not hasattr(self, "workers"):
            return
        if self.model.is_paused:
            self.pause_or_resume()
        while any(self.leases):
            self.end(0, "finish")
        while self.lease_one(self.number % WORKERS) is not None:
            self.end(0, "finish")
        self.counts_agree()
        assert self.model.pending == []
        for worker in self.workers:
            worker.close()
        left = {key.rpartition(b":")[2] for key in self.client.scan_iter() if b":seen:" not in key}
        assert left <= {b"meta", b"workers", b"heard", b"dead", b"suspects", b"failed"}


@pytest.fixture
def client(tmp_path: Any) -> Iterator[redis.Redis]:
    with RedisServer(tmp_path / "redis") as server:
        yield server.client()


@pytest.mark.parametrize("policy", ["slots", "one"])
@pytest.mark.parametrize("direction", ["lifo", "fifo"])
def test_workers_on_a_server_behave_as_the_model(
    policy: str, direction: str, client: redis.Redis
) -> None:
    class OneOrder(Machine):
        policy_and_direction = f"{policy}/{direction}"

    OneOrder.client = client
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
