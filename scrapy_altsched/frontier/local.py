"""The frontier of one process: in memory, and with a journal on disk if it has one.

The journal is a snapshot, not a log of calls: :meth:`LocalFrontier.commit` takes the store from
one state that the crawl was really in to the next.  This is right because a page's children are
added before the page is finished: a snapshot at any instant holds a request, or its parent still
leased, and a leased request stays stored until it is done.

What is to be written is kept in two lists, and all of the first goes before any of the second:
*adds* (requests pending or leased that are not stored yet) and *endings* (requests done or dead,
stored or not).  A batch may therefore stop anywhere, to stay small: every prefix of the two is a
state in which nothing is lost.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import islice
from types import MappingProxyType

from ..errors import ForkedError, StoreError
from .audit import audit
from .contract import Busy, Counts, Entry, Lease, Verdict
from .journal import (
    Batch,
    Counters,
    Journal,
    LeaseRecord,
    encode_dead,
    encode_value,
    new_lease_record,
    worth_range_delete,
)
from .order import DEFAULT_ORDER, Order, Slot, Slots
from .reorder import Locate, reorder
from .window import Window

#: Most changes in one batch: RocksDB's write holds the interpreter's lock, 26 ms at this size
#: with ten million seen.
BATCH = 5_000

_IDLE: Busy = MappingProxyType({})
_NO_NOTES: Mapping[str, bytes] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Options:
    """How a frontier behaves.

    :ivar order: who is next.
    :ivar max_crashes: deaths of the process while a request is leased alone that bury it.
    :ivar memory_requests: how many pending requests of a stored queue are kept in memory.
    :ivar skip_started: whether a resumed unfinished job skips start requests that it accepted.
    """

    order: Order = DEFAULT_ORDER
    max_crashes: int = 3
    memory_requests: int = 20_000
    skip_started: bool = True


@dataclass(slots=True)
class _Ending:
    """A request that is done or dead.

    :ivar stored: whether the store holds it as pending.
    :ivar why: the reason if it is dead.
    """

    slot: Slot
    entry: Entry
    stored: bool
    why: str | None = None


class LocalFrontier:
    """A :class:`~.contract.Frontier` for one process.

    :param options: how it behaves.
    :param journal: where it is kept; without one it lives in memory.
    :param locate: see :func:`~scrapy_altsched.frontier.open_frontier`.
    :raises StoreError: the journal cannot be read or written.
    """

    def __init__(
        self, options: Options, journal: Journal | None = None, locate: Locate | None = None
    ) -> None:
        self._pid = os.getpid()
        self._options = options
        self._order = options.order
        self._journal = journal
        self._slots = Slots()
        self._leases: dict[bytes, Lease] = {}
        self._suspects: dict[bytes, LeaseRecord] = {}
        self._alone: Lease | None = None
        self._pending = 0
        self._live = Counters()
        self._closed = False
        #: Fingerprints seen that the store does not know: all of them where there is no store.
        self._seen: set[bytes] = set()

        # Changes since the last commit, beside _seen.
        self._adds: dict[bytes, Entry] = {}
        self._endings: dict[bytes, _Ending] = {}
        self._marks: list[bytes] = []
        self._claims: dict[bytes, int] = {}
        self._skips: list[bytes] = []
        self._released: list[bytes] = []

        self._saved = Counters()
        self._notes: dict[str, bytes] = {}
        self._window = Window(
            journal, options.memory_requests, self._adds, (self._leases, self._endings)
        )
        self.resumed = False
        #: Requests that lived in memory only and ended with an earlier run.
        self.lost_in_memory = 0
        #: Leases that could not be recorded: a crash will not be laid at their door.
        self.unrecorded_leases = 0
        if journal is not None:
            self._load(journal, locate)

    def _load(self, journal: Journal, locate: Locate | None) -> None:
        saved = journal.counters()
        self.resumed = saved.run > 0 and not saved.finished
        self.lost_in_memory = saved.memory_only
        self._suspects = dict(journal.leases())
        batch = Batch(replace(saved, run=saved.run + 1, finished=False, memory_only=0))
        for fingerprint, record in self._suspects.items():
            if record.alone:
                record.crashes += 1
                record.alone = False
                batch.leases.append((fingerprint, record))
        stored = journal.note("order")
        if stored is not None and Order.parse(stored.decode()) != self._order:
            reorder(journal, Order.parse(stored.decode()), self._order, locate, batch)
        batch.notes["order"] = str(self._order).encode()
        journal.write(batch)
        journal.remove_orphans(batch.counters.next_slot)
        for slot_id, count, name in journal.slots():
            slot = Slot(slot_id, name)
            slot.count = slot.stored = count
            slot.bound = b""
            self._slots.load(slot)
            self._pending += count
        self._slots.next_id = batch.counters.next_slot
        self._saved = batch.counters
        self._live = replace(batch.counters)

    # Transitions

    def add(self, entry: Entry) -> Verdict:
        self._check_owner()
        fingerprint = entry.fingerprint
        journal = self._journal
        if entry.yielded and journal is not None and not self._claim(journal, entry):
            return Verdict.STARTED
        if entry.unique:
            if self._has_seen(fingerprint):
                if entry.claim is not None:
                    del self._claims[entry.claim]
                return Verdict.SEEN
            entry.complete()
            self._seen.add(fingerprint)
        else:
            entry.complete()
        live = self._live
        sequence = live.next_sequence
        live.next_sequence = sequence + 1
        live.accepted += 1
        slot = self._slots.get(self._order.slot_of(entry.slot))
        order_key = self._order.encode(entry.priority, entry.start, sequence)
        if entry.payload is None:
            live.memory_only += 1
        elif journal is not None:
            self._adds[slot.prefix + order_key] = entry
        self._put(slot, order_key, entry)
        return Verdict.ADDED

    def mark_seen(self, fingerprint: bytes) -> bool:
        self._check_owner()
        if self._has_seen(fingerprint):
            return True
        self._seen.add(fingerprint)
        if self._journal is not None:
            self._marks.append(fingerprint)
        return False

    def lease(self, busy: Busy = _IDLE, /) -> Lease | None:
        self._check_owner()
        if self._alone is not None:
            return None
        while (slot := self._slots.choose(busy)) is not None:
            front = self._window.front(slot)
            if front is None:
                self._give_up(slot)
                continue
            order_key, entry = front
            suspect = self._suspects.get(entry.fingerprint) if self._suspects else None
            if suspect is not None and suspect.crashes < self._options.max_crashes and self._leases:
                return None
            self._window.pop(slot)
            self._slots.take(slot)
            self._slots.decrease(slot)
            self._pending -= 1
            slot.leased += 1
            lease = Lease(slot.prefix + order_key, entry, slot)
            self._leases[lease.key] = lease
            if suspect is None:
                self._record(entry.fingerprint, new_lease_record())
            elif suspect.crashes < self._options.max_crashes:
                self._alone = lease
                self._record(entry.fingerprint, new_lease_record(suspect.crashes, alone=True))
            else:
                self.bury(
                    lease, f"the process died {suspect.crashes} times while only it was leased"
                )
                continue
            return lease
        return None

    def finish(self, lease: Lease) -> None:
        self._end(lease)
        self._live.done += 1

    def bury(self, lease: Lease, why: str) -> None:
        self._end(lease, why)
        self._live.dead += 1

    def release(self, lease: Lease) -> None:
        slot = self._drop_lease(lease)
        self._released.append(lease.entry.fingerprint)
        self._put(slot, lease.key[8:], lease.entry)

    def reclaim(self) -> int:
        """Nothing: leases of one process end with it, and the next one finds them pending."""
        self._check_owner()
        return 0

    def forget(self, fingerprint: bytes) -> bool:
        self._check_owner()
        if not self._has_seen(fingerprint):
            return False
        if self._journal is not None:
            while not self.commit():
                pass
            self._journal.write(Batch(self._saved, forgotten=[fingerprint]))
        self._seen.discard(fingerprint)
        return True

    def counts(self) -> Counts:
        self._check_owner()
        live = self._live
        return Counts(
            live.accepted, self._pending, len(self._leases), live.done, live.dead, live.memory_only
        )

    # Answers that are asked for so often that they are plain numbers

    @property
    def pending(self) -> int:
        """``counts().pending``."""
        return self._pending

    @property
    def uncommitted(self) -> int:
        """How many changes wait for a commit."""
        return len(self._adds) + len(self._endings) + len(self._marks) + len(self._skips)

    @property
    def commit_number(self) -> int:
        """Number of the last commit, over all runs of the job; 0 without a journal."""
        return self._journal.commit_number if self._journal is not None else 0

    def note(self, name: str) -> bytes | None:
        """A note as the last commit left it.

        :raises StoreError: it could not be read.
        """
        return self._journal.note(name) if self._journal is not None else None

    # Committing

    def changed(self, notes: Mapping[str, bytes] = _NO_NOTES) -> bool:
        """Whether a commit with these notes would write anything."""
        return self._journal is not None and bool(
            self.uncommitted
            or self._released
            or self._live.memory_only != self._saved.memory_only
            or any(self._notes.get(name) != note for name, note in notes.items())
        )

    def commit(self, notes: Mapping[str, bytes] = _NO_NOTES) -> bool:
        self._check_owner()
        if self._journal is None or not self.changed(notes):
            return True
        notes = {name: note for name, note in notes.items() if self._notes.get(name) != note}
        adds = dict(islice(self._adds.items(), BATCH))
        room = BATCH - len(adds) if len(adds) == len(self._adds) else 0
        endings = dict(islice(self._endings.items(), room))
        last = room > 0 and len(endings) == len(self._endings)
        batch, stored = self._prepare(adds, endings)
        if last:
            batch.seen += self._marks
            batch.started += [(claim, self._live.run) for claim in self._skips]
            batch.leases += [(fingerprint, None) for fingerprint in self._released]
            batch.notes.update(notes)
        self._journal.write(batch)
        self._settle(adds, endings, batch, stored)
        if last:
            self._marks.clear()
            self._released.clear()
            for claim in self._skips:
                self._claims.pop(claim, None)
            self._skips.clear()
            self._notes.update(notes)
        return last

    def _prepare(
        self, adds: dict[bytes, Entry], endings: dict[bytes, _Ending]
    ) -> tuple[Batch, dict[Slot, int]]:
        """The batch for these changes, and how many requests of each slot it leaves stored."""
        live = self._live
        batch = Batch(
            replace(
                self._saved,
                next_sequence=live.next_sequence,
                next_slot=self._slots.next_id,
                memory_only=live.memory_only,
            )
        )
        counters = batch.counters
        stored: dict[Slot, int] = {}
        for key, entry in adds.items():
            slot = self._slots.of_key(key)
            stored[slot] = stored.get(slot, slot.stored) + 1
            batch.pending.append((key, encode_value(entry)))
            self._accept(entry, batch)
        held = {lease.entry.fingerprint for lease in self._leases.values()} if endings else ()
        for key, ending in endings.items():
            entry = ending.entry
            if ending.stored:
                slot = ending.slot
                stored[slot] = stored.get(slot, slot.stored) - 1
                batch.removed.append(key)
            else:
                self._accept(entry, batch)
            if ending.why is None:
                counters.done += 1
            else:
                counters.dead += 1
                value = encode_value(entry) if entry.payload is not None else b""
                batch.dead.append((key, encode_dead(ending.why, value)))
            if entry.fingerprint not in held:
                batch.leases.append((entry.fingerprint, None))
        for slot, count in stored.items():
            batch.slots.append((slot.prefix, count, slot.name))
            if not count and worth_range_delete(slot.removed):
                batch.removed_slots.append(slot.prefix)
        return batch, stored

    @staticmethod
    def _accept(entry: Entry, batch: Batch) -> None:
        """Have the store know of *entry* all that it must know once it is accepted."""
        batch.counters.accepted += 1
        if entry.unique:
            batch.seen.append(entry.fingerprint)
        if entry.claim is not None:
            batch.started.append((entry.claim, batch.counters.run))

    def _settle(
        self,
        adds: dict[bytes, Entry],
        endings: dict[bytes, _Ending],
        batch: Batch,
        stored: dict[Slot, int],
    ) -> None:
        """Forget the changes that *batch* has written."""
        self._saved = batch.counters
        self._seen.difference_update(batch.seen)
        for claim, _ in batch.started:
            self._claims.pop(claim, None)
        for key in adds:
            del self._adds[key]
        for key, ending in endings.items():
            del self._endings[key]
            ending.slot.removed += ending.stored
        for slot, count in stored.items():
            slot.stored = count
            self._slots.drop_if_empty(slot)
        self._window.note_commit()

    def sync(self) -> None:
        """Have the operating system put what was committed onto the disk.  Blocks; any thread.

        :raises StoreError: it failed.
        """
        if self._journal is not None:
            self._journal.sync()

    def recover(self) -> None:
        """Reopen the store after a failed commit: only that ends RocksDB's refusal to write.

        :raises StoreError: it does not open, or is not as the last commit left it.
        :raises JobdirLostError: the job directory is gone.
        """
        if self._journal is not None:
            self._journal.reopen()

    def check(self) -> list[str]:
        self._check_owner()
        if self._journal is None:
            return []
        while not self.commit():
            pass
        return audit(self._journal)

    def close(self, *, finished: bool = False) -> None:
        self._check_owner()
        if self._closed:
            return
        try:
            while not self.commit():
                pass
            if self._journal is not None:
                self._journal.write(self._last_batch(finished))
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Free every resource without committing; may be called at any time."""
        self._check_owner()
        self._closed = True
        if self._journal is not None:
            self._journal.close()

    def _last_batch(self, finished: bool) -> Batch:
        batch = Batch(replace(self._saved, finished=finished), clear_started=finished)
        # A clean end says nothing about what was leased; suspects stay so until they are done.
        for lease in self._leases.values():
            fingerprint = lease.entry.fingerprint
            batch.leases.append((fingerprint, self._suspects.get(fingerprint)))
        if finished:
            batch.leases += [(fingerprint, None) for fingerprint in self._suspects]
        return batch

    # Parts of transitions

    def _check_owner(self) -> None:
        if os.getpid() != self._pid:
            raise ForkedError(
                f"The frontier of process {self._pid} was used in process {os.getpid()}, forked"
                " from it. Schedule requests in the crawl's own process only; in the child, end"
                " with os._exit()."
            )

    def _has_seen(self, fingerprint: bytes) -> bool:
        if fingerprint in self._seen:
            return True
        return self._journal is not None and self._journal.has_seen(fingerprint)

    def _claim(self, journal: Journal, entry: Entry) -> bool:
        """Claim the first occurrence of this start request that this run has not claimed yet.

        Whether the request is to be added: not if an earlier run accepted that occurrence.
        """
        run = self._live.run
        occurrence = 0
        while True:
            claim = entry.fingerprint + occurrence.to_bytes(4, "big")
            claimed_by = self._claims.get(claim)
            if claimed_by is None:
                claimed_by = journal.claimed(entry.fingerprint, occurrence)
            if claimed_by != run:
                break
            occurrence += 1
        self._claims[claim] = run
        if claimed_by is not None and self._options.skip_started:
            self._skips.append(claim)
            return False
        entry.claim = claim
        return True

    def _put(self, slot: Slot, order_key: bytes, entry: Entry) -> None:
        self._slots.increase(slot)
        self._pending += 1
        self._window.push(slot, order_key, entry)

    def _record(self, fingerprint: bytes, record: LeaseRecord) -> None:
        if self._journal is None:
            return
        try:
            self._journal.record_lease(fingerprint, record)
        except StoreError:
            self.unrecorded_leases += 1

    def _drop_lease(self, lease: Lease) -> Slot:
        self._check_owner()
        del self._leases[lease.key]
        if self._alone is lease:
            self._alone = None
        slot: Slot = lease.origin
        slot.leased -= 1
        return slot

    def _end(self, lease: Lease, why: str | None = None) -> None:
        slot = self._drop_lease(lease)
        entry = lease.entry
        if self._suspects:
            self._suspects.pop(entry.fingerprint, None)
        if entry.payload is None:
            self._live.memory_only -= 1
        if self._journal is not None:
            unwritten = self._adds.pop(lease.key, None)
            stored = unwritten is None and entry.payload is not None
            self._endings[lease.key] = _Ending(slot, entry, stored, why)
        self._slots.drop_if_empty(slot)

    def _give_up(self, slot: Slot) -> None:
        """The store holds fewer requests of *slot* than it says: they are unaccounted for."""
        self._pending -= slot.count
        self._slots.decrease(slot, slot.count)
