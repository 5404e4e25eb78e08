"""Pages that are not done before the requests are that their callbacks yielded.

A request that cannot be serialized lives in memory only, and is gone with the process.  It comes
back if its parent is crawled again, and only then: a parent is therefore held, unfinished, until
all such children are done, each of them after its own ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..frontier import Entry, Frontier, Lease


class Descendants:
    """Which requests in memory only are not done, and which leases wait for them.

    :ivar orphans: those that no page and no ``start()`` will bring again.
    """

    def __init__(self, frontier: Frontier) -> None:
        self._frontier = frontier
        self._parents: dict[Entry, Lease] = {}
        #: Lease -> how many of its children are not done.
        self._waiting: dict[Lease, int] = {}
        self.orphans: set[Entry] = set()

    def add(self, child: Entry, parent: Lease) -> None:
        """A request in memory only was accepted, which *parent* has led to."""
        self._parents[child] = parent
        self._waiting[parent] = self._waiting.get(parent, 0) + 1

    def finish(self, lease: Lease) -> None:
        """Finish *lease*, or hold it until its children are done; then those that waited for it."""
        if lease in self._waiting:
            self._frontier.hold(lease)
            return
        self._frontier.finish(lease)
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
