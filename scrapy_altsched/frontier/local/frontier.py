"""The frontier of one process: queues in memory, kept in a journal or not at all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import replace
from itertools import chain

from ...errors import StoreError
from ..clock import Alarm
from ..contract import IsMeant, Locate, PacedGate, Verdict, Waiting
from ..entry import Counts, DeadLetter, Entry, Lease, PageFailure, Place
from ..events import (
    Committed,
    FailuresDropped,
    LeasesReady,
    OnEvent,
    Refused,
    Unreadable,
    ignore_events,
)
from ..options import Options
from ..queue.slots import Slot
from ..store.job_run import FrontierOfRun, JobRun, MemoryRun, Visit
from ..store.journal import Journal
from ..store.states import DEAD, FAILED, PENDING
from ..suspects import Suspects
from .looking import find_seen, find_waiting
from .persistence import NoPersistence, Persistence
from .queues import Queues
from .rework import Rework

_NO_NOTES: Mapping[str, bytes] = {}
#: The states that a request comes back from when an operator says so, by their names.
_STOPPED = {state.family: state for state in (DEAD, FAILED)}
# Names of this module are found faster than members of an enumeration.
_ADDED, _SEEN = Verdict.ADDED, Verdict.SEEN


class LocalFrontier(FrontierOfRun):
    """A :class:`~..contract.Frontier` for one process; without a *journal* it lives in memory.

    :param is_visit: whether no run begins, and nothing is to be leased.
    """

    pace = None

    def __init__(
        self,
        options: Options,
        journal: Journal | None = None,
        on_event: OnEvent = ignore_events,
        *,
        is_visit: bool = False,
    ) -> None:
        run: JobRun | MemoryRun = MemoryRun()
        if journal is not None:
            run = Visit(journal) if is_visit else JobRun(journal)
        super().__init__(run)
        kept = Persistence(run, options) if isinstance(run, JobRun) else NoPersistence(options)
        self._kept: Persistence | NoPersistence = kept
        self._order, self._keeps_failed = options.order, options.keep_failed > 0
        self._on_event = on_event
        self._suspects = suspects = Suspects(kept.suspicions, options, run.leases, on_event)
        self.job = suspects.count_in(kept.begin())
        self.pressure, self.dead, self.failed = kept.pressure, kept.dead, kept.failed
        self._live = kept.live
        self._leases: dict[bytes, Lease] = {}
        self._held: dict[bytes, Lease] = {}
        #: Entries of which it could not be read whether they were seen.
        self._undecided: list[Entry] = []
        #: How many failed requests this run has dropped; how many commits were complete.
        self._dropped = self._completed = 0
        out = self._leases, self._held, suspects.withheld, kept.ended
        self._queues = queues = Queues(kept, options, out, suspects)
        self._slots, self._parked = queues.slots, queues.parked
        self._rework = Rework(kept, queues, suspects)
        self._budget, self._ages = kept.budget, kept.ages
        self._seen_key_of = kept.seen_key_of
        self._recrawl_after = options.recrawl_after
        self._alarm = Alarm(options.clock, lambda: on_event(LeasesReady()))
        self.job = replace(
            self.job,
            clock_behind=queues.delayed.time.behind,
            records_ages=self._ages is not None,
        )

    def add(self, entry: Entry) -> Verdict:
        if self.run.is_forked:
            self._check_owner()
        try:
            return self._decide(entry)
        except StoreError as error:
            # Whether it was seen cannot be known now, and it must not be lost.
            self._undecided.append(entry)
            self._on_event(Unreadable(error))
            return Verdict.UNDECIDED

    def _decide(self, entry: Entry) -> Verdict:
        kept = self._kept
        claim = None
        if entry.from_start:
            claim, is_skipped = kept.claim(entry.fingerprint)
            if is_skipped:
                return Verdict.STARTED
        if entry.unique:
            # By a local name: see "Cheap requests" in docs/architecture.rst.
            seen_key_of = self._seen_key_of
            entry.seen_key = seen_key = seen_key_of(entry.fingerprint)
            if kept.has_seen(seen_key) if self._ages is None else self._is_known(entry):
                return _SEEN
        if self._budget is not None and entry.unique and not self._budget.take(entry.find_slot()):
            return Verdict.OVER_BUDGET
        queues = self._queues
        slot, key = queues.accept(entry)
        if claim is not None:
            kept.take_claim(entry.fingerprint, claim)
        kept.add(key, slot, entry, claim)
        queues.put(slot, key, entry)
        return _ADDED

    def _is_known(self, entry: Entry) -> bool:
        """Whether a page was seen, and is not to be crawled again."""
        assert isinstance(self._kept, Persistence)
        assert self._ages is not None
        value = self._kept.seen_value(entry.seen_key)
        if value is None:
            return False
        age = entry.find_age() or self._recrawl_after
        if age is None or not self._ages.is_due(value, age):
            return True
        self._kept.restated.add(entry.seen_key)
        return False

    def _decide_again(self) -> None:
        """Add what could not be, in the order it came."""
        while self._undecided:
            entry = self._undecided[0]
            verdict = self._decide(entry)
            del self._undecided[0]
            if verdict is not _ADDED:
                self._on_event(Refused(entry, verdict))

    def lease(self, gate: PacedGate, /) -> Lease | Waiting:
        if self.run.is_forked:
            self._check_owner()
        suspects, queues = self._suspects, self._queues
        # Asked here, too, since a call for each request takes longer.
        if self.pressure.stalled_since is not None and queues.holds_all_back():
            return self._why_none()
        try:
            if self._live.delayed:
                queues.take_due()
            if self._parked:
                queues.let_in(gate)
            if suspects.matters:
                lease = suspects.next(
                    lambda: queues.take_next(gate),
                    self._give_up,
                    in_flight=bool(self._leases),
                    others=lambda: queues.pending > len(suspects.withheld),
                )
            else:
                lease = queues.take_next(gate)
        except StoreError as error:
            self._on_event(Unreadable(error))
            return Waiting.UNREACHABLE
        if lease is not None:
            queues.pending -= 1
            self._leases[lease.key] = lease
            suspects.note_lease(lease)
            return lease
        return self._why_none()

    def _why_none(self) -> Waiting:
        """Why there is nothing to lease; set the alarm for when there may be something."""
        with suppress(OSError):
            self.run.leases.flush()
        if (when := self._queues.next_at()) is not None:
            self._alarm.set(when)
        if not self._queues.pending:
            return Waiting.EMPTY
        if self._queues.holds_all_back():
            return Waiting.STALLED
        return Waiting.PARKED if self._parked else Waiting.ISOLATING

    def defer(self, slot: str | None, seconds: float) -> bool:
        self._check_owner()
        return self._queues.defer(slot, seconds)

    def undefer(self, slot: str) -> bool:
        self._check_owner()
        self._slots.unpark(slot)
        return True

    def discard(self, is_meant: IsMeant, locate: Locate | None = None) -> Iterator[int]:
        for count in self._rework.discard(is_meant, locate):
            self._check_owner()
            yield count

    def find_waiting(self, wanted: Set[bytes]) -> Iterator[set[bytes]]:
        leases, missing = (self._leases, self._held, self._suspects.withheld), set(wanted)
        for found in chain([set[bytes]()], self._rework.find(wanted)):
            self._check_owner()
            # What is leased meanwhile, and perhaps tried again, is among these for a portion.
            leased = {it.entry.fingerprint for kind in leases for it in kind.values()}
            found |= leased & wanted
            yield found
            missing -= found
            if not missing:
                return

    def requeue(self, state: str, key: bytes, locate: Locate) -> DeadLetter | PageFailure | None:
        self._check_owner()
        return self._rework.requeue(_STOPPED[state], key, locate)

    def _give_up(self, lease: Lease, why: DeadLetter) -> None:
        self._queues.pending -= 1
        self._leases[lease.key] = lease
        self.dead_letter(lease, why)

    def note_start_end(self) -> None:
        pass

    def finish(self, lease: Lease, then: Entry | None = None) -> None:
        if lease.failure is None or then is not None or not self._keeps_failed:
            self._end(lease, then)
            self._live.done += 1
            if self._ages is not None and lease.entry.unique and then is None:
                self._kept.end_page(self._seen_key_of(lease.entry.fingerprint))
        else:
            self._end(lease, failed=(lease.failure, int(self._queues.delayed.time.now() * 1000)))
            self._live.failed += 1

    def hold(self, lease: Lease) -> None:
        self._end_work(lease)
        self._clear(lease.entry.fingerprint)
        lease.held = True
        self._held[lease.key] = lease

    def dead_letter(self, lease: Lease, why: DeadLetter) -> None:
        self._end(lease, why=why)
        self._live.dead += 1

    def release(self, lease: Lease) -> None:
        slot = self._drop_lease(lease)
        self._queues.put(slot, lease.key, lease.entry)

    def mark_seen(self, fingerprint: bytes) -> bool:
        self._check_owner()
        seen_key = self._seen_key_of(fingerprint)
        was_seen = self._kept.has_seen(seen_key)
        if not was_seen:
            self._kept.mark(seen_key)
            if self._ages is not None:
                self._kept.end_page(seen_key)
        return was_seen

    def forget(self, fingerprint: bytes) -> bool:
        self._check_owner()
        seen_key = self._seen_key_of(fingerprint)
        was_seen = self._kept.has_seen(seen_key)
        if was_seen:
            self._kept.forget(seen_key)
        return was_seen

    def counts(self) -> Counts:
        self._check_owner()
        return self._live.as_counts(
            self._queues.pending,
            leased=len(self._leases) + len(self._held),
            undecided=len(self._undecided),
            seen=self._kept.count_seen(),
        )

    def busiest_slots(self, *, all_at_once: bool = False) -> Sequence[tuple[str, int]]:
        if self._order.policy == "one":
            return ()
        return self._slots.busiest.find(all_at_once=all_at_once)

    def peek(self, slot: str | None = None) -> Iterator[Entry]:
        self._check_owner()
        return self._queues.walk(slot)

    def locate(self, fingerprint: bytes, slot: str) -> Place:
        self._check_owner()
        for lease in chain(self._leases.values(), self._held.values()):
            if lease.entry.fingerprint == fingerprint:
                return Place("in flight", lease.entry.payload or b"")
        own, kept = self._slots.in_order(self._order.slot_of(slot)), self._kept
        withheld = self._suspects.withheld.values()
        queues = self._queues
        places = queues.window, kept.read_all(PENDING), withheld, queues.delayed
        return find_waiting(fingerprint, own, *places) or find_seen(fingerprint, kept)

    @property
    def is_over(self) -> bool:
        return not self.pending

    @property
    def pending(self) -> int:
        return self._queues.pending + len(self._undecided)

    @property
    def delayed(self) -> int:
        return self._live.delayed

    def next_due(self) -> float | None:
        self._check_owner()
        first = self._queues.delayed.first()
        return None if first is None else first / 1000

    def has_changes(self, notes: Mapping[str, bytes] = _NO_NOTES) -> bool:
        self._check_owner()
        return bool(self._undecided or self._kept.has_changes(notes))

    def commit(
        self, notes: Mapping[str, bytes] = _NO_NOTES, *, wait: bool = False, whole: bool = False
    ) -> bool:
        self._check_owner()
        self._decide_again()
        self._queues.note_state()
        written = self._kept.commit(notes, wait=wait, whole=whole)
        if written is None:
            self._completed += 1
            return True
        complete = written.deferred is None and not self.pressure.changes
        if complete:
            self._completed += 1
            self.pressure.urgent = False
            self.run.restart_leases(self._suspects.describe(self._leases.values()))
        self._queues.note_commit(written)
        if written.dropped:
            self._dropped += written.dropped
            self._on_event(FailuresDropped(self._dropped))
        self._on_event(Committed(self.run.commit_number))
        return complete

    @property
    def position(self) -> int:
        # What was added since the last commit waits for the next one that is complete.
        return self._completed + self.has_changes()

    def is_durable(self, position: int) -> bool:
        return self._completed >= position

    def _finish(self, *, finished: bool) -> None:
        while not self.commit(wait=True):
            pass
        self._kept.finish(self._suspects.suspicions, finished=finished)

    def _free(self) -> None:
        self._suspects.close()
        self._alarm.cancel()

    def _end_work(self, lease: Lease) -> None:
        if self.run.is_forked:
            self._check_owner()
        del self._leases[lease.key]
        if self._suspects.note_over(lease):
            self.pressure.urgent = True

    def _drop_lease(self, lease: Lease) -> Slot:
        if lease.held:
            del self._held[lease.key]
        else:
            self._end_work(lease)
        slot: Slot = lease.origin
        self._slots.end_lease(slot)
        return slot

    def _clear(self, fingerprint: bytes) -> None:
        if self._suspects.clear(fingerprint):
            self._kept.clear(fingerprint)

    def _end(
        self,
        lease: Lease,
        then: Entry | None = None,
        why: DeadLetter | None = None,
        failed: tuple[PageFailure, int] | None = None,
    ) -> None:
        entry, follower = lease.entry, None
        if then is not None:
            home, key = self._queues.accept(then)
            then.unique = entry.unique
            follower = key, home, then
        slot = self._drop_lease(lease)
        if self._suspects.suspicions:
            self._clear(entry.fingerprint)
        if entry.payload is None:
            self._live.memory_only -= 1
        self._kept.end(lease.key, slot, entry, why, follower, failed)
        if then is not None:
            self._queues.put(home, key, then)
        self._slots.drop_if_empty(slot)
