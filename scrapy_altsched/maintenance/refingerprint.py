"""Recomputing the fingerprints of stored requests, all or none.

Every request is rewritten (see :mod:`.rewriter`).  The batch that makes this true also holds
what goes by fingerprints: the seen set, the suspects, and the start requests that were accepted.

Of a request that is done only its fingerprint is stored, of which nothing can be made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count

from ..errors import CodecError
from ..frontier.entry import Entry
from ..frontier.store.journal import Journal
from ..frontier.store.records import Suspicion, encode_claim
from ..frontier.store.seen import SINCE, UNFINISHED
from ..frontier.store.states import DELAYED, UNQUEUED, State, decode_value, encode_value
from ..frontier.suspects import judge
from .progress import follow
from .rewriter import Rewriter

#: Payload -> fingerprint, of at most 255 bytes, or CodecError.
Make = Callable[[bytes], bytes]


@dataclass(slots=True)
class Refingerprinted:
    """What became of the requests of a job.

    :ivar unqueued: how many were in each other state than pending, as dead letters are.
    :ivar changed: of all these, how many have another fingerprint now; *unreadable*: how many
        cannot be decoded.
    :ivar merged: pending or delayed ones that were taken out: the same page as another one;
        *crawled*: as one that is done.
    :ivar done: requests that were done before.
    """

    pending: int = 0
    unqueued: dict[State, int] = field(default_factory=lambda: dict.fromkeys(UNQUEUED, 0))
    changed: int = 0
    unreadable: int = 0
    merged: int = 0
    crawled: int = 0
    done: int = 0


def refingerprint(journal: Journal, make: Make, notes: dict[str, bytes]) -> Refingerprinted:
    """Give all stored requests the fingerprints that *make* makes of them.

    Of requests that become the same page, the one that is next in order stays, and pending ones
    come before delayed ones; the others count as done.  It needs some 700 bytes of memory for each.

    :param notes: what is to be true, too, when all is done; as for a commit.
    :raises StoreError: a read or write failed; the job is as it was.
    """
    work = _Refingerprinting(journal, make)
    work.final.notes.update(notes)
    work.run()
    return work.outcome


class _Refingerprinting(Rewriter):
    def __init__(self, journal: Journal, make: Make) -> None:
        super().__init__(journal)
        self._journal = journal
        self._make = make
        self.outcome = Refingerprinted(done=self.final.counters.done)
        #: New fingerprints of all pending, then of all delayed requests, in the order of keys.
        self._made: list[bytes] = []
        #: New fingerprint of unique requests -> key of the one that is next in order.
        self._first: dict[bytes, bytes] = {}
        #: Fingerprints of unique requests that keep theirs.
        self._kept: set[bytes] = set()
        #: Old fingerprint of unique requests -> new one, where they differ.
        self._moved: dict[bytes, bytes] = {}
        #: The same of requests that are not unique: these do not own their place among the seen.
        self._others_moved: dict[bytes, bytes] = {}

    def run(self) -> None:
        journal, final = self._journal, self.final
        suspects = judge(dict(journal.suspects()), journal.leases.read(final.counters.run))
        if journal.note(SINCE) is not None:
            # Of all that is stored now, which is not finished.
            final.seen_value = UNFINISHED
        self._read_pending()
        self._read_delayed()
        for state in UNQUEUED:
            if not state.is_left:
                self._read_unqueued(state)
        if self.outcome.changed:
            made = iter(self._made)
            self.replace_queue(self._renewed(made))
            if self.outcome.unqueued[DELAYED]:
                self.replace_delayed(self._renewed_delayed(made))
            # What is deleted and put is there in the end; what is kept is there.
            key = journal.seen_key
            final.forgotten += map(key, self._moved)
            final.seen += [key(new) for new in self._first if new not in self._kept]
            self._move_suspects(suspects)
            self._move_claims()
        self.finish()
        if self.outcome.changed:
            # A log that stays has old fingerprints in it: suspects that are never met again.
            with suppress(OSError):
                journal.leases.restart(final.counters.run)
        journal.sync()

    def _entries(self, title: str) -> Iterator[tuple[bytes, str, Entry]]:
        """Key, slot's name and entry of each pending request."""
        total = self._journal.counts().pending
        for key, name, value in follow(title, self.pending(), total):
            yield key, name, decode_value(value)

    def _renew(self, entry: Entry) -> bytes:
        old = entry.fingerprint
        try:
            new = self._make(entry.payload or b"")
        except CodecError:
            self.outcome.unreadable += 1
            new = old
        if new != old:
            self.outcome.changed += 1
            (self._moved if entry.unique else self._others_moved).setdefault(old, new)
        elif entry.unique:
            self._kept.add(old)
        return new

    def _read_pending(self) -> None:
        for key, _, entry in self._entries("Making fingerprints"):
            self.outcome.pending += 1
            new = self._renew(entry)
            self._made.append(new)
            if entry.unique:
                other = self._first.setdefault(new, key)
                if key[8:] < other[8:]:
                    self._first[new] = key

    def _read_delayed(self) -> None:
        for key, row in self._delayed("Making fingerprints"):
            self.outcome.unqueued[DELAYED] += 1
            entry = DELAYED.decode(row)
            new = self._renew(entry)
            self._made.append(new)
            if entry.unique:
                self._first.setdefault(new, key)

    def _delayed(self, title: str) -> Iterator[tuple[bytes, bytes]]:
        """Key and row of each delayed request that readers know."""
        counters = self._journal.counters()
        rows = self._journal.requests(DELAYED, counters.delayed_queue.to_bytes(8, "big"))
        return follow(title, rows, counters.delayed)

    def _read_unqueued(self, state: State) -> None:
        for key, row in self._journal.requests(state):
            self.outcome.unqueued[state] += 1
            detail, value = state.split(row)
            entry = decode_value(value)
            new = self._renew(entry)
            if new != entry.fingerprint:
                entry.fingerprint = new
                self.final.stored[state].append((key, state.join(detail, encode_value(entry))))
            if entry.unique:
                self.final.seen.append(self._journal.seen_key(new))

    def _renewed(self, made: Iterator[bytes]) -> Iterator[tuple[str, bytes, bytes]]:
        """Slot's name, order key and stored form of each pending request that stays."""
        # Not one of *made* more than there are requests.
        for (key, name, entry), new in zip(self._entries("Writing requests"), made, strict=False):
            if entry.unique and not self._stays(key, entry.fingerprint, new):
                self.final.counters.done += 1
            else:
                entry.fingerprint = new
                yield name, key[8:], encode_value(entry)

    def _renewed_delayed(self, made: Iterator[bytes]) -> Iterator[tuple[bytes, bytes]]:
        """Key, without that of the queue, and row of each delayed request that stays."""
        for (key, row), new in zip(self._delayed("Writing requests"), made, strict=True):
            place, value = DELAYED.split(row)
            entry = decode_value(value)
            if entry.unique and not self._stays(key, entry.fingerprint, new):
                self.final.counters.done += 1
            else:
                entry.fingerprint = new
                yield key[8:], DELAYED.join(place, encode_value(entry))

    def _stays(self, key: bytes, old: bytes, new: bytes) -> bool:
        """Whether a unique request is still to be crawled; counted if not."""
        is_owned = new in self._kept or new in self._moved
        if new != old and not is_owned and self._journal.has_seen(new):
            self.outcome.crawled += 1
            return False
        if self._first[new] != key:
            self.outcome.merged += 1
            return False
        return True

    def _move_suspects(self, suspects: Mapping[bytes, Suspicion]) -> None:
        found: dict[bytes, Suspicion] = {}
        for old, suspicion in suspects.items():
            new = self._moved.get(old) or self._others_moved.get(old, old)
            found[new] = max(suspicion, found.get(new, suspicion))
        self.final.suspects += [(old, None) for old in suspects if old not in found]
        self.final.suspects += found.items()

    def _move_claims(self) -> None:
        """Have the next run know start requests that are pending as accepted."""
        taken: dict[bytes, int] = {}
        moved = self._others_moved | self._moved
        for old, new in moved.items():
            for occurrence, run in enumerate(self._claims(old)):
                if new not in taken:
                    # Those that leave make room; that they are deleted comes first in a batch.
                    taken[new] = 0 if new in moved else len(list(self._claims(new)))
                self.final.unclaimed.append(encode_claim(old, occurrence))
                self.final.started.append((encode_claim(new, taken[new]), run))
                taken[new] += 1

    def _claims(self, fingerprint: bytes) -> Iterator[int]:
        """The run that claimed each occurrence of a start request."""
        occurrences = count()
        return iter(lambda: self._journal.claimed(fingerprint, next(occurrences)), None)
