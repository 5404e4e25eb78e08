"""A crawl on a server from outside: what an operator does with it, while workers may run."""

from __future__ import annotations

import json
import os
import random
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from shlex import quote
from typing import Any

import msgpack
import redis

from ...errors import ConfigError, SharedError
from ...redis_client import read_script
from ...redis_client.connection import address_of, explain_errors
from ..entry import Counts, DeadLetter, PageFailure
from ..store.states import FAILED, decode_failed_key, encode_failed_key, mark_again
from .batches import FILLING, READABLE, Status, pack
from .exchange import script_of
from .keys import Keys
from .observing import Observed, observe
from .stream import Stream

#: Keys that are deleted at a time, in the background; dead letters that are read, and requeued.
_DELETED_AT_ONCE, _READ_AT_ONCE, _REQUEUED_AT_ONCE = 1_000, 500, 500
#: Buckets of seen URLs that are looked at.
_LOOKED_AT = 32
#: How long a failed request's key is.
_SIZE = struct.Struct(">I")
#: At the end of a note about fingerprints: of each, a digest is kept, and not its beginning.
HASHED = " (hashed)"

# A full server takes no command inside of MULTI, but scripts that only read and delete; a replica
# those that only read.
_LOOK = """return {
    redis.call('HMGET', KEYS[1], 'state', 'seen', 'accepted', 'leased', 'done', 'dead'),
    redis.call('ZCARD', KEYS[2]), redis.call('ZCARD', KEYS[3]), redis.call('ZCARD', KEYS[4]),
    redis.call('ZCARD', KEYS[5]) }"""
_DROP = """local workers = redis.call('HKEYS', KEYS[1])
redis.call('UNLINK', unpack(KEYS, 2))
return workers"""


@dataclass(frozen=True, slots=True)
class CrawlState:
    """What is known of a crawl at one moment.

    :ivar large_buckets: how many of the buckets that were looked at take four times the memory.
    """

    spider: str
    finished: bool
    counts: Counts
    workers: int
    large_buckets: int


