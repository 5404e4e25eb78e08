"""What has changed and is not durable yet: one ordered list, which each store writes in its way.

In the order in which it happened, every beginning of the list is a state that loses nothing: what a
page has led to comes before its end, and a mark before the request that it may stand for.  (That a
request is due may come late: until then the store has it as delayed.)
:mod:`.local.uncommitted` folds the list into batches that hold absolute values: a request that was
added and has ended leaves no row.  :mod:`.shared.batches` sends additions and endings to a server.

Two rules are for code that writes it in parts.  :attr:`Kind.DONE`, :attr:`Kind.FAILED`,
:attr:`Kind.DISCARDED` and :attr:`Kind.CLEARED` wait for the last part, which also carries the
notes: what a note says of a page, such as how far its rows reach in a file, is never stored without
the end of that page, nor the end without the note.  And no part but the last ends between a mark
and its request.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from typing import Any

from .entry import Entry


class Kind(enum.IntEnum):
    """What a change is about; its *key* is that of a request, if nothing else is said."""

    #: A request was accepted, and its fingerprint is seen from then on.  Detail: which occurrence
    #: of a start request it is, as bytes; or ``None``.
    ADDED_UNIQUE = enum.auto()
    #: A request was accepted, whether its fingerprint was seen or not.  Detail: as above.
    ADDED = enum.auto()
    #: A request is done.  Request and detail: what follows it, if anything does, which is accepted
    #: in the same step; and its key, and where the frontier keeps it.
    DONE = enum.auto()
    #: A request has failed.  Detail: how, and when, in milliseconds since the epoch.
    FAILED = enum.auto()
    #: A request became a dead letter.  Detail: why.
    DIED = enum.auto()
    #: A page is seen, without a request.  Key: its seen key.
    MARKED = enum.auto()
    #: A page is no longer seen.  Key: its seen key.
    FORGOTTEN = enum.auto()
    #: A start request that an earlier run has accepted was skipped.  Key: which occurrence.
    SKIPPED = enum.auto()
    #: Nothing is held against a request any more, since it has ended.  Key: its fingerprint.
    CLEARED = enum.auto()
    #: A shared frontier asks whether a fingerprint is seen, of a request that stays on its worker.
    CHECKED = enum.auto()
    #: A request that was leased is pending again, in a shared frontier.
    RELEASED = enum.auto()
    #: A pending or delayed request was dropped by an operator.  It does not count as accepted.
    DISCARDED = enum.auto()
    #: A request that had failed, or was dead, is pending again.  Detail: its state, and its key
    #: there.
    REQUEUED = enum.auto()
    #: A delayed request is due: it is pending, under a new key.  Detail: the old one.
    DUE = enum.auto()


#: Kind, key, where the frontier keeps the request (its own), the request, and the detail.
Change = tuple[Kind, bytes, Any, Entry | None, Any]
_WIDTH = 5


class Changes:
    """An ordered list of changes, as fields: objects doubled a crawl's garbage collections."""

    def __init__(self) -> None:
        self._fields: list[Any] = []
        #: Not a method, which takes longer: it is called twice for each request.
        self.append: Callable[[Change], None] = self._fields.extend

    def __len__(self) -> int:
        return len(self._fields) // _WIDTH

    def __iter__(self) -> Iterator[Change]:
        fields = iter(self._fields)
        return zip(fields, fields, fields, fields, fields, strict=True)

    def drop(self, count: int) -> None:
        """Forget the first ones."""
        del self._fields[: count * _WIDTH]
