"""Opening a shared frontier: the server is examined, and the worker joins the crawl."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from shlex import quote

import redis

from ...errors import AltschedError, ConfigError, SharedError, StoreError
from ...redis_client.connection import address_of, connect, explain, explain_errors
from ...redis_client.server import check_permissions, examine
from ..events import OnEvent, ignore_events
from ..options import Options, SharedOptions
from ..store.job_run import MemoryRun
from ..store.journal import Journal
from .batches import Status
from .exchange import Exchange
from .frontier import SharedFrontier
from .keys import FIXED, Keys, seen_key_of, seen_key_of_sha1
from .operating import HASHED, SharedCrawl, new_token
from .record import Record, open_record
from .stream import Stream

#: Seconds for which opening waits for the server.
_OPEN_WITHIN = 30.0


@dataclass(frozen=True, slots=True)
class Worker:
    """What joins a crawl.

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
    for warning in examine(client):
        worker.warn(warning)
    opening = _Opening(client, shared, options, worker)
    opening.look()
    check_permissions(client, _commands(opening.crawl.keys))
    record = opening.open_record()
    try:
        return opening.join(record, on_event)
    except BaseException:
        record.run.abandon()
        raise


def _commands(keys: Keys) -> Sequence[Sequence[str | bytes | int]]:
    """Commands such as a worker sends, and with them all kinds of keys that it touches."""
    names = [*keys.fixed, keys.leases(b""), keys.bucket(b"", bytes(10))]
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
        ["UNLINK", *names],
        ["DEL", names[-2]],
    ]


class _Opening:
    """A worker that is about to join a crawl on a server."""

    def __init__(
        self, client: redis.Redis, shared: SharedOptions, options: Options, worker: Worker
    ) -> None:
        self._client = client
        self._shared = shared
        self._options = options
        self._worker = worker
        self.crawl = SharedCrawl(client, shared.key)
        self._about = {
            "spider": worker.spider,
            "order": str(options.order),
            "fingerprints": worker.fingerprints.decode() + ("" if worker.are_sha1 else HASHED),
        }
        self._cuts_fingerprints = worker.are_sha1
        #: The crawl's id; empty: there is none yet.
        self._id = b""
        self._restarts = False

    def look(self) -> None:
        """See whether it is a crawl that this worker can join; nothing on the server is changed.

        :raises ConfigError: it is not.
        """
        with explain_errors(self._client):
            for key, kind in zip(self.crawl.keys.fixed, FIXED.values(), strict=True):
                if self._client.type(key) not in (kind, b"none"):
                    raise ConfigError(
                        f"The key {key.decode()!r} of the Redis server at"
                        f" {address_of(self._client)} is another program's: set ALTSCHED_SHARED_KEY"
                        " to another name, or REDIS_DB to another database."
                    )
        found = self.crawl.find("state", "about")
        if found is not None:
            self._id, state, about = found
            self._restarts = state == b"finished" and self._shared.restart
            if not self._restarts:
                self._compare(json.loads(about))

    def _compare(self, theirs: dict[str, str]) -> None:
        ours, begun = self._about, f"The shared crawl {self.crawl.name} was begun"
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
            self._cuts_fingerprints = True
            self._worker.warn(
                f"{begun} by a version of scrapy_altsched that keeps no more than the first 10 of a"
                " fingerprint's 20 bytes, and goes on so. If those of this project's own"
                " fingerprinter or filter can begin alike, pages are missing: stop the workers,"
                f" run: scrapy altsched drop {quote(self._shared.key)}, and crawl again."
            )
        elif theirs["fingerprints"] != ours["fingerprints"]:
            raise ConfigError(
                f"{begun} with other fingerprints ({theirs['fingerprints']}) than this worker's"
                f" ({ours['fingerprints']}): it would crawl pages again. Use the same rules and"
                " fingerprinter for all workers."
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
            record = open_record(journal, self.crawl.name)
            if record.crawl and not self._id and record.job.resumed:
                raise SharedError(
                    f"The shared crawl {self.crawl.name}, in which JOBDIR {worker.jobdir} took"
                    " part, is not there any more. Restore the server's data; or delete the JOBDIR"
                    " to begin a new crawl."
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
        shared, worker, restarts = self._shared, self._worker, self._restarts
        stream = Stream(
            self.crawl.keys,
            new_token,
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
            read_dead=self.crawl.read_dead,
        )
        name = f"The shared crawl {self.crawl.name}"
        try:
            match frontier.join(_OPEN_WITHIN):
                case None:
                    why = f" {failures[0]}" if failures else ""
                    raise SharedError(
                        f"This worker could not join the shared crawl {self.crawl.name} within"
                        f" {_OPEN_WITHIN:g} s. Start it again when the server answers.{why}"
                    )
                case Status.FULL:
                    raise SharedError(
                        f"{name} cannot begin, as the server's memory is full: raise its maxmemory"
                        " (redis-cli CONFIG SET maxmemory ...), or delete what is not needed, such"
                        " as another shared crawl: scrapy altsched drop KEY"
                    )
                case Status.LOST | Status.PROTOCOL:
                    raise SharedError(
                        f"{name} was replaced while this worker joined it. Start it again."
                    )
        except BaseException:
            frontier.abandon()
            raise
        if restarts and stream.crawl != self._id:
            with suppress(redis.RedisError):  # what was seen before takes memory, no more
                self.crawl.unlink_seen(self._id)
        return frontier
