"""How hard download slots are asked by all workers of a crawl together."""

from __future__ import annotations

from itertools import pairwise

import msgpack
import pytest
import redis

from scrapy_altsched.frontier import Lease
from scrapy_altsched.frontier.entry import Cause, DeadLetter
from scrapy_altsched.frontier.events import (
    Event,
    LeaseLost,
    OtherLimits,
    PaceChanged,
    Stalled,
    VersionOutdated,
)
from scrapy_altsched.frontier.pace import Start
from scrapy_altsched.frontier.shared.batches import PROTOCOL, Status, pack, parse_reply
from scrapy_altsched.frontier.shared.keys import slot_id_of
from scrapy_altsched.frontier.shared.operating import SharedCrawl
from scrapy_altsched.frontier.shared.stream import EncodedBatch
from scrapy_altsched.frontier.store.records import Level, Suspicion
from scrapy_altsched.limit import Limit

from ...frontiers import page
from ...servers import RedisServer
from .model import Server
from .pacing import PacedWorker, World, pages, slot_of

#: Seconds for which a permit is valid, and some more.
VALID, MORE = 0.4, 0.1
DELAY = 10.0
SUSPECTS, RESTING, SLOTS, OPEN, DOWNLOADED = 8, 12, 13, 14, 15


@pytest.fixture
def world(server: RedisServer, client: redis.Redis) -> World:
    return World(client, Server(lambda number: server.client(db=number)))


def of(worker: PacedWorker, kind: type[Event]) -> list[Event]:
    return [event for event in worker.events if isinstance(event, kind)]


# Requests at once


def test_two_workers_have_no_more_of_a_slot_open_than_its_cap(world: World) -> None:
    first, second = world.join(Limit(cap=3)), world.join(Limit(cap=3))
    first.add(*pages(10), *pages(10, "other"))
    leases = [*first.take_all(), *second.take_all(), *first.take_all(), *second.take_all()]
    assert sorted(slot_of(lease) for lease in leases) == ["host"] * 3 + ["other"] * 3


def test_the_end_of_a_download_lets_the_next_one_go_before_any_commit(world: World) -> None:
    first, second = world.join(Limit(cap=1)), world.join(Limit(cap=1))
    first.add(*pages(4))
    lease = first.take()
    assert first.start(lease) is Start.NOW
    assert second.take_all() == []
    first.end_download(lease)
    assert world.counts()["done"] == 0
    world.take()
    # Its end counts no second time.
    first.finish(lease)
    assert world.counts()["done"] == 1
    assert world.take_all() == []


def test_a_request_that_ends_without_a_download_is_not_open_any_more(world: World) -> None:
    worker = world.join(Limit(cap=1))
    worker.add(*pages(2), page("other", "other"))
    leases = {slot_of(lease): lease for lease in worker.take_all()}
    assert sorted(leases) == ["host", "other"]
    worker.finish(leases["host"])
    assert slot_of(worker.take()) == "host"


def test_a_download_is_reported_of_a_lease_only_that_is_there(world: World) -> None:
    first, second = (world.join(Limit(cap=1), lease_timeout=2) for _ in range(2))
    first.add(*pages(3))
    lease = first.take()
    world.pass_time(3, stopped=first)
    second.take()
    first.frontier.pace.note_downloaded(lease)
    first.exchange()
    assert first.take_all() == []
    assert not world.client.exists(world.keys.fixed[DOWNLOADED])


def test_what_a_killed_worker_had_open_is_open_no_more_once_its_leases_expire(world: World) -> None:
    first, second = (world.join(Limit(cap=2), lease_timeout=2) for _ in range(2))
    first.add(*pages(4))
    assert len(first.take_all()) == 2
    world.die(first)
    assert second.take_all() == []
    world.pass_time(3)
    assert len(second.take_all()) == 2
    assert world.counts()["leased"] == 2


def test_what_a_restarted_worker_had_open_asks_again_for_its_turn(world: World) -> None:
    worker = world.join(Limit(cap=2))
    worker.add(*pages(4))
    assert len(worker.take_all()) == 2
    world.die(worker)
    worker = world.join(Limit(cap=2), record=worker.record)
    assert world.counts()["leased"] == 0
    assert len(worker.take_all()) == 2


def test_slots_at_their_cap_come_back_when_the_leases_have_gone_missing(world: World) -> None:
    worker = world.join(Limit(cap=1))
    worker.add(*pages(2))
    worker.take()
    assert worker.take_all() == []
    world.client.delete(world.keys.leases(worker.frontier._stream.token))
    world.pass_time(1)
    worker.take()


