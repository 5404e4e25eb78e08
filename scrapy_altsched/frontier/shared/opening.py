"""Opening a shared frontier: the server is examined, and the worker joins the crawl."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from shlex import quote
from typing import Any

import redis

from ...errors import AltschedError, ConfigError, SharedError, StoreError
from ...redis_client.connection import address_of, connect, explain, explain_errors
from ...redis_client.server import check_permissions, examine
from ..dead_letter import DeadLetter
from ..events import OnEvent, ignore_events
from ..options import Options, SharedOptions
from ..store.job_run import MemoryRun
from ..store.journal import Journal
from .batches import PROTOCOL, Status
from .exchange import Exchange
from .frontier import SharedFrontier
from .keys import Keys, seen_key_of, seen_key_of_sha1
from .operating import HASHED, other_version, read_dead, unlink
from .record import Record, open_record
from .stream import Stream

#: Seconds for which opening waits for the server.
_OPEN_WITHIN = 30.0
_TOKEN_BYTES = 16


@dataclass(frozen=True, slots=True)
class Worker:
    """Who joins a crawl.

    :ivar spider: the spider's name.
    :ivar fingerprints: what makes its fingerprints, as a note about them says.
    :ivar are_sha1: whether all of them are SHA-1 hashes, of which the beginning tells pages apart.
    :ivar jobdir: its job directory, absolute; ``None``: it keeps nothing on its own.
    :ivar check: called when the job directory is this process's, before it joins.
    :ivar wake: has something called on the crawl's thread, from another one.
    :ivar fail: called there with the first of failures in a row.
    :ivar warn: called with sentences about the server.
    """

    spider: str
    fingerprints: bytes
    are_sha1: bool
    jobdir: str | None
    check: Callable[[], None]
    wake: Callable[[Callable[[], object]], object]
    fail: Callable[[AltschedError], object]
    warn: Callable[[str], object]


def open_shared(
    options: Options, shared: SharedOptions, worker: Worker, on_event: OnEvent = ignore_events
) -> SharedFrontier:
    """Join a crawl, which is created if there is none; waits for the server.

    :raises ConfigError: a setting cannot be used, or the crawl is another one.
    :raises SharedError: the server cannot be reached, or is not ready.
    :raises JobdirError: the job directory cannot be used.
    :raises StoreError: what is in it cannot be read or written.
    """
    client = connect(shared.redis)
    with explain_errors(client):
        for warning in examine(client).warnings:
            worker.warn(warning)
    crawl = _Crawl(client, shared, options, worker)
    crawl.look()
    check_permissions(client, crawl.commands())
    record = crawl.open_record()
    try:
        return crawl.join(record, on_event)
    except BaseException:
        record.run.abandon()
        raise


class _Crawl:
    """A crawl on a server, which a worker is about to join."""

    def __init__(
        self, client: redis.Redis, shared: SharedOptions, options: Options, worker: Worker
    ) -> None:
        self._client = client
        self._shared = shared
        self._options = options
        self._worker = worker
        self._keys = Keys(shared.key)
        self._name = f"{shared.key!r} on the Redis server at {address_of(client)}"
        self._about = {
            "spider": worker.spider,
            "order": str(options.order),
            "fingerprints": worker.fingerprints.decode() + ("" if worker.are_sha1 else HASHED),
        }
        self._cuts_fingerprints = worker.are_sha1
        #: Its id; empty: there is none yet.
        self._id = b""
        self._is_finished = False

    def look(self) -> None:
        """See whether it is a crawl that this worker can join; nothing on the server is changed.

        :raises ConfigError: it is not.
        """
        with explain_errors(self._client):
            for key, kind in zip(self._keys.fixed, self._keys.kinds, strict=True):
                found = self._client.type(key)
                if found not in (kind, b"none"):
                    raise ConfigError(
                        f"The key {key.decode()!r} of the Redis server at"
                        f" {address_of(self._client)} is another program's: set ALTSCHED_SHARED_KEY"
                        " to another name, or REDIS_DB to another database."
                    )
            fields = ("crawl", "state", "protocol", "about")
            values: Any = self._client.hmget(self._keys.meta, fields)
        found_id, state, protocol, about = values
        if found_id is None:
            return
        if protocol != PROTOCOL:
            raise other_version(self._name)
        self._id, self._is_finished = found_id, state == b"finished"
        if not (self._is_finished and self._shared.restart):
            self._compare(json.loads(about))

    def commands(self) -> Sequence[Sequence[str | bytes | int]]:
        """Commands such as this worker sends, and with them all kinds of keys that it touches."""
        keys = [*self._keys.fixed, self._keys.leases(b""), self._keys.bucket(b"", bytes(10))]
        types: list[list[str | bytes | int]] = [["TYPE", key] for key in keys]
        return [
            *types,
            ["SCRIPT", "LOAD", "return 1"],
            ["EVALSHA", "0" * 40, len(keys), *keys, b""],
            ["EVAL", "return 1", len(keys), *keys, b""],
            # Those of the script: the server checks each of them.
            ["TIME"],
            ["HSET", keys[0], "field", "value"],
            ["HMGET", keys[0], "field"],
            ["HDEL", keys[0], "field"],
            ["HSCAN", keys[0], 0],
            ["HSETNX", keys[-1], "field", "value"],
            ["ZADD", keys[1], 0, "member"],
            ["ZRANGEBYLEX", keys[1], "-", "+"],
            ["ZREM", keys[1], "member"],
            ["UNLINK", *keys],
            ["DEL", keys[-2]],
        ]

    def _compare(self, theirs: dict[str, str]) -> None:
        ours, name = self._about, self._name
        if theirs["spider"] != ours["spider"]:
            raise ConfigError(
                f"The shared crawl {name} is of spider {theirs['spider']!r}, not of"
                f" {ours['spider']!r}. Set ALTSCHED_SHARED_KEY to another name for this one."
            )
        if theirs["order"] != ours["order"]:
            raise ConfigError(
                f"The shared crawl {name} was begun with the order {theirs['order']}, and this"
                f" worker has {ours['order']}. Give all workers the same SCHEDULER_PRIORITY_QUEUE,"
                " SCHEDULER_DISK_QUEUE and SCHEDULER_START_DISK_QUEUE; their defaults are not the"
                " same in all versions of Scrapy."
            )
        if theirs["fingerprints"] + HASHED == ours["fingerprints"]:
            self._cuts_fingerprints = True
            self._worker.warn(
                f"The shared crawl {name} was begun by a version of scrapy_altsched that keeps no"
                " more than the first 10 of a fingerprint's 20 bytes, and goes on so. If those of"
                " this project's own fingerprinter or filter can begin alike, pages are missing:"
                f" stop the workers, run: scrapy altsched drop {quote(self._shared.key)}, and crawl"
                " again."
            )
        elif theirs["fingerprints"] != ours["fingerprints"]:
            raise ConfigError(
                f"The shared crawl {name} was begun with other fingerprints"
                f" ({theirs['fingerprints']}) than this worker's ({ours['fingerprints']}): it would"
                " crawl pages again. Use the same rules and fingerprinter for all workers."
            )

    def open_record(self) -> Record:
        """Open what the worker keeps on its own.

        :raises AltschedError: it cannot be used, or tells of a crawl that the server has lost.
        """
        worker = self._worker
        if worker.jobdir is None:
            return Record(MemoryRun())
        journal = Journal(worker.jobdir, worker.spider)
        try:
            worker.check()
            record = open_record(journal, self._shared.key, address_of(self._client))
            if record.crawl and not self._id and record.job.resumed:
                raise SharedError(
                    f"The shared crawl {self._name}, in which JOBDIR {worker.jobdir} took part, is"
                    " not there any more. Restore the server's data; or delete the JOBDIR to begin"
                    " a new crawl."
                )
            if record.crawl != self._id:
                record.leave_crawl()
        except BaseException:
            with suppress(StoreError):
                journal.close()
            raise
        return record

    def join(self, record: Record, on_event: OnEvent) -> SharedFrontier:
        """Join with the first batch, and wait for its answer.

        :raises SharedError: there was none in time.
        """
        shared, worker = self._shared, self._worker
        restarts = self._is_finished and shared.restart
        stream = Stream(
            self._keys,
            lambda: os.urandom(_TOKEN_BYTES),
            json.dumps(self._about).encode(),
            int(shared.lease_timeout * 1000),
            crawl=b"" if restarts else self._id,
            earlier=() if restarts else record.tokens,
            suspected=record.evidence.in_flight,
            restarts=restarts,
        )
        failures: list[AltschedError] = []

        def note_failure(error: redis.RedisError) -> None:
            failure = explain(error, self._client, later=True)
            failures[:] = [failure]
            worker.wake(lambda: worker.fail(failure))

        link = Exchange(
            self._client, lambda: worker.wake(lambda: frontier.take_replies()), note_failure
        )
        frontier = SharedFrontier(
            self._options,
            stream,
            link,
            record,
            prefetch=shared.prefetch,
            lease_timeout=shared.lease_timeout,
            waits=shared.idle == "wait",
            on_event=on_event,
            seen_key_of=seen_key_of_sha1 if self._cuts_fingerprints else seen_key_of,
            read_dead=self._read_dead,
        )
        try:
            reply = frontier.join(_OPEN_WITHIN)
            if reply is None:
                why = f" {failures[0]}" if failures else ""
                raise SharedError(
                    f"This worker could not join the shared crawl {self._name} within"
                    f" {_OPEN_WITHIN:g} s. Start it again when the server answers.{why}"
                )
            if reply.status is Status.FULL:
                raise SharedError(
                    f"The shared crawl {self._name} cannot begin, as the server's memory is full:"
                    " raise its maxmemory (redis-cli CONFIG SET maxmemory ...), or delete what is"
                    " not needed, such as another shared crawl: scrapy altsched drop KEY"
                )
            if reply.status in (Status.LOST, Status.PROTOCOL):
                raise SharedError(
                    f"The shared crawl {self._name} was replaced while this worker joined it. Start"
                    " it again."
                )
        except BaseException:
            frontier.abandon()
            raise
        if restarts and stream.crawl != self._id:
            with suppress(redis.RedisError):  # what was seen before takes memory, no more
                unlink(self._client, self._keys.buckets(self._id))
        return frontier

    def _read_dead(self) -> Iterator[tuple[bytes, DeadLetter, bytes]]:
        with explain_errors(self._client):
            yield from read_dead(self._client, self._keys)
