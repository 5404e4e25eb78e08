"""What every frontier is: the states of a request and the transitions between them.

::

     add ──► pending ──lease──► leased ──finish──► done (only its fingerprint remains, in seen)
                ▲                 │ the process died / the lease expired
                └─────────────────┘ a suspect (see :mod:`.suspects`), in the end dead

The interface is cut at transitions, each of them atomic, and not at get and put: a caller never
asks "seen?" and then pushes.  Nothing in this package knows Scrapy: a request is an
:class:`.entry.Entry`, its bytes are opaque.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from .dead_letter import DeadLetter
from .entry import Counts, Entry, Lease


class Gate(Protocol):
    """What the crawl knows of download slots, for the choice between them."""

    def active(self, slot: str, /) -> int:
        """How many downloads are in flight in *slot*."""


class Verdict(enum.Enum):
    """What :meth:`Frontier.add` did with an entry."""

    ADDED = "added"
    #: Its fingerprint was seen before.
    SEEN = "seen"
    #: A start request that an earlier run of this unfinished job accepted already.
    STARTED = "started"
    #: It was taken, and whether it was seen is known later; a :class:`.events.Refused` may follow.
    UNDECIDED = "undecided"


class Reason(enum.Enum):
    """Why there is nothing to lease."""

    #: Nothing is pending.
    EMPTY = "empty"
    #: A request that may have killed the process is to be alone, or waits until it can be.
    ISOLATING = "isolating"
    #: The answer is on its way; :class:`.events.LeasesReady` tells when to ask again.
    FETCHING = "fetching"
    #: Other workers have leased what is left, or bring more.
    ELSEWHERE = "elsewhere"
    #: What is stored cannot be read.
    UNREACHABLE = "unreachable"


@dataclass(frozen=True, slots=True)
class Waiting:
    """There is nothing to lease now."""

    reason: Reason


@dataclass(frozen=True, slots=True)
class JobInfo:
    """What is known of a job when its frontier opens.

    :ivar run: how often the job was opened, this time included; 0: it lives in memory.
    :ivar resumed: whether earlier runs ended before it was finished.
    :ivar died_finished: whether the last run finished it, and its process died before it had ended.
    :ivar durable: whether what was committed survives the process's death.
    :ivar exclusive: whether nothing but this process adds requests and works on them.
    :ivar starts_in_turns: whether many start requests in a row have to let in what else comes.
    :ivar stored_here: whether commits are stored and synced here, and not on a server.
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
    exclusive: bool = True
    starts_in_turns: bool = False
    stored_here: bool = True
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
    :ivar limit: how many of these there may be; what can wait is then not to be added.
    """

    changes: int = 0
    urgent: bool = False
    unacknowledged: int = 0
    limit: float = math.inf

    @property
    def is_full(self) -> bool:
        """Whether nothing is to be added that can wait."""
        return self.unacknowledged >= self.limit

    @property
    def unsaved(self) -> int:
        """How many changes would be lost with the process."""
        return max(self.changes, self.unacknowledged)


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

    Every verb raises :class:`~scrapy_altsched.errors.ForkedError` in a forked child.  What a
    frontier does by itself, and what it knows only later, comes as an :data:`.events.Event`, on the
    crawl's own thread.

    :ivar job: what was known of the job at opening.
    :ivar pressure: what waits for a commit.
    """

    pressure: Pressure

    @property
    def job(self) -> JobInfo: ...

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

    def dead_letter(self, lease: Lease, why: DeadLetter) -> None:
        """Keep a leased request that can never be worked on as a dead letter."""

    def counts(self) -> Counts:
        """How many requests are in which state, uncommitted changes included."""

    def note(self, name: str) -> bytes | None:
        """A note as the last commit left it.

        :raises StoreError: it could not be read.
        """

    def dead(self) -> Iterator[tuple[bytes, DeadLetter, bytes]]:
        """Key, cause and text, and stored value of every dead letter, as the last commit left them.

        :raises StoreError: they could not be read.
        """

    def has_changes(self, notes: Mapping[str, bytes] = ...) -> bool:
        """Whether a commit with these notes would write anything."""

    def commit(self, notes: Mapping[str, bytes] = ..., *, wait: bool = False) -> bool:
        """Write changes, in one atomic batch of bounded size; whether nothing is left to be stored.

        Where others store it, that may be so only later: a further call would then write no more.

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
