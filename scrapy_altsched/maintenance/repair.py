"""A store that agrees with itself, out of what can be read of a damaged one.

The rows are copied one by one into a new store, which is put in the damaged one's place when it is
whole; the damaged one is kept next to it.  How they are read is told in
:mod:`~scrapy_altsched.frontier.store.salvage`.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import closing, suppress
from datetime import date
from itertools import count, islice
from pathlib import Path

from ..errors import JobdirError, StoreDamagedError
from ..frontier.contract import Locate
from ..frontier.entry import Cause, DeadLetter
from ..frontier.queue.order import Order
from ..frontier.store import records
from ..frontier.store.engines import engine_of, salvage
from ..frontier.store.jobdir import Identity, Jobdir, LastCommit
from ..frontier.store.journal import Journal
from ..frontier.store.records import DAMAGE, ORPHANS, Batch, Counters
from ..frontier.store.rows import BUDGET, decode_budget
from ..frontier.store.salvage import Salvage
from ..frontier.store.seen import (
    DIGESTS,
    FINGERPRINTS,
    KEYS,
    SINCE,
    UNFINISHED,
    may_be_digest,
    run_of,
)
from ..frontier.store.states import DEAD, DELAYED, PENDING, UNQUEUED, State, decode_delayed_key
from ..frontier.store.store import Store
from ..inflection import inflect
from .rewriter import CHUNK, Rewriter


def repair(
    path: Path, owner: str, is_whole: Callable[[bytes], bool], locate: Locate | None = None
) -> Repair:
    """Put a store that agrees with itself in the place of the one in a job directory.

    :param is_whole: whether a request's payload is as it was written.
    :param locate: for requests whose slot's name was lost.
    :raises JobdirError: the directory cannot be used.
    :raises StoreError: nothing can be read, or the new store cannot be written.
    """
    jobdir = Jobdir(path, owner)
    try:
        with (
            tempfile.TemporaryDirectory(prefix="altsched-repair-") as directory,
            closing(salvage(jobdir.store, Path(directory), is_whole)) as source,
        ):
            return _replace_store(jobdir, source, locate)
    except StoreDamagedError as error:
        raise StoreDamagedError(
            error.problem,
            "A repair can keep nothing of it. Restore the JOBDIR from a copy, or delete it to start"
            " the crawl over.",
        ) from error
    finally:
        jobdir.release()


def accept_loss(path: Path, owner: str) -> int:
    """Do without what a repair could not keep, and what could not be restored: how many requests.

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


def _replace_store(jobdir: Jobdir, source: Salvage, locate: Locate | None) -> Repair:
    meta = source.meta()
    identity = jobdir.identity or Identity.new(jobdir.owner)
    with suppress(ValueError):
        identity = Identity.parse(meta.get(b"identity", b"null"))
    jobdir.check(identity)
    place = jobdir.store
    try:
        store = Store(place, engine_of(place))
        store.create(identity, jobdir.partial, keys=_keys_of(source, meta))
        with closing(store):
            last = jobdir.last_commit or LastCommit("", -1, 0, 0)
            result = Repair(store, source, last, locate)
            result.run(meta)
            store.database.flush()
        names = (place.with_name(f"{place.name}.damaged-{number}") for number in count(1))
        result.damaged = next(name for name in names if not name.exists())
        jobdir.write_identity(identity)
        jobdir.replace_store(result.damaged.name)
    except OSError as error:
        raise JobdirError(
            f"A repaired store of {place} cannot be written ({error}). Nothing was changed;"
            " check that the disk has space for a copy of the store."
        ) from error
    jobdir.note_commit(LastCommit(identity.store_id, store.commit_number, 0, 0))
    return result


def _keys_of(source: Salvage, meta: dict[bytes, bytes]) -> bytes:
    """What keys of seen rows are; if the note of that is lost, as the rows look."""
    note = meta.get(b"note:" + KEYS.encode())
    if note is not None or "meta" not in source.incomplete:
        return note or FINGERPRINTS
    are_short = all(may_be_digest(key) for key, _ in islice(source.rows("seen"), 1))
    return DIGESTS if are_short else FINGERPRINTS


