"""The list of changes, and the batches made of it, without a store: rows are in a dict here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_altsched.frontier import Entry
from scrapy_altsched.frontier.changes import Change, Changes, Kind
from scrapy_altsched.frontier.entry import DeadLetter
from scrapy_altsched.frontier.local import uncommitted
from scrapy_altsched.frontier.local.draft import choose_part
from scrapy_altsched.frontier.local.uncommitted import Uncommitted
from scrapy_altsched.frontier.queue.slots import Slot
from scrapy_altsched.frontier.store.records import Batch, Counters
from scrapy_altsched.frontier.store.states import DEAD, DELAYED, PENDING

RUN = 7
#: What a crawl does: verb, and a number that chooses whom it is about.
Verb = tuple[str, int]
VERBS = ("add", "add", "add", "repeat", "in memory", "done", "done", "died", "mark", "forget")
VERBS += ("again", "again later", "delay", "delay", "delay in memory", "due", "due")


def listed(changes: Uncommitted) -> Iterator[Change]:
    """All that waits, in order; first, what early batches have left."""
    return chain(changes._deferred, changes._list)


@dataclass
class Rows:
    """What a store holds."""

    pending: set[bytes] = field(default_factory=set)
    delayed: set[bytes] = field(default_factory=set)
    dead: set[bytes] = field(default_factory=set)
    seen: set[bytes] = field(default_factory=set)
    counters: Counters = field(default_factory=Counters)

    def apply(self, batch: Batch) -> None:
        self.seen -= set(batch.forgotten)
        self.seen |= set(batch.seen)
        self.pending |= {key for key, _ in batch.stored[PENDING]}
        self.pending -= set(batch.removed[PENDING])
        self.delayed |= {key for key, _ in batch.stored[DELAYED]}
        self.delayed -= set(batch.removed[DELAYED])
        self.dead |= {key for key, _ in batch.stored[DEAD]}
        self.counters = batch.counters


class Crawl:
    """A list of changes, and what is true after each of them."""

    def __init__(self) -> None:
        self.changes = Uncommitted()
        self.true = Rows()
        self.stored = Rows()
        self.slot = Slot(b"slot id ", "slot")
        self.alive: dict[bytes, Entry] = {}
        self.delayed: dict[bytes, Entry] = {}
        self.count = 0

    def do(self, verb: str, number: int) -> None:
        fingerprint = b"%d" % (number % 5)
        changes, true = self.changes, self.true
        if verb in ("add", "repeat", "in memory", "delay", "delay in memory"):
            unique = verb != "repeat"
            if unique and self.has_seen(fingerprint):
                return
            self.count += 1
            key = b"key %d" % self.count
            payload = None if verb.endswith("in memory") else b"payload"
            entry = Entry(fingerprint, payload=payload, unique=unique, seen_key=fingerprint)
            is_delayed = verb.startswith("delay")
            (self.delayed if is_delayed else self.alive)[key] = entry
            changes.add(key, None if is_delayed else self.slot, entry, None)
            if unique:
                true.seen.add(fingerprint)
            if payload is not None:
                (true.delayed if is_delayed else true.pending).add(key)
        elif verb == "due" and self.delayed:
            old = list(self.delayed)[number % len(self.delayed)]
            self.count += 1
            key = b"key %d" % self.count
            self.alive[key] = entry = self.delayed.pop(old)
            changes.move(old, key, self.slot, entry)
            if entry.payload is not None:
                true.delayed.discard(old)
                true.pending.add(key)
        elif verb in ("done", "died", "again", "again later") and self.alive:
            key = list(self.alive)[number % len(self.alive)]
            entry = self.alive.pop(key)
            why = DeadLetter("why") if verb == "died" else None
            true.pending.discard(key)
            if not verb.startswith("again"):
                changes.end(key, self.slot, entry, why)
            else:
                self.count += 1
                follower = b"key %d" % self.count
                is_late = verb == "again later"
                then = Entry(entry.fingerprint, payload=b"once more", unique=entry.unique)
                (self.delayed if is_late else self.alive)[follower] = then
                home = None if is_late else self.slot
                changes.end(key, self.slot, entry, None, (follower, home, then))
                (true.delayed if is_late else true.pending).add(follower)
            if verb == "died":
                true.dead.add(key)
        elif verb == "mark" and not self.has_seen(fingerprint):
            changes.mark(fingerprint)
            true.seen.add(fingerprint)
        elif verb == "forget" and self.has_seen(fingerprint):
            changes.forget(fingerprint)
            true.seen.discard(fingerprint)

    def has_seen(self, fingerprint: bytes) -> bool:
        changes = self.changes
        is_seen = fingerprint in changes.seen or (
            fingerprint not in changes.forgotten and fingerprint in self.stored.seen
        )
        assert is_seen == (fingerprint in self.true.seen)
        return is_seen

    def commit(self, meanwhile: Sequence[list[Verb]] = ()) -> Iterator[None]:
        """Write one batch after the other, up to the last; a step each.

        :param meanwhile: what the crawl does after a write that has failed, as far as it knows, and
            before the next attempt at the same batch.
        """
        later = iter(meanwhile)
        while True:
            draft = self.changes.prepare(replace(self.stored.counters, run=RUN))
            self.stored.apply(draft.batch)
            for verb in next(later, ()):
                self.do(*verb)
            self.changes.settle(draft)
            assert self.slot.stored == len(self.stored.pending)
            for fingerprint in map(str, range(5)):
                self.has_seen(fingerprint.encode())
            yield
            if draft.deferred is None and not self.changes.pressure.changes:
                return

    def check(self) -> None:
        """What is stored is what is true."""
        stored, true = self.stored, self.true
        assert stored.pending == true.pending
        assert stored.delayed == true.delayed
        assert stored.dead == true.dead
        # Of requests that live in memory only, nothing is stored before they end.
        left = [*self.alive.values(), *self.delayed.values()]
        in_memory = {entry.fingerprint for entry in left if entry.payload is None}
        assert stored.seen | (in_memory & true.seen) == true.seen
        assert self.changes.seen == true.seen - stored.seen
        counters = stored.counters
        assert counters.delayed == len(stored.delayed)
        left_stored = len(stored.pending) + len(stored.delayed)
        assert counters.accepted == counters.done + counters.dead + left_stored
        changes = self.changes
        waiting = [*changes.unwritten, *changes.ended, *changes.followers]
        assert [*listed(changes), *waiting] == []
        assert self.changes.size == self.changes.pressure.changes == self.changes.pressure.done == 0


STEPS = st.lists(st.tuples(st.sampled_from(VERBS), st.integers(0, 9)), max_size=25)


@pytest.fixture(params=[2, 3, 1_000])
def most(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(uncommitted, "BATCH", request.param)
    return int(request.param)


@pytest.mark.usefixtures("most")
def test_what_is_written_is_what_is_true() -> None:
    @given(st.lists(STEPS, max_size=4))
    def check(parts: list[list[Verb]]) -> None:
        crawl = Crawl()
        for verbs in parts:
            for verb in verbs:
                crawl.do(*verb)
            for _ in crawl.commit():
                pass
            crawl.check()

    check()


@pytest.mark.usefixtures("most")
def test_changes_that_come_between_batches_are_not_lost() -> None:
    @given(STEPS, st.lists(STEPS, max_size=6))
    def check(first: list[Verb], between: list[list[Verb]]) -> None:
        crawl = Crawl()
        for verb in first:
            crawl.do(*verb)
        for _, verbs in zip(crawl.commit(), [*between, *([[]] * 100)], strict=False):
            for verb in verbs:
                crawl.do(*verb)
        crawl.check()

    check()


@pytest.mark.usefixtures("most")
def test_changes_that_come_between_two_attempts_are_not_lost() -> None:
    @given(STEPS, st.lists(STEPS, max_size=6))
    def check(first: list[Verb], meanwhile: list[list[Verb]]) -> None:
        crawl = Crawl()
        for verb in first:
            crawl.do(*verb)
        for _ in crawl.commit(meanwhile):
            pass
        crawl.check()

    check()


@pytest.mark.usefixtures("most")
def test_each_batch_leaves_a_state_that_loses_nothing() -> None:
    @given(STEPS)
    def check(verbs: list[Verb]) -> None:
        crawl = Crawl()
        for verb in verbs:
            crawl.do(*verb)
        added = (Kind.ADDED_UNIQUE, Kind.ADDED, Kind.DUE)
        requests = {key: entry for kind, key, _, entry, _ in listed(crawl.changes) if kind in added}
        forgotten = {key for kind, key, *_ in listed(crawl.changes) if kind is Kind.FORGOTTEN}
        marked = {key for kind, key, *_ in listed(crawl.changes) if kind is Kind.MARKED}
        for _ in crawl.commit():
            stored = crawl.stored
            if not [*listed(crawl.changes)]:
                break
            # No page is done yet: each that is seen is there.
            assert stored.counters.done == 0
            left = stored.pending | stored.delayed
            assert all(requests[key].payload for key in left)
            there = {requests[key].fingerprint for key in left | stored.dead}
            assert stored.seen <= there | forgotten | marked

    check()


SLOT, PAGE = Slot(b"slot id ", "slot"), Entry(b"page", payload=b"payload")


def listing(*changes: Change) -> Changes:
    found = Changes()
    for change in changes:
        found.append(change)
    return found


def added(key: bytes) -> Change:
    return Kind.ADDED_UNIQUE, key, SLOT, PAGE, None


def test_no_batch_ends_between_a_mark_and_its_request() -> None:
    mark: Change = (Kind.MARKED, b"x", None, None, None)
    changes = [added(b"1"), mark, added(b"2"), added(b"3")]
    written, deferred = choose_part(listing(*changes), {}, 2, 1_000)
    assert [*written] == changes[:3]
    assert [*deferred] == []
    written, deferred = choose_part(listing(*changes), {b"2": True}, 1, 1_000)
    assert [*written] == changes[:1]
    assert [*deferred] == changes[1:3]


def test_the_end_of_a_page_waits_and_its_row_is_never_written() -> None:
    done: Change = (Kind.DONE, b"1", SLOT, None, None)
    died: Change = (Kind.DIED, b"2", SLOT, PAGE, DeadLetter("why"))
    changes = listing(added(b"1"), done, died)
    written, deferred = choose_part(changes, {b"1": True, b"2": False}, 2, 1_000)
    assert [*written] == [died]
    assert [*deferred] == [added(b"1"), done]
