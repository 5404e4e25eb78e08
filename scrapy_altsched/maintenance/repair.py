"""A store that agrees with itself, out of what can be read of a damaged one.

The rows are copied one by one into a new store, which is put in the damaged one's place when it is
whole; the damaged one is kept beside it.  How they are read is told in :mod:`.salvage`.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
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
from .rewriter import CHUNK, Chunk
from .salvage import Salvage

#: What to do about a store that cannot be repaired.
_NOTHING_KEPT = (
    "A repair can keep nothing of it. Restore the JOBDIR from a copy, or delete it to start the"
    " crawl over."
)


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
    :param locate: payload -> (download slot, whether a start request), for requests whose slot's
        name was lost.
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
        raise StoreDamagedError(error.problem, _NOTHING_KEPT) from error
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
        counters, missing = journal.counters(), journal.counts().unaccounted
        counters.accepted -= missing
        batch = Batch(counters, notes={DAMAGE: b"", ORPHANS: b"0"})
        for key, why, value in journal.dead():
            if why.cause is Cause.UNRESTORABLE:
                given_up = DeadLetter(why.text, Cause.GIVEN_UP)
                batch.stored[DEAD].append((key, DEAD.join(given_up, value)))
        journal.write(batch, wait=True)
        return max(0, missing) + len(batch.stored[DEAD])
    finally:
        journal.close()


class _Rebuild:
    """A new store out of the rows of a damaged one."""

    def __init__(self, jobdir: Jobdir, source: Salvage, locate: Locate | None) -> None:
        self._jobdir = jobdir
        self._source = source
        self._locate = locate
        self._result = Repair()
        self._last_run = 1
        #: Names of slots that are taken.
        self._names: set[str] = set()
        #: Whether the counters that were read are those of the last commit.
        self._is_newest = False

    def run(self) -> Repair:
        jobdir, result = self._jobdir, self._result
        meta = self._source.meta()
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
        return result

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
        counters, notes = self._read_meta(meta)
        last, number = self._jobdir.last_commit, int.from_bytes(meta.get(b"commit", b""), "big")
        self._is_newest = last is not None and number >= last.number
        store.commit_number = max(number, last.number if last is not None else 0)
        names = self._read_slots()
        chunk = Chunk(store, Counters())
        held, last_sequence = self._copy_pending(chunk, counters, names, notes)
        unqueued = {state: self._copy_unqueued(chunk, state) for state in UNQUEUED}
        chunk.flush()
        self._copy_seen(store)  # after theirs, which are seen in no run
        self._copy_others(chunk)
        final = Batch(self._settle(counters, held.total(), unqueued, last_sequence))
        final.slots = [
            (slot_id.to_bytes(8, "big"), count, names[slot_id]) for slot_id, count in held.items()
        ]
        final.counters.next_slot = max([counters.next_slot, *(slot_id + 1 for slot_id in held)])
        final.notes = {**notes, DAMAGE: self._note_damage(notes.get(DAMAGE, b""))}
        store.write(final, wait=True)

    def _read_meta(self, meta: dict[bytes, bytes]) -> tuple[Counters, dict[str, bytes]]:
        notes = {
            key[len(b"note:") :].decode(): value
            for key, value in meta.items()
            if key.startswith(b"note:")
        }
        try:
            return Counters.parse(meta.get(b"counters", b"")), notes
        except ValueError:
            self._result.losses.append(
                "How many requests were accepted and done is no longer known."
            )
            self._source.incomplete.add("meta")
            known = self._jobdir.last_commit
            done = known.done if known is not None else 0
            accepted = known.accepted if known is not None else 0
            # A number that no request has had; 2**62 more can follow.
            return Counters(accepted=accepted, done=done, next_sequence=1 << 62), notes

    def _read_slots(self) -> dict[int, str]:
        names: dict[int, str] = {}
        for key, value in self._source.rows("slots"):
            with suppress(ValueError):
                name = decode_slot(value)[1]
                if name not in self._names:
                    names[int.from_bytes(key, "big")] = name
                    self._names.add(name)
        return names

    def _copy_pending(
        self,
        chunk: Chunk,
        counters: Counters,
        names: dict[int, str],
        notes: dict[str, bytes],
    ) -> tuple[Counter[int], int]:
        """Number of requests of each slot, and the highest sequence number among them."""
        order = Order.parse(notes["order"].decode()) if "order" in notes else None
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
            if slot_id not in names:
                names[slot_id] = self._name_slot(slot_id, entry.payload or b"", order)
            held[slot_id] += 1
            self._keep(chunk, PENDING, key, value, entry)
        self._result.kept["pending"] = held.total()
        return held, highest

    def _name_slot(self, slot_id: int, payload: bytes, order: Order | None) -> str:
        name = f"slot {slot_id}"
        if order is not None and order.policy == "one":
            name = ""
        elif self._locate is not None:
            with suppress(ValueError):  # a CodecError is one
                name = self._locate(payload)[0]
        if name in self._names:  # of two slots with one name, one would never be leased from
            name = f"slot {slot_id}"
        self._names.add(name)
        return name

    def _copy_unqueued(self, chunk: Chunk, state: State) -> int:
        """How many requests of a state there are."""
        copied = 0
        for key, row in self._source.rows(state.family):
            with suppress(IndexError, ValueError):
                entry = state.decode(row)
                self._keep(chunk, state, key, row, entry)
                copied += 1
        self._result.kept[state.family] = copied
        return copied

    @staticmethod
    def _keep(chunk: Chunk, state: State, key: bytes, row: bytes, entry: Entry) -> None:
        chunk.rows.stored[state].append((key, row))
        if entry.unique:
            chunk.rows.seen.append(entry.fingerprint)
        chunk.flush_if_full()

    def _copy_seen(self, store: Store) -> None:
        #: Run -> fingerprints, in all as many as are written at once.
        chunk: defaultdict[int, list[bytes]] = defaultdict(list)

        def write() -> None:
            for run, seen in chunk.items():
                rows = Batch(Counters(), seen=seen, seen_value=encode_seen(run))
                store.write(rows, wait=True)
            chunk.clear()

        for key, value in self._source.rows("seen"):
            try:
                run = decode_seen(value)
            except ValueError:
                self._source.incomplete.add("seen")
                continue
            if run and "meta" in self._source.incomplete:
                continue  # whether it can be believed is no longer known
            chunk[run].append(key)
            self._result.kept["seen"] += 1
            if self._result.kept["seen"] % CHUNK == 0:
                write()
        write()

    def _copy_others(self, chunk: Chunk) -> None:
        kept = self._result.kept
        for key, value in self._source.rows("started"):
            run = int.from_bytes(value, "big")
            self._last_run = max(self._last_run, run)
            chunk.rows.started.append((key, run))
            kept["started"] += 1
            chunk.flush_if_full()
        for key, value in self._source.rows("suspects"):
            with suppress(ValueError):
                chunk.rows.suspects.append((key, decode_suspicion(value)))
                kept["suspects"] += 1
        chunk.flush()

    def _settle(
        self, counters: Counters, pending: int, unqueued: Mapping[State, int], highest: int
    ) -> Counters:
        """Counters that agree with what was kept; what is missing stays accepted."""
        stored = pending + sum(unqueued.values())
        missing = counters.accepted - counters.done - stored
        done = counters.done if missing >= 0 else max(0, counters.done + missing)
        accepted = max(counters.accepted, done + stored)
        if missing > 0:
            self._result.damage = f"{missing} {inflect(missing, 'request')} could not be read"
        elif missing < 0 or (self._source.incomplete and not self._is_newest):
            self._result.damage = "how many requests could not be read is not known"
        return replace(
            counters,
            accepted=accepted,
            done=done,
            **{state.counter: count for state, count in unqueued.items() if state.counter},
            run=max(counters.run, self._last_run),
            next_sequence=max(counters.next_sequence, highest + 1),
            finished=counters.finished and not pending,
        )

    def _note_damage(self, earlier: bytes) -> bytes:
        result, source = self._result, self._source
        result.losses = source.losses + result.losses
        if "seen" in source.incomplete:
            result.losses.append(
                "Some fingerprints of done requests may be lost: those may be crawled again."
            )
        if not result.damage:
            return earlier
        day = datetime.now().astimezone().date().isoformat()
        result.damage = f"in the repair of {day}, {result.damage}."
        return add_damage(earlier, result.damage)
