"""The frontier of one process: in memory, and with a journal on disk if it has one.

The journal is a snapshot, not a log of calls: :meth:`LocalFrontier.commit` takes the store from
one state that the crawl was really in to the next.  This is right because a page's children are
added before the page is finished: a snapshot at any instant holds a request, or its parent still
leased, and a leased request stays stored until it is done.

:mod:`.changes` holds what is to be written, :mod:`.window` what is held in memory of what was.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from ...errors import ForkedError, StoreError
from ..contract import (
    Committed,
    Counts,
    DeadLettered,
    Entry,
    Frontier,
    Gate,
    JobInfo,
    Lease,
    LeaseUnrecorded,
    OnEvent,
    Pressure,
    Progress,
    Reason,
    Refused,
    Unreadable,
    Verdict,
    Waiting,
    ignore_events,
)
from ..forks import call_in_child
from ..options import Options
from ..queue.order import Slot, Slots
from ..queue.window import Window
from ..store.journal import Journal
from ..store.lease_log import ALONE, LEASED, RECEIVED
from ..store.records import DAMAGE, Batch, Counters, Level
from ..store.runs import Run, begin
from .changes import BATCH_BYTES, NO_NOTES, Changes, Draft
from .start_claims import StartClaims
from .suspects import Suspects, find_suspects

#: How often this process and its parents were forked: a number costs less to compare than a
#: process id to ask for.
_forks = 0


def _note_fork() -> None:
    global _forks
    _forks += 1


call_in_child(_note_fork)

#: Name of the note of the run that finished the job.
_FINISHED_IN = "finished in run"
_EMPTY = Waiting(Reason.EMPTY)
_ISOLATING = Waiting(Reason.ISOLATING)
_UNREACHABLE = Waiting(Reason.UNREACHABLE)


class _Idle:
    """A gate for a crawl that downloads nothing."""

    def active(self, _: str, /) -> int:
        return 0


_IDLE: Gate = _Idle()


class LocalFrontier:
    """A :class:`~..contract.Frontier` for one process.

    :param options: how it behaves.
    :param journal: where it is kept; without one it lives in memory.
    :param on_event: told of what nobody asked for, from within calls.
    :raises StoreError: the journal cannot be read or written.
    """

    def __init__(
        self,
        options: Options,
        journal: Journal | None = None,
        on_event: OnEvent = ignore_events,
    ) -> None:
        self._pid = os.getpid()
        self._forks = _forks
        self._options = options
        self._order = options.order
        self._journal = journal
        self._slots = Slots()
        self._leases: dict[bytes, Lease] = {}
        self._on_event = on_event
        self._suspects = Suspects(
            find_suspects(journal) if journal is not None else {},
            max_crashes=options.max_crashes,
            patience=options.patience,
            clock=options.clock,
            on_event=on_event,
        )
        self.pressure = Pressure()
        #: Entries of which it could not be read whether they were seen.
        self._undecided: list[Entry] = []
        self._pending = 0
        self._live = Counters()
        self._run = Run(0, options.components)
        self._closed = False
        self._changes = changes = Changes()
        self._claims: StartClaims | None = None
        self._saved = Counters()
        #: What a write failed to store, or did store in spite of its error: it goes first.
        self._unsaved: Draft | None = None
        self._window = Window(
            journal,
            options.memory_requests,
            unwritten=changes.adds,
            out=(self._leases, self._suspects.aside, changes.endings, changes.deaths),
        )
        self._is_held = False
        self.job = JobInfo()
        if journal is not None:
            self._load(journal)

    def _load(self, journal: Journal) -> None:
        saved = journal.counters()
        was_finished = saved.finished
        # Earlier versions did not note which run it was, nor that its process ended.
        died_finished = (
            was_finished
            and journal.note(_FINISHED_IN) == str(saved.run).encode()
            and not journal.jobdir.has_ended(saved.run)
        )
        was_finished = was_finished and not died_finished
        counters = replace(saved, run=saved.run + 1, finished=False, memory_only=0)
        batch = Batch(counters, clear_started=was_finished)
        self._run = Run(batch.counters.run, self._options.components)
        batch.notes.update(begin(self._run, journal))
        damage = batch.notes.get(DAMAGE) or journal.note(DAMAGE) or b""
        self.job = JobInfo(
            run=counters.run,
            resumed=saved.run > 0 and not was_finished,
            died_finished=died_finished,
            path=journal.path,
            rolled_back=journal.rolled_back,
            lost_in_memory=saved.memory_only,
            damage=damage.decode() or None,
            suspects=self._suspects.count(Level.SUSPECT),
            blamed=self._suspects.count(Level.BLAMED),
        )
        batch.suspects += self._suspects.held_against.items()
        batch.notes["order"] = str(self._order).encode()
        journal.write(batch, wait=True)
        with suppress(OSError):
            journal.leases.restart(batch.counters.run)
        for slot_id, count, name in journal.slots():
            slot = Slot(slot_id, name)
            slot.count = slot.stored = count
            slot.bound = b""
            self._slots.load(slot)
            self._pending += count
        self._slots.next_id = batch.counters.next_slot
        self._saved = batch.counters
        self._live = replace(batch.counters)
        self._claims = StartClaims(
            journal, self._changes, batch.counters.run, skip=self._options.skip_started
        )

    # Transitions

    def add(self, entry: Entry) -> Verdict:
        if self._forks != _forks:
            self.check_owner()
        try:
            return self._decide(entry)
        except StoreError as error:
            # Whether it was seen cannot be known now, and it must not be lost.
            self._undecided.append(entry)
            self._on_event(Unreadable(error))
            return Verdict.UNDECIDED

    def _decide(self, entry: Entry) -> Verdict:
        """Add an entry; nothing has changed if the store cannot be read."""
        fingerprint = entry.fingerprint
        journal, changes = self._journal, self._changes
        if entry.yielded and self._claims is not None and self._claims.skip(entry):
            self.pressure.changes += 1
            return Verdict.STARTED
        if entry.unique and self._has_seen(fingerprint):
            return Verdict.SEEN
        entry.complete()
        live = self._live
        order_key = self._order.encode(entry.priority, entry.start, live.next_sequence)
        # Nothing fails from here on.
        live.next_sequence += 1
        live.accepted += 1
        if entry.unique:
            changes.seen.add(fingerprint)
        if entry.claim is not None and self._claims is not None:
            self._claims.claim(entry)
        slot = self._slots.get(self._order.slot_of(entry.slot))
        key = slot.prefix + order_key
        if entry.payload is None:
            live.memory_only += 1
        elif journal is not None:
            entry.home = slot
            changes.adds[key] = entry
            changes.size += len(entry.payload)
            if changes.size > BATCH_BYTES:
                self.pressure.urgent = True
            self.pressure.changes += 1
        self._put(slot, key, entry)
        if self._suspects.matters:
            self._suspects.note_add()
        return Verdict.ADDED

    def _decide_again(self) -> None:
        """Add what could not be, in the order it came.

        :raises StoreError: the store still cannot be read.
        """
        while self._undecided:
            entry = self._undecided[0]
            verdict = self._decide(entry)
            del self._undecided[0]
            if verdict is not Verdict.ADDED:
                self._on_event(Refused(entry, verdict))

    def mark_seen(self, fingerprint: bytes) -> bool:
        self.check_owner()
        if self._has_seen(fingerprint):
            return True
        self._changes.seen.add(fingerprint)
        if self._journal is not None:
            self._changes.marks.append(fingerprint)
            self.pressure.changes += 1
        return False

    def lease(self, gate: Gate = _IDLE, /) -> Lease | Waiting:
        if self._forks != _forks:
            self.check_owner()
        try:
            if self._suspects.matters:
                lease = self._lease_carefully(gate)
                if lease is not None:
                    return lease
            else:
                while (slot := self._slots.choose(gate)) is not None:
                    lease = self._take(slot)
                    if lease is not None:
                        return self._hand_out(lease)
                    self._give_up(slot)
        except StoreError as error:
            self._on_event(Unreadable(error))
            return _UNREACHABLE
        if self._journal is not None:
            with suppress(OSError):
                self._journal.leases.flush()
        return _ISOLATING if self._pending else _EMPTY

    def _lease_carefully(self, gate: Gate) -> Lease | None:
        """Lease the next request, where some of them may have killed the process."""
        suspects = self._suspects
        in_flight = bool(self._leases)
        while suspects.admit(in_flight=in_flight):
            others = self._pending > len(suspects.aside)
            lease = suspects.next_aside(in_flight=in_flight, others=others)
            if lease is not None:
                return self._hand_out(lease, ALONE if suspects.is_alone(lease) else LEASED)
            slot = self._slots.choose(gate)
            if slot is None:
                return None
            lease = self._take(slot)
            if lease is None:
                self._give_up(slot)
            elif suspects.is_free(lease):
                return self._hand_out(lease)
            elif reason := suspects.set_aside(lease):
                self._pending -= 1
                self._leases[lease.key] = lease
                self.dead_letter(lease, reason)
                self._on_event(DeadLettered(lease.entry, reason))
        return None

    def note_response(self, lease: Lease) -> None:
        lease.in_hand = True
        if self._journal is not None:
            with suppress(OSError):
                self._journal.leases.note(lease.entry.fingerprint, RECEIVED)

    def note_closing(self) -> None:
        if self._journal is not None:
            with suppress(OSError):
                self._journal.leases.note_closing()

    def finish(self, lease: Lease) -> None:
        self._end(lease)
        self._live.done += 1

    def dead_letter(self, lease: Lease, reason: str) -> None:
        self._end(lease, reason)
        self._live.dead += 1

    def release(self, lease: Lease) -> None:
        slot = self._drop_lease(lease)
        self._put(slot, lease.key, lease.entry)

    def forget(self, fingerprint: bytes) -> bool:
        self.check_owner()
        if not self._has_seen(fingerprint):
            return False
        if self._journal is None:
            self._changes.seen.discard(fingerprint)
        else:
            self._changes.forget(fingerprint)
            self.pressure.changes = len(self._changes)
        return True

    def counts(self) -> Counts:
        self.check_owner()
        live = self._live
        return Counts(
            live.accepted,
            self._pending,
            len(self._leases),
            live.done,
            live.dead,
            live.memory_only,
            len(self._undecided),
        )

    @property
    def pending(self) -> int:
        return self._pending + len(self._undecided)

    @property
    def commit_number(self) -> int:
        """Number of the last commit, over all runs of the job; 0 without a journal."""
        return self._journal.commit_number if self._journal is not None else 0

    def note(self, name: str) -> bytes | None:
        return self._journal.note(name) if self._journal is not None else None

    def dead(self) -> Iterator[tuple[bytes, str, bytes]]:
        if self._journal is not None and self._saved.dead:
            yield from self._journal.dead()

    # Committing

    def has_changes(self, notes: Mapping[str, bytes] = NO_NOTES) -> bool:
        self.check_owner()
        return self._journal is not None and bool(
            self._changes
            or self._undecided
            or self._unsaved
            or self._live.memory_only != self._saved.memory_only
            or self._changes.new_notes(notes)
        )

    def commit(self, notes: Mapping[str, bytes] = NO_NOTES, *, wait: bool = False) -> Progress:
        self.check_owner()
        self._decide_again()
        journal = self._journal
        if journal is None or not self.has_changes(notes):
            return Progress(self.commit_number, complete=True)
        draft = self._unsaved or self._prepare(notes)
        self._unsaved = draft
        journal.write(draft.batch, wait=wait)
        self._unsaved = None
        self._changes.settle(draft)
        self.pressure.changes = len(self._changes)
        self._saved = draft.batch.counters
        is_last = draft.is_last and not self._changes
        if is_last:
            self.pressure.urgent = False
            self._restart_leases(journal)
        for slot, count in draft.stored.items():
            if not count:
                self._slots.drop_if_empty(slot)
        self._window.note_commit()
        self._on_event(Committed(journal.commit_number))
        return Progress(journal.commit_number, is_last)

    def _prepare(self, notes: Mapping[str, bytes]) -> Draft:
        live = self._live
        base = replace(
            self._saved,
            next_sequence=live.next_sequence,
            next_slot=self._slots.next_id,
            memory_only=live.memory_only,
        )
        draft = self._changes.prepare(base, live.run, notes)
        draft.batch.seen_value = self._run.seen_value
        return draft

    def _restart_leases(self, journal: Journal) -> None:
        """Forget the leases that are over: all that has ended is committed."""
        is_alone = self._suspects.is_alone
        leases = self._leases.values()
        held = [(lease.entry.fingerprint, is_alone(lease), lease.in_hand) for lease in leases]
        with suppress(OSError):
            journal.leases.restart(self._live.run, held)

    def sync(self) -> None:
        if self._journal is not None:
            self._journal.sync()

    def recover(self) -> None:
        """Reopen the store after a failed commit: only that ends RocksDB's refusal to write.

        The next commit writes again what had failed: whether it was applied all the same does not
        matter, since a batch holds absolute values only.

        :raises StoreError: it does not open, or is not as the last commit left it.
        :raises JobdirLostError: the job directory is gone.
        """
        self.check_owner()
        if self._journal is not None:
            self._journal.reopen()

    def close(self, *, finished: bool = False, hold: bool = False) -> None:
        self.check_owner()
        if self._closed:
            return
        try:
            while not self.commit(wait=True).complete:
                pass
            if self._journal is not None:
                last = self._last_batch(finished)
                self._journal.write(last, wait=True)
                self._saved = last.counters
                # A clean end says nothing about what was leased; suspects stay so until done.
                with suppress(OSError):
                    self._journal.leases.restart(self._live.run)
                self._journal.sync()
                self._is_held = True
        finally:
            self.abandon()
            if not hold:
                self.end()

    def abandon(self) -> None:
        self.check_owner()
        self._closed = True
        if self._journal is not None:
            with suppress(StoreError):
                self._journal.close(hold=self._is_held)

    def end(self) -> None:
        if self._is_held and self._journal is not None:
            self._is_held = False
            if self._saved.finished:
                self._journal.jobdir.note_end(self._saved.run)
            self._journal.jobdir.release()

    def _last_batch(self, finished: bool) -> Batch:
        batch = Batch(replace(self._saved, finished=finished))
        batch.notes.update(self._run.end().note())
        if finished:
            batch.notes[_FINISHED_IN] = str(self._live.run).encode()
            batch.suspects += [(fingerprint, None) for fingerprint in self._suspects.held_against]
        return batch

    def check_owner(self) -> None:
        """See that this is the process that opened the frontier.

        In the path of every request the answer is looked for before it is asked for.

        :raises ForkedError: it is a forked child.
        """
        if self._forks != _forks:
            raise ForkedError(
                f"The frontier of process {self._pid} was used in process {os.getpid()}, forked"
                " from it. Schedule requests in the crawl's own process only; in the child, end"
                " with os._exit()."
            )

    # Parts of transitions

    def _has_seen(self, fingerprint: bytes) -> bool:
        changes = self._changes
        if fingerprint in changes.seen:
            return True
        if changes.forgotten and fingerprint in changes.forgotten:
            return False
        return self._journal is not None and self._journal.has_seen(fingerprint)

    def _put(self, slot: Slot, key: bytes, entry: Entry) -> None:
        self._slots.increase(slot)
        self._pending += 1
        self._window.push(slot, key, entry)

    def _take(self, slot: Slot) -> Lease | None:
        """Take the front request out of its slot's queue; it counts as pending all the same.

        :return: ``None``: the store has none.
        """
        popped = self._window.pop(slot)
        if popped is None:
            return None
        self._slots.take(slot)
        self._slots.decrease(slot)
        slot.leased += 1
        return Lease(*popped, slot)

    def _hand_out(self, lease: Lease, what: int = LEASED) -> Lease:
        self._pending -= 1
        self._leases[lease.key] = lease
        if self._journal is not None:
            try:
                self._journal.leases.note(lease.entry.fingerprint, what)
            except OSError:
                self._on_event(LeaseUnrecorded())
        return lease

    def _drop_lease(self, lease: Lease) -> Slot:
        if self._forks != _forks:
            self.check_owner()
        del self._leases[lease.key]
        if self._journal is not None:
            self._journal.leases.note_over(lease.entry.fingerprint)
        if self._suspects.matters and self._suspects.note_end(lease):
            self.pressure.urgent = True
        slot: Slot = lease.origin
        slot.leased -= 1
        return slot

    def _end(self, lease: Lease, why: str | None = None) -> None:
        slot = self._drop_lease(lease)
        entry = lease.entry
        suspects = self._suspects
        if suspects.held_against and suspects.clear(entry.fingerprint):
            self._changes.cleared.append(entry.fingerprint)
        if entry.payload is None:
            self._live.memory_only -= 1
        if self._journal is not None:
            self.pressure.changes += self._changes.end(lease.key, slot, entry, why)
        self._slots.drop_if_empty(slot)

    def _give_up(self, slot: Slot) -> None:
        """The store holds fewer requests of *slot* than it says: they are unaccounted for."""
        self._pending -= slot.count
        self._slots.decrease(slot, slot.count)


if TYPE_CHECKING:
    _conforms: type[Frontier] = LocalFrontier
