"""What is pending in each download slot of a shared crawl, and the oldest of it."""

from __future__ import annotations

import pytest
import redis

from scrapy_altsched.frontier import Options
from scrapy_altsched.frontier.queue.order import Order
from scrapy_altsched.frontier.shared import queues
from scrapy_altsched.frontier.shared.keys import slot_id_of
from scrapy_altsched.frontier.shared.looking import CrawlView
from scrapy_altsched.frontier.store.states import decode_value

from ...frontiers import page
from ...servers import RedisServer
from .joining import KEY, Joined, dump, join

ORDERS = ["slots/lifo/fifo", "slots/fifo/none", "slots/lifo/lifo", "one/fifo/lifo"]
COUNT = 60


@pytest.fixture
def crawl(client: redis.Redis) -> CrawlView:
    return CrawlView(client, KEY)


def begin(server: RedisServer, order: str = ORDERS[0]) -> Joined:
    """A worker that has brought pages, which are numbered as they were accepted."""
    worker = join(server, options=Options(order=Order.parse(order)), prefetch=1)
    for number in range(COUNT):
        slot, is_start = f"host{number % 7}", number % 5 == 0
        name = Order.parse(order).slot_of(slot)
        worker.add(page(str(number), name, priority=number % 3 - 1, from_start=is_start))
    return worker


@pytest.mark.parametrize("order", ORDERS)
def test_each_slot_is_told_with_what_is_next_and_what_is_the_oldest(
    crawl: CrawlView, server: RedisServer, client: redis.Redis, order: str
) -> None:
    worker = begin(server, order)
    for _ in range(25):
        worker.frontier.finish(worker.take())
        worker.commit()
    wanted: dict[bytes, list[tuple[bytes, int]]] = {}
    for key, row in crawl.pending():
        number = int(decode_value(row).fingerprint)
        wanted.setdefault(key[:8], []).append((key, number))
    before = dump(client)
    found = crawl.queues()
    assert dump(client) == before
    assert found is not None
    assert len(found) == len(wanted) > 0
    for queue in found:
        key, row = queue.first
        own = wanted[key[:8]]
        assert queue.pending == len(own)
        assert key == own[0][0]
        assert int(decode_value(row).fingerprint) == own[0][1]
        assert queue.oldest == min(number for _, number in own)


def test_slots_that_rest_are_among_them(
    crawl: CrawlView, server: RedisServer, client: redis.Redis
) -> None:
    begin(server)
    resting = slot_id_of("host3")
    client.zrem(crawl.keys.ready, resting)
    client.zadd(crawl.keys.resting, {resting: "inf", slot_id_of("empty"): 1})
    found = crawl.queues()
    assert found is not None
    assert resting in {queue.first[0][:8] for queue in found}


def test_of_too_many_queues_nothing_is_told(
    crawl: CrawlView, server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(server)
    monkeypatch.setattr(queues, "_AT_ONCE", 2)
    monkeypatch.setattr(queues, "MOST_QUEUES", 5)
    assert crawl.queues() is None


def test_a_crawl_in_which_nothing_is_pending(crawl: CrawlView, server: RedisServer) -> None:
    join(server)
    assert crawl.queues() == []
