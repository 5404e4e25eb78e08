"""The protocol under seeded faults: nothing is lost, and each rule of it is needed for that."""

from __future__ import annotations

import math
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
import redis

from scrapy_altsched.frontier import Entry, Lease, Verdict
from scrapy_altsched.frontier.shared import conversation, frontier, pace, steering, stream
from scrapy_altsched.frontier.shared.additions import Additions
from scrapy_altsched.frontier.shared.batches import Reply
from scrapy_altsched.frontier.shared.conversation import Conversation
from scrapy_altsched.frontier.shared.leases import Leases
from scrapy_altsched.frontier.shared.pace import WorkerPace
from scrapy_altsched.frontier.shared.stream import Stream
from scrapy_altsched.redis_client import read_script

from ...servers import RedisServer
from .model import AGED, FAULTS, OUTCOMES, PACES, SCARCE, USUAL, Crawl, Server, Setting, Worker

#: The seed of the first crawl of each test; a failure names its own.
FIRST = int(os.environ.get("MODEL_SEED", "0"))
#: Crawls of each test that everyone waits for; and of the slow ones, which begin with these.
FEW = 6
CRAWLS = int(os.environ.get("MODEL_CRAWLS", "300"))

ALL = "kill return stop reply double rollback full pause discard"
#: Faults that happen together.  A worker that is killed takes start requests with it that are its
#: own, so that these two do not go together.
MIXES = [
    "",
    *(name for name in FAULTS if name != "diff"),
    "empty reply",
    ALL,
    "diff stop reply double rollback full pause discard",
]
#: With these a worker works on a page twice, before and while its links wait for memory.
WAITING = "full stop kill return"

#: Connects to a database.
Connect = Callable[[int], redis.Redis]


@pytest.fixture(scope="module")
def connect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connect]:
    with RedisServer(tmp_path_factory.mktemp("redis"), unix_socket=True) as server:
        path = str(server.socket)
        yield lambda number: redis.Redis(unix_socket_path=path, db=number)


def play(server: Server, mix: str, crawls: int, setting: Setting = USUAL) -> Counter[str]:
    """Outcomes of so many crawls."""
    outcomes: Counter[str] = Counter()
    for seed in range(FIRST, FIRST + crawls):
        outcome = Crawl(server, seed, frozenset(mix.split()), setting).run()
        assert outcome in OUTCOMES
        outcomes[outcome] += 1
        if outcome != "ok":
            print(f"seed {seed} with {mix or 'no faults'}: {OUTCOMES[outcome]}")
    return outcomes


@pytest.mark.parametrize(
    "mix", [mix if mix == ALL else pytest.param(mix, marks=pytest.mark.long) for mix in MIXES]
)
def test_no_fault_loses_a_page(connect: Connect, mix: str) -> None:
    server = Server(connect)
    assert play(server, mix, FEW) == {"ok": FEW}


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("mix", MIXES)
def test_no_fault_loses_a_page_in_many_crawls(connect: Connect, mix: str) -> None:
    server = Server(connect)
    outcomes = play(server, mix, CRAWLS)
    print(f"{mix or 'no faults'}: {dict(outcomes)}, {server.calls} calls")
    assert outcomes == {"ok": CRAWLS}


@pytest.mark.timeout(1200)
@pytest.mark.long
@pytest.mark.parametrize("crawls", [FEW, pytest.param(CRAWLS, marks=pytest.mark.slow)])
@pytest.mark.parametrize("has_low_limits", [False, True], ids=["usual limits", "low limits"])
@pytest.mark.parametrize("mix", ["", WAITING, ALL])
def test_nothing_that_waits_long_for_the_server_is_lost(
    connect: Connect,
    monkeypatch: pytest.MonkeyPatch,
    mix: str,
    has_low_limits: bool,
    crawls: int,
) -> None:
    if has_low_limits:
        monkeypatch.setattr(frontier, "_MANY", 2)
        monkeypatch.setattr(conversation, "_MOST_UNANSWERED", 3)
    server = Server(connect)
    outcomes = play(server, mix, crawls, SCARCE)
    print(f"{mix or 'no faults'}: {dict(outcomes)}, {server.calls} calls")
    assert outcomes == {"ok": crawls}


@pytest.mark.long
@pytest.mark.parametrize("mix", ["", "stop double", ALL])
def test_no_fault_loses_a_page_that_has_an_age(connect: Connect, mix: str) -> None:
    server = Server(connect)
    assert play(server, mix, 10, AGED) == {"ok": 10}