# Delays


def test_a_slot_rests_as_if_its_request_were_started_at_the_last_moment(world: World) -> None:
    first, _ = world.join(Limit(DELAY)), world.join(Limit(DELAY))
    first.add(*pages(3))
    first.take()
    assert world.take_all() == []
    world.pass_time(DELAY + VALID - MORE)
    assert world.take_all() == []
    world.pass_time(2 * MORE)
    world.take()


def test_a_slot_rests_only_from_the_start_of_its_request_on_if_that_is_told(world: World) -> None:
    first, _ = world.join(Limit(DELAY)), world.join(Limit(DELAY))
    first.add(*pages(3))
    lease = first.take()
    world.pass_time(0.1)
    assert first.start(lease) is Start.NOW
    world.pass_time(DELAY - 0.05)
    assert world.take_all() == []
    world.pass_time(0.1)
    world.take()


@pytest.mark.parametrize("is_over", [False, True], ids=["sent", "over"])
def test_what_is_sent_late_or_only_known_to_be_over_has_its_slot_rest_from_then_on(
    world: World, is_over: bool
) -> None:
    first, _ = world.join(Limit(DELAY)), world.join(Limit(DELAY))
    first.add(*pages(3))
    lease = first.take()
    assert first.frontier.pace.start(lease) is Start.NOW
    first.exchange()
    world.pass_time(0.1)
    if is_over:
        first.frontier.pace.note_downloaded(lease)
    else:
        first.frontier.pace.note_sent(lease)
    first.exchange()
    world.pass_time(DELAY - 0.05)
    assert world.take_all() == []
    world.pass_time(0.1)
    world.take()


def test_a_slot_rests_when_a_worker_goes_on_that_stood_still_before_it_sent(world: World) -> None:
    worker = world.join(Limit(DELAY))
    worker.add(*pages(3))
    lease = worker.take()
    assert worker.frontier.pace.start(lease) is Start.NOW
    world.pass_time(DELAY + VALID + MORE, stopped=worker)
    # Before it can say that it has sent it.
    worker.exchange()
    assert world.take_all() == []
    worker.frontier.pace.note_sent(lease)
    world.pass_time(DELAY - MORE)
    assert world.take_all() == []
    world.pass_time(2 * MORE)
    world.take()


def test_only_the_last_start_of_a_slot_says_how_long_it_rests(world: World) -> None:
    first, _ = world.join(Limit(DELAY)), world.join(Limit(DELAY))
    first.add(*pages(4))
    lease = first.take()
    # That it was started now is said too late.
    assert first.frontier.pace.start(lease) is Start.NOW
    first.frontier.pace.note_sent(lease)
    said, first.frontier.pace._started = first.frontier.pace._started, []
    world.pass_time(DELAY + VALID + MORE)
    world.take()
    first.frontier.pace._started = said
    first.exchange()
    assert world.take_all() == []
    world.pass_time(DELAY - MORE)
    assert world.take_all() == []
    world.pass_time(VALID + 2 * MORE)
    world.take()


def test_a_delay_varies_by_its_jitter_and_no_more(world: World) -> None:
    worker = world.join(Limit(1.0, 0.5))
    worker.add(*pages(20))
    starts: list[int] = []
    while len(starts) < 20:
        if isinstance(lease := worker.frontier.lease(), Lease):
            assert worker.start(lease) is Start.NOW
            worker.finish(lease)
            starts.append(world.server.now)
        world.pass_time(0.01)
    gaps = [later - earlier for earlier, later in pairwise(starts)]
    # It is asked 40 times a second.
    assert 500 <= min(gaps) < 650
    assert 1400 < max(gaps) < 1600


def test_a_slot_rests_though_nothing_is_pending_in_it(world: World) -> None:
    worker = world.join(Limit(DELAY))
    worker.add(*pages(1))
    worker.finish(worker.take())
    worker.add(page("later", "host"))
    assert worker.take_all() == []
    world.pass_time(DELAY + VALID + MORE)
    worker.take()


def test_slots_whose_rest_is_over_are_asked_after_those_that_have_waited(world: World) -> None:
    worker = world.join(Limit(1.0), prefetch=1)
    names = [f"host{number}" for number in range(6)]
    worker.add(*(page(f"{name} {number}", name) for name in names for number in range(9)))
    taken: list[str] = []
    while len(taken) < 12:
        world.pass_time(0.3)
        lease = worker.frontier.lease()
        if isinstance(lease, Lease):
            taken.append(slot_of(lease))
            assert worker.start(lease) is Start.NOW
            worker.end_download(lease)
            worker.finish(lease)
    assert set(taken) == set(names)


