"""The frontier of one worker among many: it asks later, and never waits for the network.

Redis has the truth, this is a cache of it: leases that were fetched ahead, seen keys that are
known, and what is new and not answered yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from ..changes import Kind
from ..contract import Frontier, Gate, JobInfo, Pressure, Verdict, Waiting
from ..dead_letter import DeadLetter
from ..entry import Counts, Entry, Lease
from ..events import DeadLettered, OnEvent, ignore_events
from ..options import Options
from ..store.job_run import FrontierOfRun
from ..suspects import Suspects
from .additions import Additions
from .batches import Reply
from .conversation import Conversation
from .keys import SeenKeyOf, seen_key_of
from .leases import Leases
from .membership import Phase
from .memory_only import MemoryOnly
from .record import Record
from .sending import Link
from .stream import Stream

#: Seconds for which a commit that waits, and closing, wait for the server.
_WAIT_WITHIN = 20.0

#: Key, reason and payload of each dead letter.
ReadDead = Callable[[], Iterable[tuple[bytes, DeadLetter, bytes]]]

_NO_NOTES: Mapping[str, bytes] = {}


class SharedFrontier(FrontierOfRun):
    """A :class:`~..contract.Frontier` whose requests are on a server, for many workers.

    :param stream: what this worker sends.
    :param link: where it sends it to.
    :param record: what this worker keeps on its own disk.
    :param prefetch: how many requests may be leased before they are asked for.
    :param waits: whether the crawl is to stay open as long as this worker lives.
    :param lease_timeout: seconds after which leases of a worker that is not heard of go back.
    :param on_event: told of what nobody asked for, from within calls and :meth:`take_replies`.
    :param seen_key_of: what the crawl keeps of a fingerprint.
    :param read_dead: reads the dead letters of the crawl, waiting for the server.
    """

    def __init__(
        self,
        options: Options,
        stream: Stream,
        link: Link,
        record: Record,
        *,
        prefetch: int = 100,
        lease_timeout: float = 60.0,
        waits: bool = False,
        on_event: OnEvent = ignore_events,
        seen_key_of: SeenKeyOf = seen_key_of,
        read_dead: ReadDead = tuple,
    ) -> None:
        super().__init__(record.run)
        self._stream = stream
        self._prefetch = prefetch
        self._on_event = on_event
        self._read_dead = read_dead
        self._here = MemoryOnly([])
        self._suspects = Suspects(
            {},
            max_crashes=options.max_crashes,
            patience=options.patience,
            clock=options.clock,
            on_event=on_event,
        )
        self._leases = Leases(
            self._here, self._suspects, record.run.leases, self._give_up, on_event
        )
        self._additions = Additions(options, stream, self._here, on_event, seen_key_of)
        self._server = Conversation(
            options.clock,
            stream,
            link,
            record,
            here=self._here,
            suspects=self._suspects,
            leases=self._leases,
            additions=self._additions,
            on_event=on_event,
            prefetch=prefetch,
            lease_timeout=lease_timeout,
            waits=waits,
        )
        self.pressure: Pressure = self._server.pressure
        self._is_closed = False

    @property
    def job(self) -> JobInfo:
        return self._server.job

    def join(self, timeout: float) -> Reply | None:
        """See :meth:`.conversation.Conversation.join`."""
        return self._server.join(timeout)

    def take_replies(self, timeout: float = 0.0) -> bool:
        """See :meth:`.conversation.Conversation.take_replies`."""
        return self._server.take_replies(timeout)

    # Transitions

    def add(self, entry: Entry) -> Verdict:
        self.check_owner()
        if self._server.is_over and not self._server.reopen():
            return Verdict.STARTED if entry.from_start else Verdict.SEEN
        verdict = self._additions.add(entry)
        if self._suspects.matters and verdict is not Verdict.SEEN:
            self._suspects.note_add()
        if verdict is Verdict.UNDECIDED:
            self._server.note_change()
        return verdict

    def mark_seen(self, fingerprint: bytes) -> bool:
        self.check_owner()
        is_known = self._additions.mark_seen(fingerprint)
        if not is_known:
            self._server.note_change()
        return is_known

    def forget(self, fingerprint: bytes) -> bool:
        self.check_owner()
        was_known = self._additions.forget(fingerprint)
        self._server.note_change()
        return was_known

    def lease(self, gate: Gate | None = None, /) -> Lease | Waiting:  # noqa: ARG002
        self.check_owner()
        leases = self._leases
        if self._suspects.matters:
            before = leases.alone
            lease = leases.next_with_suspects(others=self._server.reply.pending > 0)
            if leases.alone != before:
                # One request is to be alone here: others may have what was fetched ahead.
                self._server.give_back(leases.fetched)
                leases.fetched.clear()
            if leases.is_announcing:
                self._server.request_leases()
                self._server.flush_soon()
                return Waiting.FETCHING
        else:
            lease = leases.next()
            if lease is not None:
                leases.hand_out(lease)
        if lease is None:
            self._server.request_leases()
            return self._why_none()
        if lease.key:
            lease.origin = self._additions.works, self._stream.last_addition
        if len(leases.fetched) < self._prefetch // 2:
            self._server.flush_soon()
        return lease

    def _why_none(self) -> Waiting:
        if self._server.is_over:
            return Waiting.EMPTY
        if self._suspects.matters and self._suspects.withheld:
            return Waiting.ISOLATING
        if self._additions.undecided or self._server.reply.pending:
            return Waiting.FETCHING
        return Waiting.ELSEWHERE

    def finish(self, lease: Lease) -> None:
        if lease.key:
            self._end(lease, Kind.DONE)
        else:
            self._finish_here(lease)
            self._here.done += 1

    def hold(self, lease: Lease) -> None:
        self.check_owner()
        self._end_work(lease)
        lease.held = True

    def release(self, lease: Lease) -> None:
        if lease.key:
            self._end(lease, Kind.RELEASED)
        else:
            self._end_here(lease)
            self._additions.put_back(lease.entry)

    def dead_letter(self, lease: Lease, why: DeadLetter) -> None:
        if lease.key:
            self._end(lease, Kind.DIED, str(why).encode("utf-8", "surrogatepass"))
        else:
            self._finish_here(lease)
            self._here.dead += 1

    def _give_up(self, lease: Lease, reason: str) -> None:
        lease.origin = self._additions.works, self._stream.last_addition
        why = DeadLetter(reason)
        self.dead_letter(lease, why)
        self._on_event(DeadLettered(lease.entry, why))

    def _end(self, lease: Lease, kind: Kind, reason: bytes = b"") -> None:
        self.check_owner()
        self._note_end(lease)
        self._server.end(lease, kind, reason)

    def _end_here(self, lease: Lease) -> None:
        self.check_owner()
        self._note_end(lease)
        self._here.leased -= 1
        self._server.note_change()

    def _finish_here(self, lease: Lease) -> None:
        self._end_here(lease)
        self._additions.end_here(lease.entry)
        self.pressure.changes += 1

    def _note_end(self, lease: Lease) -> None:
        if not lease.held:
            self._end_work(lease)

    def _end_work(self, lease: Lease) -> None:
        if self._leases.end(lease):
            self.pressure.urgent = True

    def note_start_end(self) -> None:
        self._server.note_start_end()

    # Queries

    @property
    def is_over(self) -> bool:
        return self._server.is_over

    @property
    def pending(self) -> int:
        fetched = len(self._leases.fetched) + len(self._here.pending)
        return self._server.reply.pending + fetched + self._additions.undecided

    def counts(self) -> Counts:
        self.check_owner()
        reply, here, fetched = self._server.reply, self._here, len(self._leases.fetched)
        return Counts(
            accepted=reply.accepted + here.accepted,
            pending=reply.pending + fetched + len(here.pending),
            leased=reply.leased - fetched + here.leased,
            done=reply.done + here.done,
            dead=reply.dead + here.dead,
            memory_only=here.left,
            undecided=self._additions.undecided,
        )

    def dead(self) -> Iterator[tuple[bytes, DeadLetter, bytes]]:
        if self._server.reply.dead:
            yield from self._read_dead()

    # Commits

    def has_changes(self, notes: Mapping[str, bytes] = _NO_NOTES) -> bool:
        self.check_owner()
        has_ended = self._stream.unacknowledged > 0 or self._additions.held > 0
        return has_ended or bool(self._run.changed(notes))

    def commit(self, notes: Mapping[str, bytes] = _NO_NOTES, *, wait: bool = False) -> bool:
        self.check_owner()
        # What a note tells must be known before the endings count that it belongs to.
        self._run.write_notes(notes)
        self._server.commit()
        if wait:
            self._server.wait_for_answers(_WAIT_WITHIN)
        # Of a crawl that is gone, nothing will ever be stored.
        membership = self._server.membership
        is_gone = membership.phase is Phase.CLOSED and membership.failure is None
        return not self._stream.unacknowledged or is_gone

    @property
    def position(self) -> int:
        return self._stream.last_addition

    def is_durable(self, position: int) -> bool:
        return self._stream.last_answered >= position

    def close(self, *, finished: bool = False, hold: bool = False) -> None:
        self.check_owner()
        if self._is_closed:
            return
        try:
            self._server.leave(_WAIT_WITHIN)
            self._run.finish(finished=finished)
        finally:
            self.abandon()
            if not hold:
                self.end()

    def abandon(self) -> None:
        self.check_owner()
        if not self._is_closed:
            self._is_closed = True
            self._suspects.close()
            self._server.close()
            self._run.abandon()


if TYPE_CHECKING:
    _conforms: type[Frontier] = SharedFrontier
