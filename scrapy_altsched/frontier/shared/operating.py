"""What an operator does with a crawl on a server.

Nothing here joins the crawl, and workers may run meanwhile.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from shlex import quote
from typing import Any

import msgpack
import redis

from ...errors import ConfigError, SharedError
from ...redis_client.connection import address_of, explain_errors
from ...redis_client.scripts import Script, read_script
from ..dead_letter import DeadLetter
from ..entry import Counts
from .batches import PROTOCOL, Status, pack, parse_reply
from .keys import Keys
from .stream import Stream

#: Keys that are deleted at a time: the server frees their memory in the background.
_PORTION = 1_000
#: Dead letters that are read, and that are made pending again, at a time.
_DEAD_AT_ONCE = 500
#: Buckets of seen URLs that are looked at.
_LOOKED_AT = 32
#: At the end of a note about fingerprints: of each, a digest is kept, and not its beginning.
HASHED = " (hashed)"

# A full server takes no command inside of MULTI, but scripts that only read and delete; a replica
# those that only read.
_LOOK = """return {
    redis.call('HMGET', KEYS[1], 'state', 'accepted', 'leased', 'done', 'dead'),
    redis.call('ZCARD', KEYS[2]), redis.call('ZCARD', KEYS[3]) }"""
_DROP = """local workers = redis.call('HKEYS', KEYS[1])
redis.call('UNLINK', unpack(KEYS, 2))
return workers"""


@dataclass(frozen=True, slots=True)
class CrawlState:
    """What is known of a crawl at one moment.

    :ivar workers: how many are heard of.
    :ivar large_buckets: of the buckets of seen URLs that were looked at, how many take four times
        the memory.
    """

    spider: str
    finished: bool
    counts: Counts
    workers: int
    large_buckets: int


class SharedCrawl:
    """A crawl on a server, as its operator sees it.

    :param key: the crawl's name.
    :ivar keys: where it is.
    :ivar name: what messages call it.

    Every method raises :exc:`ConfigError` if a setting has to be changed, here or on the server,
    and :exc:`SharedError` if there is no such crawl, or the server cannot be reached.
    """

    def __init__(self, client: redis.Redis, key: str) -> None:
        self._client = client
        self._key = key
        self.keys = Keys(key)
        self.name = f"{key!r} on the Redis server at {address_of(client)}"

    def look(self) -> CrawlState:
        """Look at it, without changing anything."""
        keys = self.keys
        with explain_errors(self._client):
            crawl, about = self._look_up("about")
            found: Any = self._client.eval(_LOOK, 3, keys.meta, keys.pending, keys.deadlines)
            (state, *numbers), pending, workers = found
            accepted, leased, done, dead = map(int, numbers)
            with self._client.pipeline(transaction=False) as together:
                for bucket in random.Random(crawl).sample(list(keys.buckets(crawl)), _LOOKED_AT):
                    together.object("ENCODING", bucket)
                encodings = together.execute(raise_on_error=False)
        return CrawlState(
            spider=json.loads(about)["spider"],
            finished=state == b"finished",
            counts=Counts(accepted, pending, leased, done, dead),
            workers=workers,
            large_buckets=encodings.count(b"hashtable"),
        )

    def restart(self, are_sha1: Callable[[str], bool]) -> None:
        """Have it start again from nothing, with the next worker that comes.

        :param are_sha1: whether fingerprints are SHA-1 hashes, by the note about them; of others an
            older version may have kept too little, which ends here.
        :raises SharedError: it is not finished.
        """
        with explain_errors(self._client):
            crawl, state, about = self._look_up("state", "about")
            reply = None
            if state == b"finished":
                known = json.loads(about)
                note: str = known["fingerprints"]
                if not note.endswith(HASHED) and not are_sha1(note):
                    known["fingerprints"] = note + HASHED
                about = json.dumps(known).encode()
                stream = Stream(self.keys, lambda: os.urandom(16), about, 1, restarts=True)
                batch = stream.build(want=0, feeding=False, observed=-1, leaving=True)
                script = Script(self._client, read_script(__package__, "shared.lua"))
                reply = parse_reply(script.run(batch.keys, batch.blob))
            if reply is None or reply.status is not Status.OK or reply.crawl == crawl:
                raise SharedError(
                    f"The shared crawl {self.name} is not finished, and goes on when a worker is"
                    " started. To begin it again from nothing, stop its workers and run: scrapy"
                    f" altsched drop {quote(self._key)}"
                )
            unlink(self._client, self.keys.buckets(crawl))

    def drop(self) -> int:
        """Delete it, with all that it knows; how many requests it had accepted.

        Workers of it close with ``frontier_lost``.
        """
        keys = self.keys
        with explain_errors(self._client):
            crawl, accepted = self._look_up("accepted", of_any_version=True)
            # All that the rest rests on goes at once: a new crawl may begin right after that.
            workers: Any = self._client.eval(_DROP, 1 + len(keys.fixed), keys.workers, *keys.fixed)
            unlink(self._client, map(keys.leases, workers))
            unlink(self._client, keys.buckets(crawl))
        return int(accepted or 0)

    def dead(self) -> Iterator[tuple[bytes, DeadLetter, bytes]]:
        """Key, cause and text, and stored value of every dead letter."""
        with explain_errors(self._client):
            self._look_up()
            yield from read_dead(self._client, self.keys)

    def requeue(self, chosen: Sequence[bytes]) -> int:
        """Make dead letters pending again, each at its old place; some hundreds at a time.

        A crawl that had finished is open again: a worker that is started goes on with it.

        :param chosen: their keys.
        :return: how many of them were dead letters still.
        :raises SharedError: as above; those of earlier portions are pending then.
        """
        count = 0
        with explain_errors(self._client):
            crawl, *_ = self._look_up()
            script = Script(self._client, read_script(__package__, "requeue.lua"))
            for at in range(0, len(chosen), _DEAD_AT_ONCE):
                portion = pack(list(chosen[at : at + _DEAD_AT_ONCE]))
                done: int = script.run(self.keys.of_requeue, crawl, portion)
                if done < 0:
                    raise SharedError(
                        f"The shared crawl {self.name} was replaced meanwhile: list its dead"
                        " letters again."
                    )
                count += done
        return count

    def _look_up(self, *fields: str, of_any_version: bool = False) -> list[Any]:
        """The id of the crawl, and other fields of what is known of it."""
        names = ("protocol", "crawl", *fields)
        protocol, *found = self._client.hmget(self.keys.meta, names)
        if found[0] is None:
            raise SharedError(
                f"There is no shared crawl {self.name}. Its name is the spider's, or what"
                " ALTSCHED_SHARED_KEY says."
            )
        if protocol != PROTOCOL and not of_any_version:
            raise other_version(self.name)
        return found


def other_version(name: str) -> ConfigError:
    """What is said of a crawl whose data is of another version."""
    return ConfigError(
        f"The shared crawl {name} was written by another version of scrapy_altsched. Go on with"
        " that version, or set ALTSCHED_SHARED_KEY to another name."
    )


def read_dead(client: redis.Redis, keys: Keys) -> Iterator[tuple[bytes, DeadLetter, bytes]]:
    """Key, cause and text, and stored value of every dead letter.

    :raises redis.RedisError: they cannot be read.
    """
    rows: Iterator[Any] = client.hscan_iter(keys.dead, count=_DEAD_AT_ONCE)
    told = set()  # while the hash grows, some come twice
    for key, row in rows:
        if key not in told:
            told.add(key)
            reason, value = msgpack.unpackb(row, raw=True)
            yield key, DeadLetter.parse(reason.decode("utf-8", "replace")), value


def unlink(client: redis.Redis, keys: Iterable[bytes]) -> None:
    """Delete keys, some at a time.

    :raises redis.RedisError: it failed, or some of them are left.
    """
    rest = iter(keys)
    while portion := list(islice(rest, _PORTION)):
        client.unlink(*portion)
