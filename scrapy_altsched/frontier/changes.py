"""What has changed and is not durable yet: one ordered list, which each store writes in its way.

In the order in which it happened, every prefix of the list is a state that loses nothing: what a
page has led to comes before its end, and a mark before the request that it may stand for.  A
frontier in one process folds the list into batches that hold absolute values, so that a request
that was added and has ended leaves no row (:mod:`.local.batches`).  A frontier that is shared can
send the list as it is.

Two rules are for whoever writes it in parts.  :class:`Done` and :class:`Cleared` wait for the last
part, which also carries the notes: what a note says of a page, such as how far its rows reach in a
file, is never stored without the end of that page, nor the end without the note.  And no part but
the last ends with :class:`Marked`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from .contract import Entry


class Added(NamedTuple):
    """A request was accepted.

    :ivar key: the request's key in the frontier.
    :ivar home: where the frontier keeps it; the frontier's own.
    :ivar marks: whether its fingerprint is seen from then on, and was not before.
    :ivar claim: which occurrence of a start request it is; ``None``: it is none.
    """

    key: bytes
    home: Any
    entry: Entry
    marks: bool
    claim: bytes | None


class Done(NamedTuple):
    """A request is done."""

    key: bytes
    home: Any


class Died(NamedTuple):
    """A request became a dead letter.

    :ivar reason: as a clause.
    """

    key: bytes
    home: Any
    entry: Entry
    reason: str


class Marked(NamedTuple):
    """A fingerprint is seen, without a request."""

    fingerprint: bytes


class Forgotten(NamedTuple):
    """A fingerprint is no longer seen."""

    fingerprint: bytes


class Skipped(NamedTuple):
    """A start request that an earlier run has accepted was skipped by this one."""

    claim: bytes


class Cleared(NamedTuple):
    """Nothing is held against a request any more, since it has ended."""

    fingerprint: bytes


Change = Added | Done | Died | Marked | Forgotten | Skipped | Cleared
