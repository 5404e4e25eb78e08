"""Importing requests that another scheduler has stored.

A new store gets them before it has its name: it is there with all of them, or not there.  A store
that is there already gets them in addition to what it has (see :mod:`.rewriter`).  The batch that
makes it true notes what was imported: nothing is imported twice.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from ..errors import JobdirError
from ..frontier.entry import DeadLetter, Entry
from ..frontier.queue.order import Order
from ..frontier.store.records import DAMAGE, add_damage, encode_claim
from ..frontier.store.runs import Components, Runs
from ..frontier.store.seen import SINCE, UNFINISHED
from ..frontier.store.states import DEAD, encode_value
from ..frontier.store.store import Store
from .rewriter import Rewriter

_NOTE = "imported"


@dataclass(slots=True)
class Imported:
    """How much was imported: requests, and fingerprints.

    :ivar duplicates: requests that were there more often than once, and are so no more.
    :ivar done: fingerprints of no request that is pending or dead.
    :ivar dropped: those of this package's filter under another scheduler that are not believed, and
        not among the seen any more.
    :ivar unmatched: pending requests whose fingerprint is not among those of the source, though it
        gave any; known only of a new store.
    """

    pending: int = 0
    dead: int = 0
    duplicates: int = 0
    done: int = 0
    dropped: int = 0
    unmatched: int = 0


class Source(Protocol):
    """What another scheduler has stored."""

    notes: Mapping[str, bytes]  # what a new store is to note, besides
    imported: Imported | None

    def parts(self) -> dict[str, str]:
        """Name of each part that there is -> what it looks like: another text if it was changed."""

    def examine(self, parts: Collection[str], runs: Runs, *, has_job: bool) -> int:
        """Look at these parts; how many requests they hold.

        :param runs: those of this package's that share in what is there.
        :param has_job: whether the job directory holds requests of this package's as well.
        """

    @property
    def ended(self) -> bool:
        """Whether nothing that was in hand was lost at its end; asked when all was read."""

    @property
    def is_trusted(self) -> bool:
        """Whether what was seen, and is not pending, is taken as done."""

    def requests(self) -> Iterator[tuple[Entry, DeadLetter | None]]:
        """Requests, those of one queue in the order they were pushed; if dead, why."""

    def fingerprints(self) -> Iterator[bytes]:
        """All fingerprints that were seen, whether or not a request with it is pending."""


def import_job(
    store: Store, source: Source, order: Order, components: Components, *, is_new: bool
) -> None:
    """Write into *store* what *source* holds and was not imported before: all of it or nothing.

    What *store* itself has seen of a queue of *source* is believed only if *source* is.

    :param is_new: whether *store* is discarded unless this succeeds.
    :raises JobdirError: *source* cannot be read, or not be mixed with what *store* holds.
    """
    counters = store.counters()
    taken: dict[str, str] = json.loads(store.note(_NOTE) or b"{}")
    parts = {name for name, look in source.parts().items() if taken.get(name) != look}
    runs = Runs(store)
    if not parts and not runs.has_marks:
        return
    if source.examine(parts, runs, has_job=counters.accepted > 0) and counters.accepted:
        raise JobdirError(
            f"JOBDIR {store.path.parent} holds a job of scrapy_altsched (frontier) and requests"
            f" of Scrapy's own scheduler ({', '.join(sorted(parts))}) that came later. They cannot"
            " be merged. To resume the former, move the latter away; to import the latter,"
            " move frontier and altsched.json away."
        )
    running = _Import(store, order, is_new=is_new)
    if runs.has_marks and not source.is_trusted:
        running.drop(runs.marks())
    for entry, why in source.requests():
        running.take(entry, why)
    running.see(source.fingerprints())
    # Reading may have changed what a part looks like: a database ends what was begun.
    looks = source.parts()
    taken.update((name, looks[name]) for name in parts)
    notes = running.final.notes
    notes.update({_NOTE: json.dumps(taken).encode(), **(source.notes if is_new else runs.settle())})
    if components.dupefilter is not None and not source.is_trusted:
        notes[DAMAGE] = add_damage(
            store.note(DAMAGE),
            "Scrapy's own scheduler died, and DUPEFILTER_CLASS"
            f" {components.dupefilter} may have a record of requests that were lost.",
        )
    running.settle(is_finished=source.ended)
    running.finish()
    source.imported = running.imported


class _Import(Rewriter):
    def __init__(self, store: Store, order: Order, *, is_new: bool) -> None:
        super().__init__(store)
        self.imported = Imported()
        self._order = order
        self._is_new = is_new
        self._unique = self._known = 0
        self._records_ages = self._store.note(SINCE) is not None
        # Of the rows that are not in the store yet.
        self._seen: set[bytes] = set()
        self._claims: set[bytes] = set()
        #: Fingerprint of a start request -> how many of it there are, if it is more than one.
        self._repeated: dict[bytes, int] = {}

    def take(self, entry: Entry, why: DeadLetter | None) -> None:
        if entry.unique and self._mark(entry.fingerprint) and self._is_new:
            self.imported.duplicates += 1
            return
        order, counters = self._order, self.final.counters
        name, value = order.slot_of(entry.slot), encode_value(entry)
        order_key = order.encode(entry.priority, entry.start, counters.next_sequence)
        counters.next_sequence += 1
        self._unique += entry.unique
        if entry.unique and self._records_ages:
            key = self._store.seen_key(entry.fingerprint)
            self.rows.seen_rows.append((key, UNFINISHED))
        if why is None:
            self.add(name, order_key, value)
            self.imported.pending += 1
            if entry.from_start and self._is_new:
                self._claim(entry.fingerprint)
        else:
            self.rows.stored[DEAD].append((self.key(name, order_key), DEAD.join(why, value)))
            self.imported.dead += 1
        self.flush_if_full()

    def drop(self, keys: Iterator[bytes]) -> None:
        for key in keys:
            self.imported.dropped += 1
            self.rows.forgotten.append(key)
            self.flush_if_full()
        # What follows asks the store what was seen.
        self.flush()

    def see(self, fingerprints: Iterator[bytes]) -> None:
        for fingerprint in fingerprints:
            if self._mark(fingerprint):
                self._known += 1
            else:
                self.imported.done += 1
                self.flush_if_full()

    def _mark(self, fingerprint: bytes) -> bool:
        """Note that *fingerprint* was seen; whether it was before."""
        key = self._store.seen_key(fingerprint)
        known = key in self._seen or self._store.has_seen_key(key)
        if not known:
            self._seen.add(key)
            self.rows.seen.append(key)
        return known

    def _claim(self, fingerprint: bytes) -> None:
        """Make ``start()`` skip it when the spider yields it again."""
        occurrence = self._repeated.get(fingerprint, 0)
        while (claim := encode_claim(fingerprint, occurrence)) in self._claims or (
            self._store.claimed(fingerprint, occurrence) is not None
        ):
            occurrence += 1
        if occurrence:
            self._repeated[fingerprint] = occurrence + 1
        self._claims.add(claim)
        self.rows.started.append((claim, 1))

    def flush(self) -> None:
        super().flush()
        self._seen.clear()
        self._claims.clear()

    def settle(self, *, is_finished: bool) -> None:
        """Make the final batch say what was imported."""
        imported, counters = self.imported, self.final.counters
        if not counters.accepted:
            self.final.notes["order"] = str(self._order).encode()
        counters.accepted += imported.pending + imported.dead
        counters.dead += imported.dead
        if self._is_new:
            counters.accepted += imported.done
            counters.done += imported.done
            counters.run = 1
            counters.finished = is_finished and not imported.pending
            if self._known or imported.done:
                imported.unmatched = max(0, self._unique - self._known)
        elif imported.pending:
            counters.finished = False
