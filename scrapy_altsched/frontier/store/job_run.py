"""One run of a job: what is noted of it, the log of its leases, and how it ends."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from types import MappingProxyType

from ...errors import StoreError
from .journal import Journal
from .lease_log import Evidence, LeaseLog, NullLeaseLog
from .records import Batch

#: Name of the note of the run that finished the job.
_FINISHED_IN = "finished in run"


class JobRun:
    """A run of the job in a job directory.

    :param journal: an open one; the first batch written begins the run.
    :ivar last: counters as the last run left them.
    :ivar evidence: how the process of the last run died.
    :ivar counters: counters as of the last commit.
    :ivar died_finished: whether the last run finished the job, and its process died before it had
        ended.
    :raises StoreError: the journal cannot be read.
    """

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.leases: LeaseLog | NullLeaseLog = journal.leases
        self.last = last = journal.counters()
        self.counters = replace(last, run=last.run + 1, finished=False, memory_only=0)
        # The log can be read only once.
        self.evidence = journal.leases.read(last.run)
        # Earlier versions did not note which run it was, nor that its process ended.
        self.died_finished = (
            last.finished
            and journal.note(_FINISHED_IN) == str(last.run).encode()
            and not journal.jobdir.has_ended(last.run)
        )
        self._written: dict[str, bytes] = {}
        self._is_held = False

    @property
    def commit_number(self) -> int:
        """Number of the last commit, over all runs of the job."""
        return self.journal.commit_number

    def note(self, name: str) -> bytes | None:
        """A note as the last commit left it."""
        return self.journal.note(name)

    def changed(self, notes: Mapping[str, bytes]) -> dict[str, bytes]:
        """Those of *notes* that this run has not written as they are."""
        return {name: note for name, note in notes.items() if self._written.get(name) != note}

    def write(self, batch: Batch, *, wait: bool = True) -> None:
        """Write a batch: see :meth:`~.journal.Journal.write`.

        :raises StoreError: it was not written.
        """
        self.journal.write(batch, wait=wait)
        self._written.update(batch.notes)
        self.counters = batch.counters

    def write_notes(self, notes: Mapping[str, bytes]) -> None:
        """Write those of *notes* that have changed.

        :raises StoreError: it failed.
        """
        if changed := self.changed(notes):
            self.write(Batch(self.counters, notes=changed))

    def restart_leases(self, held: Iterable[tuple[bytes, bool, bool]] = ()) -> None:
        """Begin the log of leases again: see :meth:`~.lease_log.LeaseLog.restart`."""
        with suppress(OSError):
            self.journal.leases.restart(self.counters.run, held)

    def sync(self) -> None:
        """Make what was committed survive the death of the machine.  Blocks; on any thread."""
        self.journal.sync()

    def recover(self) -> None:
        """Reopen the store after a failed commit: only that ends RocksDB's refusal to write.

        :raises StoreError: it cannot be.
        """
        self.journal.reopen()

    def finish(
        self,
        *,
        finished: bool,
        notes: Mapping[str, bytes] = MappingProxyType({}),
        cleared: Iterable[bytes] = (),
    ) -> None:
        """Write that the run has ended; hold the directory until :meth:`end`.

        :param finished: whether the job is.
        :param cleared: fingerprints of which nothing is held against their requests any more.
        :raises StoreError: it could not be written.
        """
        batch = Batch(replace(self.counters, finished=finished))
        batch.notes.update(notes)
        batch.suspects += [(fingerprint, None) for fingerprint in cleared]
        if finished:
            batch.notes[_FINISHED_IN] = str(self.counters.run).encode()
        self.write(batch)
        # A clean end says nothing about what was leased.
        self.restart_leases()
        self.journal.sync()
        self._is_held = True

    def abandon(self) -> None:
        """Close without committing; at any time.  After :meth:`finish`, hold the directory."""
        with suppress(StoreError):
            self.journal.close(hold=self._is_held)

    def end(self) -> None:
        """Note that all that follows the end of the crawl was done; release the directory."""
        if self._is_held:
            self._is_held = False
            if self.counters.finished:
                self.journal.jobdir.note_end(self.counters.run)
            self.journal.jobdir.release()


class MemoryRun:
    """A run without a job directory, which keeps nothing: see :class:`JobRun`."""

    commit_number = 0

    def __init__(self) -> None:
        self.evidence = Evidence()
        self.leases: LeaseLog | NullLeaseLog = NullLeaseLog()

    def note(self, _: str) -> bytes | None:
        return None

    def changed(self, _: Mapping[str, bytes]) -> dict[str, bytes]:
        return {}

    def write_notes(self, notes: Mapping[str, bytes]) -> None:
        pass

    def restart_leases(self, held: Iterable[tuple[bytes, bool, bool]] = ()) -> None:
        pass

    def sync(self) -> None:
        pass

    def recover(self) -> None:
        pass

    def finish(self, *, finished: bool) -> None:
        pass

    def abandon(self) -> None:
        pass

    def end(self) -> None:
        pass
