"""Which of the requests that were handed out are not done yet.

Scrapy has no callback for a request that is done: it leaves the engine's set of those in progress,
which has to be polled.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import filterfalse
from typing import TYPE_CHECKING

from ..engine.engine import Engine
from ..frontier import Entry, Frontier, Lease
from ..frontier.entry import PageFailure
from ..frontier.store.records import ORPHANS
from ..requests import REVISIT
from .revisits import Revisits

if TYPE_CHECKING:
    from scrapy import Request


class InProgress:
    """The leases of these requests.

    A request in memory only comes back after a death only if its parent is crawled again: that is
    held, unfinished, until all such children are done, each after its own ones.

    :ivar on_done: called with each request that is done, before the frontier knows.
    :ivar orphans: requests in memory only that no page and no ``start()`` will bring again.
    """

    def __init__(self, engine: Engine, frontier: Frontier, revisits: Revisits) -> None:
        self._engine, self._frontier = engine, frontier
        self._in_progress = engine.in_progress
        self._finish: Callable[[Lease, Entry | None], None] = frontier.finish
        self._leases: dict[Request, Lease] = {}
        #: Further leases of a request, if the same object was scheduled more than once.
        self._more_leases: dict[Request, list[Lease]] = {}
        #: Requests that were in the engine and not handed out, at the last look.
        self._others = 0
        self._revisit = revisits.follow
        self.on_done: Callable[[Request, Lease], object] | None = None
        self.orphans: set[Entry] = set()
        self._parents: dict[Entry, Lease] = {}
        #: Lease -> what follows it, as a retry does: accepted when it is done, in the same step.
        self._followers: dict[Lease, Entry] = {}
        #: Lease -> how many of its children are not done.
        self._waiting: dict[Lease, int] = {}

    def add(self, request: Request, lease: Lease) -> None:
        if request in self._leases:
            self._more_leases.setdefault(request, []).append(lease)
        else:
            self._leases[request] = lease

    def lease_of(self, request: Request) -> Lease | None:
        return self._leases.get(request)

    def give_back(self, request: Request) -> None:
        """Let a request that was not started be pending again."""
        self._frontier.release(self._leases.pop(request))

    def note_memory_only(self, entry: Entry) -> None:
        self._finish = self._finish_or_hold
        parent = self._engine.find_parent()
        if parent is None:
            if not entry.from_start:
                self.orphans.add(entry)
        elif parent in self._leases:
            self._parents[entry] = lease = self._leases[parent]
            self._waiting[lease] = self._waiting.get(lease, 0) + 1

    def follow(self, entry: Entry) -> bool:
        """Have *entry* follow the request whose download has led to this call, if there is one."""
        parent = self._engine.find_parent()
        lease = None if parent is None else self._leases.get(parent)
        if lease is None or lease in self._followers:
            return False
        entry.encode()
        if entry.payload is None and self._frontier.job.durable:
            # It ends with the process, and its parent must not: see above.
            return False
        self._followers[lease] = entry
        return True

    @property
    def to_follow(self) -> int:
        """How many requests were accepted that follow others, which are not done."""
        return len(self._followers)

    def _finish_or_hold(self, lease: Lease, then: Entry | None) -> None:
        if lease in self._waiting:
            if then is not None:
                self._frontier.add(then)
            self._frontier.hold(lease)
            return
        self._frontier.finish(lease, then)
        self.discard(lease.entry)

    def discard(self, child: Entry) -> None:
        """A request in memory only is over, or was refused: nothing waits for it any more."""
        self.orphans.discard(child)
        parent = self._parents.pop(child, None)
        while parent is not None:
            self._waiting[parent] -= 1
            if self._waiting[parent]:
                return
            del self._waiting[parent]
            if not parent.held:
                return
            self._frontier.finish(parent)
            self.orphans.discard(parent.entry)
            parent = self._parents.pop(parent.entry, None)

    def note_response(self, request: Request) -> None:
        lease = self._leases.get(request)
        if lease is not None:
            if self.has_changed():
                # Requests that are done by now must not be recorded as in hand.
                self.reap()
            self._frontier.run.note_response(lease)

    def note_failure(self, request: Request, failure: PageFailure) -> bool:
        """Have *request* end as a failed one; whether it is a lease's, and has not failed yet."""
        lease = self._leases.get(request)
        if lease is None or lease.failure is not None:
            return False
        for each in (lease, *self._more_leases.get(request, ())):
            each.failure = failure
        return True

    def notes(self) -> dict[str, bytes]:
        return {ORPHANS: str(len(self.orphans)).encode()}

    def is_any_left(self) -> bool:
        return not self._leases.keys().isdisjoint(self._in_progress)

    def has_changed(self) -> bool:
        """Whether their number shows that some are done: to check each is slow, and can wait."""
        return len(self._in_progress) - len(self._leases) != self._others

    def reap(self) -> bool:
        """Finish the leases of those that are done; whether there were any."""
        leases, in_progress = self._leases, self._in_progress
        # In the order in which they were handed out: equal crawls stay equal.
        left = list(filterfalse(in_progress.__contains__, leases))
        self._others = len(in_progress) - len(leases) + len(left)
        for request in left:
            self._end(request, leases.pop(request))
            if self._more_leases:
                for lease in self._more_leases.pop(request, ()):
                    self._end(request, lease)
        return bool(left)

    def _end(self, request: Request, lease: Lease) -> None:
        if self.on_done is not None:
            self.on_done(request, lease)
        then = self._followers.pop(lease, None) if self._followers else None
        if then is None and REVISIT in request.meta:
            then = self._revisit(request, lease)
        finish = self._finish  # see "Cheap requests" in docs/architecture.rst
        finish(lease, then)
