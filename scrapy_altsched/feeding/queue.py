"""A queue on a server that others fill, and what was taken of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgpack
import redis

from ..errors import ConfigError
from ..redis_client import read_script
from ..redis_client.connection import address_of, explain_errors


class Question(NamedTuple):
    """What a taker asks for, and what it tells, in the order in which it is sent.

    :ivar want: how many entries to take.
    :ivar held: how many it has, those told of here not included.
    :ivar first: id of the first entry that it takes now.
    :ivar stored: ids of entries that need not be kept for it any more.
    :ivar dead: ids of entries that no request could be made of.
    :ivar overdue: another taker whose time is over; empty: none is known.
    :ivar leaving: whether all that it has goes back.
    """

    want: int
    held: int
    first: int
    stored: Sequence[int] = ()
    dead: Sequence[int] = ()
    overdue: bytes = b""
    leaving: bool = False


class Answer(NamedTuple):
    """What the server says.

    :ivar entries: id and text of what was taken.
    :ivar differs: whether the taker has something else than it said: *entries* are all that it has.
    :ivar left: how many entries are left in the queue.
    :ivar others: how many other takers have entries that are not acknowledged.
    :ivar overdue: one of them whose time is over; empty: there is none.
    """

    entries: Sequence[tuple[int, bytes]]
    differs: bool
    left: int
    others: int
    overdue: bytes


class RedisQueue:
    """A queue, as one of its takers sees it; each call waits for the server.

    :param taker: tells this taker from all others, now and later.
    :param timeout: seconds after which its entries go back if it is not heard of.
    """

    def __init__(self, client: redis.Redis, key: str, taker: bytes, timeout: float) -> None:
        self._client, self._key, self._taker = client, key, taker
        self._timeout = int(timeout * 1000)
        self.dead_key = f"{key}:dead"
        self.close = client.close
        self._script = client.register_script(read_script(__package__, "queue.lua"))

    def ask(self, question: Question) -> Answer:
        """Have a question answered, once.

        :raises ConfigError: the key is of another type, or the server refuses what it is asked.
        :raises SharedError: there was no answer; what was asked may have been done.
        """
        takers = self._taker, question.overdue
        taken = [f"{self._key}:taken:{taker.hex()}" for taker in takers]
        keys = [self._key, f"{self._key}:takers", self.dead_key, *taken]
        blob = msgpack.packb([self._taker, self._timeout, *question], use_bin_type=False)
        with explain_errors(self._client):
            reply = self._script(keys, [blob])
        fields: list[Any] = msgpack.unpackb(reply, raw=True, strict_map_key=False)
        if fields[0] != b"OK":
            raise ConfigError(
                f"The key {self._key!r} of the Redis server at {address_of(self._client)} is a"
                f" {fields[0].decode()}: start URLs can be in a list, a set or a sorted set. Set"
                " redis_key, or REDIS_START_URLS_KEY, to another key."
            )
        _, differs, ids, entries, *others = fields
        # An empty table of Lua may come as a map.
        found = zip(ids or (), entries or (), strict=True)
        return Answer(sorted(found), differs, *others)
