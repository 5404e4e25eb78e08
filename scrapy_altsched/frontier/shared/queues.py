"""How many requests of each download slot are pending on a server, and which is the oldest.

Only the ends of queues are looked at, by commands that only read, and take no longer the more is
in between.  What changes meanwhile may be told as it was or as it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import redis

from ..content import place_of
from ..queue.order import size_of_int
from .keys import LAST_SEQUENCE, Keys

#: Most queues that are looked at, each of one priority in one slot; and how many at once, in about
#: a millisecond, in which the server serves no other.
MOST_QUEUES, _AT_ONCE = 10_000, 100
#: Past the beginning of any order key, and past any sequence number.
PAST_ALL, _PAST_LAST = b"\xff" * 12, b"\xff"


def split_member(member: bytes) -> tuple[bytes, bytes]:
    """Key and stored form of a pending request; IndexError: it is cut short."""
    size = 8 + size_of_int(member[8:]) + 9
    return member[:size], member[size:]


class SlotQueue(NamedTuple):
    """What is pending in a download slot.

    :ivar first: key and stored form of the request that is next.
    :ivar oldest: the sequence number of the one that was accepted first.
    """

    pending: int
    first: tuple[bytes, bytes]
    oldest: int


def read_queues(client: redis.Redis, keys: Keys) -> list[SlotQueue] | None:
    """What is pending in each slot; ``None``: there are too many queues.

    :raises redis.RedisError: the server cannot be reached.
    """
    slots: list[bytes] = []
    for key in (keys.ready, keys.resting):
        found: Any = client.zrange(key, 0, MOST_QUEUES)
        slots += found
    queues: list[SlotQueue] = []
    looked_at = 0
    for at in range(0, len(slots), _AT_ONCE):
        portion = slots[at : at + _AT_ONCE]
        ranges = [(b"[" + slot, b"[" + slot + PAST_ALL) for slot in portion]
        counts = _ask(client, "zlexcount", keys.pending, ranges)
        oldest: dict[bytes, int] = {}
        first: dict[bytes, tuple[bytes, bytes]] = {}
        while ranges:
            heads = _ask(client, "zrangebylex", keys.pending, ranges, start=0, num=1)
            split = [split_member(member) for member, *_ in filter(None, heads)]
            looked_at += len(split)
            if looked_at > MOST_QUEUES:
                return None
            # All of a priority begin alike: the first and the last accepted are at the two ends.
            levels = [key[:-8] for key, _ in split]
            ends = [(b"[" + level + _PAST_LAST, b"[" + level) for level in levels]
            tails = _ask(client, "zrevrangebylex", keys.pending, ends, start=0, num=1)
            for (key, row), tail in zip(split, tails, strict=True):
                slot = key[:8]
                first.setdefault(slot, (key, row))
                both = [key, *(split_member(member)[0] for member in tail)]
                sequences = (place_of(it[8:], LAST_SEQUENCE)[2] for it in both)
                oldest[slot] = min(oldest.get(slot, LAST_SEQUENCE), *sequences)
            ranges = [(b"(" + level + _PAST_LAST, b"[" + level[:8] + PAST_ALL) for level in levels]
        pending = dict(zip(portion, counts, strict=True))
        queues += [SlotQueue(pending[slot], first[slot], oldest[slot]) for slot in first]
    return queues


def _ask(
    client: redis.Redis,
    command: str,
    key: bytes,
    ranges: Iterable[tuple[bytes, bytes]],
    **options: int,
) -> list[Any]:
    """The answers of a command to each range of a sorted set."""
    with client.pipeline(transaction=False) as together:
        for low, high in ranges:
            getattr(together, command)(key, low, high, **options)
        answers: list[Any] = together.execute()
    return answers
