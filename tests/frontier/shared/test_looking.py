"""Looking into a crawl on a server: all of it is told, in its order, and nothing is changed."""

from __future__ import annotations

import itertools

import pytest
import redis

from scrapy_altsched.errors import SharedError
from scrapy_altsched.frontier.entry import PageFailure, Reason
from scrapy_altsched.frontier.queue.order import Order
from scrapy_altsched.frontier.shared.keys import slot_id_of
from scrapy_altsched.frontier.shared.looking import CrawlView
from scrapy_altsched.frontier.store.states import FAILED, encode_value

from ...frontiers import page
from .joining import KEY, dump

ROW = encode_value(page("name"))
DOWN = PageFailure(Reason.STATUS, "HTTP status 503", 503, 3)
PRIORITIES = (0, 1, -1, 300, -300, 1 << 1100, -1 << 1100)


@pytest.fixture
def crawl(client: redis.Redis) -> CrawlView:
    """A crawl that has begun, by what is known of it."""
    crawl = CrawlView(client, KEY)
    client.hset(crawl.keys.meta, mapping={"protocol": "3", "crawl": "id", "about": "{}"})
    return crawl


def test_failed_requests_are_told_once_and_in_their_order(
    crawl: CrawlView, client: redis.Redis
) -> None:
    # More of one moment than are read at once, and others before and after it.
    times = [*range(700), *itertools.repeat(1_000, 1_200), *range(2_000, 2_700)]
    for number, when in enumerate(times):
        key = number.to_bytes(17, "big")
        member = len(key).to_bytes(4, "big") + key + FAILED.join(DOWN, ROW)
        client.zadd(crawl.keys.failed, {member: when})
    found = [int.from_bytes(key[8:], "big") for key, _, _ in crawl.failed()]
    assert found == list(range(len(times)))


def test_pending_requests_are_all_told_whatever_their_priorities(
    crawl: CrawlView, client: redis.Redis
) -> None:
    order = Order()
    keys = [
        slot_id_of(slot) + order.encode(priority, False, number)
        for slot in "ab"
        for priority in PRIORITIES
        for number in range(100)
    ]
    for key in keys:
        client.zadd(crawl.keys.pending, {key + ROW: 0})
    before = dump(client)
    assert list(crawl.pending()) == [(key, ROW) for key in sorted(keys)]
    of_slot = [key for key, _, _ in crawl.next_rows(1, "b")]
    assert of_slot == sorted(key for key in keys if key.startswith(slot_id_of("b")))
    assert dump(client) == before


def test_delayed_requests_are_told_with_their_times(crawl: CrawlView, client: redis.Redis) -> None:
    order = Order()
    for number, priority in enumerate(PRIORITIES):
        level, inverted = order.level(priority, False)
        head = number.to_bytes(8, "big") + bytes((inverted,)) + slot_id_of("a")
        client.zadd(crawl.keys.delayed, {head + level + ROW: 1_000 * number})
    assert list(crawl.delayed()) == [(float(number), ROW) for number in range(len(PRIORITIES))]


@pytest.mark.parametrize(
    "verb", ["order", "about", "next_rows", "has_seen", "failed", "queues", "history"]
)
def test_a_crawl_that_is_not_there(client: redis.Redis, verb: str) -> None:
    arguments = {"next_rows": [1], "has_seen": [b"name"]}.get(verb, [])
    with pytest.raises(SharedError, match="There is no shared crawl 'crawl' on the Redis server"):
        list(getattr(CrawlView(client, KEY), verb)(*arguments) or ())