def test_a_permit_that_has_run_out_unused_goes_back_before_any_commit(world: World) -> None:
    worker = world.join(Limit(DELAY))
    worker.add(page("done", "other"))
    worker.frontier.finish(worker.take())
    # It is fetched at once, and not asked for in time.
    worker.add(*pages(1))
    assert world.counts()["leased"] == 2
    world.pass_time(VALID + MORE)
    assert not isinstance(worker.frontier.lease(), Lease)
    worker.exchange()
    # Nothing was started, and so its slot has its turn at once.
    assert worker.start(worker.take()) is Start.NOW
    # What has ended is not said before a commit says that it may be.
    assert world.counts()["done"] == 0
    worker.frontier.commit()
    worker.exchange()
    assert world.counts()["done"] == 1


def test_a_request_that_is_too_late_waits_for_a_permit_of_its_own(world: World) -> None:
    first, _ = world.join(Limit(DELAY)), world.join(Limit(DELAY))
    first.add(*pages(2))
    lease = first.take()
    world.pass_time(VALID + MORE)
    assert first.start(lease) is Start.LATER
    world.pass_time(DELAY - 2 * MORE)
    assert of(first, PaceChanged) == []
    assert first.start(lease) is Start.LATER
    world.pass_time(3 * MORE)
    assert of(first, PaceChanged)
    assert first.start(lease) is Start.NOW
    # It is a start like any other.
    world.pass_time(DELAY - 2 * MORE)
    assert world.take_all() == []
    world.pass_time(4 * MORE)
    world.take()


def test_a_request_that_has_waited_for_its_permit_is_open_once(world: World) -> None:
    worker = world.join(Limit(1.0, cap=1))
    worker.add(*pages(2), page("other", "other"))
    lease = next(lease for lease in worker.take_all() if slot_of(lease) == "host")
    world.pass_time(VALID + MORE)
    assert worker.start(lease) is Start.LATER
    world.pass_time(1.0)
    assert worker.start(lease) is Start.NOW
    worker.end_download(lease)
    world.pass_time(1.0 + MORE)
    worker.take()


def test_a_request_that_waits_for_a_permit_whose_lease_is_lost_never_starts(world: World) -> None:
    first, _ = (world.join(Limit(1.0), lease_timeout=2) for _ in range(2))
    first.add(*pages(1))
    lease = first.take()
    world.pass_time(3, stopped=first)
    assert first.frontier.pace.start(lease) is Start.LATER
    first.exchange()
    assert of(first, LeaseLost) == [LeaseLost(lease.entry)]
    assert of(first, PaceChanged)
    assert first.start(lease) is Start.NEVER


def test_a_lost_lease_of_a_slot_without_a_delay_never_starts(world: World) -> None:
    first, second = (world.join(Limit(cap=2), lease_timeout=2) for _ in range(2))
    first.add(*pages(2))
    lease, other = first.take_all()
    world.pass_time(3, stopped=first)
    assert len(second.take_all()) == 2
    first.finish(other)
    first.frontier.release(lease)
    assert first.start(lease) is Start.NEVER


def test_a_delay_may_be_longer_than_a_lease_lasts(world: World) -> None:
    worker = world.join(Limit(DELAY), lease_timeout=2)
    worker.add(*pages(3))
    assert world.work_off(worker, 5 * DELAY) == [f"host {number}" for number in range(3)]
    assert worker.frontier.is_over
    assert of(worker, LeaseLost) == []


def test_a_request_that_lives_in_memory_starts_at_once(world: World) -> None:
    worker = world.join(Limit(DELAY, cap=1))
    worker.add(page("stored", "host"))
    assert worker.start(worker.take()) is Start.NOW
    worker.add(page("a", "host", stored=False), page("b", "host", stored=False))
    leases = worker.take_all()
    assert [worker.start(lease) for lease in leases] == [Start.NOW] * 2
    worker.end_download(leases[0])
    assert world.client.hget(world.keys.fixed[OPEN], slot_id_of("host")) == b"1"


