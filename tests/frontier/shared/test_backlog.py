"""Workers whose pages lead to more than has been sent."""

from __future__ import annotations

import pytest
import redis

from scrapy_altsched.frontier import Lease, Waiting
from scrapy_altsched.frontier.events import Event, LeasesReady, Refused
from scrapy_altsched.frontier.shared import frontier

from ...frontiers import page
from ...servers import RedisServer
from .joining import Joined, join

#: Changes with which no more pages are begun, here.
LIMIT = 100


def crowd(worker: Joined) -> None:
    """Have a page at hand, and more links of another one than may wait."""
    worker.frontier.pressure.limit = LIMIT
    worker.add(page("parent"), page("next"))
    worker.take()
    worker.events.clear()
    for number in range(LIMIT + 1):
        worker.frontier.add(page(f"link {number}"))


def test_answers_are_taken_while_a_callback_yields_links(server: RedisServer) -> None:
    worker, added = join(server), 0
    worker.frontier.add(page("first"))
    worker.clock.advance(1)
    # The event loop has no turn from here on.
    while worker.frontier._stream.last_answered < 5_000:
        worker.frontier.add(page(str(added)))
        added += 1
        assert added < 300_000
    worker.close()


def test_links_that_an_answer_leads_to_are_added_while_it_is_taken(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frontier, "_MANY", 10)
    names, led_to = [str(number) for number in range(10)], []
    worker, other = join(server), join(server)
    other.add(*map(page, names))
    other.close()

    def follow(event: Event) -> None:
        # As a handler of request_dropped may.
        if isinstance(event, Refused):
            led_to.append(f"instead of {event.entry.fingerprint.decode()}")
            worker.frontier.add(page(led_to[-1]))

    monkeypatch.setattr(worker.frontier._additions, "_on_event", follow)
    for name in names:
        worker.frontier.add(page(name))
    worker.clock.advance(1)
    while not led_to:
        worker.frontier.add(page(names[0]))
    worker.settle()
    assert len(led_to) == len(names)
    assert sorted(worker.work_off()) == sorted(names + led_to)
    worker.close(finished=True)


def test_no_page_is_begun_while_much_is_to_be_sent(server: RedisServer) -> None:
    worker = join(server)
    crowd(worker)
    assert worker.frontier.lease() is Waiting.FETCHING
    worker.answer()
    assert LeasesReady() in worker.events
    assert isinstance(worker.frontier.lease(), Lease)
    worker.close()


def test_pages_are_begun_while_a_server_has_no_memory_for_links(
    server: RedisServer, client: redis.Redis
) -> None:
    worker = join(server)
    crowd(worker)
    client.config_set("maxmemory", 1)
    try:
        assert worker.frontier.lease() is Waiting.FETCHING
        worker.answer()
        assert worker.frontier._stream.is_full
        assert LeasesReady() in worker.events
        assert isinstance(worker.frontier.lease(), Lease)
    finally:
        client.config_set("maxmemory", 0)
    worker.frontier.abandon()
