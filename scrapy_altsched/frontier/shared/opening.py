"""Opening a shared frontier: the server is examined, and the worker joins the crawl."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial

import redis

from ...errors import AltschedError, ConfigError, SharedError, StoreError
from ...redis_client.connection import address_of, connect, explain_errors
from ...redis_client.server import check_permissions, examine
from ..events import OnEvent, ignore_events
from ..options import Options, SharedOptions
from ..store.job_run import MemoryRun
from ..store.journal import Journal
from ..store.seen import beginning_of, digest_of
from .batches import Status
from .conversation import Conversation
from .exchange import Exchange
from .frontier import SharedFrontier
from .keys import TYPES, Keys
from .membership import Membership
from .operating import HASHED, SharedCrawl
from .record import Record, open_record
from .sampling import Sampler
from .stream import Stream

#: Seconds for which opening waits for the server.
_OPEN_WITHIN = 30.0


@dataclass(frozen=True, slots=True)
class Worker:
    """What joins a crawl.

    :ivar fingerprints: the note about what makes its fingerprints.
    :ivar are_sha1: whether all of them are SHA-1 hashes, of which the beginning tells pages apart.
    :ivar check: called when the job directory is this process's, before it joins.
    :ivar wake: has something called on the crawl's thread, from another one.
    :ivar fail: called there with the first of failures in a row.
    :ivar warn: called with sentences about the server.
    :ivar duplicates: how many requests it has refused as seen; ``None``: it has no part in the
        crawl's history.
    """

    spider: str
    fingerprints: bytes
    are_sha1: bool
    jobdir: str | None
    check: Callable[[], None]
    wake: Callable[[Callable[[], object]], object]
    fail: Callable[[AltschedError], object]
    warn: Callable[[str], object]
    duplicates: Callable[[], int] | None = None


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
    for warning in examine(client):
        worker.warn(warning)
    opening = _Opening(client, shared, options, worker)
    opening.look()
    check_permissions(client, _commands(opening.crawl.keys))
    with ExitStack() as undo:
        record = opening.open_record(undo)
        opening.retry_failed(record)
        frontier = opening.join(record, on_event, undo)
        undo.pop_all()
    return frontier


def _commands(keys: Keys) -> Sequence[Sequence[str | bytes | int]]:
    """Commands such as a worker sends, and with them all kinds of keys that it touches."""
    names = [*keys.named, keys.leases(b""), keys.bucket(b"", bytes(10))]
    types: list[list[str | bytes | int]] = [["TYPE", name] for name in names]
    return [
        *types,
        ["SCRIPT", "LOAD", "return 1"],
        ["EVALSHA", "0" * 40, len(names), *names, b""],
        # Those of the script: the server checks each of them.
        ["TIME"],
        ["HSET", names[0], "field", "value"],
        ["HMGET", names[0], "field"],
        ["HDEL", names[0], "field"],
        ["HSCAN", names[0], 0],
        ["HSETNX", names[-1], "field", "value"],
        ["ZADD", names[1], 0, "member"],
        ["ZRANGEBYLEX", names[1], "-", "+"],
        ["ZREM", names[1], "member"],
        ["ZRANGEBYSCORE", names[1], "-inf", 0],
        ["ZREMRANGEBYRANK", names[1], 0, 0],
        ["UNLINK", *names],
        ["DEL", names[-2]],
    ]


@dataclass
class _Opening:
    """A worker that is about to join a crawl; *known_id*: its id; empty: there is none yet."""

    client: redis.Redis
    shared: SharedOptions
    options: Options
    worker: Worker
    known_id: bytes = b""
    is_finished: bool = False
    restarts: bool = False

    def __post_init__(self) -> None:
        self.crawl = SharedCrawl(self.client, self.shared.key, self.shared.words)
        worker = self.worker
        if worker.are_sha1:
            self.crawl.keys.seen_key_of = beginning_of
        self.about = {
            "spider": worker.spider,
            "order": str(self.options.order),
            "fingerprints": worker.fingerprints.decode() + ("" if worker.are_sha1 else HASHED),
        }

    def look(self) -> None:
        """See whether it is a crawl that this worker can join; nothing on the server is changed."""
        with explain_errors(self.client):
            for key, kind in zip(self.crawl.keys.named, TYPES.values(), strict=True):
                if self.client.type(key) not in (kind, b"none"):
                    raise ConfigError(
                        f"The key {key.decode()!r} of the Redis server at"
                        f" {address_of(self.client)} is another program's: set ALTSCHED_SHARED_KEY"
                        " to another name, or REDIS_DB to another database."
                    )
        if (found := self.crawl.find("state", "about")) is not None:
            self.known_id, state, about = found
            self.is_finished = state == b"finished"
            self.restarts = self.is_finished and self.shared.restart
            if not self.restarts:
                known = json.loads(about)
                self._compare(known)
                self.crawl.keys.restarts = known.get("restarts", 0)

    def _compare(self, theirs: dict[str, str]) -> None:
        ours, begun = self.about, f"The shared crawl {self.crawl.name} was begun"
        if theirs["spider"] != ours["spider"]:
            raise ConfigError(
                f"The shared crawl {self.crawl.name} is of spider {theirs['spider']!r}, not of"
                f" {ours['spider']!r}. Set ALTSCHED_SHARED_KEY to another name for this one."
            )
        if theirs["order"] != ours["order"]:
            raise ConfigError(
                f"{begun} with the order {theirs['order']}, and this worker has {ours['order']}."
                " Give all workers the same SCHEDULER_PRIORITY_QUEUE, SCHEDULER_DISK_QUEUE and"
                " SCHEDULER_START_DISK_QUEUE; their defaults are not the same in all versions of"
                " Scrapy."
            )
        if theirs["fingerprints"] + HASHED == ours["fingerprints"]:
            self.crawl.keys.seen_key_of = beginning_of
            self.worker.warn(
                f"{begun} by a version of scrapy_altsched that keeps no more than the first 10 of a"
                " fingerprint's 20 bytes, and goes on so. If those of this project's own"
                " fingerprinter or filter can begin alike, pages are missing: stop the workers,"
                f" run: scrapy altsched drop {self.crawl.words}, and crawl again."
            )
        elif theirs["fingerprints"] == ours["fingerprints"] + HASHED:
            # It came from a job directory.
            self.crawl.keys.seen_key_of = digest_of
        elif theirs["fingerprints"] != ours["fingerprints"]:
            raise ConfigError(
                f"{begun} with other fingerprints ({theirs['fingerprints']}) than this worker's"
                f" ({ours['fingerprints']}): it would crawl pages again. Use the same rules and"
                " fingerprinter for all workers."
            )

    def open_record(self, undo: ExitStack) -> Record:
        worker = self.worker
        if worker.jobdir is None:
            return Record(MemoryRun())
        journal = Journal(worker.jobdir, worker.spider, engine=self.options.store)

        @undo.callback
        def close() -> None:
            with suppress(StoreError):
                journal.close()

        worker.check()
        record = open_record(journal, self.crawl.name)
        if record.crawl and not self.known_id and record.job.resumed:
            raise SharedError(
                f"The shared crawl {self.crawl.name}, in which JOBDIR {worker.jobdir} took part, is"
                " not there any more. Restore the server's data; or delete the JOBDIR to begin a"
                " new crawl."
            )
        if record.crawl != self.known_id:
            record.leave_crawl()
        return record

    def retry_failed(self, record: Record) -> None:
        """Have all failed requests of a crawl that is finished be pending again."""
        if self.is_finished and self.options.retry_failed and not self.restarts:
            retried = self.crawl.requeue_failed(self.crawl.failed())
            record.job = replace(record.job, retried=retried)

    def sampler(self, stream: Stream) -> Sampler | None:
        """What notes the worker's part in the history of the crawl, if it has one."""
        if (duplicates := self.worker.duplicates) is None:
            return None
        return Sampler(self.client, self.crawl.keys, lambda: stream.token, duplicates)

    def join(self, record: Record, on_event: OnEvent, undo: ExitStack) -> SharedFrontier:
        shared, worker, restarts = self.shared, self.worker, self.restarts
        stream = Stream(
            self.crawl.keys,
            partial(os.urandom, 16),
            json.dumps(self.about).encode(),
            int(shared.lease_timeout * 1000),
            crawl=b"" if restarts else self.known_id,
            earlier=() if restarts else record.tokens,
            suspected=record.evidence.in_flight,
            restarts=restarts,
            keep_failed=self.options.keep_failed,
            budget=self.options.slot_budget,
            records_ages=self.options.records_ages,
        )
        link = Exchange(
            self.client,
            lambda: worker.wake(server.take_replies),
            lambda error: worker.wake(lambda: worker.fail(error)),
            self.sampler(stream),
        )
        server = Conversation(self.options, stream, link, record, shared, on_event)
        membership = Membership(server)
        frontier = SharedFrontier(membership, self.crawl.read_dead)
        undo.callback(frontier.abandon)
        name = f"shared crawl {self.crawl.name}"
        match membership.join(_OPEN_WITHIN):
            case None:
                why = f" {link.failure}" if link.failure else ""
                raise SharedError(
                    f"This worker could not join the {name} within {_OPEN_WITHIN:g} s. Start it"
                    f" again when the server answers.{why}"
                )
            case Status.FULL:
                raise SharedError(
                    f"The {name} cannot begin, as the server's memory is full: raise its maxmemory"
                    " (redis-cli CONFIG SET maxmemory ...), or delete what is not needed, such as"
                    " another shared crawl: scrapy altsched drop KEY"
                )
            case Status.PROTOCOL:
                raise ConfigError(
                    f"The {name} is continued with a newer version of scrapy_altsched. Upgrade"
                    " this worker, and start it again."
                )
            case Status.LOST:
                raise SharedError(
                    f"The {name} was replaced while this worker joined it. Start it again."
                )
        if restarts and stream.crawl != self.known_id:
            with suppress(redis.RedisError):  # what was seen before takes memory, no more
                self.crawl.unlink_seen(self.known_id)
        return frontier