def test_each_slot_rests_for_its_delay_after_the_server_was_started_again(world: World) -> None:
    worker = world.join(Limit(1.0), slots={"slow": Limit(DELAY)})
    world.server._run += 1
    worker.add(*pages(1), page("slow page", "slow"))
    assert worker.take_all() == []
    world.pass_time(1.0)
    assert worker.take_all() == []
    world.pass_time(VALID + MORE)
    assert worker.take().entry.fingerprint != b"slow page"
    world.pass_time(DELAY - 1.0 - 2 * MORE)
    assert worker.take_all() == []
    world.pass_time(2 * MORE)
    assert worker.take().entry.fingerprint == b"slow page"


def test_no_request_gets_a_new_permit_for_as_long(world: World) -> None:
    worker = world.join(Limit(DELAY))
    worker.add(*pages(1))
    lease = worker.take()
    world.pass_time(VALID + MORE)
    assert worker.start(lease) is Start.LATER
    world.server._run += 1
    worker.exchange()
    world.pass_time(DELAY)
    assert of(worker, PaceChanged) == []
    world.pass_time(2 * VALID)
    assert of(worker, PaceChanged)


# What is said of a crawl that goes slowly


def test_a_slot_that_rests_until_a_known_time_is_no_stall(world: World) -> None:
    worker = world.join(Limit(200.0))
    worker.add(*pages(2))
    lease = worker.take()
    assert worker.start(lease) is Start.NOW
    worker.end_download(lease)
    worker.finish(lease)
    worker.frontier.lease()
    world.pass_time(90.0)
    assert of(worker, Stalled) == []


def test_requests_of_which_a_worker_gets_none_are_told(world: World) -> None:
    first, second = world.join(Limit(cap=1)), world.join(Limit(cap=1))
    first.add(*pages(3))
    assert first.start(first.take()) is Start.NOW
    second.frontier.lease()
    world.pass_time(90.0)
    [stalled] = of(second, Stalled)
    assert isinstance(stalled, Stalled)
    assert "of 2 pending requests the server leases none to this worker" in stalled.why


# Whose limits hold


def test_the_limits_of_the_first_worker_hold_until_all_have_left(world: World) -> None:
    first = world.join(Limit(cap=2))
    second = world.join(Limit(1.5, 0.5, cap=5))
    assert of(first, OtherLimits) == []
    assert of(second, OtherLimits) == [
        OtherLimits("2 at once", "a delay of 1.5 s that varies by 50% and 5 at once")
    ]
    first.add(*pages(8))
    assert len(world.take_all()) == 2
    assert world.take_all() == []
    world.leave(first)
    third = world.join(Limit(cap=5))
    assert of(third, OtherLimits) == [OtherLimits("2 at once", "5 at once")]
    world.leave(second)
    world.leave(third)
    fourth = world.join(Limit(cap=3))
    assert of(fourth, OtherLimits) == []
    assert len(fourth.take_all()) == 3


def test_a_worker_without_limits_obeys_and_is_told(world: World) -> None:
    first, second = world.join(Limit(cap=1)), world.join()
    assert of(second, OtherLimits) == [
        OtherLimits("1 at once", "that each worker has a pace of its own")
    ]
    first.add(*pages(3))
    world.take()
    assert world.take_all() == []


def test_a_worker_that_was_the_only_one_brings_its_limits_when_it_comes_back(world: World) -> None:
    worker = world.join(Limit(cap=1))
    worker.add(*pages(4))
    worker.take()
    world.die(worker)
    worker = world.join(Limit(cap=3), record=worker.record)
    assert of(worker, OtherLimits) == []
    assert len(worker.take_all()) == 3


def test_single_slots_have_limits_of_their_own(world: World) -> None:
    worker = world.join(Limit(cap=1), slots={"wide": Limit(cap=3), "slow": Limit(DELAY, cap=3)})
    worker.add(*pages(5), *pages(5, "wide"), *pages(5, "slow"))
    slots = [slot_of(lease) for lease in worker.take_all()]
    assert sorted(slots) == ["host", "slow", "wide", "wide", "wide"]


def test_a_delay_that_one_worker_finds_is_every_workers(world: World) -> None:
    first, second = world.join(Limit(cap=2)), world.join(Limit(cap=2))
    first.frontier.pace.set_delay("host", DELAY)
    first.exchange()
    second.add(*pages(5), *pages(5, "other"))
    leases = second.take_all()
    # The slot may have been asked just now.
    assert [slot_of(lease) for lease in leases] == ["other", "other"]
    world.pass_time(2 * DELAY + MORE)
    assert slot_of(world.take()) == "host"
    world.pass_time(DELAY + VALID + MORE)
    assert slot_of(world.take()) == "host"
    world.pass_time(DELAY + VALID + MORE)
    # The cap is as it was.
    assert world.take_all() == []


