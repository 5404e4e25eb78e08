"""One run of a job: what is noted of it, the log of its leases, and how it ends."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace

from ...errors import ForkedError, JobdirError, StoreError
from ..contract import JobInfo, Standing
from ..entry import Lease
from ..forks import close_in_child
from .journal import Journal
from .lease_log import RECEIVED, Evidence, LeaseLog, NullLeaseLog
from .records import FINISHED_IN, Batch, Counters
from .seen import PASS, SINCE
from .status import JobStatus, read_status


class _Run:
    """What is the same with and without a job directory.

    :ivar leases: the log of what is leased.
    :ivar is_forked: looked at in the path of every request, before :meth:`check_owner` is called.
    """

    def __init__(self, leases: LeaseLog | NullLeaseLog) -> None:
        self.leases = leases
        self._pid = os.getpid()
        self.is_forked = False
        close_in_child(self._note_fork)

    def _note_fork(self) -> None:
        self.is_forked = True

    def check_owner(self) -> None:
        if self.is_forked:
            raise ForkedError(
                f"The frontier of process {self._pid} was used in process {os.getpid()}, forked"
                " from it. Schedule requests in the crawl's own process only; in the child, end"
                " with os._exit()."
            )

    def note_response(self, lease: Lease) -> None:
        lease.in_hand = True
        with suppress(OSError):
            self.leases.note(lease.entry.fingerprint, RECEIVED)

    def note_closing(self) -> None:
        with suppress(OSError):
            self.leases.note_closing()


def _counters_of(journal: Journal) -> Counters:
    """Its counters; what was seen is counted if an earlier version, or a command, has not."""
    counters = journal.counters()
    if counters.seen is None:
        with suppress(StoreError):  # what is damaged is of no consequence until it is asked for
            counters.seen = sum(1 for _ in journal.seen())
    return counters


class JobRun(_Run):
    """A run of the job in a job directory; the first batch written begins it.

    :ivar last: counters as the last run left them.
    :ivar evidence: how the process of the last run died.
    :ivar counters: counters as of the last commit.
    """

    def __init__(self, journal: Journal) -> None:
        super().__init__(journal.leases)
        self.journal = journal
        self.note = journal.note
        self.last = last = _counters_of(journal)
        self.counters = replace(last, run=last.run + 1, finished=False, memory_only=0)
        # The log can be read only once.
        self.evidence = journal.leases.read(last.run)
        # Earlier versions did not note which run it was, nor that its process ended.
        died_finished = (
            last.finished
            and journal.note(FINISHED_IN) == str(last.run).encode()
            and not journal.jobdir.has_ended(last.run)
        )
        self.job = JobInfo(
            run=self.counters.run,
            resumed=last.run > 0 and (died_finished or not last.finished),
            died_finished=died_finished,
            durable=True,
            path=journal.path,
            place=journal.jobdir.place,
            rolled_back=journal.rolled_back,
        )
        self._written: dict[str, bytes] = {}
        self._is_held = False
        self._state = "running"
        #: As the crawl has published it last; what publishes nothing, as a command, is no crawl.
        self._standing: Standing | None = None

    @property
    def commit_number(self) -> int:
        return self.journal.commit_number

    def changed(self, notes: Mapping[str, bytes]) -> dict[str, bytes]:
        """Those of *notes* that this run has not written as they are."""
        return {name: note for name, note in notes.items() if self._written.get(name) != note}

    def write(self, batch: Batch, *, wait: bool = True) -> None:
        self.journal.write(batch, wait=wait)
        self._written.update(batch.notes)
        self.counters = batch.counters

    def write_notes(self, notes: Mapping[str, bytes]) -> None:
        if changed := self.changed(notes):
            self.write(Batch(self.counters, notes=changed))

    def publish(self, standing: Standing) -> None:
        self._standing = standing
        jobdir = self.journal.jobdir
        status = JobStatus(
            store_id=jobdir.store_id,
            state=self._state,
            holder=jobdir.holder.decode(),
            run=self.counters.run,
            commit=self.commit_number,
            standing=standing,
        )
        jobdir.note_status(status)

    def _publish_state(self, state: str) -> None:
        self._state = state
        if self._standing is not None:
            self.publish(self._standing)

    def note_closing(self) -> None:
        super().note_closing()
        self._publish_state("closing")

    def restart_leases(self, held: Iterable[tuple[bytes, bool, bool]] = ()) -> None:
        with suppress(OSError):
            self.journal.leases.restart(self.counters.run, held)

    def sync(self) -> None:
        self.journal.sync()

    def recover(self) -> None:
        self.check_owner()
        self.journal.reopen()
        # The last write may have been applied though it failed: notes may be the next one.
        self.counters = self.journal.counters()

    def finish(
        self,
        *,
        finished: bool,
        notes: Iterable[tuple[str, bytes]] = (),
        cleared: Iterable[bytes] = (),
    ) -> None:
        """Write that the run has ended, with suspects *cleared*; hold the directory until end()."""
        batch = Batch(replace(self.counters, finished=finished))
        batch.notes.update(notes)
        batch.suspects += [(fingerprint, None) for fingerprint in cleared]
        if finished:
            batch.notes[FINISHED_IN] = str(self.counters.run).encode()
        self.write(batch)
        # A clean end says nothing about what was leased.
        self.restart_leases()
        self.sync()
        self._is_held = True
        self._publish_state("finished" if finished else "stopped")

    def abandon(self) -> None:
        if not self._is_held:
            self._publish_state("unsaved")
        with suppress(StoreError):
            self.journal.close(hold=self._is_held)

    def end(self) -> None:
        if self._is_held:
            self._is_held = False
            if self.counters.finished:
                self.journal.jobdir.note_end(self.counters.run)
            self.journal.jobdir.release()


class Visit(JobRun):
    """The job between two runs, opened by an operator: what is known of the last run stays."""

    _before: JobStatus | None = None

    def __init__(self, journal: Journal) -> None:
        _Run.__init__(self, NullLeaseLog())
        self.journal, self.note = journal, journal.note
        self.last = last = _counters_of(journal)
        self.counters, self.evidence = replace(last), Evidence()
        self.job = JobInfo(
            run=last.run,
            resumed=last.run > 0 and not last.finished,
            durable=True,
            path=journal.path,
            place=journal.jobdir.place,
        )
        self._written, self._is_held, self._standing = {}, False, None
        with suppress(JobdirError):
            self._before = read_status(journal.jobdir.path)

    def publish(self, standing: Standing) -> None:
        if (before := self._before) is None:
            self._state = "finished" if self.journal.is_finished() else "stopped"
            super().publish(standing)
            return
        was_finished = before.state == "finished" and not self.counters.finished
        state = "stopped" if was_finished else before.state
        lasted = before.lasted or before.standing.at
        number = self.commit_number
        status = replace(before, state=state, commit=number, standing=standing, lasted=lasted)
        self.journal.jobdir.note_status(status)

    def write(self, batch: Batch, *, wait: bool = True) -> None:
        before, counters = self.last, batch.counters
        counters.finished = before.finished and (
            counters.accepted <= before.accepted
            and counters.failed >= before.failed
            and counters.dead >= before.dead
        )
        if before.finished and counters.accepted > before.accepted:
            # As in any other run after a finished one, start requests come again, and old pages.
            batch.clear_started = True
            if self.note(SINCE) is not None:
                batch.notes.setdefault(PASS, json.dumps(counters.time).encode())
        super().write(batch, wait=wait)

    def restart_leases(self, held: Iterable[tuple[bytes, bool, bool]] = ()) -> None:
        """What was leased when the last run died is still to be judged."""

    def finish(self, **_: object) -> None:
        self.sync()


class MemoryRun(_Run):
    """A run without a job directory, which keeps nothing: see :class:`JobRun`."""

    commit_number = 0
    job = JobInfo()
    evidence = Evidence()

    def __init__(self) -> None:
        super().__init__(NullLeaseLog())

    def recover(self) -> None:
        self.check_owner()

    def note(self, _: str) -> None:
        return None

    def changed(self, _: Mapping[str, bytes]) -> dict[str, bytes]:
        return {}

    def _nothing(self, *_: object, **__: object) -> None:
        pass

    write_notes = restart_leases = sync = finish = abandon = end = publish = _nothing


class FrontierOfRun:
    """The part of a :class:`~..contract.Frontier` that is the same wherever its requests are."""

    def __init__(self, run: JobRun | MemoryRun) -> None:
        self.run = run
        self._check_owner = run.check_owner
        self._is_closed = False

    def close(self, *, finished: bool = False, hold: bool = False) -> None:
        self._check_owner()
        if self._is_closed:
            return
        try:
            self._finish(finished=finished)
        finally:
            self.abandon()
            if not hold:
                self.run.end()

    def abandon(self) -> None:
        self._check_owner()
        if not self._is_closed:
            self._is_closed = True
            self._free()
            self.run.abandon()

    def _finish(self, *, finished: bool) -> None:
        """Commit all, and write that the run has ended."""

    def _free(self) -> None:
        """Free what is not the run's."""
