"""What a worker and the server tell each other: what is new, what to do, and what came of it.

What is said is in :mod:`.stream`, when in :mod:`.sending` and :mod:`.outlook`, and what the server
makes of it in the scripts in ``batch``.
"""

from __future__ import annotations

import enum
from contextlib import suppress

from ...errors import FrontierFailedError, StoreError
from .. import events
from ..contract import Pressure
from ..entry import Lease
from ..options import Options, SharedOptions
from ..store.records import Suspicion
from ..suspects import Suspects
from .additions import Additions
from .batches import Reply, Status
from .leases import Leases
from .outlook import Outlook
from .pace import WorkerPace
from .record import Record
from .sending import Link, Sender, Stall
from .stream import EncodedBatch, Stream

#: Changes with which a batch is sent at once, and seconds for which fewer wait for company.
_ENOUGH, _LINGER = 250, 0.02
#: Changes without an answer, as when the server is down, with which start() waits; and which can be
#: sent, with which no more pages are begun: 25 MB.
_MOST_UNANSWERED = 10_000
#: Leases are renewed as often as this in the time after which they expire.
_RENEWALS = 4


class Phase(enum.IntEnum):
    """How far a worker is with a crawl; from each it may only go on."""

    JOINING = 0  # Its first batch has no answer yet, or suspects are being evaluated.
    TAKING_PART = 1  # It leases, and its leases are renewed.
    LEAVING = 2  # Its last batch, which gives back what it has leased, is sent.
    CLOSED = 3  # It has left, or the server takes, or answers, nothing from it any more.


