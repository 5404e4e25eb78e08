"""The queue on the server, and what its takers have taken."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import redis

from scrapy_altsched.errors import ConfigError
from scrapy_altsched.feeding.queue import Answer, Question, RedisQueue

from ..servers import RedisServer

KEY = "urls"
Open = Callable[..., RedisQueue]


@pytest.fixture
def open_queue(server: RedisServer, client: redis.Redis) -> Open:
    def open_queue(taker: bytes = b"one", timeout: float = 60.0) -> RedisQueue:
        return RedisQueue(server.client(), KEY, taker, timeout)

    return open_queue


def texts(answer: Answer) -> list[bytes]:
    return [text for _, text in answer.entries]


def expire(queue: RedisQueue, held: int = 0) -> Answer:
    """Ask until another taker's time is over, and its entries are back."""
    deadline = time.monotonic() + 30
    answer = queue.ask(Question(0, held, 1))
    while not answer.overdue:
        assert time.monotonic() < deadline
        answer = queue.ask(Question(0, held, 1))
    while answer.overdue:
        answer = queue.ask(Question(0, held, 1, overdue=answer.overdue))
    return answer


def test_entries_are_taken_from_the_head_and_kept_until_acknowledged(
    open_queue: Open, client: redis.Redis
) -> None:
    client.rpush(KEY, "a", "b", "c")
    queue = open_queue()
    answer = queue.ask(Question(2, 0, 1))
    assert answer == Answer([(1, b"a"), (2, b"b")], False, 1, 0, b"")
    [taken] = client.keys(f"{KEY}:taken:*")
    assert client.hlen(taken) == 2
    answer = queue.ask(Question(2, 0, 3, stored=[1, 2]))
    assert answer == Answer([(3, b"c")], False, 0, 0, b"")
    queue.ask(Question(2, 0, 4, stored=[3]))
    assert client.keys() == []


def test_the_highest_of_a_sorted_set_come_first(open_queue: Open, client: redis.Redis) -> None:
    client.zadd(KEY, {"low": 0.1, "high": 2, "middle": 1})
    queue = open_queue()
    assert texts(queue.ask(Question(2, 0, 1))) == [b"high", b"middle"]
    queue.ask(Question(0, 2, 3, leaving=True))
    assert client.zrange(KEY, 0, -1, withscores=True) == [
        (b"low", 0.1),
        (b"middle", 1),
        (b"high", 2),
    ]


def test_each_of_a_set_is_taken_once(open_queue: Open, client: redis.Redis) -> None:
    client.sadd(KEY, *range(10))
    one, two = open_queue(b"one"), open_queue(b"two")
    answers = [one.ask(Question(6, 0, 1)), two.ask(Question(6, 0, 1))]
    assert [len(answer.entries) for answer in answers] == [6, 4]
    assert {int(text) for answer in answers for text in texts(answer)} == set(range(10))
    assert answers[1].others == 1
    two.ask(Question(0, 4, 5, leaving=True))
    assert client.scard(KEY) == 4


def test_who_missed_an_answer_is_told_again(open_queue: Open, client: redis.Redis) -> None:
    client.rpush(KEY, "a", "b", "c")
    queue = open_queue()
    queue.ask(Question(2, 0, 1))  # it gets lost
    answer = queue.ask(Question(2, 0, 1))
    assert answer == Answer([(1, b"a"), (2, b"b")], True, 1, 0, b"")
    assert texts(queue.ask(Question(2, 2, 3))) == [b"c"]


def test_what_a_dead_taker_had_goes_back_to_the_head_in_order(
    open_queue: Open, client: redis.Redis
) -> None:
    names = [str(number).encode() for number in range(250)]
    client.rpush(KEY, *names)
    open_queue(b"dead", timeout=0.01).ask(Question(249, 0, 1))
    queue = open_queue()
    answer = queue.ask(Question(0, 0, 1))
    assert answer.left == 1
    answer = expire(queue)
    assert (answer.left, answer.others) == (250, 0)
    assert client.lrange(KEY, 0, -1) == names


def test_at_most_a_hundred_go_back_in_a_call(open_queue: Open, client: redis.Redis) -> None:
    client.rpush(KEY, *range(150))
    open_queue(b"dead", timeout=0.001).ask(Question(150, 0, 1))
    queue = open_queue()
    deadline = time.monotonic() + 30
    while not (answer := queue.ask(Question(0, 0, 1))).overdue:
        assert time.monotonic() < deadline
    assert queue.ask(Question(0, 0, 1, overdue=answer.overdue)).left == 100
    assert queue.ask(Question(0, 0, 1, overdue=answer.overdue)).left == 150


def test_what_is_not_overdue_stays_with_its_taker(open_queue: Open, client: redis.Redis) -> None:
    client.rpush(KEY, "a")
    open_queue(b"alive").ask(Question(1, 0, 1))
    answer = open_queue().ask(Question(1, 0, 1, overdue=b"alive"))
    assert (answer.entries, answer.others) == ([], 1)


def test_a_taker_whose_time_was_over_is_told_what_it_still_has(
    open_queue: Open, client: redis.Redis
) -> None:
    client.rpush(KEY, "a", "b")
    late = open_queue(b"late", timeout=0.01)
    late.ask(Question(2, 0, 1))
    queue = open_queue()
    expire(queue)
    assert texts(queue.ask(Question(1, 0, 1))) == [b"a"]
    # Its late acknowledgement removes nothing.
    answer = late.ask(Question(1, 1, 3, stored=[1]))
    assert (answer.entries, answer.differs) == ([], True)
    assert queue.ask(Question(0, 1, 2, leaving=True)).left == 2


def test_dead_entries_are_kept_beside(open_queue: Open, client: redis.Redis) -> None:
    client.rpush(KEY, "a", "b", "c")
    queue = open_queue()
    queue.ask(Question(3, 0, 1))
    for _ in range(2):  # the answer is lost
        queue.ask(Question(0, 1, 4, stored=[2], dead=[1]))
    assert client.lrange(queue.dead_key, 0, -1) == [b"a"]


def test_a_key_of_another_type_is_refused_by_name(open_queue: Open, client: redis.Redis) -> None:
    client.set(KEY, "text")
    with pytest.raises(ConfigError, match=r"'urls' .* is a string: .* Set redis_key"):
        open_queue().ask(Question(1, 0, 1))
    assert client.get(KEY) == b"text"


def test_a_full_server_gives_and_keeps_entries(open_queue: Open, client: redis.Redis) -> None:
    client.rpush(KEY, "a", "b", "c")
    queue = open_queue()
    queue.ask(Question(1, 0, 1))
    client.config_set("maxmemory", 1)
    try:
        assert texts(queue.ask(Question(0, 1, 2))) == []
        assert texts(queue.ask(Question(1, 1, 2))) == [b"b"]
        assert texts(queue.ask(Question(1, 1, 3, stored=[1]))) == [b"c"]
    finally:
        client.config_set("maxmemory", 0)
    [taken] = client.keys(f"{KEY}:taken:*")
    assert [text[1:] for text in client.hvals(taken)] == [b"b", b"c"]
    assert not client.exists(KEY)