def test_a_pass_crawls_no_page_twice(connect: Connect) -> None:
    server = Server(connect)
    for seed in range(FIRST, FIRST + 10):
        crawl = Crawl(server, seed, frozenset(), AGED)
        assert crawl.run() == "ok"
        # One that is done again, and a start request that is not filtered, are the only others.
        others = {number for number in crawl.fetched if number % 2 and number in crawl._all_starts}
        again = {number for number in crawl.fetched if not number % 7}
        twice = {number for number, count in crawl.fetched.items() if count > 1}
        assert twice <= others | again
        assert all(crawl.fetched[number] == 2 for number in again - others)


@pytest.mark.long
@pytest.mark.parametrize("mix", ["", ALL])
@pytest.mark.parametrize("limits", PACES)
def test_no_fault_has_a_host_asked_too_hard(connect: Connect, limits: str, mix: str) -> None:
    server = Server(connect)
    assert play(server, mix, 4, PACES[limits]) == {"ok": 4}


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("limits", PACES)
def test_no_fault_has_a_host_asked_too_hard_in_many_crawls(
    connect: Connect, limits: str, mix: str
) -> None:
    server = Server(connect)
    # There are four settings of each mix.
    crawls = CRAWLS // 30
    outcomes = play(server, mix, crawls, PACES[limits])
    print(f"{limits}, {mix or 'no faults'}: {dict(outcomes)}, {server.calls} calls")
    assert outcomes == {"ok": crawls}


def without(rule: str, instead: str = "") -> Callable[[str], str]:
    """A change of the script that takes a rule out of it."""

    def change(script: str) -> str:
        assert script.count(rule) == 1, script.count(rule)
        return script.replace(rule, instead)

    return change


@pytest.mark.long
@pytest.mark.parametrize(
    ("mix", "change"),
    [
        pytest.param(
            "full kill",
            without("if rests_on_refused(endings[i + 2], endings[i + 3]) then", "if false then"),
            id="a page ends though its links were refused",
        ),
        pytest.param(
            "reply",
            without("if number == last and last > 0 then", "if false then"),
            id="a batch whose answer was lost is not answered again",
        ),
        pytest.param(
            "double",
            without("elseif number < last then", "elseif false then"),
            id="an old batch is applied again",
        ),
        pytest.param(
            "diff stop",
            without("state, reopened = 'open', 1"),
            id="a finished crawl stays so though a worker that was stopped has more",
        ),
        pytest.param(
            "kill",
            without("if deadline and tonumber(deadline) < now then", "if false then"),
            id="leases do not expire",
        ),
        pytest.param(
            "", without("if due > now then", "if false then"), id="a request does not wait"
        ),
        pytest.param(
            "", without("and waiting == 0 "), id="a crawl ends though requests are delayed"
        ),
        pytest.param(
            "",
            without("if endings[i + 5] then accept(unpack(endings[i + 5])) end"),
            id="the end of a request does not bring what follows it",
        ),
        pytest.param(
            "", without("call_with('ZREM', DELAYED, due)"), id="what is due stays delayed, too"
        ),
        pytest.param(
            "",
            without("redis.call('ZADD', FAILED, digits(now), member)"),
            id="a failed request is in no state",
        ),
        pytest.param(
            "pause",
            without("if paused > 0 then want = 0 end"),
            id="requests are leased while the crawl is paused",
        ),
        pytest.param("pause", without("and paused == 0 "), id="a crawl ends while it is paused"),
    ],
)
def test_each_rule_of_the_script_is_needed(
    connect: Connect, mix: str, change: Callable[[str], str]
) -> None:
    server = Server(connect, change)
    assert fails(server, mix)


@pytest.mark.long
@pytest.mark.parametrize(
    "change",
    [
        pytest.param(
            without("redis.call('HINCRBY', META, 'accepted', -count)"),
            id="a discarded request counts as accepted",
        ),
        pytest.param(
            without("redis.call('ZREM', READY, slot)"), id="a slot is ready that has nothing left"
        ),
        pytest.param(
            without("if redis.call('ZREM', KEYS[from], member) == 1 then", "if true then"),
            id="a request is discarded that does not wait any more",
        ),
    ],
)
def test_each_rule_of_discarding_is_needed(
    connect: Connect, monkeypatch: pytest.MonkeyPatch, change: Callable[[str], str]
) -> None:
    monkeypatch.setattr(steering, "read_script", lambda *names: change(read_script(*names)))
    assert fails(Server(connect), "discard")


