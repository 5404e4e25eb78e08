"""Workers that join a crawl as a scheduler has them join, on the test's own thread."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import redis

from scrapy_altsched.errors import AltschedError
from scrapy_altsched.frontier import Entry, Lease, Options
from scrapy_altsched.frontier.events import Event
from scrapy_altsched.frontier.options import SharedOptions
from scrapy_altsched.frontier.shared.frontier import SharedFrontier
from scrapy_altsched.frontier.shared.opening import Worker, open_shared

from ...clocks import ManualClock
from ...frontiers import OWNER, page
from ...servers import RedisServer

#: Seconds for an answer.
PATIENCE = 30.0
KEY = "crawl"


@dataclass
class Joined:
    """A worker of a crawl, and what it has heard."""

    frontier: SharedFrontier
    clock: ManualClock
    events: list[Event] = field(default_factory=list)

    def answer(self) -> None:
        """Have one batch sent and answered."""
        self.clock.advance(1)
        if self.frontier._stream.is_in_flight and not self.frontier.is_over:
            assert self.frontier.take_replies(PATIENCE) or self.frontier.is_over

    def settle(self) -> None:
        """Have all answered that can be sent."""
        while True:
            self.answer()
            stream = self.frontier._stream
            if self.frontier.is_over or not (stream.is_in_flight or stream.waiting):
                return

    def add(self, *entries: Entry) -> None:
        for entry in entries:
            self.frontier.add(entry)
        self.settle()

    def take(self) -> Lease:
        """Lease the next request; there must be one."""
        for _ in range(5):
            lease = self.frontier.lease()
            if isinstance(lease, Lease):
                return lease
            self.answer()
        raise AssertionError("there is nothing to lease")

    def commit(self) -> None:
        self.frontier.commit()
        self.settle()

    def work_off(self) -> list[str]:
        """Bring nothing more, and work until the crawl is over; the names, in order."""
        self.frontier.note_start_end()
        done = []
        for _ in range(1_000):
            lease = self.frontier.lease()
            if isinstance(lease, Lease):
                done.append(lease.entry.fingerprint.decode())
                self.frontier.finish(lease)
                self.frontier.commit()
            elif self.frontier.is_over:
                return done
            else:
                self.answer()
        raise AssertionError("the crawl does not end")

    def close(self, *, finished: bool = False) -> None:
        self.frontier.close(finished=finished)


def join(
    server: RedisServer | int,
    jobdir: Path | None = None,
    *,
    spider: str = OWNER,
    fingerprints: bytes = b"rules",
    are_sha1: bool = True,
    options: Options | None = None,
    warn: Callable[[str], object] = str,
    duplicates: Callable[[], int] | None = None,
    redis_settings: dict[str, Any] | None = None,
    **shared: Any,
) -> Joined:
    """Join the crawl called :data:`KEY`."""
    port = server if isinstance(server, int) else server.port
    clock = ManualClock()
    events: list[Event] = []
    failures: list[AltschedError] = []
    worker = Worker(
        spider=spider,
        fingerprints=fingerprints,
        are_sha1=are_sha1,
        jobdir=None if jobdir is None else str(jobdir),
        check=lambda: None,
        wake=lambda call: None,
        fail=failures.append,
        warn=warn,
        duplicates=duplicates,
    )
    frontier = open_shared(
        replace(options or Options(), clock=clock),
        SharedOptions(**{"key": KEY, "redis": redis_settings or {"REDIS_PORT": port}, **shared}),
        worker,
        events.append,
    )
    return Joined(frontier, clock, events)


def crawl_whole(server: RedisServer, *names: str, **options: Any) -> None:
    """Crawl these pages to the end of the crawl."""
    worker = join(server, **options)
    worker.add(*map(page, names))
    assert sorted(worker.work_off()) == sorted(names)
    worker.close(finished=True)


def dump(client: redis.Redis) -> dict[bytes, Any]:
    """All that a server holds."""
    # Of a hash, DUMP keeps the order of the moment, which changes while its table grows.
    return {
        key: client.hgetall(key) if client.type(key) == b"hash" else client.dump(key)
        for key in client.scan_iter()
    }
