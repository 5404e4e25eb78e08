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
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ..errors import AltschedError


class Gate(Protocol):
    """What the crawl knows of download slots, for the choice between them."""

    def active(self, slot: str, /) -> int:
        """How many downloads are in flight in *slot*."""


class Call(Protocol):
    """A call that is to come."""

    def cancel(self) -> object:
        """Cancel it; harmless if it was made."""


class Clock(Protocol):
    """What time it is, and what is to happen at a time.

    A frontier, and a crawl, know the time from here only, so that tests can own it.
    """

    def monotonic(self) -> float:
        """Seconds since some moment of this process; for timeouts."""

    def wall(self) -> float:
        """Seconds since the epoch; for what has to survive a restart."""

    def call_at(self, when: float, call: Callable[[], object]) -> Call:
        """Schedule *call* to be called once, on the crawl's thread.

        :param when: as :meth:`monotonic` counts; at once if that is over.
        """


class Verdict(enum.Enum):
    """What :meth:`Frontier.add` did with an entry."""

    ADDED = "added"
    #: Its fingerprint was seen before.
    SEEN = "seen"
    #: A start request that an earlier run of this unfinished job accepted already.
    STARTED = "started"
    #: It was taken, and whether it was seen cannot be known now; a :class:`Refused` may follow.
    UNDECIDED = "undecided"


class Reason(enum.Enum):
    """Why there is nothing to lease."""

    #: Nothing is pending.
    EMPTY = "empty"
    #: A request that may have killed the process is to be alone, or waits until it can be.
    ISOLATING = "isolating"
    #: The answer is on its way; :class:`LeasesReady` tells when to ask again.
    FETCHING = "fetching"
    #: Other workers have leased what is left, or bring more.
    ELSEWHERE = "elsewhere"
    #: What is stored cannot be read.
    UNREACHABLE = "unreachable"


@dataclass(frozen=True, slots=True)
class Waiting:
    """There is nothing to lease now."""

    reason: Reason


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
    """

    __slots__ = (
        "fingerprint",
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

    def encode(self) -> None:
        """Fill in what only an accepted request needs.

        A frontier calls it once, when it knows that the entry is not refused and before anything
        is recorded: most of what a crawl adds are duplicates, which must not cost an encoding.
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
class IsolationEnded:
    """Others are leased beside a request that was to be alone."""

    entry: Entry
    why: str


@dataclass(frozen=True, slots=True)
class Refused:
    """An entry that was UNDECIDED is not accepted.

    :ivar verdict: SEEN or STARTED.
    """

    entry: Entry
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class LeasesReady:
    """It is time to ask again: there is something to lease, or never will be."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """What is stored could not be read; it is tried again."""

    error: AltschedError


@dataclass(frozen=True, slots=True)
class LeaseUnrecorded:
    """A lease could not be recorded: if the process dies, nobody knows that it was in flight."""


@dataclass(frozen=True, slots=True)
class Committed:
    """A commit is stored.

    :ivar number: of this commit, over all runs of the job.
    """

    number: int


@dataclass(frozen=True, slots=True)
class LeaseLost:
    """A request is no longer this worker's: what it does with it does not count any more."""

    entry: Entry


@dataclass(frozen=True, slots=True)
class ServerRolledBack:
    """The server has lost its latest changes: start requests are to be added again."""


@dataclass(frozen=True, slots=True)
class SeenInvalidated:
    """Fingerprints are no longer seen, or may not be: whoever remembers some has to forget them."""


@dataclass(frozen=True, slots=True)
class FrontierLost:
    """The crawl is gone from the server, or is another one: nothing can be done here any more."""


@dataclass(frozen=True, slots=True)
class FrontierFailed:
    """The frontier has failed by an error of its own: it can do nothing more."""

    error: AltschedError


@dataclass(frozen=True, slots=True)
class MemoryFull:
    """The server has no memory for what is added: it is sent again, and all else goes on.

    :ivar waiting: how many changes wait for it.
    """

    waiting: int


