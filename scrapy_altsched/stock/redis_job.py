"""A crawl of scrapy-redis, read from its keys on a server; nothing there is changed.

Its queue is a sorted set, or a list; its record of what was seen is a set of hex digits.  What its
workers had in flight is in neither, so that of a worker that was killed nothing tells.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import redis

from ..errors import CodecError, InputError
from ..frontier import Runs
from ..redis_client.connection import address_of, explain_errors
from ..requests.codec import adopt_record, decode_request
from .files import parse_hex
from .fingerprints import KNOWN
from .foreign import ForeignJob

if TYPE_CHECKING:
    from scrapy import Request

#: Defaults of SCHEDULER_QUEUE_KEY and SCHEDULER_DUPEFILTER_KEY.
QUEUE_KEY = "%(spider)s:requests"
SEEN_KEY = "%(spider)s:dupefilter"
#: Records, or fingerprints, that are read at a time.
_PORTION = 500
#: Requests of which the fingerprints are compared.
_SAMPLE = 200


@dataclass(kw_only=True, eq=False)
class RedisJob(ForeignJob):
    """What a crawl of scrapy-redis has left.

    :ivar wants_seen: whether what was seen is wanted.
    :ivar sampled: how many queued requests were compared with the dupefilter.
    :ivar known: how many of them have a fingerprint that is in it.
    :ivar maker: if these are too few, what makes its fingerprints, if that is known.
    :raises InputError: there is no such crawl, or a key is another program's.
    :raises SharedError: the server cannot be reached.
    """

    client: redis.Redis
    queue_key: str
    seen_key: str
    wants_seen: bool
    sampled: int = 0
    known: int = 0
    maker: str | None = None

    scheduler = "scrapy-redis"
    ended = False

    def __post_init__(self) -> None:
        with explain_errors(self.client):
            self._check_keys()
            self.pending, self.seen = self._count()
        if self.wants_seen and self.seen:
            # All queued requests were seen unless they are unfiltered.
            sample = list(islice(self._filtered(), _SAMPLE))
            self.sampled = len(sample)
            self.known = self._count_known(self.fingerprint, sample)
            if not self.takes_seen:
                makers = (
                    name
                    for name, make in KNOWN.items()
                    if 2 * self._count_known(make, sample) > len(sample)
                )
                self.maker = next(makers, None)

    @property
    def takes_seen(self) -> bool:
        """Whether what was seen is imported: its fingerprints are those that will be made."""
        return 2 * self.known > self.sampled

    is_trusted = takes_seen

    # For the frontier

    def parts(self) -> dict[str, str]:
        with explain_errors(self.client):
            pending, seen = self._count()
        if (pending, seen) != (self.pending, self.seen):
            raise InputError(
                f"The keys {self.queue_key!r} and {self.seen_key!r} on the Redis server at"
                f" {address_of(self.client)} have changed while they were read, so nothing was"
                " imported: stop all workers of that crawl, and try again."
            )
        return {self.queue_key: str(pending), self.seen_key: str(seen)}

    def examine(self, parts: Collection[str], runs: Runs, *, has_job: bool) -> int:  # noqa: ARG002
        return self.pending

    def records(self) -> Iterator[bytes]:
        """All that is in the queue, the first one that was pushed first, if a list tells."""
        with explain_errors(self.client):
            for start in range(0, self.pending, _PORTION):
                end = min(start + _PORTION, self.pending)
                portion: Any
                if self._is_list:
                    # It is pushed at the head.
                    portion = self.client.lrange(self.queue_key, -end, -start - 1)[::-1]
                else:
                    portion = self.client.zrange(self.queue_key, start, end - 1)
                yield from portion

    def fingerprints(self) -> Iterator[bytes]:
        if self.takes_seen:
            with explain_errors(self.client):
                texts = self.client.sscan_iter(self.seen_key, count=_PORTION)
                yield from self.shorten(filter(None, map(parse_hex, texts)), self.scheduler)

    # Parts

    def _check_keys(self) -> None:
        queue: Any
        seen: Any
        queue, seen = (self.client.type(key) for key in (self.queue_key, self.seen_key))
        place = f"the Redis server at {address_of(self.client)}"
        if queue == seen == b"none":
            raise InputError(
                f"There is neither {self.queue_key!r} nor {self.seen_key!r} on {place}: nothing is"
                " left of such a crawl of scrapy-redis, which deletes its keys at the end unless"
                " SCHEDULER_PERSIST is set. If its keys have other names, set SCHEDULER_QUEUE_KEY"
                " and SCHEDULER_DUPEFILTER_KEY as they were."
            )
        for key, kind, kinds, what in (
            (self.queue_key, queue, (b"zset", b"list"), "a sorted set or a list"),
            (self.seen_key, seen, (b"set",), "a set"),
        ):
            if kind not in (*kinds, b"none"):
                raise InputError(
                    f"The key {key!r} on {place} is a {kind.decode()}, not {what} as scrapy-redis"
                    " writes: set SCHEDULER_QUEUE_KEY or SCHEDULER_DUPEFILTER_KEY to the right one."
                )
        self._is_list = queue == b"list"

    def _count(self) -> tuple[int, int]:
        count = self.client.llen if self._is_list else self.client.zcard
        pending: Any = count(self.queue_key)
        seen: Any = self.client.scard(self.seen_key)
        return pending, seen

    def _filtered(self) -> Iterator[Request]:
        for record in islice(self.records(), 10 * _SAMPLE):
            try:
                request = decode_request(adopt_record(record), None)
            except CodecError:
                continue
            if not request.dont_filter:
                yield request

    def _count_known(self, make: Callable[[Request], bytes], requests: Sequence[Request]) -> int:
        """How many of *requests* were seen, by the fingerprints that *make* returns."""
        if not requests:
            return 0
        names = [make(request).hex() for request in requests]
        with explain_errors(self.client):
            found: Any = self.client.smismember(self.seen_key, names)
        return sum(map(bool, found))
