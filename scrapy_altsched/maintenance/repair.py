"""A store that agrees with itself, out of what can be read of a damaged one.

The rows are copied one by one into a new store, which is put in the damaged one's place when it is
whole; the damaged one is kept next to it.  How they are read is told in :mod:`.salvage`.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from datetime import datetime
from itertools import count, islice
from pathlib import Path

from ..disk import force_name
from ..errors import JobdirError, StoreDamagedError
from ..frontier.dead_letter import Cause, DeadLetter
from ..frontier.queue.order import Order
from ..frontier.store import records
from ..frontier.store.jobdir import REPAIRED, Identity, Jobdir, LastCommit
from ..frontier.store.journal import Journal
from ..frontier.store.records import DAMAGE, ORPHANS, Batch, Counters
from ..frontier.store.states import DEAD, PENDING, UNQUEUED, State
from ..frontier.store.store import Store
from ..inflection import inflect
from .rewriter import CHUNK, Locate, Rewriter
from .salvage import Salvage


@dataclass
class Repair:
    """What became of a store.

    :ivar kept: family -> number of rows that are in the new store.
    :ivar losses: what could not be read, and what follows from it, in sentences.
    :ivar damage: what is noted in the job until it is accepted; empty if nothing is missing.
    :ivar damaged: where the damaged store is now.
    """

    kept: Counter[str] = field(default_factory=Counter)
    losses: list[str] = field(default_factory=list)
    damage: str = ""
    damaged: Path | None = None


def repair(
    path: Path, owner: str, is_whole: Callable[[bytes], bool], locate: Locate | None = None
) -> Repair:
    """Put a store that agrees with itself in the place of the one in a job directory.

    :param owner: the spider's name.
    :param is_whole: whether a request's payload is as it was written.
    :param locate: for requests whose slot's name was lost.
    :raises JobdirError: the directory cannot be used.
    :raises StoreError: nothing can be read, or the new store cannot be written.
    """
    jobdir = Jobdir(path, owner)
    try:
        with (
            tempfile.TemporaryDirectory(prefix="altsched-repair-") as directory,
            closing(Salvage(jobdir.store, Path(directory), is_whole)) as source,
        ):
            return _Rebuild(jobdir, source, locate).run()
    except StoreDamagedError as error:
        raise StoreDamagedError(
            error.problem,
            "A repair can keep nothing of it. Restore the JOBDIR from a copy, or delete it to start"
            " the crawl over.",
        ) from error
    finally:
        jobdir.release()


def accept_loss(path: Path, owner: str) -> int:
    """Do without what a repair could not keep, and what could not be restored.

    The job can then be finished.

    :return: how many requests are given up.
    :raises AltschedError: the job cannot be opened.
    """
    with closing(Journal(path, owner)) as journal:
        counters, missing = journal.counters(), journal.counts().unaccounted
        counters.accepted -= missing
        batch = Batch(counters, notes={DAMAGE: b"", ORPHANS: b"0"})
        given_up = batch.stored[DEAD]
        for key, why, value in journal.dead():
            if why.cause is Cause.UNRESTORABLE:
                given_up.append((key, DEAD.join(DeadLetter(why.text, Cause.GIVEN_UP), value)))
        journal.write(batch, wait=True)
        return max(0, missing) + len(given_up)


class _Rebuild:
    """A new store out of the rows of a damaged one."""

    def __init__(self, jobdir: Jobdir, source: Salvage, locate: Locate | None) -> None:
        self._jobdir = jobdir
        self._source = source
        self._locate = locate
        self._last = jobdir.last_commit or LastCommit("", 0, 0, 0)
        self._result = Repair()
        self._counters = Counters()
        self._order: Order | None = None
        #: Names of slots by their ids, all that are taken, and how many requests each holds.
        self._names: dict[int, str] = {}
        self._taken: set[str] = set()
        self._held: Counter[int] = Counter()

    def run(self) -> Repair:
        jobdir = self._jobdir
        meta = self._source.meta()
        identity = jobdir.identity or Identity.new(jobdir.owner)
        with suppress(ValueError):
            identity = Identity.parse(meta.get(b"identity", b"null"))
        jobdir.check(identity)
        partial = jobdir.store.with_name(jobdir.store.name + ".partial")
        try:
            shutil.rmtree(partial, ignore_errors=True)
            shutil.rmtree(jobdir.path / REPAIRED, ignore_errors=True)
            store = Store(partial)
            store.create(identity)
            with closing(store):
                self._fill(store, meta)
                store.flush()
            self._put_in_place(partial, identity)
        except OSError as error:
            raise JobdirError(
                f"The repaired store {partial} cannot be written ({error}). Nothing was changed;"
                " check that the disk has space for a copy of the store."
            ) from error
        jobdir.note_commit(LastCommit(identity.store_id, store.commit_number, 0, 0))
        self._result.losses[:0] = self._source.losses
        return self._result

    def _put_in_place(self, partial: Path, identity: Identity) -> None:
        """A death in between leaves a job whose repaired store is put in place at the next open."""
        jobdir = self._jobdir
        names = (jobdir.store.with_name(f"{jobdir.store.name}.damaged-{it}") for it in count(1))
        self._result.damaged = damaged = next(name for name in names if not name.exists())
        jobdir.write_identity(identity)
        repaired = jobdir.path / REPAIRED
        partial.rename(repaired)
        jobdir.store.rename(damaged)
        repaired.rename(jobdir.store)
        force_name(jobdir.store)

    def _fill(self, store: Store, meta: dict[bytes, bytes]) -> None:
        notes = {
            key.removeprefix(b"note:").decode(): value
            for key, value in meta.items()
            if key.startswith(b"note:")
        }
        if "order" in notes:
            self._order = Order.parse(notes["order"].decode())
        counters = self._counters = self._read_counters(meta.get(b"counters", b""))
        number = int.from_bytes(meta.get(b"commit", b""), "big")
        is_newest = self._jobdir.last_commit is not None and number >= self._last.number
        store.commit_number = max(number, self._last.number)
        for key, value in self._source.rows("slots"):
            with suppress(ValueError):
                name = records.decode_slot(value)[1]
                if name not in self._taken:
                    self._take_name(int.from_bytes(key, "big"), name)
        # No reader knows what is in the new store before the final batch.
        rewriter = Rewriter(store)
        self._copy_pending(rewriter)
        for state in UNQUEUED:
            self._copy_unqueued(rewriter, state)
        rewriter.flush()
        self._copy_seen(store)  # after theirs, which are seen in no run
        self._copy_others(rewriter)
        self._settle(is_newest=is_newest)
        counters.next_slot = max([counters.next_slot, *(slot_id + 1 for slot_id in self._held)])
        final = rewriter.final
        final.counters = counters
        for slot_id, held in self._held.items():
            final.slots.append((slot_id.to_bytes(8, "big"), held, self._names[slot_id]))
        final.notes = {**notes, DAMAGE: self._note_damage(notes.get(DAMAGE, b""))}
        rewriter.finish()

    def _read_counters(self, stored: bytes) -> Counters:
        try:
            return Counters.parse(stored)
        except ValueError:
            self._result.losses.append(
                "How many requests were accepted and done is no longer known."
            )
            self._source.incomplete.add("meta")
            # A number that no request has had; 2**62 more can follow.
            return Counters(self._last.accepted, self._last.done, next_sequence=1 << 62)

    def _copy_pending(self, rewriter: Rewriter) -> None:
        counters, order = self._counters, self._order
        may_be_orphans = "meta" not in self._source.incomplete
        highest = 0
        for key, value in self._source.rows("pending"):
            slot_id = int.from_bytes(key[:8], "big")
            if slot_id >= counters.next_slot and may_be_orphans:
                continue  # a change of order was cut short before it was true
            try:
                sequence = order.decode(key[8:])[2] if order is not None else 0
                payload = _keep(rewriter, PENDING, key, value)
            except (IndexError, ValueError):
                self._result.losses.append(f"The pending request {key.hex()} is cut short.")
                self._source.incomplete.add("pending")
                continue
            if slot_id not in self._names:
                name = self._name_slot(slot_id, payload)
                # Of two slots with one name, one would never be leased from.
                self._take_name(slot_id, f"slot {slot_id}" if name in self._taken else name)
            self._held[slot_id] += 1
            highest = max(highest, sequence)
        counters.next_sequence = max(counters.next_sequence, highest + 1)
        self._result.kept["pending"] = self._held.total()

    def _name_slot(self, slot_id: int, payload: bytes) -> str:
        if self._order is not None and self._order.policy == "one":
            return ""
        if self._locate is not None:
            with suppress(ValueError):  # a CodecError is one
                return self._locate(payload)[0]
        return f"slot {slot_id}"

    def _take_name(self, slot_id: int, name: str) -> None:
        self._names[slot_id] = name
        self._taken.add(name)

    def _copy_unqueued(self, rewriter: Rewriter, state: State) -> None:
        copied = 0
        for key, row in self._source.rows(state.family):
            with suppress(IndexError, ValueError):
                _keep(rewriter, state, key, row)
                copied += 1
        self._result.kept[state.family] = copied
        setattr(self._counters, state.counter or "", copied)

    def _copy_seen(self, store: Store) -> None:
        rows = self._seen()
        while portion := list(islice(rows, CHUNK)):
            by_run = defaultdict(list)
            for fingerprint, run in portion:
                by_run[run].append(fingerprint)
            for run, seen in by_run.items():
                batch = Batch(Counters(), seen=seen, seen_value=records.encode_seen(run))
                store.write(batch, wait=True)
            self._result.kept["seen"] += len(portion)

    def _seen(self) -> Iterator[tuple[bytes, int]]:
        """Each fingerprint, and the run that saw it."""
        for key, value in self._source.rows("seen"):
            try:
                run = records.decode_seen(value)
            except ValueError:
                self._source.incomplete.add("seen")
                continue
            # Without the notes it is not known whether those of a run can be believed.
            if not run or "meta" not in self._source.incomplete:
                yield key, run

    def _copy_others(self, rewriter: Rewriter) -> None:
        kept, last_run = self._result.kept, 1
        for key, value in self._source.rows("started"):
            run = int.from_bytes(value, "big")
            last_run = max(last_run, run)
            rewriter.rows.started.append((key, run))
            kept["started"] += 1
            rewriter.flush_if_full()
        for key, value in self._source.rows("suspects"):
            with suppress(ValueError):
                rewriter.rows.suspects.append((key, records.decode_suspicion(value)))
                kept["suspects"] += 1
        self._counters.run = max(self._counters.run, last_run)

    def _settle(self, *, is_newest: bool) -> None:
        """Make the counters agree with what was kept; what is missing stays accepted.

        :param is_newest: whether they are those of the last commit.
        """
        counters, pending = self._counters, self._held.total()
        missing = counters.as_counts(pending).unaccounted
        if missing < 0:
            counters.done = max(0, counters.done + missing)
        counters.accepted -= min(0, counters.as_counts(pending).unaccounted)
        counters.finished = counters.finished and not pending
        if missing > 0:
            self._result.damage = f"{missing} {inflect(missing, 'request')} could not be read"
        elif missing < 0 or (self._source.incomplete and not is_newest):
            self._result.damage = "how many requests could not be read is not known"

    def _note_damage(self, earlier: bytes) -> bytes:
        result = self._result
        if "seen" in self._source.incomplete:
            result.losses.append(
                "Some fingerprints of done requests may be lost: those may be crawled again."
            )
        if not result.damage:
            return earlier
        day = datetime.now().astimezone().date().isoformat()
        result.damage = f"in the repair of {day}, {result.damage}."
        return records.add_damage(earlier, result.damage)


def _keep(rewriter: Rewriter, state: State, key: bytes, row: bytes) -> bytes:
    """Write the row of a request again; its payload.

    :raises ValueError: the row is damaged; IndexError: it is cut short.
    """
    entry = state.decode(row)
    rewriter.rows.stored[state].append((key, row))
    if entry.unique:
        rewriter.rows.seen.append(entry.fingerprint)
    rewriter.flush_if_full()
    return entry.payload or b""