class Conversation:
    """What this worker and the server know of each other.

    :ivar is_waiting: whether the crawl waits for something to lease; *is_paused*: whether an
        operator has paused it, as far as this worker has heard.
    :ivar status: of the last answer, but for those that have it begin a new stream.
    :ivar failure: why the thread that waits for answers has died, if it has.
    """

    def __init__(
        self,
        options: Options,
        stream: Stream,
        link: Link,
        record: Record,
        shared: SharedOptions,
        on_event: events.OnEvent,
    ) -> None:
        self.clock = clock = options.clock
        self.stream, self.record, self._link = stream, record, link
        self._sender = Sender(stream, link, clock, self._build, on_event)
        self.on_event = on_event
        self.prefetch = shared.prefetch
        self._renew_every = shared.lease_timeout / _RENEWALS
        self._waits = shared.idle == "wait"
        self.suspects = Suspects({}, options, record.run.leases, on_event)
        self.additions = Additions(options, stream, on_event)
        self.pace = WorkerPace(shared, clock, self._holds, self._note_pace)
        self.pressure = Pressure(limit=_MOST_UNANSWERED)
        self.outlook = Outlook(
            stream,
            self.additions,
            self.pace,
            self._sender,
            clock,
            self._renew_every,
            self.pressure,
        )
        self.leases = Leases(self.additions, self.suspects, self.pace, on_event)
        self.phase = Phase.JOINING
        self.status: Status | None = None
        self.failure: FrontierFailedError | None = None
        #: Commits; failed requests that there was no more room for, in all.
        self._commits = self._dropped = 0
        #: Whether anything was stored since the last commit was told of, and whether any lease has
        #: ended since the log of them was begun.
        self._is_unreported = self._has_ended = False
        self.is_waiting = self.is_paused = self._is_start_over = False
        #: How often workers had been told to end when this one last asked.
        self._stops: int | None = None
        self._stall = Stall(clock, self._why_stalled, on_event)

    @property
    def is_over(self) -> bool:
        return self._sender.is_over

    @property
    def is_cut_off(self) -> bool:
        """Whether nothing will ever be stored, as the crawl is gone or had finished."""
        return self.phase is Phase.CLOSED and self.failure is None

    @property
    def is_feeding(self) -> bool:
        """Whether this worker may bring requests that no lease accounts for."""
        is_bringing = self.additions.undecided > 0 or self.additions.here.left > 0
        return self._waits or not self._is_start_over or is_bringing

    def enter(self, phase: Phase) -> None:
        assert phase >= self.phase, (self.phase, phase)
        self.phase = phase

    def note_start_end(self) -> None:
        self._is_start_over = True
        self.flush_soon()

    def reopen(self) -> bool:
        """Have something sent though the crawl is finished; whether that is possible."""
        if self.phase is Phase.CLOSED:
            return False
        self._sender.is_over = False
        return True

    def close(self) -> None:
        self.enter(Phase.CLOSED)
        self._stall.stop()
        self._sender.close()

    def note_change(self) -> None:
        """One more change is to be sent."""
        self.pressure.unacknowledged += 1
        self.plan_batch()

    def plan_batch(self) -> None:
        """Send what there is, at once if it is enough."""
        stream = self.stream
        if stream.is_in_flight or (stream.is_full and not stream.waiting):
            return  # it is sent after the answer, or with what is tried again
        self._sender.plan(0.0 if stream.waiting >= _ENOUGH else _LINGER)

    def take_early(self) -> None:
        """Take the answer, if it has come, and send the next batch at once."""
        if self.stream.is_in_flight and self.take_replies():
            self._sender.send()

    def _holds(self, lease: Lease) -> bool:
        return self.leases.by_key.get(lease.key) is lease

    def _note_pace(self) -> None:
        self._sender.plan(_LINGER)

    def flush_soon(self) -> None:
        """Send what there is as soon as the last batch is answered."""
        self._sender.plan(0.0)

    def request_leases(self) -> None:
        self.is_waiting = True
        if self.pressure.changes:
            # They may be all that the crawl's end waits for.
            self.pressure.urgent = True
        self.outlook.plan_poll()

    def commit(self) -> None:
        """Let what has ended be told."""
        self.additions.free_ended()
        self.stream.release_endings()
        self.pressure.urgent = False
        self._measure()
        if self.stream.waiting:
            self.plan_batch()

    def _measure(self) -> None:
        self.pressure.changes = len(self.stream.held) + len(self.additions.ended)
        self.pressure.unacknowledged = self.stream.unacknowledged

    def exchange(self, deadline: float) -> bool:
        """Have a batch answered; whether it was, or time is left.

        :param deadline: the clock's monotonic seconds until which it waits.
        """
        self._sender.send()
        left = deadline - self.clock.monotonic()
        return self.take_replies(max(0.0, left)) or left > 0

    def _why_stalled(self) -> tuple[object, str]:
        """What any progress changes, and why there may be none."""
        is_busy = self.is_over or self.leases.given
        why = "" if is_busy else self.outlook.explain_stall(is_waiting=self.is_waiting)
        return (self.stream.reply.version, self._commits, self.leases.given), why

    def _build(self) -> EncodedBatch:
        fetched, alone = len(self.leases.fetched), self.suspects.alone
        # A batch that goes anyway brings more than would be asked for.
        ahead = self.pace.ahead
        is_low = self.is_waiting or fetched < ahead * 3 // 4 or self.pace.is_on
        may_lease = self.phase is Phase.TAKING_PART and alone is None
        is_leaving = self.phase is Phase.LEAVING
        return self.stream.build(
            want=max(0, ahead - fetched) if may_lease and is_low else 0,
            feeding=b"waits" if self._waits and not is_leaving else self.is_feeding,
            leaving=is_leaving,
            alone=b"" if alone is None else alone.entry.fingerprint,
            watched=b"".join(lease.entry.fingerprint for lease in self.suspects.watched.values()),
            pace=self.pace.take(),
        )

    def take_replies(self, timeout: float = 0.0) -> bool:
        """Take what the server has answered, or answers within *timeout* s; whether it has."""
        try:
            reply = self._link.take(timeout)
        except FrontierFailedError as error:
            if not self.is_over:
                self.failure = error
                self._cut_off(events.FrontierFailed(error))
            return False
        if reply is None or self.is_over:
            return False
        self._take_reply(reply)
        return True

    def _cut_off(self, event: events.Event) -> None:
        """There will be no answer any more; to a worker that has not joined, joining tells why."""
        has_joined = self.phase is not Phase.JOINING
        self._sender.is_over = True
        self.enter(Phase.CLOSED)
        if has_joined or isinstance(event, events.AlreadyFinished):
            self.on_event(event)

    def _take_reply(self, reply: Reply) -> None:
        if reply.status in (Status.GAP, Status.STALE):
            self._start_again()
        else:
            self.status = reply.status
            if reply.status is Status.FINISHED:
                self.stream.reply = reply
                self._cut_off(events.AlreadyFinished())
                return
            if reply.status is not Status.OK:
                is_outdated = reply.status is Status.PROTOCOL
                self._cut_off(events.VersionOutdated() if is_outdated else events.FrontierLost())
                return
            self._take(reply)
        if self.pace.take_change():
            self.on_event(events.PaceChanged())
        self._measure()
        if self.stream.is_full:
            self._sender.plan_again()
        may_get = self.is_waiting and not self.stream.has_asked and self.stream.reply.pending
        if self.leases.is_announcing or (may_get and not self.stream.waiting):
            self.flush_soon()
        elif self.stream.waiting or self.pace.has_news:
            self.plan_batch()
        elif self.is_waiting or self.pace.is_awaited:
            self.outlook.plan_poll()
        else:
            self._sender.plan(self._renew_every)

    def _take(self, reply: Reply) -> None:
        leases, here = self.leases, self.additions.here
        if reply.epoch != self.stream.reply.epoch:
            self.additions.known.clear()
            self.on_event(events.SeenInvalidated())
        elif self.additions.ages.take_outdated():
            self.additions.forget_known()
            self.on_event(events.SeenInvalidated())
        self.additions.ages.take_reply(reply)
        if reply.dropped > self._dropped:
            self._dropped = reply.dropped
            self.on_event(events.FailuresDropped(reply.dropped))
        self.outlook.note_answer()
        decided, over = self.stream.acknowledge(reply)
        refused = set(reply.refused)
        self._sender.note_answer(reply, is_taken=len(decided) > len(refused))
        had_here = len(here.pending)
        for addition in decided:
            number = addition.number
            is_over = number in reply.over
            self.additions.settle(addition, is_accepted=number not in refused, is_over=is_over)
        void = set(reply.void)
        for ending in over if void else ():
            if ending.key in void:
                self.on_event(events.LeaseLost(ending.entry))
        for key in reply.void:
            leases.lose(key)
        # What it had before it was started again comes in no order.
        is_joining = self.phase is Phase.JOINING
        leases.take(
            sorted(reply.leases, key=lambda pair: pair[0][8:]) if is_joining else reply.leases
        )
        self.pace.take_reply(reply)
        self._obey(reply)
        for fingerprint, suspicion in reply.suspicions:
            self.suspects.hold_against(fingerprint, Suspicion.parse(suspicion))
        # No worker has leased anything any more: this one's leases have expired long ago.
        for key in list(leases.by_key) if reply.finished else ():
            leases.lose(key)
        # It may have more to bring, and so opens the crawl again.
        has_more = self.is_feeding or self.stream.unacknowledged
        self._sender.is_over = reply.finished and not has_more
        if self.is_over:
            self.on_event(events.LeasesReady())
        # Those that are withheld may be waiting for nothing else to be pending.
        may_isolate = bool(self.suspects.withheld) and not reply.pending
        is_ready = bool(reply.leases) or len(here.pending) > had_here or may_isolate
        is_ready |= self.outlook.holds_pages and not self.outlook.hold_pages()
        if (leases.mark_announced(reply.told) or is_ready) and self.is_waiting:
            self.is_waiting = False
            self.on_event(events.LeasesReady())
        self._has_ended |= bool(over)
        self._is_unreported |= bool(over or decided)
        # What was added meanwhile is not stored yet, and must not be taken to be.
        if self._is_unreported and self.stream.unacknowledged == len(self.stream.held):
            self._note_committed()

    def _obey(self, reply: Reply) -> None:
        """Do what an operator has asked of all workers."""
        if self._stops is not None and reply.stops > self._stops:
            self.on_event(events.StopRequested())
        self._stops = reply.stops
        if reply.paused:
            self.leases.return_fetched()
        if self.is_paused is not (is_paused := reply.paused > 0):
            self.is_paused = is_paused
            self.on_event(events.CrawlPaused() if is_paused else events.CrawlGoesOn())
            if not is_paused:
                self.on_event(events.LeasesReady())  # what is here already may be asked for again

    def _note_committed(self) -> None:
        self._commits += 1
        self._is_unreported = False
        if self._has_ended:
            self._has_ended = False
            leased = (lease for lease in self.leases.given_out() if not lease.held)
            self.record.run.restart_leases(self.suspects.describe(leased))
        self.on_event(events.Committed(self._commits))

    def _start_again(self) -> None:
        """Begin a new stream, since the server has lost what was sent last.

        What pages have led to may be lost with it: all go back that may have added anything, or
        found that it is known.
        """
        stream = self.stream
        self.additions.reset()
        self.pace.take_back()
        self.leases.lose_doubtful()
        stream.restart(self.leases.by_key)
        with suppress(StoreError):  # its leases go back by timeout then, if it dies
            self.record.note_tokens([*stream.earlier, stream.token], stream.crawl)
        self._is_start_over = False
        self.on_event(events.SeenInvalidated())
        self.on_event(events.ServerRolledBack())
