"""What keeps the frontier of one process where it outlives the process: a journal.

:class:`~.frontier.LocalFrontier` tells of each transition, and asks what is known of fingerprints.
Nothing here knows queues, nor whose turn it is.  :mod:`.in_memory` is for crawls without a journal.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType

from ..contract import JobInfo
from ..dead_letter import DeadLetter
from ..entry import Entry
from ..options import Options
from ..queue.slots import Slot
from ..store.job_run import JobRun
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
from ..suspects import judge
from .batches import Draft
from .start_claims import StartClaims
from .uncommitted import Uncommitted

NO_NOTES: Mapping[str, bytes] = MappingProxyType({})


class Persistence:
    """Keeps a frontier in the journal of a run.

    The journal is a snapshot, not a log of calls: each commit takes the store from one state that
    the crawl was really in to the next.  This is right because a page's children are added before
    the page is finished: a snapshot at any instant holds a request, or its parent still leased, and
    a leased request stays stored until it is done.

    :ivar live: counters, uncommitted changes included; the frontier counts on.
    :ivar pressure: what waits for a commit.
    :ivar unwritten: keys of requests that are in memory only, for good or until the next commit.
    :ivar ended: keys of requests that are over, and may still be stored as pending.
    :ivar add: told of each change, as *end*, *mark*, *forget* and *clear* are: see
        :class:`~.uncommitted.Uncommitted`.
    :ivar memory_requests: how many pending requests need to be in memory.
    """

    def __init__(self, run: JobRun, options: Options) -> None:
        self._run = run
        self.journal = run.journal
        self._options = options
        self.live = Counters()
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
        self._components: Run
        #: What a write failed to store, or did store in spite of its error: it goes first.
        self._unsaved: Draft | None = None

    # Opening

    def find_suspects(self) -> dict[bytes, Suspicion]:
        """Fingerprint of each request that may have killed a process -> what is held against it.

        :raises StoreError: the journal cannot be read.
        """
        return judge(dict(self.journal.suspects()), self._run.evidence)

    def begin(self, suspects: Mapping[bytes, Suspicion]) -> JobInfo:
        """Begin a run of the job, and write that it has begun.

        :param suspects: what is held against requests from now on.
        :raises StoreError: the journal cannot be read or written.
        """
        run, journal = self._run, self.journal
        last, counters = run.last, run.counters
        was_finished = last.finished and not run.died_finished
        batch = Batch(counters, clear_started=was_finished)
        self._components = Run(counters.run, self._options.components)
        batch.notes.update(begin(self._components, journal))
        damage = batch.notes.get(DAMAGE) or journal.note(DAMAGE) or b""
        orphans = describe_orphans(last, journal.note(ORPHANS))
        if orphans is not None:
            batch.notes[DAMAGE] = damage = add_damage(damage, orphans)
        batch.notes[ORPHANS] = b"0"
        batch.suspects += suspects.items()
        batch.notes["order"] = str(self._options.order).encode()
        run.write(batch)
        run.restart_leases()
        self.live = replace(counters)
        self._claims = StartClaims(
            journal, self._uncommitted, counters.run, skip=self._options.skip_started
        )
        return JobInfo(
            run=counters.run,
            resumed=last.run > 0 and not was_finished,
            died_finished=run.died_finished,
            durable=True,
            path=journal.path,
            place=journal.jobdir.place,
            rolled_back=journal.rolled_back,
            lost_in_memory=last.memory_only,
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

    def dead(self) -> Iterator[tuple[bytes, DeadLetter, bytes]]:
        """Key, why, and stored value of every dead letter, as the last commit left them."""
        if self._run.counters.dead:
            yield from self.journal.dead()

    # What is told

    def take_claim(self, fingerprint: bytes, claim: bytes) -> None:
        """A start request was accepted that is the occurrence *claim*."""
        self._claims.take(fingerprint, claim)

    # Committing

    def has_changes(self, notes: Mapping[str, bytes]) -> bool:
        """Whether a commit with these notes would write anything."""
        return bool(
            self.pressure.changes
            or self._unsaved
            or self.live.memory_only != self._run.counters.memory_only
            or self._run.changed(notes)
        )

    def commit(self, notes: Mapping[str, bytes], *, wait: bool) -> Draft | None:
        """Write one batch; what it has written, or ``None``: there was nothing to write.

        :raises StoreError: it was not written, and goes first the next time.
        """
        if not self.has_changes(notes):
            return None
        draft = self._unsaved = self._unsaved or self._prepare(notes)
        self._run.write(draft.batch, wait=wait)
        self._unsaved = None
        self._uncommitted.settle(draft)
        return draft

    def _prepare(self, notes: Mapping[str, bytes]) -> Draft:
        live = self.live
        base = replace(
            self._run.counters,
            next_sequence=live.next_sequence,
            next_slot=live.next_slot,
            memory_only=live.memory_only,
        )
        draft = self._uncommitted.prepare(base, live.run)
        draft.batch.seen_value = self._components.seen_value
        if draft.is_last:
            draft.batch.notes.update(self._run.changed(notes))
        return draft

    # Closing

    def finish(self, suspects: Iterable[bytes], *, finished: bool) -> None:
        """Write that the run has ended, after all else was committed.

        :param suspects: fingerprints of the requests that something is held against.
        :param finished: whether the job is.
        """
        self._run.finish(
            finished=finished,
            notes=self._components.end().note(),
            # Suspects stay so until done.
            cleared=suspects if finished else (),
        )
