"""A crawl of scrapy-redis, read from its keys on a server; nothing there is changed.

Its queue is a sorted set, or a list; its record of what was seen is a set of hex digits.  What its
workers had in flight is in neither, so that of a worker that was killed nothing tells.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import redis

from ..errors import CodecError, InputError
from ..frontier import Entry, Runs
from ..frontier.dead_letter import DeadLetter
from ..maintenance.importing import Imported
from ..redis_client.connection import address_of, explain_errors
from ..requests.codec import adopt_record, decode_request
from .fingerprints import KNOWN
from .restoring import Restorer, shortened

if TYPE_CHECKING:
    from scrapy import Request

#: Defaults of SCHEDULER_QUEUE_KEY and SCHEDULER_DUPEFILTER_KEY.
QUEUE_KEY = "%(spider)s:requests"
SEEN_KEY = "%(spider)s:dupefilter"
#: Records, or fingerprints, that are read at a time.
_PORTION = 500
#: Requests of which the fingerprints are compared.
_SAMPLE = 200


class RedisJob:
    """What a crawl of scrapy-redis has left; a source for a frontier.

    :param takes_seen: whether what was seen is wanted.
    :ivar pending: how many requests are in the queue.
    :ivar seen: how many fingerprints are in the dupefilter.
    :ivar sampled: how many queued requests were compared with it.
    :ivar known: how many of them have a fingerprint that is in it.
    :ivar maker: if these are too few, what makes its fingerprints, if that is known.
    :raises InputError: there is no such crawl, or a key is another program's.
    :raises SharedError: the server cannot be reached.
    """

    ended = False

    def __init__(
        self,
        client: redis.Redis,
        queue_key: str,
        seen_key: str,
        *,
        restorer: Restorer,
        notes: Mapping[str, bytes],
        takes_seen: bool,
    ) -> None:
        self._client = client
        self._queue, self._seen = queue_key, seen_key
        self.restorer = restorer
        self.notes = notes
        self.imported: Imported | None = None
        with explain_errors(client):
            self._check_keys()
            self.pending, self.seen = self._count()
        self.sampled = self.known = 0
        self.maker: str | None = None
        if takes_seen and self.seen:
            # All queued requests were seen unless they are unfiltered.
            sample = list(islice(self._filtered(), _SAMPLE))
            self.sampled = len(sample)
            self.known = self._count_known(restorer.fingerprint, sample)
            makers = (
                name
                for name, make in KNOWN.items()
                if 2 * self._count_known(make, sample) > len(sample)
            )
            self.maker = None if self.takes_seen else next(makers, None)

    @property
    def takes_seen(self) -> bool:
        """Whether what was seen is imported: its fingerprints are those that will be made."""
        return 2 * self.known > self.sampled

    is_trusted = takes_seen

    # For the frontier

    def parts(self) -> dict[str, str]:
        """The two keys, and how much is in them."""
        with explain_errors(self._client):
            pending, seen = self._count()
        if (pending, seen) != (self.pending, self.seen):
            raise InputError(
                f"The keys {self._queue!r} and {self._seen!r} on the Redis server at"
                f" {address_of(self._client)} have changed while they were read, so nothing was"
                " imported: stop all workers of that crawl, and try again."
            )
        return {self._queue: str(pending), self._seen: str(seen)}

    def examine(self, parts: Collection[str], runs: Runs, *, has_job: bool) -> int:  # noqa: ARG002
        """How many requests it holds."""
        return self.pending

    def requests(self) -> Iterator[tuple[Entry, DeadLetter | None]]:
        title = "Importing requests of scrapy-redis"
        return self.restorer.restore(self._records(), title, self.pending)

    def fingerprints(self) -> Iterator[bytes]:
        if self.takes_seen:
            with explain_errors(self._client):
                texts = self._client.sscan_iter(self._seen, count=_PORTION)
                digests = filter(None, map(_parse, texts))
                title = "Importing fingerprints of scrapy-redis"
                yield from shortened(digests, title, self.seen)

    # Parts

    def _check_keys(self) -> None:
        queue: Any
        seen: Any
        queue, seen = (self._client.type(key) for key in (self._queue, self._seen))
        place = f"the Redis server at {address_of(self._client)}"
        if queue == seen == b"none":
            raise InputError(
                f"There is neither {self._queue!r} nor {self._seen!r} on {place}: nothing is left"
                " of such a crawl of scrapy-redis, which deletes its keys at the end unless"
                " SCHEDULER_PERSIST is set. If its keys have other names, set SCHEDULER_QUEUE_KEY"
                " and SCHEDULER_DUPEFILTER_KEY as they were."
            )
        for key, kind, kinds, what in (
            (self._queue, queue, (b"zset", b"list"), "a sorted set or a list"),
            (self._seen, seen, (b"set",), "a set"),
        ):
            if kind not in (*kinds, b"none"):
                raise InputError(
                    f"The key {key!r} on {place} is a {kind.decode()}, not {what} as scrapy-redis"
                    " writes: set SCHEDULER_QUEUE_KEY or SCHEDULER_DUPEFILTER_KEY to the right one."
                )
        self._is_list = queue == b"list"

    def _count(self) -> tuple[int, int]:
        client = self._client
        pending: Any = client.llen(self._queue) if self._is_list else client.zcard(self._queue)
        seen: Any = client.scard(self._seen)
        return pending, seen

    def _records(self) -> Iterator[bytes]:
        """All that is in the queue, the first one that was pushed first, if a list tells."""
        with explain_errors(self._client):
            for start in range(0, self.pending, _PORTION):
                end = min(start + _PORTION, self.pending)
                portion: Any
                if self._is_list:
                    # It is pushed at the head.
                    portion = self._client.lrange(self._queue, -end, -start - 1)[::-1]
                else:
                    portion = self._client.zrange(self._queue, start, end - 1)
                yield from portion

    def _filtered(self) -> Iterator[Request]:
        for record in islice(self._records(), 10 * _SAMPLE):
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
        with explain_errors(self._client):
            found: Any = self._client.smismember(self._seen, names)
        return sum(map(bool, found))


def _parse(text: bytes) -> bytes | None:
    try:
        return bytes.fromhex(text.decode("ascii"))
    except ValueError:
        return None