@dataclass(frozen=True, slots=True)
class Stalled:
    """There is something to do, and for long nothing was done, here or by others.

    :ivar seconds: for how long.
    :ivar why: the reason, as a sentence without its full stop; empty: it goes on now.
    """

    seconds: float
    why: str


@dataclass(frozen=True, slots=True)
class AlreadyFinished:
    """The crawl had finished before this worker came to it."""


Event = (
    DeadLettered
    | Isolated
    | IsolationEnded
    | Refused
    | LeasesReady
    | Unreadable
    | LeaseUnrecorded
    | Committed
    | LeaseLost
    | ServerRolledBack
    | SeenInvalidated
    | FrontierLost
    | FrontierFailed
    | MemoryFull
    | Stalled
    | AlreadyFinished
)
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
    :ivar held: whether :meth:`Frontier.hold` was told of it.
    """

    __slots__ = ("entry", "held", "in_hand", "key", "origin")

    def __init__(self, key: bytes, entry: Entry, origin: Any) -> None:
        self.key = key
        self.entry = entry
        self.origin = origin
        self.in_hand = False
        self.held = False


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
    #: Entries that were taken and are in none of these states yet.
    undecided: int = 0

    @property
    def unaccounted(self) -> int:
        """Requests that were accepted and are in no state: 0, or something was lost."""
        return self.accepted - self.pending - self.leased - self.done - self.dead


@dataclass(frozen=True, slots=True)
class JobInfo:
    """What is known of a job when its frontier opens.

    :ivar run: how often the job was opened, this time included; 0: it lives in memory.
    :ivar resumed: whether earlier runs ended before it was finished.
    :ivar died_finished: whether the last run finished it, and its process died before it had ended.
    :ivar durable: whether what was committed survives the process's death.
    :ivar shared: the name of the shared crawl that this is a worker of, or ``None``.
    :ivar path: the directory of its store, or ``None``.
    :ivar place: a path to its job directory that stays right if that is moved, or ``None``.
    :ivar rolled_back: by how many commits the store has lost the end of its log.
    :ivar lost_in_memory: requests that lived in memory only and ended with an earlier run.
    :ivar damage: what the job may lack, and why, in a sentence; ``None``: nothing that is known.
    :ivar suspects: how many requests are leased one after the other after a death.
    :ivar blamed: how many are leased alone.
    """

    run: int = 0
    resumed: bool = False
    died_finished: bool = False
    durable: bool = False
    shared: str | None = None
    path: Path | None = None
    place: Path | None = None
    rolled_back: int = 0
    lost_in_memory: int = 0
    damage: str | None = None
    suspects: int = 0
    blamed: int = 0


@dataclass(slots=True)
class Pressure:
    """What waits for a commit, or for an answer.

    :ivar changes: how many changes wait for a commit.
    :ivar urgent: whether they should not wait: what they clear is suspected until they are
        committed, or they take much memory.
    :ivar unacknowledged: how many changes have no answer yet, with those that wait for a commit.
    :ivar most: how many of these there may be; what can wait is then not to be added.
    """

    changes: int = 0
    urgent: bool = False
    unacknowledged: int = 0
    most: float = math.inf

    @property
    def is_full(self) -> bool:
        """Whether nothing is to be added that can wait."""
        return self.unacknowledged >= self.most

    @property
    def unsaved(self) -> int:
        """How many changes would be lost with the process."""
        return max(self.changes, self.unacknowledged)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a commit came.

    :ivar number: of the last commit, over all runs of the job; 0: the job lives in memory.
    :ivar complete: whether everything is stored, or what is not never will be.
    :ivar is_sent: whether a further commit would do no more, although not all is stored yet.
    """

    number: int
    complete: bool
    is_sent: bool = False


class SeenSet(Protocol):
    """The fingerprints that were seen.

    :raises StoreError: of each verb: a read that it needs failed, and nothing has changed.
    """

    def mark_seen(self, fingerprint: bytes) -> bool:
        """Record *fingerprint* as seen without a request; whether it was seen before."""

    def forget(self, fingerprint: bytes) -> bool:
        """Remove *fingerprint* from the seen ones; whether it was there."""