@pytest.mark.parametrize("own", [None, Limit(cap=9)], ids=["none", "more at once"])
def test_a_worker_that_finds_a_delay_changes_no_other_limit(
    world: World, own: Limit | None
) -> None:
    first = world.join(Limit(cap=1), slots={"wide": Limit(cap=2)})
    second = world.join(own)
    for slot in ("host", "wide"):
        second.frontier.pace.set_delay(slot, 1.0)
    second.exchange()
    first.add(*pages(6), *pages(6, "wide"))
    found = []
    for _ in range(24):
        found += [slot_of(lease) for lease in world.take_all()]
        world.pass_time(0.3)
    assert sorted(found) == ["host", "wide", "wide"]


def test_a_crawl_without_limits_is_one_that_an_older_version_can_work_on(world: World) -> None:
    worker = world.join()
    worker.add(*pages(5))
    lease, *_ = worker.take_all()
    assert worker.start(lease) is Start.NOW
    worker.end_download(lease)
    worker.finish(lease)
    client, keys = world.client, world.keys
    assert client.hget(keys.meta, "protocol") == b"2"
    told = ("limits", "run", "restarted")
    assert client.hmget(keys.meta, told) == [None] * len(told)
    assert client.exists(*keys.fixed[RESTING:]) == 0


def as_of_an_older_version(batch: EncodedBatch) -> EncodedBatch:
    """What a worker of protocol 2 would have sent."""
    _, *fields = msgpack.unpackb(batch.blob, raw=True)
    # It knew four keys fewer, and nothing of a pace.
    return EncodedBatch(batch.keys, pack([b"2", *fields[:-1]]))


def test_a_worker_of_an_older_version_has_nothing_of_a_crawl_with_a_pace(world: World) -> None:
    worker, other = world.join(Limit(cap=1)), world.join()
    worker.add(*pages(5))
    before = world.counts()
    batch = other.frontier._stream.build(want=4)
    reply = parse_reply(world.server.apply(as_of_an_older_version(batch)))
    assert reply.status is Status.PROTOCOL
    assert reply.leases == ()
    assert world.counts() == before
    assert world.client.hget(world.keys.meta, "protocol") == b"3"


def test_a_worker_is_told_if_another_one_goes_on_by_newer_rules(world: World) -> None:
    worker = world.join(Limit(cap=1))
    worker.add(*pages(2))
    world.client.hset(world.keys.meta, "protocol", int(PROTOCOL) + 1)
    worker.exchange()
    assert of(worker, VersionOutdated) == [VersionOutdated()]
    assert worker.frontier.is_over


def test_a_crawl_has_a_pace_from_the_first_delay_on_that_is_found(world: World) -> None:
    first, second = (world.join(Limit(cap=8), are_set=False) for _ in range(2))
    assert not first.frontier.pace.is_on
    first.frontier.pace.set_delay("host", DELAY)
    first.exchange()
    assert world.client.hget(world.keys.meta, "protocol") == b"3"
    second.add(*pages(8))
    assert second.frontier.pace.is_on
    world.pass_time(2 * DELAY + MORE)
    world.take()
    assert world.take_all() == []


# Slots that are left alone


def test_a_deferred_slot_is_left_alone_by_all_and_then_asked_once(world: World) -> None:
    first, second = world.join(Limit(cap=4)), world.join(Limit(cap=4))
    assert first.frontier.defer("host", 60)
    first.exchange()
    second.add(*pages(8), page("other", "other"))
    assert slot_of(second.take()) == "other"
    world.pass_time(59)
    assert world.take_all() == []
    world.pass_time(1 + MORE)
    [(worker, lease)] = [(each, lease) for each in (first, second) for lease in each.take_all()]
    assert world.take_all() == []
    worker.end_download(lease)
    assert len(world.take_all()) == 4


def test_no_slot_is_deferred_in_a_crawl_without_a_pace(world: World) -> None:
    worker = world.join()
    assert not worker.frontier.defer("host", 60)
    # It had a pace when the worker was asked, and the server has lost that.
    worker.frontier.pace.defer("host", 60)
    worker.add(*pages(1))
    worker.take()
    assert world.client.hget(world.keys.meta, "protocol") == b"2"


def test_a_slot_is_deferred_in_a_crawl_without_limits(world: World) -> None:
    first, second = (world.join(Limit(cap=8), are_set=False) for _ in range(2))
    assert first.frontier.defer("host", 60)
    first.exchange()
    second.add(*pages(8))
    world.pass_time(59)
    assert world.take_all() == []
    world.pass_time(1 + MORE)
    world.take()


