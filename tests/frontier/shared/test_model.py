"""The protocol under seeded faults: nothing is lost, and each rule of it is needed for that."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
import redis

from scrapy_altsched.frontier import Entry, Lease, Verdict
from scrapy_altsched.frontier.shared import stream
from scrapy_altsched.frontier.shared.additions import Additions
from scrapy_altsched.frontier.shared.conversation import Conversation
from scrapy_altsched.frontier.shared.leases import Leases
from scrapy_altsched.frontier.shared.stream import Stream

from ...servers import RedisServer
from .model import FAULTS, OUTCOMES, SCARCE, USUAL, Crawl, Server, Setting, Worker

#: The seed of the first crawl of each test; a failure names its own.
FIRST = int(os.environ.get("MODEL_SEED", "0"))
#: Crawls of each slow test.
CRAWLS = int(os.environ.get("MODEL_CRAWLS", "300"))

ALL = "kill return stop reply double rollback full"
#: Faults that happen together.  A worker that is killed takes start requests with it that are its
#: own, so that these two do not go together.
MIXES = [
    "",
    *(name for name in FAULTS if name != "diff"),
    "empty reply",
    ALL,
    "diff stop reply double rollback full",
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


@pytest.mark.parametrize("mix", MIXES)
def test_no_fault_loses_a_page(connect: Connect, mix: str) -> None:
    server = Server(connect)
    assert play(server, mix, 20) == {"ok": 20}


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("mix", MIXES)
def test_no_fault_loses_a_page_in_many_crawls(connect: Connect, mix: str) -> None:
    server = Server(connect)
    outcomes = play(server, mix, CRAWLS)
    print(f"{mix or 'no faults'}: {dict(outcomes)}, {server.calls} calls")
    assert outcomes == {"ok": CRAWLS}


@pytest.mark.parametrize("crawls", [20, pytest.param(CRAWLS, marks=pytest.mark.slow)])
@pytest.mark.parametrize("mix", [WAITING, ALL])
def test_no_link_that_waits_long_for_memory_is_lost(
    connect: Connect, mix: str, crawls: int
) -> None:
    server = Server(connect)
    outcomes = play(server, mix, crawls, SCARCE)
    print(f"{mix}: {dict(outcomes)}, {server.calls} calls")
    assert outcomes == {"ok": crawls}


def without(rule: str, instead: str = "") -> Callable[[str], str]:
    """A change of the script that takes a rule out of it."""

    def change(script: str) -> str:
        assert script.count(rule) == 1, script.count(rule)
        return script.replace(rule, instead)

    return change


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
    ],
)
def test_each_rule_of_the_script_is_needed(
    connect: Connect, mix: str, change: Callable[[str], str]
) -> None:
    server = Server(connect, change)
    assert fails(server, mix)


def fails(server: Server, mix: str, setting: Setting = USUAL) -> bool:
    """Whether any of many crawls fails."""
    for seed in range(FIRST, FIRST + 300):
        try:
            if Crawl(server, seed, frozenset(mix.split()), setting).run() != "ok":
                return True
        except (redis.ResponseError, AssertionError):
            return True
    return False


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