class Frontier(SeenSet, Protocol):
    """A frontier's transitions.

    Every verb raises :class:`~scrapy_altsched.errors.ForkedError` in a forked child.  What nobody
    asked for, and what is known later only, comes as an :data:`Event`, on the crawl's own thread.

    :ivar job: what was known of the job at opening.
    :ivar pressure: what waits for a commit.
    """

    job: JobInfo
    pressure: Pressure

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to lease, now or later, as far as is known."""

    @property
    def pending(self) -> int:
        """Requests that are pending or undecided: asked for so often that it is a plain number."""

    def add(self, entry: Entry) -> Verdict:
        """Record *entry* as pending and, if it is unique, its fingerprint as seen, in one step.

        It survives the process's death from the next commit on.
        """

    def lease(self, gate: Gate = ..., /) -> Lease | Waiting:
        """Take the next request in order.

        *gate* steers the choice between slots: fewest downloads first, then round-robin by name.

        :class:`Waiting` does not mean that nothing is pending: its reason tells.
        """

    def note_response(self, lease: Lease) -> None:
        """The leased request's response was received: if the process dies, look there first."""

    def note_closing(self) -> None:
        """The crawl begins to end cleanly: nobody is to blame if the process dies now."""

    def note_start_end(self) -> None:
        """``Spider.start()`` has brought all that it will."""

    def finish(self, lease: Lease) -> None:
        """The leased request is done."""

    def hold(self, lease: Lease) -> None:
        """Nothing works on the leased request any more, but it is not done before others are.

        It stays leased until :meth:`finish`, and is pending again after the process's death, but it
        is not suspected of that, and nothing waits for its end.
        """

    def release(self, lease: Lease) -> None:
        """Give a leased request back, as it was: it is pending again, at its old place."""

    def dead_letter(self, lease: Lease, reason: str) -> None:
        """Keep a leased request that can never be worked on as a dead letter, with the reason."""

    def counts(self) -> Counts:
        """How many requests are in which state, uncommitted changes included."""

    def note(self, name: str) -> bytes | None:
        """A note as the last commit left it.

        :raises StoreError: it could not be read.
        """

    def dead(self) -> Iterator[tuple[bytes, str, bytes]]:
        """Key, reason and stored value of every dead letter, as the last commit left them.

        :raises StoreError: they could not be read.
        """

    def has_changes(self, notes: Mapping[str, bytes] = ...) -> bool:
        """Whether a commit with these notes would write anything."""

    def commit(self, notes: Mapping[str, bytes] = ..., *, wait: bool = False) -> Progress:
        """Write changes, in one atomic batch of bounded size.

        *notes* (name -> bytes) go into the batch that completes them.  With *wait* it blocks for
        as long as the store is busy with itself.

        :raises StoreError: the batch was not written; all changes stay in memory, to be written
            by a later call.
        """

    @property
    def position(self) -> int:
        """A number that stands for all that was added so far."""

    def is_durable(self, position: int) -> bool:
        """Whether all that was added up to *position* is committed; also asked after the end."""

    def sync(self) -> None:
        """Make what was committed survive the death of the machine.  Blocks; on any thread.

        :raises StoreError: it failed.
        """

    def recover(self) -> None:
        """Reconnect to the store after a failed commit.

        :raises StoreError: it cannot be opened, or is not as the last commit left it.
        """

    def close(self, *, finished: bool = False, hold: bool = False) -> None:
        """Commit all, note whether the job is *finished*, and free every resource.

        :param hold: whether the job stays this process's until :meth:`end` is called.
        :raises StoreError: what was committed before is safe, what came after is not.
        """

    def end(self) -> None:
        """Note that all that follows the end of the crawl was done; let others have the job."""

    def abandon(self) -> None:
        """Free every resource without committing; may be called at any time."""

    def check_owner(self) -> None:
        """Check that this is the process that opened the frontier.

        :raises ForkedError: it is a forked child.
        """
