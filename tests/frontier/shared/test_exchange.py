"""The thread that waits for the server."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from scrapy_altsched.errors import AltschedError
from scrapy_altsched.frontier.changes import Kind
from scrapy_altsched.frontier.shared.batches import Addition, Status
from scrapy_altsched.frontier.shared.exchange import Exchange
from scrapy_altsched.frontier.shared.keys import Keys, slot_id_of
from scrapy_altsched.frontier.shared.stream import EncodedBatch, Stream
from scrapy_altsched.frontier.store.seen import digest_of
from scrapy_altsched.frontier.store.states import encode_value

from ...frontiers import page
from ...servers import RedisServer

PATIENCE = 30.0


class Asked:
    """An exchange, and how often it has called."""

    def __init__(self, server: RedisServer) -> None:
        self.woken = threading.Event()
        self.failures: list[AltschedError] = []
        self.failed = threading.Event()
        self.exchange = Exchange(server.client(socket_timeout=2), self.woken.set, self._fail)
        self.stream = Stream(Keys("test"), lambda: b"t" * 16, b"{}", 60_000)

    def _fail(self, error: AltschedError) -> None:
        self.failures.append(error)
        self.failed.set()

    def build(self) -> EncodedBatch:
        return self.stream.build(feeding=True)

    def ask(self) -> Status:
        self.exchange.send(self.build())
        reply = self.exchange.take(PATIENCE)
        assert reply is not None
        self.stream.acknowledge(reply)
        return reply.status


@pytest.fixture
def server(own_directory: Path) -> Iterator[RedisServer]:
    with RedisServer(own_directory, appendonly=True, options={"appendfsync": "always"}) as server:
        yield server


@pytest.fixture
def asked(server: RedisServer) -> Iterator[Asked]:
    asked = Asked(server)
    yield asked
    asked.exchange.close()


def test_a_batch_is_answered(asked: Asked) -> None:
    assert asked.exchange.take() is None
    assert asked.ask() is Status.OK
    assert asked.woken.wait(PATIENCE)
    assert asked.failures == []


def test_a_script_that_the_server_has_lost_is_sent_again(asked: Asked, server: RedisServer) -> None:
    assert asked.ask() is Status.OK
    server.client().script_flush()
    assert asked.ask() is Status.OK
    assert asked.failures == []


def test_a_server_that_is_away_is_asked_until_it_is_back(asked: Asked, server: RedisServer) -> None:
    assert asked.ask() is Status.OK
    server.kill()
    asked.exchange.send(asked.build())
    assert asked.failed.wait(PATIENCE)
    server.start()
    reply = asked.exchange.take(PATIENCE)
    assert reply is not None
    assert reply.status is Status.OK
    # Told of the first failure in a row, not of each.
    assert len(asked.failures) == 1


def test_a_batch_whose_answer_was_lost_counts_once(asked: Asked, server: RedisServer) -> None:
    assert asked.ask() is Status.OK
    entry = page("a")
    key, slot = digest_of(b"a"), slot_id_of("")
    asked.stream.add(Addition(Kind.ADDED_UNIQUE, key, slot, b"\x80", False, encode_value(entry)))
    # It is received while it stands still, and answered when nobody waits for that any more.
    server.suspend()
    asked.exchange.send(asked.build())
    assert asked.failed.wait(PATIENCE)
    server.resume()
    reply = asked.exchange.take(PATIENCE)
    assert reply is not None
    assert (reply.status, reply.accepted, list(reply.refused)) == (Status.OK, 1, [])


def test_closing_gives_up_a_server_that_is_away(asked: Asked, server: RedisServer) -> None:
    server.kill()
    asked.exchange.send(asked.build())
    assert asked.failed.wait(PATIENCE)
    asked.exchange.close()
    assert asked.exchange._thread.join(PATIENCE)
    assert asked.exchange.take() is None
