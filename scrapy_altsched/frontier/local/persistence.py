"""What keeps the frontier of one process where it outlives the process: a journal.

Nothing here knows queues, nor whose turn it is.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any

from ...errors import StoreError
from ..changes import Kind
from ..contract import JobInfo, Pressure
from ..entry import DeadLetter, Entry, PageFailure
from ..options import Options
from ..queue.slots import Slot
from ..store.database import Row
from ..store.job_run import JobRun, Visit
from ..store.records import DAMAGE, Batch, Counters, Suspicion, encode_claim
from ..store.runs import Run, begin
from ..store.seen import PASS, SINCE, UNFINISHED
from ..store.sequence_times import NOTE, SequenceTimes
from ..store.states import FAILED, State, decode_failed_key
from ..suspects import judge
from .ages import Ages
from .budget import Budget
from .draft import Draft
from .uncommitted import Uncommitted


class Persistence(Uncommitted):
    """Keeps a frontier in the journal of a run, with what is not committed yet.

    Each commit takes the store from one state that the crawl was really in to the next.  This is
    right because a page's children are added before the page is finished: a snapshot at any instant
    holds a request, or its parent still leased, and a leased request stays stored until it is done.

    :ivar live: counters, uncommitted changes included; the frontier counts on.
    :ivar suspicions: fingerprint -> what is held against a request from now on.
    """

    def __init__(self, run: JobRun, options: Options) -> None:
        self.journal = journal = run.journal
        super().__init__(journal.database.BATCH)
        self._run = run
        self._options = options
        self.live = Counters()
        #: Fingerprint -> how many occurrences this run has claimed, if that is more than one:
        #: most start requests differ, and a million of them should not be held in memory.
        self._claimed: dict[bytes, int] = {}
        self.ages: Ages | None = None
        limit = options.slot_budget
        self.budget = Budget(limit, journal.budgets()) if limit else None
        #: The key of a failed request: of those before it, none is stored any more.
        self._oldest_failed = b""
        self._components = Run(run.counters.run, options.components)
        self.suspicions = judge(dict(journal.suspects()), run.evidence)
        self._times = SequenceTimes(journal.note(NOTE))
        #: What a write failed to store, or did store in spite of its error: it goes first.
        self._unsaved: Draft | None = None

    @property
    def memory_requests(self) -> int:
        return self._options.memory_requests

    @property
    def seen_key_of(self) -> Callable[[bytes], bytes]:
        return self.journal.seen_key

    def read(
        self, state: State, prefix: bytes, start: bytes, limit: int, most_bytes: int
    ) -> list[Row]:
        """Stored requests of a state: see :meth:`~..store.database.Database.read`."""
        return self.journal.database.read(state.family, prefix, start, limit, most_bytes)

    def read_all(self, state: State) -> Iterator[Row]:
        return self.journal.requests(state)

    def dead(self) -> Iterator[tuple[bytes, DeadLetter, bytes]]:
        return self.journal.dead()

    def failed(self) -> Iterator[tuple[bytes, PageFailure, bytes]]:
        return self.journal.failed()

    def begin(self) -> JobInfo:
        """Write that a run of the job has begun, if one has."""
        run, last, journal = self._run, self._run.last, self.journal
        if isinstance(run, Visit):
            self.live = replace(run.counters)
            self._go_on_with_ages(journal.note(PASS))
            return run.job
        batch = Batch(run.counters, clear_started=last.finished and not run.job.died_finished)
        batch.notes.update(begin(self._components, journal))
        batch.suspects += self.suspicions.items()
        batch.notes["order"] = str(self._options.order).encode()
        self._begin_ages(batch)
        self._note_time(batch)
        run.write(batch)
        run.restart_leases()
        self.live = replace(run.counters)
        damage = batch.notes[DAMAGE].decode() or None
        return replace(run.job, lost_in_memory=last.memory_only, damage=damage)

    def _begin_ages(self, batch: Batch) -> None:
        """Go on with the ages that the job records, if it does."""
        began = self.journal.note(PASS)
        if self.journal.note(SINCE) is not None and (began is None or self._run.last.finished):
            now = max(self._options.clock.wall(), batch.counters.time)
            batch.notes[PASS] = began = json.dumps(now).encode()
        self._go_on_with_ages(began)

    def _go_on_with_ages(self, began: bytes | None) -> None:
        since = self.journal.note(SINCE)
        if since is not None and began is not None:
            self.ages = Ages(json.loads(since), json.loads(began), self._now)

    def _note_time(self, batch: Batch) -> None:
        """Note when sequence numbers are given, if it is time to."""
        if self._times.note(batch.counters.next_sequence, max(self._now(), batch.counters.time)):
            batch.notes[NOTE] = self._times.encode()

    def _now(self) -> float:
        return max(self._options.clock.wall(), self.live.time)

    def slots(self) -> Iterator[tuple[Slot, int]]:
        for slot_id, count, name in self.journal.slots():
            yield Slot(slot_id.to_bytes(8, "big"), name, bound=b"", stored=count), count

    def has_seen(self, seen_key: bytes) -> bool:
        if seen_key in self.seen:
            return True
        if self.forgotten and seen_key in self.forgotten:
            return False
        database = self.journal.database
        try:  # a with statement, as in Rows.has_seen_key, takes as long as the look-up
            return database.has("seen", seen_key)
        except Exception:  # whatever the engine raises
            with database.reading:
                raise

    def seen_value(self, seen_key: bytes) -> bytes | None:
        """Its row, if it is seen: see :mod:`..store.seen`."""
        if seen_key in self.seen:
            return UNFINISHED
        if self.forgotten and seen_key in self.forgotten:
            return None
        return self.journal.seen_value(seen_key)

    def count_seen(self) -> int | None:
        """How many fingerprints are seen, uncommitted changes included, if that is known."""
        stored = self._run.counters.seen
        return None if stored is None else stored + self.seen_more

    def end_page(self, seen_key: bytes) -> None:
        """Note that a unique request is done, in a job that records ages."""
        assert self.ages is not None
        # One that was forgotten meanwhile does not come back.
        if not self._has_forgotten() or self.has_seen(seen_key):
            self.note_end(seen_key, self.ages.end_value())

    def _has_forgotten(self) -> bool:
        return bool(self._run.counters.forgotten or self.forgotten)

    def claim(self, fingerprint: bytes) -> tuple[bytes, bool]:
        """Which occurrence of a start request this one is, and whether it is skipped.

        Those are skipped that an earlier run of the unfinished job accepted: it has claimed them.
        The n-th of equal ones is the n-th that an earlier run brought.  If it is skipped, it is
        claimed by this run, too; if not, by :meth:`take_claim`.  StoreError: nothing has changed.
        """
        occurrence = self._claimed.get(fingerprint, 0)
        claimed_by = self._claimed_by(fingerprint, occurrence)
        if claimed_by == self._components.number:  # the only one so far
            occurrence += 1
            claimed_by = self._claimed_by(fingerprint, occurrence)
        claim = encode_claim(fingerprint, occurrence)
        if claimed_by is None or not self._options.skip_started:
            return claim, False
        self._append(Kind.SKIPPED, claim)
        self.take_claim(fingerprint, claim)
        return claim, True

    def take_claim(self, fingerprint: bytes, claim: bytes) -> None:
        self.claims[claim] = self._components.number
        occurrence = int.from_bytes(claim[-4:], "big")
        if occurrence:
            self._claimed[fingerprint] = occurrence + 1

    def has_started(self, fingerprint: bytes) -> bool:
        """Whether a start request with this fingerprint was accepted."""
        return self._claimed_by(fingerprint, 0) is not None

    def _claimed_by(self, fingerprint: bytes, occurrence: int) -> int | None:
        run = self.claims.get(encode_claim(fingerprint, occurrence))
        return self.journal.claimed(fingerprint, occurrence) if run is None else run

    def has_changes(self, notes: Mapping[str, bytes]) -> bool:
        return bool(
            self.pressure.changes
            or self._unsaved
            or self.live.memory_only != self._run.counters.memory_only
            or self._run.changed(notes)
        )

    def commit(self, notes: Mapping[str, bytes], *, wait: bool, whole: bool) -> Draft | None:
        """Write one batch, if there is anything; StoreError: it goes first the next time."""
        if not self.has_changes(notes):
            return None
        if self._unsaved is None:
            live = self.live
            base = replace(
                self._run.counters,
                next_sequence=live.next_sequence,
                next_slot=live.next_slot,
                memory_only=live.memory_only,
                time=live.time,
            )
            self._unsaved = draft = self.prepare(base, whole=whole)
            draft.batch.seen_value = self._components.seen_value
            if self.ages is not None:
                draft.batch.seen_value = UNFINISHED
            self._note_time(draft.batch)
            if draft.deferred is None:
                draft.batch.notes.update(self._run.changed(notes))
                if self.budget is not None:
                    # Never before the requests that were counted.
                    draft.batch.budgets += self.budget.take_changed()
                if draft.batch.counters.failed > self._options.keep_failed:
                    self._drop_failed(draft)
        draft = self._unsaved
        try:
            self._run.write(draft.batch, wait=wait)
        except StoreError:
            self.recount_batches()
            raise
        self._unsaved = None
        self.settle(draft)
        return draft

    def _drop_failed(self, draft: Draft) -> None:
        """Make room for failed requests: the oldest ones go, a tenth of them at once.

        Their pages are done: where ages are recorded, since the request has failed.
        """
        batch, most = draft.batch, self._options.keep_failed
        dropped = batch.counters.failed - most + most // 10
        stored = self.journal.database.iterate(FAILED.family, start=self._oldest_failed)
        requeued = set(batch.removed[FAILED])
        rows = list(islice((row for row in stored if row[0] not in requeued), dropped))
        if rows:
            batch.removed[FAILED] += [key for key, _ in rows]
            self._oldest_failed = rows[-1][0]
        new = dropped - len(rows)
        rows += batch.stored[FAILED][:new]
        del batch.stored[FAILED][:new]
        if self.ages is not None:
            batch.seen_rows += self._ends_of_failed(rows, self.ages)
        for numbers in batch.counters, self.live:
            numbers.failed -= dropped
            numbers.done += dropped
        draft.dropped = dropped

    def _ends_of_failed(
        self, rows: Iterable[tuple[bytes, bytes]], ages: Ages
    ) -> Iterator[tuple[bytes, bytes]]:
        """Seen key and row of each page that failed requests are about, as finished then."""
        for key, row in rows:
            try:
                entry = FAILED.decode(row)
            except (IndexError, ValueError):
                continue  # it is damaged, which a check tells
            seen_key = self.seen_key_of(entry.fingerprint)
            # One that was forgotten meanwhile may be finished again, or not seen.
            if entry.unique and (
                not self._has_forgotten() or self.seen_value(seen_key) == UNFINISHED
            ):
                yield seen_key, ages.end_value(decode_failed_key(key)[0] / 1000)

    def finish(self, suspects: Iterable[bytes], *, finished: bool) -> None:
        """Write that the run has ended; what is held against *suspects* ends with the job."""
        notes = replace(self._components, ended=True).note().items()
        self._run.finish(finished=finished, notes=notes, cleared=suspects if finished else ())


class _All:
    def __contains__(self, _: object) -> bool:
        return True


class NoPersistence:
    """The null object for :class:`Persistence`: a frontier that ends with its process."""

    memory_requests = sys.maxsize
    ages = None
    suspicions: Mapping[bytes, Suspicion] = {}
    unwritten = _All()
    ended: frozenset[bytes] = frozenset()
    seen_key_of = bytes

    def __init__(self, options: Options) -> None:
        self.live = Counters()
        self.pressure = Pressure()
        self.budget = Budget(options.slot_budget) if options.slot_budget else None
        self._seen: set[bytes] = set()
        self.has_seen = self._seen.__contains__
        self.mark = self._seen.add
        self.forget = self._seen.discard

    def add(self, _: bytes, __: Slot | None, entry: Entry, ___: bytes | None) -> None:
        if entry.unique:
            self._seen.add(entry.seen_key)

    begin = staticmethod(JobInfo)

    def claim(self, _: bytes) -> tuple[bytes | None, bool]:
        return None, False

    def has_started(self, _: bytes) -> bool:
        return False

    def end(self, *_: object) -> None:
        pass

    def _nothing(self, *_: object, **__: object) -> None:
        pass

    def count_seen(self) -> int:
        return len(self._seen)

    clear = take_claim = move = has_changes = commit = finish = end_page = discard = _nothing

    def _none(self, *_: object) -> Any:
        return iter(())

    slots = dead = failed = read = read_all = _none
