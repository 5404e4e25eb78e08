"""What keeps the frontier of one process where it outlives the process: a journal.

:class:`~.frontier.LocalFrontier` tells of each transition, and asks what is known of fingerprints.
Nothing here knows queues, nor whose turn it is.  :mod:`.in_memory` is for crawls without a journal.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from types import MappingProxyType

from ...errors import StoreError
from ..contract import JobInfo
from ..dead_letter import DeadLetter
from ..entry import Entry
from ..options import Options
from ..queue.slots import Slot
from ..store.journal import Journal
from ..store.records import (
    DAMAGE,
    ORPHANS,
    Batch,
    Counters,
    Suspicion,
    add_damage,
    describe_orphans,
)
from ..store.runs import Run, begin
from ..suspects import find_suspects
from .batches import Draft
from .start_claims import StartClaims
from .uncommitted import Uncommitted

NO_NOTES: Mapping[str, bytes] = MappingProxyType({})
#: Name of the note of the run that finished the job.
_FINISHED_IN = "finished in run"


class Persistence:
    """Keeps a frontier in a journal.

    The journal is a snapshot, not a log of calls: each commit takes the store from one state that
    the crawl was really in to the next.  This is right because a page's children are added before
    the page is finished: a snapshot at any instant holds a request, or its parent still leased, and
    a leased request stays stored until it is done.

    :ivar live: counters, uncommitted changes included; the frontier counts on.
    :ivar pressure: what waits for a commit.
    :ivar leases: where leases are recorded.
    :ivar unwritten: keys of requests that are in memory only, for good or until the next commit.
    :ivar ended: keys of requests that are over, and may still be stored as pending.
    :ivar add: told of each change, as *end*, *mark*, *forget* and *clear* are: see
        :class:`~.uncommitted.Uncommitted`.
    :ivar memory_requests: how many pending requests need to be in memory.
    """

    def __init__(self, journal: Journal, options: Options) -> None:
        self.journal = journal
        self._options = options
        self.live = Counters()
        self.leases = journal.leases
        self._uncommitted = uncommitted = Uncommitted()
        self.pressure = uncommitted.pressure
        self.unwritten = uncommitted.unwritten
        self.ended = uncommitted.ended
        # The path of every request, which must not get longer for a layer in between.
        self.add = uncommitted.add
        self.end = uncommitted.end
        self.mark = uncommitted.mark
        self.forget = uncommitted.forget
        self.clear = uncommitted.clear
        self.memory_requests = options.memory_requests
        self._claims: StartClaims
        self._run: Run
        #: Counters as of the last commit.
        self._saved = journal.counters()
        #: Notes that this process has committed.
        self._notes: dict[str, bytes] = {}
        #: What a write failed to store, or did store in spite of its error: it goes first.
        self._unsaved: Draft | None = None
        self._is_held = False

    # Opening

    def find_suspects(self) -> dict[bytes, Suspicion]:
        """Fingerprint of each request that may have killed a process -> what is held against it.

        :raises StoreError: the journal cannot be read.
        """
        return find_suspects(self.journal)

    def begin(self, suspects: Mapping[bytes, Suspicion]) -> JobInfo:
        """Begin a run of the job, and write that it has begun.

        :param suspects: what is held against requests from now on.
        :raises StoreError: the journal cannot be read or written.
        """
        journal, saved = self.journal, self._saved
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
        self._run = Run(counters.run, self._options.components)
        batch.notes.update(begin(self._run, journal))
        damage = batch.notes.get(DAMAGE) or journal.note(DAMAGE) or b""
        orphans = describe_orphans(saved, journal.note(ORPHANS))
        if orphans is not None:
            batch.notes[DAMAGE] = damage = add_damage(damage, orphans)
        batch.notes[ORPHANS] = b"0"
        batch.suspects += suspects.items()
        batch.notes["order"] = str(self._options.order).encode()
        journal.write(batch, wait=True)
        with suppress(OSError):
            journal.leases.restart(counters.run)
        self._saved = counters
        self.live = replace(counters)
        self._claims = StartClaims(
            journal, self._uncommitted, counters.run, skip=self._options.skip_started
        )
        return JobInfo(
            run=counters.run,
            resumed=saved.run > 0 and not was_finished,
            died_finished=died_finished,
            durable=True,
            path=journal.path,
            place=journal.jobdir.place,
            rolled_back=journal.rolled_back,
            lost_in_memory=saved.memory_only,
            damage=damage.decode() or None,
        )

    def slots(self) -> Iterator[tuple[Slot, int]]:
        """Every stored slot, and how many of its requests are pending.

        :raises StoreError: the journal cannot be read.
        """
        for slot_id, count, name in self.journal.slots():
            slot = Slot(slot_id, name)
            slot.stored = count
            yield slot, count

    # What is asked

    def has_seen(self, fingerprint: bytes) -> bool:
        """Whether *fingerprint* is seen.

        :raises StoreError: it is not known without the journal, which cannot be read.
        """
        uncommitted = self._uncommitted
        if fingerprint in uncommitted.seen:
            return True
        if uncommitted.forgotten and fingerprint in uncommitted.forgotten:
            return False
        return self.journal.has_seen(fingerprint)

    def claim(self, entry: Entry) -> tuple[bytes | None, bool]:
        """Which occurrence of a start request *entry* is, and whether it is skipped for that.

        :raises StoreError: the journal cannot be read; nothing has changed.
        """
        return self._claims.claim(entry.fingerprint)

    def read_pending(
        self, prefix: bytes, start: bytes, limit: int, most_bytes: int
    ) -> list[tuple[bytes, bytes]]:
        """Stored requests of a slot: see :meth:`~..store.rows.Rows.read_pending`."""
        return self.journal.read_pending(prefix, start, limit, most_bytes)

    def note(self, name: str) -> bytes | None:
        """A note as the last commit left it."""
        return self.journal.note(name)

    def dead(self) -> Iterator[tuple[bytes, DeadLetter, bytes]]:
        """Key, why, and stored value of every dead letter, as the last commit left them."""
        if self._saved.dead:
            yield from self.journal.dead()

    # What is told

    def take_claim(self, fingerprint: bytes, claim: bytes) -> None:
        """A start request was accepted that is the occurrence *claim*."""
        self._claims.take(fingerprint, claim)

    # Committing

    @property
    def commit_number(self) -> int:
        """Number of the last commit, over all runs of the job."""
        return self.journal.commit_number

    def has_changes(self, notes: Mapping[str, bytes]) -> bool:
        """Whether a commit with these notes would write anything."""
        return bool(
            self.pressure.changes
            or self._unsaved
            or self.live.memory_only != self._saved.memory_only
            or self._new_notes(notes)
        )

    def _new_notes(self, notes: Mapping[str, bytes]) -> dict[str, bytes]:
        return {name: note for name, note in notes.items() if self._notes.get(name) != note}

    def commit(self, notes: Mapping[str, bytes], *, wait: bool) -> Draft | None:
        """Write one batch; what it has written, or ``None``: there was nothing to write.

        :raises StoreError: it was not written, and goes first the next time.
        """
        if not self.has_changes(notes):
            return None
        draft = self._unsaved = self._unsaved or self._prepare(notes)
        self.journal.write(draft.batch, wait=wait)
        self._unsaved = None
        self._uncommitted.settle(draft)
        self._notes.update(draft.batch.notes)
        self._saved = draft.batch.counters
        return draft

    def _prepare(self, notes: Mapping[str, bytes]) -> Draft:
        live = self.live
        base = replace(
            self._saved,
            next_sequence=live.next_sequence,
            next_slot=live.next_slot,
            memory_only=live.memory_only,
        )
        draft = self._uncommitted.prepare(base, live.run)
        draft.batch.seen_value = self._run.seen_value
        if draft.is_last:
            draft.batch.notes.update(self._new_notes(notes))
        return draft

    def restart_leases(self, held: Iterable[tuple[bytes, bool, bool]]) -> None:
        """Begin the log of leases again: all that has ended is committed.

        :param held: fingerprint, whether alone, and whether in hand, of what is leased.
        """
        with suppress(OSError):
            self.journal.leases.restart(self.live.run, held)

    def sync(self) -> None:
        """Make what was committed survive the death of the machine.  Blocks; on any thread."""
        self.journal.sync()

    def recover(self) -> None:
        """Reopen the store after a failed commit: only that ends RocksDB's refusal to write.

        The next commit writes again what had failed: whether it was applied all the same does not
        matter, since a batch holds absolute values only.
        """
        self.journal.reopen()

    # Closing

    def finish(self, suspects: Iterable[bytes], *, finished: bool) -> None:
        """Write that the run has ended, after all else was committed.

        :param suspects: fingerprints of the requests that something is held against.
        :param finished: whether the job is.
        """
        batch = Batch(replace(self._saved, finished=finished))
        batch.notes.update(self._run.end().note())
        if finished:
            batch.notes[_FINISHED_IN] = str(self.live.run).encode()
            batch.suspects += [(fingerprint, None) for fingerprint in suspects]
        self.journal.write(batch, wait=True)
        self._saved = batch.counters
        # A clean end says nothing about what was leased; suspects stay so until done.
        self.restart_leases(())
        self.journal.sync()
        self._is_held = True

    def abandon(self) -> None:
        """Close without committing; may be called at any time."""
        with suppress(StoreError):
            self.journal.close(hold=self._is_held)

    def end_process(self) -> None:
        """Note that all that follows the end of the crawl was done; let others have the job."""
        if self._is_held:
            self._is_held = False
            if self._saved.finished:
                self.journal.jobdir.note_end(self._saved.run)
            self.journal.jobdir.release()
