"""A frontier on a server, for tests that want each answer at once."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
import redis

from scrapy_altsched.errors import AltschedError
from scrapy_altsched.frontier import Entry, Lease, Options, Verdict, Waiting
from scrapy_altsched.frontier.changes import Kind
from scrapy_altsched.frontier.contract import Pressure
from scrapy_altsched.frontier.entry import DeadLetter
from scrapy_altsched.frontier.events import Event, Refused
from scrapy_altsched.frontier.options import SharedOptions
from scrapy_altsched.frontier.shared import exchange
from scrapy_altsched.frontier.shared.additions import Additions
from scrapy_altsched.frontier.shared.batches import Addition
from scrapy_altsched.frontier.shared.conversation import Conversation
from scrapy_altsched.frontier.shared.exchange import Exchange
from scrapy_altsched.frontier.shared.frontier import SharedFrontier
from scrapy_altsched.frontier.shared.keys import Keys
from scrapy_altsched.frontier.shared.membership import Membership
from scrapy_altsched.frontier.shared.record import Record
from scrapy_altsched.frontier.shared.sending import Link
from scrapy_altsched.frontier.shared.stream import Stream
from scrapy_altsched.frontier.store.job_run import MemoryRun
from scrapy_altsched.redis_client import CLOCK, read_script

from .clocks import ManualClock

#: ms for which a worker has its leases after a batch.
LEASE_TIMEOUT = 60_000
#: A key on the server: what time it is there, in ms.
_NOW = "now"
_PLAYED_CLOCK = f"local function clock() return tonumber(redis.call('GET', '{_NOW}')) end\n"
_tokens = itertools.count(1)


class ServerClock(ManualClock):
    """A test's clock that the server of a crawl has, too, by which it is so many seconds later."""

    def __init__(self, client: redis.Redis, monkeypatch: pytest.MonkeyPatch, ahead: float) -> None:
        super().__init__()
        self._client, self._ahead = client, ahead

        def read(package: str, *paths: str) -> str:
            return read_script(package, *paths).replace(CLOCK, _PLAYED_CLOCK)

        monkeypatch.setattr(exchange, "read_script", read)
        self.set(self.wall() + ahead)

    def set(self, server_time: float) -> None:
        """Have it be so many seconds since the epoch on the server."""
        self.set_by += server_time - self._ahead - self.wall()
        self._tell()

    def advance(self, seconds: float) -> None:
        super().advance(seconds)
        self._tell()

    def _tell(self) -> None:
        self._client.set(_NOW, round((self.wall() + self._ahead) * 1000))


class _Observed(Additions):
    """They keep what the server said of the last seen key without a request."""

    was_seen = False

    def settle(self, addition: Addition, *, is_accepted: bool, is_over: bool = False) -> None:
        super().settle(addition, is_accepted=is_accepted, is_over=is_over)
        self.was_seen = is_accepted is (addition.kind is Kind.FORGOTTEN)


class SettledShared:
    """One worker, whose order is exact: nothing is fetched ahead.

    :param link: answers in another way than by a thread of its own.
    :param record: what the worker keeps on its own.
    :param clock: is set forward with each answer.
    :ivar events: what the frontier told since the last request was added.
    """

    _kept = None

    def __init__(
        self,
        options: Options,
        client: redis.Redis,
        link: Link | None = None,
        record: Record | None = None,
        clock: ManualClock | None = None,
    ) -> None:
        self._clock = clock or ManualClock()
        self.events: list[Event] = []
        self._failures: list[AltschedError] = []
        token = next(_tokens).to_bytes(16, "big")
        tokens = itertools.count(1)
        record = record or Record(MemoryRun())
        self._stream = Stream(
            Keys("test"),
            lambda: token[8:] + next(tokens).to_bytes(8, "big"),
            b'{"spider": "spider"}',
            LEASE_TIMEOUT,
            crawl=record.crawl,
            earlier=record.tokens,
            budget=options.slot_budget,
            records_ages=options.records_ages,
        )
        server = Conversation(
            replace(options, clock=self._clock),
            self._stream,
            link or Exchange(client, lambda: None, self._failures.append),
            record,
            SharedOptions(key="test", prefetch=1),
            self.events.append,
        )
        membership = Membership(server)
        self._frontier = SharedFrontier(membership)
        self._additions = self._frontier._additions
        self._additions.__class__ = _Observed
        membership.join(30)
        self._settle()

    def send(self) -> None:
        """Send a batch, with whatever there is, and have it answered."""
        self._frontier._server.flush_soon()
        self._settle()

    def _settle(self) -> None:
        """Wait until every question is answered."""
        frontier, stream = self._frontier, self._stream
        while True:
            self._clock.advance(1)
            while stream.is_in_flight:
                assert frontier.take_replies(30), self._failures
            if not stream.waiting and not frontier.counts().undecided:
                return

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._frontier, name)
        if (callable(found) or name == "run") and name != "abandon":
            self._frontier.run.check_owner()
            self._settle()
        return found

    @property
    def pending(self) -> int:
        self._settle()
        return self._frontier.pending

    @property
    def pressure(self) -> Pressure:
        self._settle()
        return self._frontier.pressure

    def add(self, entry: Entry) -> Verdict:
        self.events.clear()
        verdict = self._frontier.add(entry)
        if verdict is not Verdict.UNDECIDED:
            return verdict
        self._settle()
        refused = [event.verdict for event in self.events if isinstance(event, Refused)]
        return refused[0] if refused else Verdict.ADDED

    def lease(self, gate: Any = None) -> Lease | Waiting:
        self._settle()
        lease = self._frontier.lease(gate)
        if isinstance(lease, Waiting):
            self._settle()
            lease = self._frontier.lease(gate)
        # What comes later must not be overtaken by what is asked for now.
        self._frontier._server.is_waiting = False
        return lease

    def mark_seen(self, fingerprint: bytes) -> bool:
        if self._frontier.mark_seen(fingerprint):
            return True
        self._settle()
        return self._additions.was_seen

    def forget(self, fingerprint: bytes) -> bool:
        was_known = self._frontier.forget(fingerprint)
        self._settle()
        return was_known or self._additions.was_seen

    def finish(self, lease: Lease, then: Entry | None = None) -> None:
        self._frontier.finish(lease, then)
        self.commit()

    def release(self, lease: Lease) -> None:
        self._frontier.release(lease)
        self.commit()

    def dead_letter(self, lease: Lease, why: DeadLetter) -> None:
        self._frontier.dead_letter(lease, why)
        self.commit()

    def commit(self, *arguments: Any, **options: Any) -> bool:
        self._frontier.commit(*arguments, **options)
        self._settle()
        return self._frontier.commit(*arguments, **options)
