"""The frontier of one worker among many: it asks later, and never waits for the network.

Redis has the truth, this is a cache of it: leases that were fetched ahead, seen keys that are
known, and what is new and not answered yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from itertools import chain
from typing import TYPE_CHECKING, NoReturn

from ...errors import ConfigError
from ..changes import Kind
from ..clock import Alarm
from ..contract import Frontier, IsMeant, JobInfo, Locate, PacedGate, Verdict, Waiting
from ..entry import Counts, DeadLetter, Entry, Lease, PageFailure, Place
from ..events import LeasesReady
from ..queue.parked import EVERY_SLOT, Parked
from ..store.job_run import FrontierOfRun
from ..store.states import encode_failure
from .batches import Addition
from .keys import slot_id_of
from .membership import Membership

#: Seconds for which a commit that waits, and closing, wait for the server.
_WAIT_WITHIN = 20.0
#: Changes without an answer with which an answer is taken as soon as it has come, and not in the
#: event loop's next turn: callbacks may yield thousands in each.
_MANY = 1_000

_ON_SERVER = (
    "The requests of a shared crawl are on its server: act on all of them with `scrapy altsched"
    " discard --shared KEY`, or `requeue --shared KEY`."
)
_NO_NOTES: Mapping[str, bytes] = {}


class SharedFrontier(FrontierOfRun):
    """A :class:`~..contract.Frontier` whose requests are on a server, for many workers.

    :param read_dead: reads the dead letters of the crawl, waiting for the server.
    """

    def __init__(
        self,
        membership: Membership,
        read_dead: Callable[[], Iterable[tuple[bytes, DeadLetter, bytes]]] = tuple,
    ) -> None:
        self._membership = membership
        self._server = server = membership.conversation
        super().__init__(server.record.run)
        self._stream, self._prefetch = server.stream, server.prefetch
        self._keeps_failed = server.stream.keep_failed > 0
        self._read_dead = read_dead
        self._leases, self._suspects = server.leases, server.suspects
        self._additions, self._here = server.additions, server.additions.here
        self.pressure, self.pace = server.pressure, server.pace
        self._parked, self._now = Parked(), server.clock.monotonic
        self._alarm = Alarm(server.clock, lambda: server.on_event(LeasesReady()))
        # What others do for it.
        self.take_replies, self.note_start_end = server.take_replies, server.note_start_end

    @property
    def job(self) -> JobInfo:
        return self._membership.job

    def add(self, entry: Entry) -> Verdict:
        self._check_owner()
        if self.pressure.unacknowledged >= _MANY:
            self._server.take_early()
        if self._server.is_over and not self._server.reopen():
            return Verdict.STARTED if entry.from_start else Verdict.SEEN
        verdict = self._additions.add(entry)
        if self._suspects.matters and verdict is not Verdict.SEEN:
            self._suspects.note_add()
        if verdict is Verdict.UNDECIDED:
            self._server.note_change()
        return verdict

    def mark_seen(self, fingerprint: bytes) -> bool:
        self._check_owner()
        is_known = self._additions.mark_seen(fingerprint)
        if not is_known:
            self._server.note_change()
        return is_known

    def forget(self, fingerprint: bytes) -> bool:
        self._check_owner()
        was_known = self._additions.forget(fingerprint)
        self._server.note_change()
        return was_known

    def lease(self, gate: PacedGate | None = None, /) -> Lease | Waiting:  # noqa: ARG002  (the server chooses)
        self._check_owner()
        leases, server, suspects = self._leases, self._server, self._suspects
        if self.pressure.is_full and server.outlook.hold_pages():
            server.request_leases()
            return Waiting.FETCHING
        if self._parked.trials and self._is_paused():
            return Waiting.PARKED
        if self._here.delayed:
            self._here.take_due()
        if server.is_paused:
            lease = None  # also what was leased before, and withheld, and what is in memory only
        elif suspects.matters:
            alone = suspects.alone
            others = self._stream.reply.pending > 0
            lease = leases.next_with_suspects(self._give_up, others=others)
            if suspects.alone is not alone:
                # One request is to be alone here: others may have what was fetched ahead.
                given_back = leases.give_back_fetched()
                self.pressure.changes += given_back
                self.pressure.urgent |= given_back > 0
            if leases.is_announcing:
                server.request_leases()
                server.flush_soon()
                return Waiting.FETCHING
        else:
            lease = leases.next()
            if lease is not None:
                leases.hand_out(lease)
        if lease is None:
            self.pace.note_none_left()
            server.request_leases()
            return self._why_none()
        if lease.key:
            lease.origin = self._additions.origin
        if self._parked.trials:
            self._parked.begin_trial(EVERY_SLOT)
        if len(leases.fetched) < self._prefetch // 2 and not self._server.pace.is_on:
            server.flush_soon()
        return lease

    def _why_none(self) -> Waiting:
        if self._server.is_over:
            return Waiting.EMPTY
        if self._suspects.matters and self._suspects.withheld:
            return Waiting.ISOLATING
        if self._additions.undecided or self._stream.reply.pending:
            return Waiting.FETCHING
        return Waiting.ELSEWHERE

    def defer(self, slot: str | None, seconds: float) -> bool:
        self._check_owner()
        if slot is None:
            # This worker's network is not that of the others.
            self._parked.park(EVERY_SLOT, self._now() + seconds, trial=True)
        elif self.pace.may_begin:
            self.pace.defer(slot, seconds)
        else:
            return False
        return True

    def undefer(self, slot: str) -> bool:  # noqa: ARG002  (a command tells the server)
        return False

    def discard(
        self,
        is_meant: IsMeant,  # noqa: ARG002  (a command asks the server, which has the requests)
        locate: Locate | None = None,  # noqa: ARG002  (budgets of slots are on the server, too)
    ) -> NoReturn:
        raise ConfigError(_ON_SERVER)

    def requeue(self, state: str, key: bytes, locate: Locate) -> NoReturn:  # noqa: ARG002  (as above)
        raise ConfigError(_ON_SERVER)

    def _is_paused(self) -> bool:
        """Whether this worker leaves all slots alone."""
        if EVERY_SLOT in self._parked.until and not list(self._parked.take_due(self._now())):
            if (until := self._parked.first()) is not None:
                self._alarm.set(until)
            return True
        return False

    def finish(self, lease: Lease, then: Entry | None = None) -> None:
        follower = None
        if then is not None:
            if lease.key:
                follower = self._additions.follow(then, lease.entry.unique)
            if follower is None:
                self.add(then)
        if lease.failure is None or then is not None or not self._keeps_failed:
            self._end(lease, Kind.DONE, then=follower)
        else:
            self._end(lease, Kind.FAILED, encode_failure(lease.failure))

    def hold(self, lease: Lease) -> None:
        self._check_owner()
        self._end_work(lease)
        lease.held = True

    def release(self, lease: Lease) -> None:
        self._end(lease, Kind.RELEASED)

    def dead_letter(self, lease: Lease, why: DeadLetter) -> None:
        self._end(lease, Kind.DIED, str(why).encode("utf-8", "surrogatepass"))

    def _give_up(self, lease: Lease, why: DeadLetter) -> None:
        self._leases.given += 1
        lease.origin = self._additions.origin
        self.dead_letter(lease, why)

    def _end(
        self, lease: Lease, kind: Kind, reason: bytes = b"", then: Addition | None = None
    ) -> None:
        self._check_owner()
        if not lease.held:
            self._end_work(lease)
        if lease.key:
            self.pressure.changes += self._leases.end(lease, kind, reason, then)
            return
        self._here.end(lease, kind)
        if kind is not Kind.RELEASED:
            self._additions.end_here(lease.entry)
            self.pressure.changes += 1
        self._server.plan_batch()

    def _end_work(self, lease: Lease) -> None:
        self._leases.given -= 1
        if self._parked.trials:
            self._parked.end_trial(EVERY_SLOT)
        if self._suspects.note_over(lease):
            self.pressure.urgent = True

    def peek(self, slot: str | None = None) -> Iterator[Entry]:
        self._check_owner()
        wanted = None if slot is None else slot_id_of(slot)
        for slot_id, entry in self._leases.in_order():
            if wanted in (None, slot_id):
                yield entry

    def locate(self, fingerprint: bytes, slot: str) -> Place | None:  # noqa: ARG002  (few are here)
        for lease in self._leases.given_out():
            if lease.entry.fingerprint == fingerprint:
                return Place("in flight", lease.entry.payload or b"")
        for entry in self.peek():
            if entry.fingerprint == fingerprint:
                return Place("pending", entry.payload or b"")
        return None

    def find_waiting(self, wanted: Set[bytes]) -> Iterator[set[bytes]]:
        leased = (lease.entry for lease in self._leases.given_out())
        yield {entry.fingerprint for entry in chain(leased, self.peek())} & wanted

    def failed(self) -> Iterator[tuple[bytes, PageFailure, bytes]]:
        # They are on the server, where a command looks for them.
        return iter(())

    @property
    def is_over(self) -> bool:
        return self._server.is_over or self._server.outlook.only_waits

    @property
    def pending(self) -> int:
        fetched = len(self._leases.fetched) + len(self._here.pending)
        return self._stream.reply.pending + fetched + self._additions.undecided

    @property
    def delayed(self) -> int:
        return self._stream.reply.delayed + len(self._here.delayed)

    def next_due(self) -> float | None:
        return self._server.outlook.next_due()

    def counts(self) -> Counts:
        self._check_owner()
        reply, here, fetched = self._stream.reply, self._here, len(self._leases.fetched)
        return Counts(
            accepted=reply.accepted + here.accepted,
            pending=reply.pending + fetched + len(here.pending),
            leased=reply.leased - fetched + here.leased,
            done=reply.done + here.ended[Kind.DONE],
            dead=reply.dead + here.ended[Kind.DIED],
            delayed=self.delayed,
            failed=reply.failed + here.ended[Kind.FAILED],
            memory_only=here.left,
            undecided=self._additions.undecided,
            seen=None if reply.seen < 0 else reply.seen,
        )

    def busiest_slots(self, *, all_at_once: bool = False) -> Sequence[tuple[str, int]]:  # noqa: ARG002  (none are known)
        # The server knows slots by a digest of their names.
        return ()

    def dead(self) -> Iterator[tuple[bytes, DeadLetter, bytes]]:
        if self._stream.reply.dead:
            yield from self._read_dead()

    def has_changes(self, notes: Mapping[str, bytes] = _NO_NOTES) -> bool:
        self._check_owner()
        has_ended = self._stream.unacknowledged > 0 or bool(self._additions.ended)
        return has_ended or bool(self.run.changed(notes))

    def commit(
        self,
        notes: Mapping[str, bytes] = _NO_NOTES,
        *,
        wait: bool = False,
        whole: bool = False,  # noqa: ARG002  (the server takes batches of its own)
    ) -> bool:
        self._check_owner()
        # What a note tells must be known before the endings count that it belongs to.
        self.run.write_notes(notes)
        self._server.commit()
        if wait:
            self._membership.wait_for_answers(_WAIT_WITHIN)
        return not self._stream.unacknowledged or self._server.is_cut_off

    @property
    def position(self) -> int:
        return self._stream.last_addition

    def is_durable(self, position: int) -> bool:
        return self._stream.last_answered >= position

    def _finish(self, *, finished: bool) -> None:
        self._membership.leave(_WAIT_WITHIN)
        self.run.finish(finished=finished)

    def _free(self) -> None:
        self._alarm.cancel()
        self._suspects.close()
        self._server.close()


if TYPE_CHECKING:
    _conforms: type[Frontier] = SharedFrontier
