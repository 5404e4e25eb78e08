"""A worker's server session: it joins, reports what is new, learns what to do, and leaves.

What is said is in :mod:`.stream`, when in :mod:`.sending`, and what the server makes of it in
``shared.lua``.
"""

from __future__ import annotations

import enum
from contextlib import suppress
from dataclasses import replace

from ...errors import FrontierFailedError, StoreError
from ...inflection import inflect
from ..changes import Kind
from ..clock import Clock
from ..contract import JobInfo, Pressure
from ..entry import Lease
from ..events import (
    AlreadyFinished,
    Committed,
    FrontierFailed,
    FrontierLost,
    LeaseLost,
    LeasesReady,
    OnEvent,
    SeenInvalidated,
    ServerRolledBack,
)
from ..store.records import Level, decode_suspicion, encode_suspicion
from ..store.states import decode_value
from ..suspects import Suspects, judge
from .additions import Additions
from .batches import Ending, Reply, Status
from .leases import Leases, MemoryOnly
from .record import Record
from .sending import Link, Sender
from .stall import Stall
from .stream import EncodedBatch, Stream

#: Changes with which a batch is sent at once, and seconds for which fewer wait for company.
_ENOUGH = 250
_LINGER = 0.02
#: Changes without an answer, as when the server is down, with which start() waits: 10 to 20 MB.
_MOST_UNANSWERED = 10_000
#: Leases are renewed as often as this in the time after which they expire.
_RENEWALS = 4
#: Seconds without an answer after which a server counts as silent.
_SILENCE = 30.0


class Phase(enum.IntEnum):
    """How far a worker is with a crawl; from each it may only go on."""

    #: Its first batch has no answer yet, or suspects are being evaluated.
    JOINING = 0
    #: It leases, and its leases are renewed.
    TAKING_PART = 1
    #: Its last batch, which gives back what it has leased, is sent.
    LEAVING = 2
    #: Nothing can be said any more: the crawl had finished before this worker came, is gone, or
    #: cannot be talked of; or the worker has left.
    CLOSED = 3


