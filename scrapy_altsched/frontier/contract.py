"""What every frontier is: the states of a request and the transitions between them.

::

     add ──► pending ──lease──► leased ──finish──► done (only its fingerprint remains, in seen)
                ▲                 │ the process died / the lease expired
                └─────────────────┘ a suspect (see :mod:`.suspects`), in the end dead

The interface is cut at transitions, each of them atomic, and not at get and put: a caller never
asks "seen?" and then pushes.  Nothing in this package knows Scrapy: a request is an
:class:`Entry`, its bytes are somebody else's.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol


class Busy(Protocol):
    """Slot name -> number of downloads under way there; as a mapping has it."""

    def get(self, name: str, default: int, /) -> int:
        """The number for slot *name*; *default*: none is."""


class Verdict(enum.Enum):
    """What :meth:`Frontier.add` did with an entry."""

    ADDED = "added"
    #: Its fingerprint was seen before.
    SEEN = "seen"
    #: A start request that an earlier run of this unfinished job accepted already.
    STARTED = "started"


class Entry:
    """A request as a frontier sees it.

    :ivar fingerprint: bytes of any length up to 255; equal ones mean the same page.
    :ivar slot: download slot's name.
    :ivar priority: any int, higher first.
    :ivar start: whether it goes to the start requests' own queue.
    :ivar payload: the encoded request, or ``None`` for one that lives in memory only.
    :ivar request: the object itself, as long as it is among the newest; where there is no payload,
        all there is.
    :ivar unique: whether it is refused if its fingerprint was seen (Scrapy's ``not dont_filter``).
    :ivar yielded: whether ``Spider.start()`` itself yielded it, so that a resumed job may skip it.
    :ivar claim: the frontier's own note of which occurrence of a start request this is.
    :ivar home: the frontier's own note of where it was added.
    """

    __slots__ = (
        "claim",
        "fingerprint",
        "home",
        "payload",
        "priority",
        "request",
        "slot",
        "start",
        "unique",
        "yielded",
    )

    def __init__(
        self,
        fingerprint: bytes,
        slot: str = "",
        priority: int = 0,
        start: bool = False,
        payload: bytes | None = None,
        request: Any = None,
        unique: bool = True,
        yielded: bool = False,
    ) -> None:
        if len(fingerprint) > 255:
            raise ValueError(f"a fingerprint has at most 255 bytes, not {len(fingerprint)}")
        self.fingerprint = fingerprint
        self.slot = slot
        self.priority = priority
        self.start = start
        self.payload = payload
        self.request = request
        self.unique = unique
        self.yielded = yielded
        self.claim: bytes | None = None
        self.home: Any = None

    def complete(self) -> None:
        """Fill in what only an accepted request needs.

        A frontier calls it once, when it knows that the entry is not refused and before anything
        is recorded: most of what a crawl adds are duplicates, which shall not cost an encoding.
        """

    def __repr__(self) -> str:
        return f"<Entry {self.fingerprint.hex()} slot={self.slot!r} priority={self.priority}>"


@dataclass(frozen=True, slots=True)
class DeadLettered:
    """A request that killed the process again and again is a dead letter now."""

    entry: Entry
    reason: str


@dataclass(frozen=True, slots=True)
class Isolated:
    """A request is leased alone: the process died *deaths* times while it was."""

    entry: Entry
    deaths: int


@dataclass(frozen=True, slots=True)
class Accompanied:
    """Others are leased beside a request that was to be alone."""

    entry: Entry
    why: str


Event = DeadLettered | Isolated | Accompanied
#: Called from within calls to the frontier only.
OnEvent = Callable[[Event], None]


def ignore_events(_: Event) -> None:
    """For a frontier whose user wants to hear of nothing."""


class Lease:
    """The right to work on one request, until :meth:`Frontier.finish` or ``release``.

    :ivar key: the request's key in the frontier; unique among all that are pending or leased.
    :ivar entry: the request.  ``slot``, ``priority`` and ``start`` are only set in entries that
        were added by this process.
    :ivar origin: where a release puts it back; the frontier's own.
    :ivar in_hand: whether its response was received.
    """

    __slots__ = ("entry", "in_hand", "key", "origin")

    def __init__(self, key: bytes, entry: Entry, origin: Any) -> None:
        self.key = key
        self.entry = entry
        self.origin = origin
        self.in_hand = False


@dataclass(frozen=True, slots=True)
class Counts:
    """How many requests are in which state."""

    #: All that were ever accepted by this job, in all its runs.
    accepted: int = 0
    pending: int = 0
    leased: int = 0
    done: int = 0
    dead: int = 0
    #: Of those pending or leased, how many live in memory only.
    memory_only: int = 0

    @property
    def unaccounted(self) -> int:
        """Requests that were accepted and are in no state: 0, or something was lost."""
        return self.accepted - self.pending - self.leased - self.done - self.dead


class Frontier(Protocol):
    """A frontier's transitions.

    Every verb raises :class:`~scrapy_altsched.errors.ForkedError` in a forked child and
    :class:`~scrapy_altsched.errors.StoreError` when a read it needs failed; the transition has
    then not happened and may be asked for again.
    """

    #: Whether earlier runs of this job ended before it was finished.
    resumed: bool
    #: Number of the last commit, over all runs of the job.
    commit_number: int

    def add(self, entry: Entry) -> Verdict:
        """Record *entry* as pending and, if it is unique, its fingerprint as seen, in one step.

        The answer is final at once; it survives the process's death from the next commit on.
        """

    def mark_seen(self, fingerprint: bytes) -> bool:
        """Record *fingerprint* as seen without a request; whether it was seen before."""

    def lease(self, busy: Busy = ..., /) -> Lease | None:
        """Take the next request in order.

        *busy* steers the choice among slots: fewest downloads first, then round-robin by name.

        ``None`` does not mean that nothing is pending: after an unclean end one of the suspects
        waits for the other, and one that has died alone until nothing else is pending.  Ask
        :meth:`counts`.
        """

    def note_response(self, lease: Lease) -> None:
        """The leased request's response was received: if the process dies, look there first."""

    def note_closing(self) -> None:
        """The crawl began to end in an orderly way: nobody is to blame if the process dies now."""

    def finish(self, lease: Lease) -> None:
        """The leased request is done."""

    def release(self, lease: Lease) -> None:
        """Give a leased request back, as it was: it is pending again, at its old place."""

    def bury(self, lease: Lease, why: str) -> None:
        """The leased request can never be worked on: keep it among the dead, with the reason."""

    def forget(self, fingerprint: bytes) -> bool:
        """Remove *fingerprint* from the seen ones; whether it was there."""

    def counts(self) -> Counts:
        """How many requests are in which state, uncommitted changes included."""

    def commit(self, notes: Mapping[str, bytes] = ..., *, wait: bool = False) -> bool:
        """Write changes, in one atomic batch of bounded size; whether none is left to write.

        *notes* (name -> bytes) go into the batch that completes them.  With *wait* it blocks for
        as long as the store is busy with itself.

        :raises StoreError: the batch was not written; all changes stay in memory, to be written
            by a later call.
        """

    def close(self, *, finished: bool = False) -> None:
        """Commit all, note whether the job is *finished*, and free every resource.

        :raises StoreError: what was committed before is safe, what came after is not.
        """
