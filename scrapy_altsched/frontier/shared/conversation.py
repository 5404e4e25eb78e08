"""A worker's server session: it joins, reports what is new, learns what to do, and leaves.

What is said is in :mod:`.stream`, when in :mod:`.sending`, and what the server makes of it in
``shared.lua``.
"""

from __future__ import annotations

from collections.abc import Iterable
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
from .leases import Leases
from .membership import Membership, Phase
from .memory_only import MemoryOnly
from .record import Record
from .sending import Link, Sender, ServerMemory
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


class Conversation:
    """What this worker and the server know of each other.

    :param prefetch: how many requests may be leased before they are asked for.
    :param lease_timeout: seconds after which leases of a worker that is not heard of go back.
    :param waits: whether the crawl is to stay open as long as this worker lives.
    :ivar job: what is known of the crawl.
    :ivar pressure: what waits for an answer.
    :ivar reply: what the server answered last.
    :ivar is_waiting: whether the crawl waits for something to lease.
    :ivar membership: this worker's part in the crawl.
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
        self._sender = Sender(stream, link, clock, self._build)
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
        self.reply = Reply(Status.OK)
        self.commits = 0
        self.is_waiting = False
        #: Whether anything was stored since the last commit was told of, and whether any lease has
        #: ended since the log of them was begun.
        self._is_unreported = self._has_ended = False
        self._observed = -1
        #: Whether the batch in flight, or the last one, asked for something to lease.
        self._has_asked = False
        self._is_start_over = False
        #: Whether an answer was waited for in vain, and none has come since.
        self._is_given_up = False
        self._memory = ServerMemory(clock, stream, on_event)
        self._heard_at = clock.monotonic()
        self._stall = Stall(clock, self._progress, self._why_stalled, on_event)
        self.membership = Membership(on_event)

    @property
    def is_over(self) -> bool:
        """Whether there is nothing left to talk of."""
        return self._sender.is_over

    @property
    def is_feeding(self) -> bool:
        """Whether this worker may bring requests that no lease accounts for."""
        return (
            self._waits
            or not self._is_start_over
            or self._additions.undecided > 0
            or self._here.left > 0
        )

    # Beginning and end

    def join(self, timeout: float) -> Reply | None:
        """Join the crawl, which from then on does not end without this worker; wait for the answer.

        What was in flight when this worker died is evaluated, and the server told, before anything
        is leased.

        :param timeout: seconds to wait.
        :return: the first answer, with the status of the last one; ``None``: none came.
        :raises StoreError: what this worker keeps on its own cannot be written, or the server has
            answered only once.
        :raises FrontierFailedError: there will be no answer.
        """
        self._record.note_tokens([*self._stream.earlier, self._stream.token], self._stream.crawl)
        deadline = self._clock.monotonic() + timeout
        reply = None
        while reply is None or reply.status in (Status.GAP, Status.STALE):
            self._sender.send()
            reply = self._link.take(max(0.0, deadline - self._clock.monotonic()))
            if reply is None:
                return None
            self._take_reply(reply)
        if reply.status is Status.OK:
            if reply.finished:
                # It has been here before, and may bring something new.
                self._on_event(AlreadyFinished())
            self._judge_last_death()
            self.wait_for_answers(max(0.0, deadline - self._clock.monotonic()))
            # The crawl may have been dropped or replaced since the first answer.
            reply = replace(reply, status=self.membership.status)
        if reply.status is Status.OK:
            self._record.note_tokens([self._stream.token], self._stream.crawl)
            self._record.run.restart_leases()
            self.membership.enter(Phase.TAKING_PART)
            self._stall.start()
        elif reply.status is Status.FINISHED:
            # What its feeds hold must not be overwritten with nothing.
            self.job = replace(self.job, resumed=True)
        return reply

    def _judge_last_death(self) -> None:
        suspects, stored = self._suspects, dict(self._suspects.suspicions)
        for fingerprint, suspicion in judge(stored, self._record.evidence).items():
            if suspicion != stored.get(fingerprint):
                self._stream.judge(fingerprint, encode_suspicion(suspicion))
                suspects.hold_against(fingerprint, suspicion)
        leased = {lease.entry.fingerprint for lease in self._leases.fetched}
        for fingerprint in suspects.suspicions.keys() - leased:
            suspects.clear(fingerprint)
        self.job = replace(
            self.job,
            resumed=self.job.resumed or self.reply.accepted > 0,
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
                    self.membership.enter(Phase.LEAVING)
                self._sender.send()
            left = deadline - self._clock.monotonic()
            if not self.take_replies(max(0.0, left)) and left <= 0:
                changes = self._stream.unacknowledged
                raise StoreError(
                    f"The Redis server did not answer for {timeout:g} s: this worker's last"
                    f" {changes} {inflect(changes, 'change', 'changes')} may not be saved, and what"
                    " it had leased is crawled again by the others."
                )
        self.membership.check()
        if self._stream.is_full and (changes := self._stream.unacknowledged):
            raise StoreError(
                f"The Redis server's memory is full: {changes}"
                f" {inflect(changes, 'change is', 'changes are')} not saved, and their pages are"
                " crawled again. Raise its maxmemory, then start this worker again."
            )

    def note_start_end(self) -> None:
        """``Spider.start()`` has brought all that it will."""
        self._is_start_over = True
        self.flush_soon()

    def reopen(self) -> bool:
        """Have something sent though the crawl is finished; whether that is possible."""
        if self.membership.phase is Phase.CLOSED:
            return False
        self._sender.is_over = False
        return True

    def close(self) -> None:
        self.membership.enter(Phase.CLOSED)
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
        if not self.is_over:
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

    def give_back(self, leases: Iterable[Lease]) -> None:
        """Let others have what was fetched ahead."""
        last = self._stream.last_addition
        for lease in leases:
            if self._leases.lose(lease.key) is lease:
                self._stream.end(Ending(lease.key, Kind.RELEASED, last, last))
                self.pressure.changes += 1
                self.pressure.urgent = True

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
        deadline = self._deadline(timeout)
        while self._stream.unacknowledged and not self.is_over:
            if self._stream.is_full and not self._stream.waiting:
                return
            self._sender.send()
            left = deadline - self._clock.monotonic()
            if not self.take_replies(max(0.0, left)) and left <= 0:
                self._is_given_up = True
                changes = self._stream.unacknowledged
                raise StoreError(
                    f"The Redis server does not answer; {changes}"
                    f" {inflect(changes, 'change waits', 'changes wait')} for it."
                )
        self.membership.check()

    def _deadline(self, timeout: float) -> float:
        # A crawl that ends asks several times for the same.
        return self._clock.monotonic() + (0.0 if self._is_given_up else timeout)

    def _progress(self) -> tuple[int, ...]:
        return self.reply.version, self.commits, self._leases.given

    def _why_stalled(self) -> str:
        reply, stream = self.reply, self._stream
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
        if not self.is_waiting:
            return ""
        if reply.pending:
            requests = inflect(reply.pending, "pending request")
            return f"of {reply.pending} {requests} the server leases none to this worker"
        if reply.leased:
            requests = inflect(reply.leased, "request")
            return f"all that is left ({reply.leased} {requests}) is leased by other workers"
        return ""

    def _build(self) -> EncodedBatch:
        self._memory.try_again()
        leases = self._leases
        is_leaving = self.membership.phase is Phase.LEAVING
        want = 0
        if self._wants_leases():
            want = max(0, self._prefetch - len(leases.fetched))
        self._has_asked = want > 0
        return self._stream.build(
            want=want,
            feeding=self.is_feeding,
            observed=-1 if self.is_feeding else self._observed,
            waits=self._waits and not is_leaving,
            late=self.reply.late,
            leaving=is_leaving,
            alone=leases.alone,
            beside=leases.beside,
        )

    def _wants_leases(self) -> bool:
        if self.membership.phase is not Phase.TAKING_PART or self._leases.alone:
            return False
        # A batch that goes anyway brings more than would be asked for.
        return self.is_waiting or len(self._leases.fetched) < self._prefetch * 3 // 4

    # What is heard

    def take_replies(self, timeout: float = 0.0) -> bool:
        """Take what the server has answered; whether it has.

        :param timeout: seconds to wait for it.
        """
        try:
            reply = self._link.take(timeout)
        except FrontierFailedError as error:
            # What died while the crawl was opened, opening has raised.
            if not self.is_over:
                self._sender.is_over = True
                self.membership.fail(error)
            return False
        if reply is None or self.is_over:
            return False
        self._take_reply(reply)
        return True

    def _take_reply(self, reply: Reply) -> None:
        if reply.status is Status.OK:
            self._take(reply)
        elif reply.status in (Status.GAP, Status.STALE):
            self._start_again()
        else:
            self._sender.is_over = True
            if reply.status is Status.FINISHED:
                self.reply = reply
            self.membership.end(reply.status)
            return
        self._measure()
        if self._stream.is_full:
            self._sender.plan(self._memory.pause_left)
        if self._leases.is_announcing:
            self.flush_soon()
        elif self._stream.waiting:
            self.note_change()
        elif self.is_waiting and not self._has_asked and self.reply.pending:
            self.flush_soon()
        elif self.is_waiting:
            self._sender.plan_poll()
        else:
            self._sender.plan(self._renew_every)

    def _take(self, reply: Reply) -> None:
        if reply.epoch != self.reply.epoch:
            self._additions.invalidate()
            self._on_event(SeenInvalidated())
        was_announcing = self._leases.is_announcing
        self._is_given_up = False
        self.reply = reply
        self._heard_at = self._clock.monotonic()
        outcome = self._stream.acknowledge(reply)
        self._memory.note_answer(is_refused=bool(reply.full), is_taken=bool(outcome.accepted))
        had_here = len(self._here.pending)
        for addition in outcome.accepted:
            self._additions.settle(addition, is_accepted=True)
        for addition in outcome.refused:
            self._additions.settle(addition, is_accepted=False)
        self._note_lost(reply, outcome.over)
        self._take_leases(reply)
        self._observed = reply.version if reply.is_idle else -1
        if reply.finished:
            # Nobody has leased anything any more: this worker was not heard of for long.
            for key in list(self._leases.by_key):
                self._lose(key)
        # It may have more to bring, and so opens the crawl again.
        is_done = not self.is_feeding and not self._stream.unacknowledged
        self._sender.is_over = reply.finished and is_done
        if self._sender.is_over:
            self._on_event(LeasesReady())
        if was_announcing and self._leases.mark_announced(reply.told):
            self._notify_leases_ready()
        if self._has_asked:
            self._sender.note_answer(is_useful=bool(reply.leases))
        # Those that are withheld may be waiting for nothing else to be pending.
        may_isolate = bool(self._suspects.withheld) and not reply.pending
        if reply.leases or len(self._here.pending) > had_here or may_isolate:
            self._notify_leases_ready()
        self._has_ended |= bool(outcome.over)
        self._is_unreported |= bool(outcome.over or outcome.accepted or outcome.refused)
        # What was added meanwhile is not stored yet, and nobody may take it to be.
        if self._is_unreported and self._stream.unacknowledged == self._stream.held:
            self._note_committed()

    def _note_lost(self, reply: Reply, over: Iterable[Ending]) -> None:
        if not reply.void:
            return
        void = set(reply.void)
        for ending in over:
            if ending.key in void and ending.entry is not None:
                self._on_event(LeaseLost(ending.entry))
        for key in reply.void:
            self._lose(key)

    def _take_leases(self, reply: Reply) -> None:
        origin = self._additions.works, self._stream.last_addition
        is_joining = self.membership.phase is Phase.JOINING
        for key, row in sorted(reply.leases, key=_order_of) if is_joining else reply.leases:
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

    def _notify_leases_ready(self) -> None:
        if self.is_waiting:
            self.is_waiting = False
            self._on_event(LeasesReady())

    def _note_committed(self) -> None:
        self.commits += 1
        self._is_unreported = False
        if self._has_ended:
            self._has_ended = False
            is_alone = self._suspects.is_alone
            self._record.run.restart_leases(
                (lease.entry.fingerprint, is_alone(lease), lease.in_hand)
                for lease in self._leases.given_out()
                if not lease.held
            )
        self._on_event(Committed(self.commits))

    def _start_again(self) -> None:
        """Begin a new stream, since the server has lost what was sent last.

        What a page has led to may be lost with it.  So every page goes back that anything may have
        been added by, or found to be known by, and is worked on again.
        """
        self._additions.reset()
        self._observed = -1
        self._release_doubtful_leases()
        self.pressure.changes = 0
        self._stream.restart(self._leases.by_key)
        with suppress(StoreError):  # its leases go back by timeout then, if it dies
            self._record.note_tokens(
                [*self._stream.earlier, self._stream.token], self._stream.crawl
            )
        self._is_start_over = False
        self._on_event(SeenInvalidated())
        self._on_event(ServerRolledBack())

    def _release_doubtful_leases(self) -> None:
        for lease in list(self._leases.given_out()):
            if lease.origin[0] != self._additions.works:
                self._lose(lease.key)


def _order_of(leased: tuple[bytes, bytes]) -> bytes:
    return leased[0][8:]
