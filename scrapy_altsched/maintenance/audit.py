"""Whether what is stored agrees with itself."""

from __future__ import annotations

import enum
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain

from ..errors import StoreDamagedError
from ..frontier.entry import Entry
from ..frontier.store.records import DAMAGE, ORPHANS, Counters, describe_orphans
from ..frontier.store.rows import Rows
from ..frontier.store.states import DELAYED, PENDING, UNQUEUED, State, decode_delayed_key
from ..inflection import inflect
from .progress import follow
from .rewriter import order_of

#: Payload of a request -> what is wrong with it, as a clause; ``None``: nothing.
Inspect = Callable[[bytes], str | None]

#: How many sentences of one kind are written out; of the others there is the number.
_SHOWN = 10


class Remedy(enum.Enum):
    """What helps against a problem."""

    REPAIR = enum.auto()
    RESUME = enum.auto()  # the next run continues from an earlier commit
    ACCEPT_LOSS = enum.auto()  # of what a repair could not keep
    REQUEUE = enum.auto()
    RESTORE_CODE = enum.auto()  # a spider that has what its requests name: above all, callbacks


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is wrong with a job: a sentence, and what helps, if anything does."""

    sentence: str
    remedy: Remedy | None = Remedy.REPAIR


def audit(rows: Rows, inspect: Inspect = lambda _: None) -> list[Problem]:
    """Verify every invariant, and every checksum, of a store without uncommitted changes.

    :return: one problem for each invariant that does not hold.
    :raises StoreError: it could not be read, for another reason than damage.
    """
    return _Audit(rows, inspect).run()


class _Audit:
    def __init__(self, rows: Rows, inspect: Inspect) -> None:
        self._rows = rows
        self._inspect = inspect
        #: By their kinds; and how many more there are of each.
        self._problems: defaultdict[str, list[Problem]] = defaultdict(list)
        self._more: Counter[str] = Counter()
        self._counters = Counters()
        self._was_repaired = False
        #: How many requests each slot holds, and how many of all are not among the seen ones.
        self._held: Counter[int] = Counter()
        self._unseen = 0
        #: Families that could not be read to the end: nothing can be compared with them.
        self._unread: set[str] = set()

    def run(self) -> list[Problem]:
        rows = self._rows
        with self._reading("meta"):
            self._check_meta()
        self._check_requests(PENDING)
        self._check_slots()
        self._check_seen()
        with self._reading("suspects"):
            deque(follow("suspects", rows.suspects()), 0)
        with self._reading("started"):
            for claim, run in rows.started():
                if int.from_bytes(run, "big") > self._counters.run and self._can_compare("meta"):
                    sentence = f"The start request {claim.hex()} is of a run that has not begun."
                    self._add("start requests of runs to come", sentence)
        for state in UNQUEUED:
            self._check_requests(state)
        if self._can_compare("meta", "pending"):
            self._check_counters()
        return list(chain.from_iterable(self._problems.values()))

    def _add(self, kind: str, sentence: str, remedy: Remedy = Remedy.REPAIR) -> None:
        problems = self._problems[kind]
        if len(problems) >= _SHOWN:
            self._more[kind] += 1
            sentence = f"And {self._more[kind]:,} more: {kind}."
        problems[_SHOWN:] = [Problem(sentence, remedy)]

    @contextmanager
    def _reading(self, family: str) -> Iterator[None]:
        """Go on after damage: what else is wrong should be known too."""
        try:
            yield
        except (StoreDamagedError, ValueError) as error:
            self._unread.add(family)
            problem = getattr(error, "problem", f"A row is damaged: {error}.")
            self._add("damaged families", f"Not all of {family!r} can be read. {problem}")

    def _can_compare(self, *families: str) -> bool:
        return self._unread.isdisjoint(families)

    def _check_meta(self) -> None:
        rows = self._rows
        if damage := rows.notes().get(DAMAGE):
            self._was_repaired = True
            sentence = f"Requests may be missing: {damage.decode()}"
            self._add("losses", sentence, Remedy.ACCEPT_LOSS)
        self._counters = rows.counters()
        if orphans := describe_orphans(self._counters, rows.note(ORPHANS)):
            self._add("losses", orphans, Remedy.ACCEPT_LOSS)
        if rows.identity() is None:
            self._add("identities", "The store has no identity.")
        if lost := rows.describe_lost_commits():
            self._add("commits", f"The store {lost}")

    def _check_requests(self, state: State) -> None:
        held: Counter[int] = Counter()
        order = None
        if state is PENDING:
            with self._reading("meta"):
                order = order_of(self._rows)
        with self._reading(state.family):
            for key, row in follow(state.family, self._rows.requests(state)):
                held[int.from_bytes(key[:8], "big")] += 1
                name = f"The {state.noun} {key.hex()}"
                try:
                    entry = state.decode(row)
                    sequence = 0
                    if order is not None:
                        sequence = order.decode(key[8:])[2]
                    elif state is DELAYED:
                        sequence = decode_delayed_key(key)[1]
                except (IndexError, ValueError):
                    self._add(f"{state.noun}s that are cut short", f"{name} is cut short.")
                    continue
                if state.is_left:
                    self._check_left(state, name, entry, sequence)
        if state is PENDING:
            self._held = held
            return
        if state is DELAYED:
            lost = held.total() - held[self._counters.delayed_queue]
            if lost and self._can_compare("meta"):
                are = inflect(lost, "delayed request is", "delayed requests are")
                self._add("queues of delayed requests", f"{lost} {are} in a queue of no job.")
            held = Counter({0: held.total() - lost})
        found, expected = held.total(), self._counters.count(state)
        if found != expected and self._can_compare("meta", state.family):
            self._add("numbers", f"The number of {state.noun}s is {found}, not {expected}.")

    def _check_left(self, state: State, name: str, entry: Entry, sequence: int) -> None:
        if sequence >= self._counters.next_sequence and self._can_compare("meta"):
            sentence = f"{name} has a number that is not assigned yet."
            self._add(f"{state.noun}s with such numbers", sentence)
        if reason := self._inspect(entry.payload or b""):
            kind = f"{state.noun}s that cannot be restored"
            self._add(kind, f"{name}: {reason}.", Remedy.RESTORE_CODE)
        with self._reading("seen"):
            if entry.unique and not self._rows.has_seen(entry.fingerprint):
                self._unseen += 1
                if self._unseen > self._counters.forgotten:
                    sentence = f"{name} is not among the seen ones."
                    self._add(f"{state.noun}s that are not seen", sentence)

    def _check_slots(self) -> None:
        named: set[int] = set()
        names: set[str] = set()
        with self._reading("slots"):
            for slot_id, count, name in self._rows.slots():
                if name in names:
                    self._add("slots of one name", f"There are two slots {name!r}.")
                names.add(name)
                named.add(slot_id)
                held = self._held[slot_id]
                if held != count and self._can_compare("pending"):
                    requests = f"{count} {inflect(count, 'request')}"
                    sentence = f"Slot {name!r} should hold {requests} and holds {held}."
                    self._add("slots with wrong counts", sentence)
        for slot_id, count in self._held.items():
            if slot_id not in named and self._can_compare("slots"):
                requests = f"{count} pending {inflect(count, 'request is', 'requests are')}"
                sentence = f"{requests} in slot {slot_id}, which has no name."
                self._add("slots without a name", sentence)

    def _check_seen(self) -> None:
        found, expected = 0, self._counters.seen
        with self._reading("seen"):
            for _ in follow("seen", self._rows.seen()):
                found += 1
        if expected not in (None, found) and self._can_compare("meta", "seen"):
            sentence = f"The number of seen fingerprints is {found}, not {expected}."
            self._add("numbers", sentence)

    def _check_counters(self) -> None:
        counters, pending = self._counters, self._held.total()
        if counters.finished and (pending or counters.delayed):
            left = f"{pending} pending and {counters.delayed} delayed"
            self._add("numbers", f"The job is marked as finished, with {left}.")
        accounted = counters.accepted - counters.as_counts(pending).unaccounted
        if counters.accepted != accounted:
            *numbers, last = [f"{counters.count(state)} {state.family}" for state in UNQUEUED]
            others = ", ".join((f"{counters.done} done", f"{pending} pending", *numbers))
            is_known = self._was_repaired and counters.accepted > accounted
            self._add(
                "numbers",
                f"The number of accepted requests is {counters.accepted}, but {others} and {last}"
                f" make {accounted}.",
                Remedy.ACCEPT_LOSS if is_known else Remedy.REPAIR,
            )
