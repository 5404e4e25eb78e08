"""A store that agrees with itself, out of what can be read of a damaged one.

The rows are copied one by one into a new store, which is put in the damaged one's place when it is
whole; the damaged one is kept next to it.  How they are read is told in :mod:`.salvage`.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import islice
from pathlib import Path

from ..disk import force_name
from ..errors import JobdirError, StoreDamagedError
from ..frontier.dead_letter import Cause, DeadLetter
from ..frontier.entry import Entry
from ..frontier.queue.order import Order
from ..frontier.store.jobdir import REPAIRED, Identity, Jobdir, LastCommit
from ..frontier.store.journal import Journal
from ..frontier.store.records import (
    DAMAGE,
    ORPHANS,
    Batch,
    Counters,
    add_damage,
    decode_seen,
    decode_slot,
    decode_suspicion,
    encode_seen,
)
from ..frontier.store.states import DEAD, PENDING, UNQUEUED, State
from ..frontier.store.store import Store
from ..inflection import inflect
from .reorder import Locate
from .rewriter import CHUNK, Rewriter
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
        with tempfile.TemporaryDirectory(prefix="altsched-repair-") as directory:
            source = Salvage(jobdir.store, Path(directory), is_whole)
            try:
                return _Rebuild(jobdir, source, locate).run()
            finally:
                source.close()
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
    journal = Journal(path, owner)
    try:
        counters = journal.counters()
        pending = sum(count for _, count, _ in journal.slots())
        accounted = counters.count_unqueued() + pending
        batch = Batch(replace(counters, accepted=accounted), notes={DAMAGE: b"", ORPHANS: b"0"})
        given_up = batch.stored[DEAD]
        for key, why, value in journal.dead():
            if why.cause is Cause.UNRESTORABLE:
                given_up.append((key, DEAD.join(DeadLetter(why.text, Cause.GIVEN_UP), value)))
        journal.write(batch, wait=True)
        return max(0, counters.accepted - accounted) + len(given_up)
    finally:
        journal.close()


class _Rebuild:
    """A new store out of the rows of a damaged one."""

    def __init__(self, jobdir: Jobdir, source: Salvage, locate: Locate | None) -> None:
        self._jobdir = jobdir
        self._source = source
        self._locate = locate
        self._result = Repair()
        #: Names of slots by their ids, and all that are taken.
        self._names: dict[int, str] = {}
        self._taken: set[str] = set()

    def run(self) -> Repair:
        jobdir, source = self._jobdir, self._source
        meta = source.meta()
        identity = self._identify(meta.get(b"identity"))
        jobdir.check(identity)
        partial = jobdir.store.with_name(jobdir.store.name + ".partial")
        try:
            shutil.rmtree(partial, ignore_errors=True)
            shutil.rmtree(jobdir.path / REPAIRED, ignore_errors=True)
            store = Store(partial)
            store.create(identity)
            try:
                self._fill(store, meta)
                store.flush()
            finally:
                store.close()
            last = LastCommit(identity.store_id, store.commit_number, 0, 0)
            self._put_in_place(partial, identity)
        except OSError as error:
            raise JobdirError(
                f"The repaired store {partial} cannot be written ({error}). Nothing was changed;"
                " check that the disk has space for a copy of the store."
            ) from error
        jobdir.note_commit(last)
        self._result.losses[:0] = source.losses
        return self._result

    def _identify(self, stored: bytes | None) -> Identity:
        if stored is not None:
            with suppress(ValueError):
                return Identity.parse(stored)
        return self._jobdir.identity or Identity.new(self._jobdir.owner)

    def _put_in_place(self, partial: Path, identity: Identity) -> None:
        """A death in between leaves a job whose repaired store is put in place at the next open."""
        jobdir = self._jobdir
        number = 1
        while (damaged := jobdir.store.with_name(f"{jobdir.store.name}.damaged-{number}")).exists():
            number += 1
        jobdir.write_identity(identity)
        repaired = jobdir.path / REPAIRED
        partial.rename(repaired)
        jobdir.store.rename(damaged)
        repaired.rename(jobdir.store)
        force_name(jobdir.store)
        self._result.damaged = damaged

    def _fill(self, store: Store, meta: dict[bytes, bytes]) -> None:
        notes = {
            key.removeprefix(b"note:").decode(): value
            for key, value in meta.items()
            if key.startswith(b"note:")
        }
        counters = self._read_counters(meta.get(b"counters", b""))
        last, number = self._jobdir.last_commit, int.from_bytes(meta.get(b"commit", b""), "big")
        store.commit_number = max(number, last.number if last is not None else 0)
        for key, value in self._source.rows("slots"):
            with suppress(ValueError):
                name = decode_slot(value)[1]
                if name not in self._taken:
                    self._take_name(int.from_bytes(key, "big"), name)
        # A new store has no slots and no counters yet: no reader knows what is written first.
        rewriter = Rewriter(store)
        order = Order.parse(notes["order"].decode()) if "order" in notes else None
        held, last_sequence = self._copy_pending(rewriter, counters, order)
        for state in UNQUEUED:
            found = self._copy_unqueued(rewriter, state)
            setattr(counters, state.counter or "", found)
        rewriter.flush()
        self._copy_seen(store)  # after theirs, which are seen in no run
        last_run = self._copy_others(rewriter)
        is_newest = last is not None and number >= last.number
        self._settle(counters, held.total(), is_newest=is_newest)
        counters.run = max(counters.run, last_run)
        counters.next_sequence = max(counters.next_sequence, last_sequence + 1)
        counters.next_slot = max([counters.next_slot, *(slot_id + 1 for slot_id in held)])
        final = rewriter.final
        final.counters = counters
        final.slots = [
            (slot_id.to_bytes(8, "big"), count, self._names[slot_id])
            for slot_id, count in held.items()
        ]
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
            known = self._jobdir.last_commit or LastCommit("", 0, 0, 0)
            # A number that no request has had; 2**62 more can follow.
            return Counters(accepted=known.accepted, done=known.done, next_sequence=1 << 62)

    def _copy_pending(
        self, rewriter: Rewriter, counters: Counters, order: Order | None
    ) -> tuple[Counter[int], int]:
        """Number of requests of each slot, and the highest sequence number among them."""
        may_be_orphans = "meta" not in self._source.incomplete
        held: Counter[int] = Counter()
        highest = 0
        for key, value in self._source.rows("pending"):
            slot_id = int.from_bytes(key[:8], "big")
            if slot_id >= counters.next_slot and may_be_orphans:
                continue  # a change of order was cut short before it was true
            try:
                entry = PENDING.decode(value)
                if order is not None:
                    highest = max(highest, order.decode(key[8:])[2])
            except (IndexError, ValueError):
                self._result.losses.append(f"The pending request {key.hex()} is cut short.")
                self._source.incomplete.add("pending")
                continue
            if slot_id not in self._names:
                name = self._name_slot(slot_id, entry.payload or b"", order)
                # Of two slots with one name, one would never be leased from.
                self._take_name(slot_id, f"slot {slot_id}" if name in self._taken else name)
            held[slot_id] += 1
            _keep(rewriter, PENDING, key, value, entry)
        self._result.kept["pending"] = held.total()
        return held, highest

    def _name_slot(self, slot_id: int, payload: bytes, order: Order | None) -> str:
        if order is not None and order.policy == "one":
            return ""
        if self._locate is not None:
            with suppress(ValueError):  # a CodecError is one
                return self._locate(payload)[0]
        return f"slot {slot_id}"

    def _take_name(self, slot_id: int, name: str) -> None:
        self._names[slot_id] = name
        self._taken.add(name)

    def _copy_unqueued(self, rewriter: Rewriter, state: State) -> int:
        """How many requests of a state there are."""
        copied = 0
        for key, row in self._source.rows(state.family):
            with suppress(IndexError, ValueError):
                _keep(rewriter, state, key, row, state.decode(row))
                copied += 1
        self._result.kept[state.family] = copied
        return copied

    def _copy_seen(self, store: Store) -> None:
        rows = self._seen()
        while portion := list(islice(rows, CHUNK)):
            by_run = defaultdict(list)
            for fingerprint, run in portion:
                by_run[run].append(fingerprint)
            for run, seen in by_run.items():
                batch = Batch(Counters(), seen=seen, seen_value=encode_seen(run))
                store.write(batch, wait=True)
            self._result.kept["seen"] += len(portion)

    def _seen(self) -> Iterator[tuple[bytes, int]]:
        """Each fingerprint, and the run that saw it."""
        for key, value in self._source.rows("seen"):
            try:
                run = decode_seen(value)
            except ValueError:
                self._source.incomplete.add("seen")
                continue
            # Whether that of a run can be believed is no longer known without the notes.
            if not run or "meta" not in self._source.incomplete:
                yield key, run

    def _copy_others(self, rewriter: Rewriter) -> int:
        """The last run that is known of."""
        kept, last_run = self._result.kept, 1
        for key, value in self._source.rows("started"):
            run = int.from_bytes(value, "big")
            last_run = max(last_run, run)
            rewriter.rows.started.append((key, run))
            kept["started"] += 1
            rewriter.flush_if_full()
        for key, value in self._source.rows("suspects"):
            with suppress(ValueError):
                rewriter.rows.suspects.append((key, decode_suspicion(value)))
                kept["suspects"] += 1
        return last_run

    def _settle(self, counters: Counters, pending: int, *, is_newest: bool) -> None:
        """Make the counters agree with what was kept; what is missing stays accepted.

        :param is_newest: whether they are those of the last commit.
        """
        stored = counters.count_unqueued() - counters.done + pending
        missing = counters.accepted - counters.done - stored
        if missing < 0:
            counters.done = max(0, counters.done + missing)
        counters.accepted = max(counters.accepted, counters.done + stored)
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
        return add_damage(earlier, result.damage)


def _keep(rewriter: Rewriter, state: State, key: bytes, row: bytes, entry: Entry) -> None:
    rewriter.rows.stored[state].append((key, row))
    if entry.unique:
        rewriter.rows.seen.append(entry.fingerprint)
    rewriter.flush_if_full()
