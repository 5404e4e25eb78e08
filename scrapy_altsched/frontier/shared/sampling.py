"""How a shared crawl stood over its whole life, as its workers have noted it on the server.

There is one list of samples of a crawl, whose workers add to it in turns: the one that asks first
after a second.  When the list is full, the one that finds that out thins it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import msgpack
import redis

from ...redis_client import read_script
from ..entry import Counts
from ..history import GRAIN, MOST, Sample, WorkerCounts, thin
from .batches import pack
from .keys import Keys

#: What :file:`sample.lua` returns if the list is full.
_FULL = -1
#: Seconds until the next attempt when one was in vain.
_AGAIN = 10.0


class Sampler:
    """Has a worker's part in the history noted.  It calls the server, and waits for it.

    :param token: how the server knows the worker, now.
    :param duplicates: how many requests this worker has refused as seen.
    """

    def __init__(
        self,
        client: redis.Redis,
        keys: Keys,
        token: Callable[[], bytes],
        duplicates: Callable[[], int],
    ) -> None:
        self._client, self._keys = client, keys
        self._token, self._duplicates = token, duplicates
        self._sample = client.register_script(read_script(__package__, "sample.lua"))
        self._thin = client.register_script(read_script(__package__, "thin.lua"))
        self._due, self._refused = 0.0, 0

    def look(self) -> None:
        """Look at what is to be noted, on the crawl's thread."""
        self._refused = self._duplicates()

    @property
    def is_due(self) -> bool:
        return time.monotonic() >= self._due

    def note(self, crawl: bytes) -> None:
        """Note how the crawl with this id stands, unless a worker has done that just now.

        Whether the worker still takes part the server knows.  A server that is full, or does not
        answer, takes no sample, which is no failure: the batches tell of that.
        """
        wait = _AGAIN
        try:
            left = self._call(crawl)
            if left == _FULL:
                self._make_room(crawl)
                left = self._call(crawl)
            if left >= 0:
                wait = max(GRAIN, left / 1000)
        except redis.RedisError:
            pass
        self._due = time.monotonic() + wait

    def _call(self, crawl: bytes) -> int:
        keys = self._keys
        queues = [keys.meta, keys.pending, keys.deadlines, keys.heard, keys.delayed, keys.failed]
        values: list[bytes | str | int] = [crawl, self._token(), self._refused, MOST, GRAIN * 1000]
        return int(self._sample([*queues, keys.history, keys.samples], values))

    def _make_room(self, crawl: bytes) -> None:
        """Leave out every second sample, unless another worker has done that meanwhile."""
        keys = self._keys
        # In this order: what is read after the grain has changed is not written.
        grain = self._client.hget(keys.history, "grain") or b""
        blocks: Any = self._client.lrange(keys.samples, 0, -1)
        known = list(_parse_all(blocks))
        kept = [block for _, block in thin(known, lambda it: it[0].run)] if known else []
        self._thin([keys.history, keys.samples], [crawl, grain, pack(kept)])


def read_samples(client: redis.Redis, keys: Keys, crawl: bytes) -> list[Sample]:
    """All samples of the crawl with this id, the oldest first; RedisError: it cannot be told."""
    with client.pipeline(transaction=False) as together:
        together.hget(keys.history, "crawl")
        together.lrange(keys.samples, 0, -1)
        whose, blocks = together.execute()
    return [sample for sample, _ in _parse_all(blocks)] if whose == crawl else []


def _parse_all(blocks: Iterable[bytes]) -> Iterator[tuple[Sample, bytes]]:
    """Each sample, and as what it is stored; without what is damaged, or of another version."""
    for block in blocks:
        # On a worker's thread an error would end its part in the crawl.
        with suppress(ValueError, TypeError, msgpack.UnpackException):
            yield _parse(block), block


def _parse(block: bytes) -> Sample:
    """A sample, as :file:`sample.lua` has packed it."""
    at, run, next_sequence, *counted, seen, duplicates, begun, ended, died = msgpack.unpackb(block)
    counts = replace(Counts(*counted), seen=None if seen < 0 else seen)
    workers = WorkerCounts(begun, ended, died)
    return Sample(at / 1000, run, "running", counts, duplicates, workers, next_sequence)