class Conversation:
    """What this worker and the server know of each other.

    :param prefetch: how many requests may be leased before they are asked for.
    :param lease_timeout: seconds after which leases of a worker expire that is not heard of.
    :param waits: whether the crawl is to stay open as long as this worker lives.
    :ivar job: what is known of the crawl.
    :ivar pressure: what waits for an answer.
    :ivar is_waiting: whether the crawl waits for something to lease.
    :ivar is_cut_off: whether nothing will ever be stored, as the crawl is gone or had finished.
    """

    def __init__(
        self,
        clock: Clock,
        stream: Stream,
        link: Link,
        record: Record,
        *,
        here: MemoryOnly,
        suspects: Suspects,
        leases: Leases,
        additions: Additions,
        on_event: OnEvent,
        prefetch: int,
        lease_timeout: float,
        waits: bool,
    ) -> None:
        self._clock = clock
        self._stream = stream
        self._record = record
        self._link = link
        self._sender = Sender(stream, link, clock, self._build, on_event)
        self._here = here
        self._suspects = suspects
        self._leases = leases
        self._additions = additions
        self._on_event = on_event
        self._prefetch = prefetch
        self._renew_every = lease_timeout / _RENEWALS
        self._waits = waits
        self.job: JobInfo = record.job
        self.pressure = Pressure(limit=_MOST_UNANSWERED)
        self._phase = Phase.JOINING
        #: With which the server has refused a batch for good, if it has.
        self._status = Status.OK
        #: Why there is no answer any more, if the thread that waits for them has died.
        self._failure: FrontierFailedError | None = None
        self._commits = 0
        #: Whether anything was stored since the last commit was told of, and whether any lease has
        #: ended since the log of them was begun.
        self._is_unreported = self._has_ended = False
        self.is_waiting = False
        #: Whether the batch in flight, or the last one, asked for something to lease.
        self._has_asked = False
        self._is_start_over = False
        #: Whether an answer was waited for in vain, and none has come since.
        self._is_given_up = False
        self._heard_at = clock.monotonic()
        self._stall = Stall(clock, self._progress, self._why_stalled, on_event)

    @property
    def is_over(self) -> bool:
        """Whether there is nothing left to talk of."""
        return self._sender.is_over

    @property
    def is_cut_off(self) -> bool:
        return self._phase is Phase.CLOSED and self._failure is None

    @property
    def is_feeding(self) -> bool:
        """Whether this worker may bring requests that no lease accounts for."""
        is_bringing = self._additions.undecided > 0 or self._here.left > 0
        return self._waits or not self._is_start_over or is_bringing

    # Beginning and end

    def _enter(self, phase: Phase) -> None:
        assert phase >= self._phase, (self._phase, phase)
        self._phase = phase

    def join(self, timeout: float) -> Status | None:
        """Join the crawl, which from then on does not end without this worker; wait for the answer.

        What was in flight when this worker died is evaluated, and the server told, before anything
        is leased.

        :param timeout: seconds to wait.
        :return: the status of the last answer; ``None``: none came.
        :raises StoreError: what this worker keeps on its own cannot be written, or the server has
            answered only once.
        :raises FrontierFailedError: there will be no answer.
        """
        stream, record = self._stream, self._record
        record.note_tokens([*stream.earlier, stream.token], stream.crawl)
        deadline = self._clock.monotonic() + timeout
        reply = None
        while reply is None or reply.status in (Status.GAP, Status.STALE):
            self._sender.send()
            reply = self._link.take(max(0.0, deadline - self._clock.monotonic()))
            if reply is None:
                return None
            self._take_reply(reply)
        if self._status is Status.OK:
            if stream.reply.finished:
                # It has been here before, and may bring something new.
                self._on_event(AlreadyFinished())
            self._judge_last_death()
            # The crawl may be dropped or replaced meanwhile.
            self.wait_for_answers(max(0.0, deadline - self._clock.monotonic()))
        if self._status is Status.OK:
            record.note_tokens([stream.token], stream.crawl)
            record.run.restart_leases()
            self._enter(Phase.TAKING_PART)
            self._stall.start()
        elif self._status is Status.FINISHED:
            # What its feeds hold must not be overwritten with nothing.
            self.job = replace(self.job, resumed=True)
        return self._status

    def _judge_last_death(self) -> None:
        suspects = self._suspects
        stored = dict(suspects.suspicions)
        for fingerprint, suspicion in judge(stored, self._record.evidence).items():
            if suspicion != stored.get(fingerprint):
                self._stream.judge(fingerprint, encode_suspicion(suspicion))
                suspects.hold_against(fingerprint, suspicion)
        leased = {lease.entry.fingerprint for lease in self._leases.fetched}
        for fingerprint in suspects.suspicions.keys() - leased:
            suspects.clear(fingerprint)
        self.job = replace(
            self.job,
            resumed=self.job.resumed or self._stream.reply.accepted > 0,
            suspects=suspects.count(Level.SUSPECT),
            blamed=suspects.count(Level.BLAMED),
        )

    def leave(self, timeout: float) -> None:
        """Say all that is left, give back what is leased, and leave the crawl.

        :param timeout: seconds to wait for the server.
        :raises StoreError: it has not answered.
        :raises FrontierFailedError: it cannot.
        """
        deadline = self._deadline(timeout)
        self._free_endings()
        is_gone = False
        while not is_gone and not self.is_over:
            if not self._stream.is_in_flight:
                is_gone = not self._stream.waiting
                if is_gone:
                    self._enter(Phase.LEAVING)
            if not self._exchange(deadline):
                changes = self._stream.unacknowledged
                raise StoreError(
                    f"The Redis server did not answer for {timeout:g} s: this worker's last"
                    f" {changes} {inflect(changes, 'change', 'changes')} may not be saved, and what"
                    " it had leased is crawled again by the others."
                )
        self._check()
        if self._stream.is_full and (changes := self._stream.unacknowledged):
            raise StoreError(
                f"The Redis server's memory is full: {changes}"
                f" {inflect(changes, 'change is', 'changes are')} not saved, and their pages are"
                " crawled again. Raise its maxmemory, then start this worker again."
            )

    def note_start_end(self) -> None:
        self._is_start_over = True
        self.flush_soon()

    def reopen(self) -> bool:
        """Have something sent though the crawl is finished; whether that is possible."""
        if self._phase is Phase.CLOSED:
            return False
        self._sender.is_over = False
        return True

    def close(self) -> None:
        self._enter(Phase.CLOSED)
        self._stall.stop()
        self._sender.close()

    # What is said

    def note_change(self) -> None:
        """Something is to be sent, soon or, if there is enough of it, now."""
        self.pressure.unacknowledged = self._stream.unacknowledged
        if self._stream.is_full and not self._stream.waiting:
            return  # it is sent with what is tried again
        self._sender.plan(0.0 if self._stream.waiting >= _ENOUGH else _LINGER)

    def flush_soon(self) -> None:
        """Send what there is as soon as the last batch is answered."""
        self._sender.plan(0.0)

    def request_leases(self) -> None:
        """Ask for something to lease, at first often."""
        self.is_waiting = True
        if self.pressure.changes:
            # They may be all that the crawl's end waits for.
            self.pressure.urgent = True
        self._sender.plan_poll()

    def end(self, lease: Lease, kind: Kind, reason: bytes = b"") -> None:
        """Tell how a lease has ended, with the next commit; if it is still this worker's."""
        if self._leases.by_key.get(lease.key) is not lease:
            return
        self._leases.lose(lease.key)
        if kind is not Kind.RELEASED and self._suspects.suspicions:
            self._suspects.clear(lease.entry.fingerprint)
        after = self._additions.rests_after(lease.origin)
        upto = self._stream.last_addition
        self._stream.end(Ending(lease.key, kind, after, upto, reason, lease.entry))
        self.pressure.changes += 1

    def give_back_fetched(self) -> None:
        """Let others have what was fetched ahead."""
        last = self._stream.last_addition
        for lease in self._leases.fetched:
            if self._leases.lose(lease.key) is lease:
                self._stream.end(Ending(lease.key, Kind.RELEASED, last, last))
                self.pressure.changes += 1
                self.pressure.urgent = True
        self._leases.fetched.clear()

    def commit(self) -> None:
        """Let what has ended be told."""
        self._free_endings()
        self.pressure.urgent = False
        self._measure()
        if self._stream.waiting:
            self.note_change()

    def _free_endings(self) -> None:
        self._additions.free_ended()
        self._stream.release_endings()

    def _measure(self) -> None:
        self.pressure.changes = self._stream.held + self._additions.held
        self.pressure.unacknowledged = self._stream.unacknowledged

    def wait_for_answers(self, timeout: float) -> None:
        """Wait until everything is answered, but for what the server has no memory for.

        :param timeout: seconds.
        :raises StoreError: it was not.
        :raises FrontierFailedError: it never will be.
        """
        stream, deadline = self._stream, self._deadline(timeout)
        while stream.unacknowledged and not self.is_over:
            if stream.is_full and not stream.waiting:
                return
            if not self._exchange(deadline):
                self._is_given_up = True
                changes = stream.unacknowledged
                raise StoreError(
                    f"The Redis server does not answer; {changes}"
                    f" {inflect(changes, 'change waits', 'changes wait')} for it."
                )
        self._check()

    def _deadline(self, timeout: float) -> float:
        # A crawl that ends asks several times for the same.
        return self._clock.monotonic() + (0.0 if self._is_given_up else timeout)

    def _exchange(self, deadline: float) -> bool:
        """Have a batch sent, and wait for an answer; whether there is one, or time is left."""
        self._sender.send()
        left = deadline - self._clock.monotonic()
        return self.take_replies(max(0.0, left)) or left > 0

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _progress(self) -> tuple[int, ...]:
        return self._stream.reply.version, self._commits, self._leases.given

    def _why_stalled(self) -> str:
        stream, reply = self._stream, self._stream.reply
        if self.is_over or self._leases.given:
            return ""
        if stream.is_in_flight and self._clock.monotonic() - self._heard_at > _SILENCE:
            return "the server does not answer"
        if stream.is_full:
            waiting = stream.unacknowledged
            return (
                f"the server's memory is full, and {waiting}"
                f" {inflect(waiting, 'change of this worker waits', 'changes of this worker wait')}"
                " for it"
            )
        if self.is_waiting and reply.pending:
            requests = inflect(reply.pending, "pending request")
            return f"of {reply.pending} {requests} the server leases none to this worker"
        if self.is_waiting and reply.leased:
            requests = inflect(reply.leased, "request")
            return f"all that is left ({reply.leased} {requests}) is leased by other workers"
        return ""

    def _build(self) -> EncodedBatch:
        fetched, alone = len(self._leases.fetched), self._suspects.alone
        # A batch that goes anyway brings more than would be asked for.
        is_low = self.is_waiting or fetched < self._prefetch * 3 // 4
        may_lease = self._phase is Phase.TAKING_PART and alone is None
        want = max(0, self._prefetch - fetched) if may_lease and is_low else 0
        self._has_asked = want > 0
        is_leaving = self._phase is Phase.LEAVING
        return self._stream.build(
            want=want,
            feeding=self.is_feeding,
            waits=self._waits and not is_leaving,
            leaving=is_leaving,
            alone=b"" if alone is None else alone.entry.fingerprint,
            watched=b"".join(lease.entry.fingerprint for lease in self._suspects.watched.values()),
        )

    # What is heard

    def take_replies(self, timeout: float = 0.0) -> bool:
        """Take what the server has answered; whether it has.

        :param timeout: seconds to wait for it.
        """
        try:
            reply = self._link.take(timeout)
        except FrontierFailedError as error:
            if not self.is_over:
                self._failure = error
                self._cut_off(FrontierFailed(error))
            return False
        if reply is None or self.is_over:
            return False
        self._take_reply(reply)
        return True

    def _cut_off(self, event: FrontierFailed | FrontierLost) -> None:
        """There will be no answer any more; if it has not joined yet, joining raises that."""
        was_joining = self._phase is Phase.JOINING
        self._sender.is_over = True
        self._enter(Phase.CLOSED)
        if not was_joining:
            self._on_event(event)

    def _take_reply(self, reply: Reply) -> None:
        if reply.status in (Status.GAP, Status.STALE):
            self._start_again()
        elif reply.status is Status.OK:
            self._take(reply)
        else:
            self._status = reply.status
            if reply.status is not Status.FINISHED:
                self._cut_off(FrontierLost())
                return
            self._stream.reply = reply
            self._sender.is_over = True
            self._enter(Phase.CLOSED)
            self._on_event(AlreadyFinished())
            return
        self._measure()
        if self._stream.is_full:
            self._sender.plan_again()
        if self._leases.is_announcing:
            self.flush_soon()
        elif self._stream.waiting:
            self.note_change()
        elif self.is_waiting and not self._has_asked and self._stream.reply.pending:
            self.flush_soon()
        elif self.is_waiting:
            self._sender.plan_poll()
        else:
            self._sender.plan(self._renew_every)

    def _take(self, reply: Reply) -> None:
        leases, here = self._leases, self._here
        if reply.epoch != self._stream.reply.epoch:
            self._additions.forget_known()
            self._on_event(SeenInvalidated())
        self._is_given_up = False
        self._heard_at = self._clock.monotonic()
        decided, over = self._stream.acknowledge(reply)
        refused = set(reply.refused)
        is_taken = len(decided) > len(refused)
        self._sender.note_answer(is_refused=bool(reply.full), is_taken=is_taken)
        had_here = len(here.pending)
        for addition in decided:
            self._additions.settle(addition, is_accepted=addition.number not in refused)
        if reply.void:
            void = set(reply.void)
            for ending in over:
                if ending.key in void and ending.entry is not None:
                    self._on_event(LeaseLost(ending.entry))
            for key in reply.void:
                self._lose(key)
        self._take_leases(reply)
        if reply.finished:
            # No worker has leased anything any more: this one's leases have expired long ago.
            for key in list(leases.by_key):
                self._lose(key)
        # It may have more to bring, and so opens the crawl again.
        is_done = not self.is_feeding and not self._stream.unacknowledged
        self._sender.is_over = reply.finished and is_done
        if self._sender.is_over:
            self._on_event(LeasesReady())
        if self._has_asked:
            self._sender.note_poll(is_useful=bool(reply.leases))
        # Those that are withheld may be waiting for nothing else to be pending.
        may_isolate = bool(self._suspects.withheld) and not reply.pending
        is_ready = bool(reply.leases) or len(here.pending) > had_here or may_isolate
        if (leases.mark_announced(reply.told) or is_ready) and self.is_waiting:
            self.is_waiting = False
            self._on_event(LeasesReady())
        self._has_ended |= bool(over)
        self._is_unreported |= bool(over or decided)
        # What was added meanwhile is not stored yet, and must not be taken to be.
        if self._is_unreported and self._stream.unacknowledged == self._stream.held:
            self._note_committed()

    def _take_leases(self, reply: Reply) -> None:
        origin = self._additions.revision, self._stream.last_addition
        leased = reply.leases
        if self._phase is Phase.JOINING:
            leased = sorted(leased, key=lambda lease: lease[0][8:])
        for key, row in leased:
            if row:
                # It may have expired unnoticed, and been leased to this worker once more.
                self._lose(key)
                self._leases.take(Lease(key, decode_value(row), origin))
        for fingerprint, suspicion in reply.suspicions:
            self._suspects.hold_against(fingerprint, decode_suspicion(suspicion))

    def _lose(self, key: bytes) -> None:
        lost = self._leases.lose(key)
        if lost is not None:
            self._on_event(LeaseLost(lost.entry))

    def _note_committed(self) -> None:
        self._commits += 1
        self._is_unreported = False
        if self._has_ended:
            self._has_ended = False
            self._record.run.restart_leases(
                (lease.entry.fingerprint, lease is self._suspects.alone, lease.in_hand)
                for lease in self._leases.given_out()
                if not lease.held
            )
        self._on_event(Committed(self._commits))

    def _start_again(self) -> None:
        """Begin a new stream, since the server has lost what was sent last.

        What a page has led to may be lost with it.  So every page goes back that anything may have
        been added by, or found to be known by, and is worked on again.
        """
        stream = self._stream
        self._additions.reset()
        self._release_doubtful_leases()
        self.pressure.changes = 0
        stream.restart(self._leases.by_key)
        with suppress(StoreError):  # its leases go back by timeout then, if it dies
            self._record.note_tokens([*stream.earlier, stream.token], stream.crawl)
        self._is_start_over = False
        self._on_event(SeenInvalidated())
        self._on_event(ServerRolledBack())

    def _release_doubtful_leases(self) -> None:
        for lease in list(self._leases.given_out()):
            if lease.origin[0] != self._additions.revision:
                self._lose(lease.key)