class Repair(Rewriter):
    """The rows of a damaged store on their way into a new one, with the ids of their slots.

    :param last: the job's last commit, whatever the store says; number -1: it is not known.
    :ivar losses: what could not be read, and what follows from it, in sentences.
    :ivar kept: family -> number of rows that are in the new store.
    :ivar damage: what is noted in the job until it is accepted; empty if nothing is missing.
    :ivar damaged: where the damaged store is now.
    """

    damaged: Path

    def __init__(
        self, store: Store, source: Salvage, last: LastCommit, locate: Locate | None
    ) -> None:
        super().__init__(store)
        self._source = source
        self._last = last
        self._locate = locate
        self.losses = source.losses
        self.kept: Counter[str] = Counter()
        self.damage = ""
        self._order: Order | None = None
        self._names: dict[int, str] = {}
        self._records_ages = False

    def run(self, meta: dict[bytes, bytes]) -> None:
        found = {key.decode(): value for key, value in meta.items()}
        notes = {
            name[len("note:") :]: value for name, value in found.items() if name.startswith("note:")
        }
        self._records_ages = SINCE in notes
        if "order" in notes:
            self._order = Order.parse(notes["order"].decode())
        self.final.counters = counters = self._read_counters(meta.get(b"counters", b""))
        counters.seen = None
        number = int.from_bytes(meta.get(b"commit", b""), "big")
        self._store.commit_number = max(number, self._last.number)
        self._read_slots()
        self._copy_pending()
        self._copy_delayed()
        for state in UNQUEUED:
            if not state.is_left:
                self._copy_unqueued(state)
        self.flush()
        self._copy_seen()  # after theirs, which are seen in no run
        self._copy_others()
        counters.next_slot = max(counters.next_slot, max(self._names, default=0) + 1)
        is_newest = 0 <= self._last.number <= number
        damage = self._settle(notes.get(DAMAGE, b""), is_newest=is_newest)
        # What the keys are, the store says itself.
        notes.pop(KEYS, None)
        self.final.notes = {**notes, DAMAGE: damage}
        self._copy_budgets(meta)
        self.finish()

    def _copy_budgets(self, meta: dict[bytes, bytes]) -> None:
        for key, value in meta.items():
            if key.startswith(BUDGET):
                self.final.budgets.append(decode_budget(key, value))

    def _lose(self, family: str, sentence: str) -> None:
        self.losses.append(sentence)
        self._source.incomplete.add(family)

    def _read_counters(self, stored: bytes) -> Counters:
        try:
            return Counters.parse(stored)
        except ValueError:
            self._lose("meta", "How many requests were accepted and done is no longer known.")
            # A number that no request has had; 2**62 more can follow.
            return Counters(self._last.accepted, self._last.done, next_sequence=1 << 62)

    def _read_slots(self) -> None:
        for key, value in self._source.rows("slots"):
            slot_id = int.from_bytes(key, "big")
            try:
                _, name = records.decode_slot(value)
            except ValueError:
                self._lose("slots", f"The name of slot {slot_id} cannot be read.")
                continue
            if name not in self._ids:
                self._name(slot_id, name)

    def _name(self, slot_id: int, name: str) -> None:
        self._names[slot_id] = name
        self._ids[name] = slot_id

    def _copy_pending(self) -> None:
        counters, order = self.final.counters, self._order
        may_be_orphans = "meta" not in self._source.incomplete
        highest = 0
        for key, value in self._source.rows("pending"):
            slot_id = int.from_bytes(key[:8], "big")
            if slot_id >= counters.next_slot and may_be_orphans:
                continue  # a change of order was cut short before it was true
            try:
                sequence = order.decode(key[8:])[2] if order is not None else 0
                payload = self._keep(PENDING, key, value)
            except (IndexError, ValueError):
                self._lose("pending", f"The pending request {key.hex()} is cut short.")
                continue
            if slot_id not in self._names:
                name = self._find_name(slot_id, payload)
                # Of two slots with one name, one would never be leased from.
                self._name(slot_id, f"slot {slot_id}" if name in self._ids else name)
            self._added[self._names[slot_id]] += 1
            highest = max(highest, sequence)
        counters.next_sequence = max(counters.next_sequence, highest + 1)
        self.kept["pending"] = self._added.total()

    def _find_name(self, slot_id: int, payload: bytes) -> str:
        if self._order is not None and self._order.policy == "one":
            return ""
        if self._locate is not None:
            with suppress(ValueError):  # a CodecError is one
                return self._locate(payload)[0]
        return f"slot {slot_id}"

    def _copy_delayed(self) -> None:
        counters = self.final.counters
        queue = counters.delayed_queue.to_bytes(8, "big")
        is_known = "meta" not in self._source.incomplete
        # If it is not known which queue is the job's, that of a change cut short has the same ones.
        copied: set[bytes] = set()
        for key, row in self._source.rows(DELAYED.family):
            if is_known and key[:8] != queue:
                continue
            try:
                _, sequence = decode_delayed_key(key)
                self._keep(DELAYED, queue + key[8:], row)
            except (IndexError, ValueError):
                self._lose(DELAYED.family, f"The delayed request {key.hex()} is cut short.")
                continue
            copied.add(key[8:])
            counters.next_sequence = max(counters.next_sequence, sequence + 1)
        counters.delayed = self.kept[DELAYED.family] = len(copied)

    def _copy_unqueued(self, state: State) -> None:
        copied = 0
        for key, row in self._source.rows(state.family):
            with suppress(IndexError, ValueError):
                self._keep(state, key, row)
                copied += 1
        self.kept[state.family] = copied
        setattr(self.final.counters, state.counter or "", copied)

    def _keep(self, state: State, key: bytes, row: bytes) -> bytes:
        """Write the row of a request again; its payload.  ValueError, IndexError: it is damaged."""
        entry = state.decode(row)
        self.rows.stored[state].append((key, row))
        if entry.unique:
            seen_key = self._store.seen_key(entry.fingerprint)
            if self._records_ages:
                self.rows.seen_rows.append((seen_key, UNFINISHED))
            else:
                self.rows.seen.append(seen_key)
        self.flush_if_full()
        return entry.payload or b""

    def _copy_seen(self) -> None:
        rows, incomplete = self._source.rows("seen"), self._source.incomplete
        while portion := list(islice(rows, CHUNK)):
            kept = []
            for key, value in portion:
                try:
                    # Without the notes it is not known whether those of a run can be believed.
                    if not run_of(value) or "meta" not in incomplete:
                        kept.append((key, value))
                except ValueError:
                    incomplete.add("seen")
            self._store.write(Batch(Counters(), seen_rows=kept), wait=True)
            self.kept["seen"] += len(kept)

    def _copy_others(self) -> None:
        kept, counters = self.kept, self.final.counters
        counters.run = max(counters.run, 1)
        for key, value in self._source.rows("started"):
            run = int.from_bytes(value, "big")
            counters.run = max(counters.run, run)
            self.rows.started.append((key, run))
            kept["started"] += 1
            self.flush_if_full()
        for key, value in self._source.rows("suspects"):
            with suppress(ValueError):
                self.rows.suspects.append((key, records.Suspicion.parse(value)))
                kept["suspects"] += 1

    def _settle(self, earlier: bytes, *, is_newest: bool) -> bytes:
        """Make the counters agree with what was kept; what is missing stays accepted, and is noted.

        :param earlier: the note of earlier damage; the new one is returned.
        :param is_newest: whether the counters are those of the last commit.
        """
        counters, pending = self.final.counters, self._added.total()
        missing = counters.as_counts(pending).unaccounted
        if missing < 0:
            counters.done = max(0, counters.done + missing)
        counters.accepted -= min(0, counters.as_counts(pending).unaccounted)
        counters.finished = counters.finished and not pending and not counters.delayed
        if "seen" in self._source.incomplete:
            self.losses.append(
                "Some fingerprints of done requests may be lost: those may be crawled again."
            )
        if missing > 0:
            damage = f"{missing} {inflect(missing, 'request')} could not be read"
        elif missing < 0 or (self._source.incomplete and not is_newest):
            damage = "how many requests could not be read is not known"
        else:
            return earlier
        self.damage = f"in the repair of {date.today().isoformat()}, {damage}."
        return records.add_damage(earlier, self.damage)