@pytest.mark.parametrize("later", [None, 10], ids=["", "by a shorter one"])
def test_a_deferral_can_only_be_put_off(world: World, later: int | None) -> None:
    first, second = world.join(Limit(1.0)), world.join(Limit(1.0))
    first.add(*pages(4))
    lease = first.take()
    first.frontier.defer("host", 60)
    first.exchange()
    if later is not None:
        second.frontier.defer("host", later)
        second.exchange()
    # That one was started is no reason, either.
    assert first.start(lease) is Start.NOW
    first.end_download(lease)
    world.pass_time(59)
    assert world.take_all() == []
    world.pass_time(1 + MORE)
    world.take()


def test_an_open_request_that_ends_does_not_end_a_deferral(world: World) -> None:
    worker = world.join(Limit(cap=1))
    worker.add(*pages(3))
    lease = worker.take()
    worker.frontier.defer("host", 60)
    worker.exchange()
    worker.end_download(lease)
    assert worker.take_all() == []
    world.pass_time(60 + MORE)
    worker.take()


# What else makes requests pending


@pytest.mark.parametrize("limit", [Limit(DELAY), Limit(cap=1)], ids=["delay", "cap"])
def test_dead_letters_that_are_pending_again_do_not_wake_a_slot(world: World, limit: Limit) -> None:
    worker = world.join(limit)
    worker.add(*pages(2))
    lease = worker.take()
    worker.frontier.dead_letter(lease, DeadLetter("why", Cause.UNRESTORABLE))
    worker.frontier.commit()
    worker.exchange()
    if limit.cap:
        worker.take()
    crawl = SharedCrawl(world.client, "paced")
    keys = [key for key, *_ in crawl.read_dead()]
    assert crawl.requeue(keys) == 1
    assert worker.take_all() == []
    if limit.delay:
        world.pass_time(DELAY + VALID + MORE)
        assert len(world.work_off(worker, 3 * DELAY)) == 2


def test_a_request_that_is_given_back_does_not_wake_a_slot_that_rests(world: World) -> None:
    first, _ = world.join(Limit(DELAY)), world.join(Limit(DELAY))
    first.add(*pages(1))
    lease = first.take()
    assert first.start(lease) is Start.NOW
    first.frontier.release(lease)
    first.frontier.commit()
    first.exchange()
    assert world.counts()["pending"] == 1
    assert world.take_all() == []
    world.pass_time(DELAY + VALID + MORE)
    world.take()


def test_a_suspect_that_was_withheld_waits_for_its_turn_once_more(world: World) -> None:
    worker = world.join(Limit(cap=1))
    entries = pages(4)
    for entry in entries[:2]:
        suspicion = Suspicion(Level.SUSPECT).encode()
        world.client.hset(world.keys.fixed[SUSPECTS], entry.fingerprint, suspicion)
    worker.add(*entries)
    first = worker.take()
    assert worker.start(first) is Start.NOW
    worker.end_download(first)
    # The second suspect waits for the end of the first one, and another page has its place.
    other = worker.take()
    assert other.entry.fingerprint == entries[2].fingerprint
    assert worker.start(other) is Start.NOW
    worker.finish(first)
    second = worker.take()
    assert second.entry.fingerprint == entries[1].fingerprint
    assert worker.start(second) is Start.LATER
    world.pass_time(1)
    assert worker.start(second) is Start.LATER
    worker.end_download(other)
    assert worker.start(second) is Start.NOW


@pytest.mark.parametrize("level", [Level.SUSPECT, Level.BLAMED])
@pytest.mark.parametrize("limit", [Limit(cap=1), Limit(1.0, cap=1), Limit(1.0)], ids=str)
def test_suspects_of_a_killed_worker_do_not_keep_the_crawl_from_its_end(
    world: World, level: Level, limit: Limit
) -> None:
    first = world.join(limit, lease_timeout=2)
    entries = pages(4)
    for entry in entries[:3]:
        suspicion = Suspicion(level).encode()
        world.client.hset(world.keys.fixed[SUSPECTS], entry.fingerprint, suspicion)
    first.add(*entries)
    for _ in range(5):
        first.take_all()
    world.die(first)
    second = world.join(limit, lease_timeout=2)
    done = world.work_off(second, 60)
    assert sorted(done) == [f"host {number}" for number in range(4)]
    assert world.server.look(world.keys).is_finished