class SharedCrawl:
    """A crawl on a server; *name*: what messages call it.

    :param words: by which commands find it: the key, and maybe options that name the server.

    Every method raises :exc:`ConfigError` if a setting has to be changed, here or on the server,
    and :exc:`SharedError` if the server cannot be reached, or all but :meth:`find` and
    :meth:`read_dead` if there is no such crawl.
    """

    def __init__(self, client: redis.Redis, key: str, words: str | None = None) -> None:
        self._client, self.keys, self.words = client, Keys(key), words or quote(key)
        self.name = f"{key!r} on the Redis server at {address_of(client)}"

    def find(self, *fields: str, of_any_version: bool = False) -> list[Any] | None:
        """The id of the crawl, and other fields of what is known of it; ``None``: there is none."""
        with explain_errors(self._client):
            names = ("protocol", "crawl", *fields)
            protocol, *found = self._client.hmget(self.keys.meta, names)
        if found[0] is None:
            return None
        if protocol == FILLING and not of_any_version:
            raise SharedError(
                f"The shared crawl {self.name} is being imported, or an import of it was cut short."
                " Wait until it is complete; or delete what is there of it, and import it again:"
                f" scrapy altsched drop {self.words}"
            )
        if protocol not in READABLE and not of_any_version:
            raise ConfigError(
                f"The shared crawl {self.name} was written by another version of scrapy_altsched."
                " Go on with that version, or set ALTSCHED_SHARED_KEY to another name."
            )
        return found

    def _look_up(self, *fields: str, of_any_version: bool = False) -> list[Any]:
        found = self.find(*fields, of_any_version=of_any_version)
        if found is None:
            raise SharedError(
                f"There is no shared crawl {self.name}. Its name is the spider's, or what"
                " ALTSCHED_SHARED_KEY says."
            )
        return found

    def look(self) -> CrawlState:
        """How it stands; nothing is changed."""
        keys = self.keys
        crawl, about = self._look_up("about")
        with explain_errors(self._client):
            places = keys.meta, keys.pending, keys.deadlines, keys.delayed, keys.failed
            found: Any = self._client.eval(_LOOK, len(places), *places)
            (state, seen, *numbers), pending, workers, delayed, failed = found
            accepted, leased, done, dead = map(int, numbers)
            with self._client.pipeline(transaction=False) as together:
                for bucket in random.Random(crawl).sample(list(keys.buckets(crawl)), _LOOKED_AT):
                    together.object("ENCODING", bucket)
                encodings = together.execute(raise_on_error=False)
        return CrawlState(
            spider=json.loads(about)["spider"],
            finished=state == b"finished",
            counts=Counts(
                accepted,
                pending,
                leased,
                done,
                dead,
                delayed,
                failed,
                seen=None if seen is None else int(seen),
            ),
            workers=workers,
            large_buckets=encodings.count(b"hashtable"),
        )

    def observe(self) -> Observed:
        """Who works on it, and how hard slots are asked; nothing is changed."""
        crawl, *_ = self._look_up()
        with explain_errors(self._client):
            return observe(self._client, self.keys, crawl)

    def restart(self, are_sha1: Callable[[str], bool], *, keeps_seen: bool = False) -> None:
        """Have it start again, from nothing, with the next worker that comes; none may be there.

        :param are_sha1: whether fingerprints are SHA-1 hashes, by the note about them; of others an
            older version may have kept too little, which ends here.
        :param keeps_seen: whether pages that were seen stay seen, but for start requests that are
            not filtered.
        """
        crawl, about = self._look_up("about")
        known, beginning = json.loads(about), b""
        if keeps_seen:
            known["restarts"] = known.get("restarts", 0) + 1
            beginning = self.keys.mark_of(crawl)
        elif not (note := known["fingerprints"]).endswith(HASHED) and not are_sha1(note):
            known["fingerprints"] = note + HASHED
        text, size = json.dumps(known).encode(), 16 - len(beginning)
        stream = Stream(
            self.keys, lambda: beginning + os.urandom(size), text, 1, restarts=b"stopped"
        )
        with explain_errors(self._client):
            tokens: Any = self._client.hkeys(self.keys.workers)
            reply = script_of(self._client)(stream.build(leaving=True))
            if reply.status is not Status.OK:
                raise SharedError(
                    f"The shared crawl {self.name} has workers, and is restarted without them. Stop"
                    f" them: scrapy altsched stop --shared {self.words}; `scrapy altsched status"
                    f" --shared {self.words}` says when they are gone. One that was killed counts"
                    " until its leases expire."
                )
            history = self.keys.history, self.keys.samples
            self._unlink([*map(self.keys.leases, tokens), *history])
            if not keeps_seen:
                self.unlink_seen(crawl)

    def drop(self) -> int:
        """Delete it, with all that it knows; how many requests it had accepted."""
        keys = self.keys
        crawl, accepted = self._look_up("accepted", of_any_version=True)
        with explain_errors(self._client):
            # All that the rest rests on goes at once: a new crawl may begin right after that.
            workers: Any = self._client.eval(_DROP, 1 + len(keys.named), keys.workers, *keys.named)
            self._unlink(map(keys.leases, workers))
            self.unlink_seen(crawl)
        return int(accepted or 0)

    def unlink_seen(self, crawl: bytes) -> None:
        """Delete what was seen in the crawl with this id; a RedisError: some of it is left."""
        self._unlink(self.keys.buckets(crawl))

    def _unlink(self, keys: Iterable[bytes]) -> None:
        rest = iter(keys)
        while portion := list(islice(rest, _DELETED_AT_ONCE)):
            self._client.unlink(*portion)

    def dead(self) -> Iterator[tuple[bytes, DeadLetter, bytes]]:
        """Key, cause and text, and stored value of every dead letter."""
        self._look_up()
        yield from self.read_dead()

    def read_dead(self) -> Iterator[tuple[bytes, DeadLetter, bytes]]:
        """As :meth:`dead`, of a crawl that is known to be there."""
        scan = self._client.hscan_iter
        for key, row in self.scan(scan, self.keys.dead):
            reason, value = msgpack.unpackb(row, raw=True)
            yield key, DeadLetter.parse(reason.decode("utf-8", "replace")), value

    def in_order(self, key: bytes) -> Iterator[tuple[bytes, float]]:
        """Members of a sorted set and their scores, in their order, and each once.

        Those that are added or removed meanwhile may be among them or not.
        """
        score, told = "-inf", set[bytes]()  # of those with that score
        with explain_errors(self._client):
            while True:
                limit = len(told) + _READ_AT_ONCE
                found: Any = self._client.zrangebyscore(
                    key, score, "+inf", start=0, num=limit, withscores=True
                )
                new = [(member, at) for member, at in found if member not in told]
                if not new:
                    return
                yield from new
                last = new[-1][1]
                score, told = repr(last), {member for member, at in found if at == last}

    def scan(self, scan: Callable[..., Any], key: bytes) -> Iterator[tuple[bytes, Any]]:
        """Members of a key and their values; *scan*: the client's method for its type."""
        told = set()  # while it grows, some come twice
        with explain_errors(self._client):
            for member, value in scan(key, count=_READ_AT_ONCE):
                if member not in told:
                    told.add(member)
                    yield member, value

    def requeue(self, chosen: Sequence[bytes]) -> int:
        """Make dead letters pending again, by their keys; how many of them were dead letters still.

        A crawl that had finished is open again.  After a SharedError, some may be pending.
        """
        return self._requeue(self.keys.dead, chosen)

    def failed(self) -> Iterator[tuple[bytes, PageFailure, bytes]]:
        """Key, as in a job's store, how it has failed, and stored value of each failed request;
        the oldest first.
        """
        self._look_up()
        for member, when in self.in_order(self.keys.failed):
            end = _SIZE.size + _SIZE.unpack_from(member)[0]
            key = encode_failed_key(int(when), member[_SIZE.size : end])
            yield key, *FAILED.split(member[end:])

    def requeue_failed(self, chosen: Iterable[tuple[bytes, PageFailure, bytes]]) -> int:
        """Make failed requests pending again, as :meth:`failed` tells them; how many still were.

        As for :meth:`requeue`.
        """
        pairs: list[tuple[bytes, bytes]] = []
        for failed_key, why, value in chosen:
            _, key = decode_failed_key(failed_key)
            member = _SIZE.pack(len(key)) + key + FAILED.join(why, value)
            pairs.append((member, key + mark_again(value)))
        return self._requeue(self.keys.failed, pairs)

    def _requeue(self, source: bytes, chosen: Sequence[Any]) -> int:
        count = 0
        crawl, *_ = self._look_up()
        with explain_errors(self._client):
            script = self._client.register_script(read_script(__package__, "requeue.lua"))
            queue = [*self.keys.fixed[:4], self.keys.resting]
            for at in range(0, len(chosen), _REQUEUED_AT_ONCE):
                portion = pack(chosen[at : at + _REQUEUED_AT_ONCE])
                if (done := script([*queue, source], [crawl, portion])) < 0:
                    raise SharedError(
                        f"The shared crawl {self.name} was replaced meanwhile: list its requests"
                        " again."
                    )
                count += done
        return count
