"""A frontier that answers later, from another thread: what the seam must be good for, in small.

It keeps a frontier of one process in memory, and asks it on a thread of its own, one question after
the other.  What comes back is taken up on the crawl's thread: from within calls, or when a wake-up
says that there is something.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from scrapy_altsched.frontier import (
    Counts,
    Entry,
    Frontier,
    Gate,
    Lease,
    OnEvent,
    Options,
    Reason,
    Verdict,
    Waiting,
)
from scrapy_altsched.frontier.contract import (
    Event,
    JobInfo,
    LeasesReady,
    Pressure,
    Progress,
    Refused,
    ignore_events,
)
from scrapy_altsched.frontier.local.frontier import LocalFrontier

Question = Callable[[], object]
Answer = tuple[Callable[[Any], None], object, Counts]

_EMPTY = Waiting(Reason.EMPTY)
_FETCHING = Waiting(Reason.FETCHING)


class LaterFrontier:
    """In memory; each add is UNDECIDED, each lease FETCHING at first.

    :param wake: called on the other thread when there is an answer: the crawl's thread is then to
        call :meth:`take_answers`.
    """

    def __init__(
        self,
        options: Options | None = None,
        on_event: OnEvent = ignore_events,
        wake: Callable[[], object] = lambda: None,
    ) -> None:
        self.job = JobInfo()
        self.pressure = Pressure()
        self._options = options or Options()
        self._on_event = on_event
        self._wake = wake
        self._inner = LocalFrontier(self._options)
        self._seen: set[bytes] = set()
        self._undecided = 0
        self._counts = Counts()
        self._leases: deque[Lease] = deque()
        self._is_fetching = False
        #: Whether the last answer was that there is nothing to lease, and nothing came since.
        self._is_empty = False
        self._questions: SimpleQueue[tuple[Question, Callable[[Any], None]] | None] = SimpleQueue()
        self._answers: deque[Answer] = deque()
        self._answered = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    # The other thread

    def _work(self) -> None:
        while (asked := self._questions.get()) is not None:
            question, take = asked
            answer = question()
            self._answers.append((take, answer, self._inner.counts()))
            self._answered.release()
            self._wake()

    # The crawl's thread

    def _ask(self, question: Question, take: Callable[[Any], None] = lambda _: None) -> None:
        self.pressure.changes += 1
        self._questions.put((question, take))

    def take_answers(self) -> None:
        """Take up what has come back."""
        while self._answers:
            take, answer, self._counts = self._answers.popleft()
            self.pressure.changes -= 1
            take(answer)

    def settle(self, timeout: float = 30) -> None:
        """Wait until every question is answered.

        :raises TimeoutError: some are not after *timeout* seconds.
        """
        self.take_answers()
        while self.pressure.changes:
            if not self._answered.acquire(timeout=timeout):
                raise TimeoutError(f"{self.pressure.changes} questions have no answer")
            self.take_answers()

    @property
    def is_over(self) -> bool:
        return not self.pending

    @property
    def pending(self) -> int:
        return self.counts().pending + self._undecided

    def counts(self) -> Counts:
        self.check_owner()
        self.take_answers()
        fetched, counts = len(self._leases), self._counts
        return replace(
            counts,
            pending=counts.pending + fetched,
            leased=counts.leased - fetched,
            undecided=self._undecided,
        )

    def add(self, entry: Entry) -> Verdict:
        self.check_owner()
        entry.encode()
        self._options.order.encode(entry.priority, entry.start, 0)
        self._undecided += 1

        def take(verdict: Verdict) -> None:
            self._undecided -= 1
            if entry.unique:
                self._seen.add(entry.fingerprint)
            if verdict is Verdict.ADDED:
                self._tell_of_more()
            else:
                self._on_event(Refused(entry, verdict))

        completed = Entry(
            entry.fingerprint,
            entry.slot,
            entry.priority,
            entry.start,
            entry.payload,
            entry.request,
            entry.unique,
            entry.yielded,
        )
        self._ask(lambda: self._inner.add(completed), take)
        return Verdict.UNDECIDED

    def mark_seen(self, fingerprint: bytes) -> bool:
        self.check_owner()
        self.take_answers()
        was_seen = fingerprint in self._seen
        self._seen.add(fingerprint)
        self._ask(lambda: self._inner.mark_seen(fingerprint))
        return was_seen

    def forget(self, fingerprint: bytes) -> bool:
        self.check_owner()
        self.take_answers()
        was_seen = fingerprint in self._seen
        self._seen.discard(fingerprint)
        self._ask(lambda: self._inner.forget(fingerprint))
        return was_seen

    def lease(self, gate: Gate | None = None, /) -> Lease | Waiting:
        self.check_owner()
        self.take_answers()
        if self._leases:
            return self._leases.popleft()
        if self._is_empty:
            return _EMPTY
        if not self._is_fetching:
            self._is_fetching = True
            inner = self._inner
            self._ask(
                lambda: inner.lease() if gate is None else inner.lease(gate), self._take_lease
            )
        return _FETCHING

    def _take_lease(self, lease: Lease | Waiting) -> None:
        self._is_fetching = False
        if isinstance(lease, Lease):
            self._leases.append(lease)
            self._on_event(LeasesReady())
        elif not self.pressure.changes:
            self._is_empty = True

    def _tell_of_more(self) -> None:
        self._is_empty = False
        self._on_event(LeasesReady())

    def note_response(self, lease: Lease) -> None:
        lease.in_hand = True

    def note_start_end(self) -> None:
        pass

    def note_closing(self) -> None:
        pass

    def finish(self, lease: Lease) -> None:
        self.check_owner()
        self._ask(lambda: self._inner.finish(lease))

    def hold(self, lease: Lease) -> None:
        self.check_owner()
        self._ask(lambda: self._inner.hold(lease))

    def release(self, lease: Lease) -> None:
        self.check_owner()
        self._ask(lambda: self._inner.release(lease), lambda _: self._tell_of_more())

    def dead_letter(self, lease: Lease, reason: str) -> None:
        self.check_owner()
        self._ask(lambda: self._inner.dead_letter(lease, reason))

    def note(self, name: str) -> bytes | None:
        return None

    def dead(self) -> Iterator[tuple[bytes, str, bytes]]:
        return iter(())

    def has_changes(self, notes: Mapping[str, bytes] | None = None) -> bool:
        self.check_owner()
        self.take_answers()
        return self.pressure.changes > 0

    def commit(self, notes: Mapping[str, bytes] | None = None, *, wait: bool = False) -> Progress:
        self.check_owner()
        if wait:
            self.settle()
        return Progress(0, not self.has_changes())

    @property
    def position(self) -> int:
        return 0

    def is_durable(self, position: int) -> bool:
        return False

    def sync(self) -> None:
        pass

    def recover(self) -> None:
        self.check_owner()

    def close(self, *, finished: bool = False, hold: bool = False) -> None:
        self.check_owner()
        self.settle()
        self.abandon()

    def end(self) -> None:
        pass

    def abandon(self) -> None:
        self.check_owner()
        self._questions.put(None)
        self._thread.join()

    def check_owner(self) -> None:
        self._inner.check_owner()


if TYPE_CHECKING:
    _conforms: type[Frontier] = LaterFrontier


class Settled:
    """A frontier that answers later, for tests that want each answer at once."""

    commit_number = 0
    _kept = None

    def __init__(self, options: Options) -> None:
        self._events: list[Event] = []
        self._frontier = LaterFrontier(options, self._events.append)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._frontier, name)
        if callable(found):
            self._frontier.check_owner()
            self._frontier.settle()
        return found

    @property
    def pending(self) -> int:
        self._frontier.settle()
        return self._frontier.pending

    def add(self, entry: Entry) -> Verdict:
        self._events.clear()
        assert self._frontier.add(entry) is Verdict.UNDECIDED
        self._frontier.settle()
        refused = [event.verdict for event in self._events if isinstance(event, Refused)]
        return refused[0] if refused else Verdict.ADDED

    def lease(self, gate: Gate) -> Lease | Waiting:
        while (lease := self._frontier.lease(gate)) == _FETCHING:
            self._frontier.settle()
        return lease

    def commit(self, *arguments: Any, **options: Any) -> Progress:
        self._frontier.commit(*arguments, **options)
        self._frontier.settle()
        return self._frontier.commit(*arguments, **options)

    @property
    def pressure(self) -> Pressure:
        self._frontier.settle()
        return self._frontier.pressure
