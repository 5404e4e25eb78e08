"""Who works on a crawl on a server, and how hard its slots are asked; nothing there is changed."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import msgpack
import redis

from .keys import Keys

#: Workers that are told of; buckets of seen URLs whose memory is looked at.
_MOST_WORKERS, _LOOKED_AT = 1_000, 32
_BUCKETS = 256**2


@dataclass(frozen=True, slots=True)
class WorkerState:
    """A worker: *token* is how the server knows it.

    :ivar leases: requests that it has leased.
    :ivar heard: seconds since its last batch came; *expires*: until its leases go to others, if
        nothing more comes; below 0, they may go at any time.
    """

    token: bytes
    leases: int
    heard: float | None
    expires: float


@dataclass(frozen=True, slots=True)
class Observed:
    """What is known of those who work on a crawl.

    :ivar created: when the crawl was begun, in seconds since the epoch.
    :ivar paused: since when nothing is leased, likewise; ``None``: requests are.
    :ivar limits: delay in seconds, jitter as a fraction, and cap (0: any number) of download slots;
        ``None``: the crawl has no pace.
    :ivar own_limits: slots that have limits of their own; *resting*: those that may not be asked
        now; *next_rest*: seconds until the first of them may be, if that is known.
    :ivar memory: bytes that the crawl's keys take, about; ``None``: the server does not say.
    """

    created: float
    paused: float | None
    workers: list[WorkerState]
    limits: tuple[float, float, int] | None
    own_limits: int
    resting: int
    next_rest: float | None
    memory: int | None


def observe(client: redis.Redis, keys: Keys, crawl: bytes) -> Observed:
    """Look at the crawl with this id; a RedisError: the server cannot be reached.

    Commands that only read, one after the other: what changes in between may not agree.
    """
    with client.pipeline(transaction=False) as together:
        together.time()
        together.hgetall(keys.meta)
        together.zrange(keys.deadlines, 0, _MOST_WORKERS - 1, withscores=True)
        together.hlen(keys.slots)
        together.zcard(keys.resting)
        together.zrange(keys.resting, 0, 0, withscores=True)
        (seconds, micros), meta, deadlines, own_limits, resting, first = together.execute()
    now = seconds * 1000 + micros / 1000
    tokens = [token for token, _ in deadlines]
    heard: Any = client.zmscore(keys.heard, tokens) if tokens else []
    workers = [
        WorkerState(
            token=token,
            leases=int(meta.get(b"held:" + token, 0)),
            heard=None if last is None else max(0.0, now - last) / 1000,
            expires=(until - now) / 1000,
        )
        for (token, until), last in zip(deadlines, heard, strict=True)
    ]
    limits = None
    if b"limits" in meta:
        delay, jitter, cap, *_ = msgpack.unpackb(meta[b"limits"], raw=True)
        limits = delay / 1000, jitter / 1000, int(cap)
    rest = first[0][1] if first else float("inf")
    return Observed(
        created=int(meta.get(b"created", 0)) / 1000,
        paused=int(meta[b"paused"]) / 1000 if b"paused" in meta else None,
        workers=sorted(workers, key=lambda worker: -worker.leases),
        limits=limits,
        own_limits=own_limits,
        resting=resting,
        next_rest=None if rest == float("inf") else max(0.0, rest - now) / 1000,
        memory=_memory_of(client, keys, crawl),
    )


def _memory_of(client: redis.Redis, keys: Keys, crawl: bytes) -> int | None:
    """Bytes on the server: of what was seen, by some of its buckets."""
    buckets = random.Random(crawl).sample(list(keys.buckets(crawl)), _LOOKED_AT)
    with client.pipeline(transaction=False) as together:
        for key in (*keys.named, *buckets):
            together.memory_usage(key, samples=5)
        sizes = together.execute(raise_on_error=False)
    if any(isinstance(size, Exception) for size in sizes):
        return None
    named = sum(size or 0 for size in sizes[: len(keys.named)])
    seen = sum(size or 0 for size in sizes[len(keys.named) :])
    return int(named + seen * _BUCKETS / _LOOKED_AT)