def test_a_worker_of_a_crawl_that_is_paused_begins_nothing_more(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Leases, "return_fetched", lambda _: None)
    unheard = property(lambda _: False, lambda *_: None)
    monkeypatch.setattr(Conversation, "is_paused", unheard, raising=False)
    assert fails(Server(connect), "pause")


def fails(server: Server, mix: str, setting: Setting = USUAL) -> bool:
    """Whether any of many crawls fails."""
    for seed in range(FIRST, FIRST + 300):
        try:
            if Crawl(server, seed, frozenset(mix.split()), setting).run() != "ok":
                return True
        except (redis.ResponseError, AssertionError):
            return True
    return False


#: Brings slots at their cap back if nothing is leased any more, as when the leases went missing.
SAFETY_NET = "open[slot] = 0\n            wake(slot)"


@pytest.mark.long
@pytest.mark.parametrize(
    ("limits", "mix", "change"),
    [
        pytest.param(
            "delay",
            "",
            without("rests[slot] = math.ceil(now + VALID + draw(slot, tick))"),
            id="a slot with a delay does not rest after a lease",
        ),
        pytest.param(
            "delay",
            "",
            without("now + VALID + draw(slot, tick)", "now + draw(slot, tick)"),
            id="a slot rests as if its request were started at once",
        ),
        pytest.param(
            "delay",
            "",
            without("rest ~= NEVER and load_of(slot) % LEASED_ONCE == tick", "rest ~= NEVER"),
            id="any start shortens the rest of a slot, not only its last one",
        ),
        pytest.param(
            "one at once",
            "",
            without("elseif is_at_cap(slot) then", "elseif false then"),
            id="a slot at its cap stays in the queue",
        ),
        pytest.param(
            "delay and cap",
            "kill",
            without(
                "if is_at_cap(slot) then\n            rests", "if false then\n            rests"
            ),
            id="a slot at its cap is in the queue again when its rest is over",
        ),
        pytest.param(
            "cap",
            "",
            lambda script: without("and not is_at_cap(slot) then wake(slot) end", "then end")(
                without(SAFETY_NET)(script)
            ),
            id="a closed request brings its slot not back",
        ),
        pytest.param(
            "cap",
            "",
            without("if #found > 0 then queued[slot] = true end"),
            id="a slot does not come back though it has pending requests",
        ),
        pytest.param(
            "cap",
            "",
            without(
                "and redis.call('SREM', DOWNLOADED, key) == 0 then close_one", "then close_one"
            ),
            id="the end of a downloaded request closes it twice",
        ),
        pytest.param(
            "one at once",
            "return",
            without("if wanted or is_paced then", "if wanted then"),
            id="a restarted worker keeps what it had leased",
        ),
        pytest.param(
            "one at once",
            "",
            without("or is_resting(slot) then\n            emptied", "then\n            emptied"),
            id="a slot that rests is in the queue",
        ),
        pytest.param(
            "delay",
            "",
            without("not rest or rest <= now or rest == NEVER", "true"),
            id="a new permit does not wait until the slot may be asked",
        ),
        pytest.param(
            "delay",
            "",
            without("= key, open_request(slot, n.tick)", "= key, 0"),
            id="a slot does not rest after a new permit",
        ),
        pytest.param(
            "delay",
            "rollback",
            without("restarted = now end", "end"),
            id="leases go on at once after a restart of the server",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_each_rule_of_the_pace_is_needed(
    connect: Connect, limits: str, mix: str, change: Callable[[str], str]
) -> None:
    assert fails(Server(connect, change), mix, PACES[limits])


def test_a_permit_runs_out(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "VALID", math.inf)
    assert fails(Server(connect), "", PACES["delay"])


def test_a_permit_is_valid_from_when_its_batch_was_built(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_reply = WorkerPace.take_reply

    def take_later(self: WorkerPace, reply: Reply) -> None:
        self._built_at = self._clock.since_boot()
        take_reply(self, reply)

    monkeypatch.setattr(WorkerPace, "take_reply", take_later)
    assert fails(Server(connect), "reply", PACES["delay"])


def test_a_request_whose_lease_is_lost_is_not_started(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Conversation, "_holds", lambda *_: True)
    assert fails(Server(connect), "stop", PACES["delay"])


def test_when_a_request_was_started_is_said_without_the_workers_own_time(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    take = WorkerPace.take

    def take_own_time(self: WorkerPace) -> list[object]:
        times = [-1 if at == math.inf else round(at * 1000) for _, _, at in self._started]
        found = take(self)
        started = found[3]
        assert isinstance(started, list)
        started[2 : 3 * len(times) : 3] = times
        return found

    monkeypatch.setattr(WorkerPace, "take", take_own_time)
    rest = without("math.ceil(now - ago + draw(slot, tick))", "math.ceil(ago + draw(slot, tick))")
    last = without("math.max(after, limit_of(slot)[4] or 0)", "after")
    assert fails(Server(connect, lambda script: last(rest(script))), "", PACES["delay"])


@pytest.mark.long
def test_what_a_page_rests_on_is_done_again_after_a_rollback(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Leases, "lose_doubtful", lambda _: None)
    assert fails(Server(connect), "rollback")


def test_a_worker_with_requests_to_come_keeps_the_crawl_open(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Conversation, "is_feeding", property(lambda _: False))
    assert fails(Server(connect), "diff")


def test_an_ending_waits_for_what_it_rests_on(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Stream, "_depends_on_unsent", lambda *_: False)
    # Pages have so few links here that all of them would be in one batch.
    monkeypatch.setattr(stream, "_PROBE", 1)
    assert fails(Server(connect), "full kill return")


def test_an_ending_waits_for_what_was_seen_here_only(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Additions, "rests_after", lambda _, origin: origin[1])
    assert fails(Server(connect), WAITING, SCARCE)


def exchange(worker: Worker, batches: int = 3) -> None:
    """Have so many batches answered."""
    for _ in range(batches):
        worker.clock.advance(1.0)
        worker.frontier.take_replies()
        worker.frontier._server._sender.send()
        if worker.wire.batch is not None:
            worker._exchange(worker.wire.batch)


def begin(connect: Connect) -> tuple[Server, Crawl, Worker]:
    """A crawl without faults, and one of its workers."""
    server = Server(connect)
    crawl = Crawl(server, 0, frozenset())
    return server, crawl, crawl.workers[0]


def take(worker: Worker) -> Lease:
    """Lease the next request, which is there."""
    lease = worker.frontier.lease()
    assert isinstance(lease, Lease)
    return lease


def entry(name: str) -> Entry:
    return Entry(name.encode(), "host", 0, payload=b"p", from_start=True)


def test_a_page_does_not_end_before_a_link_is_stored_that_was_seen_here_only(
    connect: Connect,
) -> None:
    server, crawl, worker = begin(connect)
    frontier = worker.frontier
    frontier.add(entry("first"))
    frontier.add(entry("second"))
    frontier.lease()
    exchange(worker)
    take(worker)
    server.set_full(True)
    assert frontier.add(entry("link")) is Verdict.UNDECIDED
    exchange(worker)
    second = take(worker)
    assert frontier.add(entry("link")) is Verdict.SEEN
    frontier.finish(second)
    frontier.commit()
    exchange(worker)
    assert server.counts(crawl.keys)["done"] == 0
    server.set_full(False)
    exchange(worker, 6)
    counts = server.counts(crawl.keys)
    assert (counts["accepted"], counts["done"]) == (3, 1)


def test_an_ending_whose_lease_the_server_has_lost_ends_no_other_one_with_its_key(
    connect: Connect,
) -> None:
    server, crawl, worker = begin(connect)
    frontier = worker.frontier
    frontier.lease()
    server.save()
    frontier.add(entry("first"))
    exchange(worker)
    first = take(worker)
    assert server.roll_back(random.Random(0))
    exchange(worker, 1)
    assert crawl.events["ServerRolledBack"]
    # It is not known yet whether the server has its lease, and no commit sends this one meanwhile.
    frontier.finish(first)
    frontier.lease()
    frontier.add(entry("second"))
    exchange(worker)
    second = take(worker)
    assert (second.key, second.entry.fingerprint) == (first.key, b"second")
    frontier.commit()
    exchange(worker)
    counts = server.counts(crawl.keys)
    assert (counts["leased"], counts["done"]) == (1, 0)
    assert crawl.events["LeaseLost"] == 1
