"""Workers of a paced crawl, and a server, by one clock that a test has in its hands."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import redis

from scrapy_altsched.frontier import Entry, Lease, Options, Order
from scrapy_altsched.frontier.events import Event
from scrapy_altsched.frontier.options import SharedOptions
from scrapy_altsched.frontier.pace import Start
from scrapy_altsched.frontier.shared.batches import Reply, parse_reply
from scrapy_altsched.frontier.shared.conversation import Conversation
from scrapy_altsched.frontier.shared.frontier import SharedFrontier
from scrapy_altsched.frontier.shared.keys import Keys
from scrapy_altsched.frontier.shared.membership import Membership
from scrapy_altsched.frontier.shared.stream import EncodedBatch, Stream
from scrapy_altsched.frontier.store.job_run import MemoryRun
from scrapy_altsched.limit import Limit, Limits

from ...clocks import ManualClock
from ...frontiers import page
from .model import Kept, Server

#: Seconds between two looks at what has come.
_STEP = 0.005


class Line:
    """A link on which each batch is answered at once; *last*: what was sent last."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.last: EncodedBatch | None = None
        self._reply: Reply | None = None

    def send(self, batch: EncodedBatch) -> None:
        self.last = batch
        self._reply = parse_reply(self._server.apply(batch))

    def take(self, timeout: float = 0.0) -> Reply | None:
        reply, self._reply = self._reply, None
        return reply

    def close(self) -> None:
        pass


@dataclass
class PacedWorker:
    """A worker, its job directory, and what it has heard."""

    frontier: SharedFrontier
    clock: ManualClock
    line: Line
    record: Kept
    events: list[Event] = field(default_factory=list)

    def exchange(self) -> None:
        """Have a batch answered, in no time."""
        self.frontier._server._sender.send()
        self.frontier.take_replies()

    def add(self, *entries: Entry) -> None:
        for entry in entries:
            self.frontier.add(entry)
        self.exchange()

    def take_all(self) -> list[Lease]:
        """All that can be leased now."""
        found: list[Lease] = []
        for _ in range(2):
            while isinstance(lease := self.frontier.lease(), Lease):
                found.append(lease)
            self.exchange()
        while isinstance(lease := self.frontier.lease(), Lease):
            found.append(lease)
        return found

    def take(self) -> Lease:
        """The only one that can be leased now."""
        [lease] = self.take_all()
        return lease

    def start(self, lease: Lease) -> Start:
        """Ask whether it may start, send it then, and have what follows from that said."""
        start = self.frontier.pace.start(lease)
        if start is Start.NOW:
            self.frontier.pace.note_sent(lease)
        self.exchange()
        return start

    def end_download(self, lease: Lease) -> None:
        self.frontier.pace.note_downloaded(lease)
        self.exchange()

    def finish(self, lease: Lease) -> None:
        self.frontier.finish(lease)
        self.frontier.commit()
        self.exchange()


class World:
    """A server, and the workers of a crawl on it."""

    def __init__(self, client: redis.Redis, server: Server) -> None:
        self.client, self.server = client, server
        server.begin()
        self.keys = Keys("paced")
        self._tokens = itertools.count(1)
        self._workers: list[PacedWorker] = []

    def join(
        self,
        limit: Limit | None = None,
        *,
        slots: dict[str, Limit] | None = None,
        are_set: bool = True,
        prefetch: int = 4,
        lease_timeout: float = 60.0,
        record: Kept | None = None,
    ) -> PacedWorker:
        clock, line, events = ManualClock(), Line(self.server), list[Event]()
        record = record or Kept(MemoryRun())
        stream = Stream(
            self.keys,
            lambda: next(self._tokens).to_bytes(16, "big"),
            b"about",
            int(lease_timeout * 1000),
            crawl=record.crawl,
            earlier=record.tokens,
        )
        shared = SharedOptions(
            key="paced",
            prefetch=prefetch,
            lease_timeout=lease_timeout,
            limits=None if limit is None else Limits(limit, slots or {}, are_set=are_set),
        )
        options = Options(order=Order("slots", "fifo"), clock=clock)
        membership = Membership(Conversation(options, stream, line, record, shared, events.append))
        worker = PacedWorker(SharedFrontier(membership), clock, line, record, events)
        membership.join(1.0)
        self._workers.append(worker)
        return worker

    def leave(self, worker: PacedWorker) -> None:
        self._workers.remove(worker)
        worker.frontier.close()

    def die(self, worker: PacedWorker) -> None:
        """Nothing more is heard of a worker."""
        self._workers.remove(worker)
        worker.frontier.abandon()

    def pass_time(self, seconds: float, *, stopped: PacedWorker | None = None) -> None:
        """Have time pass; a worker that is *stopped* notices only later that it has."""
        for _ in range(round(seconds / _STEP)):
            self.server.now += round(_STEP * 1000)
            for worker in self._workers:
                if worker is stopped:
                    worker.clock.now += _STEP
                else:
                    worker.clock.advance(_STEP)
                    worker.frontier.take_replies()

    def take_all(self) -> list[Lease]:
        """All that can be leased now, by any worker."""
        return [lease for worker in self._workers for lease in worker.take_all()]

    def take(self) -> Lease:
        """The only one that can be leased now, by any worker."""
        [lease] = self.take_all()
        return lease

    def counts(self) -> dict[str, int]:
        return self.server.counts(self.keys)

    def work_off(self, worker: PacedWorker, seconds: float) -> list[str]:
        """The pages that a worker downloads to their end in so many seconds, in order."""
        worker.frontier.note_start_end()
        done: list[str] = []
        waiting: list[Lease] = []
        for _ in range(round(seconds / 0.05)):
            while isinstance(lease := worker.frontier.lease(), Lease):
                waiting.append(lease)
            for lease in list(waiting):
                start = worker.frontier.pace.start(lease)
                if start is not Start.LATER:
                    waiting.remove(lease)
                if start is Start.NOW:
                    worker.end_download(lease)
                    worker.finish(lease)
                    done.append(lease.entry.fingerprint.decode())
            if worker.frontier.is_over:
                return done
            self.pass_time(0.05)
        return done


def slot_of(lease: Lease) -> str:
    """What the name of its page begins with."""
    return lease.entry.fingerprint.decode().split()[0]


def pages(count: int, slot: str = "host") -> list[Entry]:
    return [page(f"{slot} {number}", slot) for number in range(count)]
