"""What every frontier is: the states of a request and the transitions between them.

::

     add ──► pending ──lease──► leased ──finish──► done (only its fingerprint remains, in seen)
      │         ▲ ▲               │        or failed, if the lease says so
      │         │ │               │ the process died / the lease expired
      ▼         │ └───────────────┘ a suspect (see :mod:`.suspects`), in the end dead
    delayed ────┘ once it is due

The interface is cut at transitions, each of them atomic: a caller never asks "seen?" and then
pushes.  A request is an :class:`.entry.Entry`, its bytes are opaque.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from .entry import Counts, DeadLetter, Entry, Lease, PageFailure, Place
from .pace import Pace

#: Download slot (empty: one queue has all) and request -> whether it is meant.
IsMeant = Callable[[str, Entry], bool]
#: Payload -> download slot, and whether it goes to the start requests' queue; or CodecError.
Locate = Callable[[bytes], tuple[str, bool]]


class Gate(Protocol):
    """What is going on in a download slot, for the choice between them."""

    def active(self, slot: str, /) -> int:
        """How many requests are in it."""


class PacedGate(Gate, Protocol):
    """What a polite frontier asks, too."""

    def waiting(self, slot: str, /) -> int:
        """How many of them wait until the slot's delay is over."""

    def delay(self, slot: str, /) -> float:
        """Seconds between two downloads of the slot, on average; 0: it has no delay."""


class Verdict(enum.Enum):
    """What :meth:`Frontier.add` did with an entry."""

    ADDED = "added"
    #: Its fingerprint was seen before.
    SEEN = "seen"
    #: A start request that an earlier run of this unfinished job accepted already.
    STARTED = "started"
    #: Its download slot has had as many requests as it may: it is not seen.
    OVER_BUDGET = "over budget"
    #: It was taken, and whether it was seen is known later; a :class:`.events.Refused` may follow.
    UNDECIDED = "undecided"


class Waiting(enum.Enum):
    """There is nothing to lease now, and why."""

    #: Nothing is pending.
    EMPTY = "empty"
    #: A request that may have killed the process is to be alone, or waits until it can be.
    ISOLATING = "isolating"
    #: The answer is on its way; :class:`.events.LeasesReady` tells when to ask again.
    FETCHING = "fetching"
    #: Other workers have leased what is left, or bring more.
    ELSEWHERE = "elsewhere"
    #: All that is pending is in download slots that may not be asked now.
    PARKED = "parked"
    #: The store is behind: pages that end meanwhile would make a later commit take long.
    STALLED = "stalled"
    #: What is stored cannot be read.
    UNREACHABLE = "unreachable"


@dataclass(frozen=True, slots=True)
class JobInfo:
    """What is known of a job when its frontier opens.

    :ivar run: how often the job was opened, this time included; 0: it lives in memory.
    :ivar resumed: whether earlier runs ended before it was finished.
    :ivar died_finished: whether the last run finished it, and its process died before it had ended.
    :ivar durable: whether what was committed survives the process's death.
    :ivar exclusive: whether nothing but this process adds requests and works on them.
    :ivar starts_in_turns: whether many start requests in a row have to let in what else comes.
    :ivar records_ages: whether it is known when pages were finished.
    :ivar stored_here: whether commits are stored and synced here, and not on a server.
    :ivar path: the directory of its store, if any; *place*: a path to its job directory that stays
        right if that is moved.
    :ivar rolled_back: by how many commits the store has lost the end of its log.
    :ivar lost_in_memory: requests that lived in memory only and ended with an earlier run.
    :ivar damage: what the job may lack, and why, in a sentence; ``None``: nothing that is known.
    :ivar suspects: requests that are leased one after the other after a death; *blamed*: alone.
    :ivar retried: failed requests that are pending again in this run.
    :ivar clock_behind: by how many seconds the clock was set back since the last run, if it was.
    """

    run: int = 0
    resumed: bool = False
    died_finished: bool = False
    durable: bool = False
    exclusive: bool = True
    starts_in_turns: bool = False
    records_ages: bool = False
    stored_here: bool = True
    path: Path | None = None
    place: Path | None = None
    rolled_back: int = 0
    lost_in_memory: int = 0
    damage: str | None = None
    suspects: int = 0
    blamed: int = 0
    retried: int = 0
    clock_behind: float = 0.0


@dataclass(slots=True)
class Pressure:
    """What waits for a commit, or for an answer.

    :ivar changes: how many wait for a commit.
    :ivar done: how many of these are requests that are done, or have failed.
    :ivar enough: with how many a commit is due, as it would take long with more.
    :ivar urgent: whether they should not: they clear a suspect, or take much memory.
    :ivar stalled_since: monotonic seconds of the first commit that a busy store has refused, as
        long as it does; written by what has it commit.
    :ivar unacknowledged: how many have no answer yet, with those that wait for a commit.
    :ivar limit: with how many of these nothing is to be added that can wait.
    """

    changes: int = 0
    done: int = 0
    enough: float = math.inf
    urgent: bool = False
    stalled_since: float | None = None
    unacknowledged: int = 0
    limit: float = math.inf

    @property
    def is_full(self) -> bool:
        return self.unacknowledged >= self.limit

    @property
    def unsaved(self) -> int:
        """How many changes would be lost with the process."""
        return max(self.changes, self.unacknowledged)


@dataclass(frozen=True, slots=True)
class Standing:
    """How a crawl stands, for those who look in from outside.

    :ivar began: when this run did; *at*: when all of this was so; in seconds since the epoch.
    :ivar shared: the shared crawl that it is a worker of, if it is one.
    :ivar duplicates: requests that this run has refused as seen.
    :ivar found_rate: requests accepted in a second, over the last minute or so; *ended_rate*: those
        that are done, failed or dead since; ``None``: it is too early to tell.
    :ivar held: download slots that are deferred, and until when, in seconds since the epoch; those
        that end last, if there are many; ``None`` as a name: all slots.
    :ivar paused: since when the crawl is, in seconds since the epoch, if an operator has paused it.
    :ivar busiest: the slots with the most pending requests, and how many, as of some seconds ago.
    """

    spider: str
    counts: Counts
    began: float = 0.0
    at: float = 0.0
    shared: str | None = None
    duplicates: int = 0
    found_rate: float | None = None
    ended_rate: float | None = None
    held: Sequence[tuple[str | None, float]] = ()
    busiest: Sequence[tuple[str, int]] = ()
    paused: float | None = None


class CurrentRun(Protocol):
    """The run of the job that has the frontier open: its notes, its process, and its end."""

    def note(self, name: str) -> bytes | None:
        """A note as the last commit left it."""

    def write_notes(self, notes: Mapping[str, bytes]) -> None:
        """Store notes by themselves; StoreError: they are not."""

    def note_response(self, lease: Lease) -> None:
        """The leased request's response was received: if the process dies, look there first."""

    def note_closing(self) -> None:
        """The crawl begins to end cleanly: a death of the process blames no request from now on."""

    def publish(self, standing: Standing) -> None:
        """Have those who look in from outside read this; it is no error if that fails."""

    def sync(self) -> None:
        """Make what was committed survive the death of the machine.  Blocks; on any thread."""

    def recover(self) -> None:
        """Reconnect to the store after a failed commit, as the last one left it."""

    def end(self) -> None:
        """Note that all that follows the end of the crawl was done; let others have the job."""

    def check_owner(self) -> None:
        """Raise ForkedError if this is a forked child of the process that opened the frontier."""


class Frontier(Protocol):
    """A frontier's transitions.

    Each raises ForkedError in a forked child, and StoreError if a read or write that it needs has
    failed; nothing has changed then.  What a frontier does by itself, and what it knows only later,
    comes as an :class:`.events.Event`, on the crawl's thread.
    """

    pressure: Pressure

    @property
    def pace(self) -> Pace | None:
        """What is told of downloads, if the frontier has a say in when they start."""

    @property
    def run(self) -> CurrentRun: ...

    @property
    def job(self) -> JobInfo: ...

    def add(self, entry: Entry) -> Verdict:
        """Record *entry* as pending and, if it is unique, its fingerprint as seen, in one step.

        With a delay it is pending once it is due.
        """

    def lease(self, gate: PacedGate, /) -> Lease | Waiting:
        """Take the next request in order, of slots as *gate* says: fewest downloads, then by name.

        If there is none to take, some may be pending still.  While there is none,
        :class:`.events.LeasesReady` tells when the next delayed request is due.  None is taken
        while :attr:`pressure` says that the store is busy, and many that are done wait for it.
        """

    def defer(self, slot: str | None, seconds: float) -> bool:
        """Lease nothing from a download slot for so long; then one request, and the others when
        that one is over.

        What is leased already is not affected.  A later call can only put off that time.

        :param slot: its name; ``None``: all slots, of which one request is let through then.
        :return: whether this frontier can: it has no slots if one queue has all requests.
        """

    def undefer(self, slot: str) -> bool:
        """Lease from a download slot again at once; whether this frontier can.

        A worker cannot: the slot is deferred for others, too.
        """

    def finish(self, lease: Lease, then: Entry | None = None) -> None:
        """The leased request is done; or it has failed, if the lease says how.

        :param then: what follows it, such as the same request once more: accepted in the same step,
            whether its fingerprint was seen or not, and as unique as the one that is done.
        """

    def hold(self, lease: Lease) -> None:
        """Nothing works on the request any more, but it is not done before others are.

        It stays leased until :meth:`finish`, and is pending again after the process's death, but it
        is not suspected of that, and nothing waits for its end.
        """

    def release(self, lease: Lease) -> None:
        """Make a leased request pending again, as it was, at its old place."""

    def dead_letter(self, lease: Lease, why: DeadLetter) -> None:
        """Keep a leased request that can never be worked on as a dead letter."""

    def mark_seen(self, fingerprint: bytes) -> bool:
        """Record *fingerprint* as seen without a request; whether it was seen before."""

    def forget(self, fingerprint: bytes) -> bool:
        """Remove *fingerprint* from the seen ones; whether it was there."""

    def discard(self, is_meant: IsMeant, locate: Locate | None = None) -> Iterator[int]:
        """Drop pending and delayed requests, but none in progress: how many, in portions.

        Their pages stay seen, and they do not count as accepted, nor for the budgets of their
        slots.  What is accepted between two portions may be passed over.

        :param locate: without it, budgets stay as they are for what is stored in one queue for all.
        :raises ConfigError: they are on a server, where a command drops them; StoreError.
        """

    def requeue(self, state: str, key: bytes, locate: Locate) -> DeadLetter | PageFailure | None:
        """Make a request pending again that has failed, or is dead: why it was.

        :param state: "failed" or "dead"; *key*: of that request, as of the last commit.
        :return: ``None``: it is in that state no more.
        :raises CodecError: *locate* cannot read it; ConfigError: as for :meth:`discard`.
        """

    def note_start_end(self) -> None:
        """``Spider.start()`` has brought all that it will."""

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to lease but what is delayed, as far as is known."""

    @property
    def pending(self) -> int:
        """Requests that are pending or undecided: asked for so often that it is a plain number."""

    @property
    def delayed(self) -> int:
        """Requests that wait for their time: a plain number, too."""

    def next_due(self) -> float | None:
        """When the first of them is due, in seconds since the epoch, if there are any."""

    def counts(self) -> Counts:
        """How many requests are in which state, uncommitted changes included."""

    def busiest_slots(self, *, all_at_once: bool = False) -> Sequence[tuple[str, int]]:
        """The download slots with the most pending requests, and how many; empty: not known.

        It is as of some seconds ago, unless all are looked at *at once*: asked for at each commit.
        """

    def peek(self, slot: str | None = None) -> Iterator[Entry]:
        """Pending requests, in the order in which they are leased while nothing is downloaded.

        None is taken, and nothing may change while this goes on.  Slots that are deferred come
        last.  Of a shared crawl these are the ones that were fetched ahead.

        :param slot: only those in the queue of this slot.
        """

    def locate(self, fingerprint: bytes, slot: str) -> Place | None:
        """Where the request with a fingerprint is, uncommitted changes included.

        Whether it is a dead letter, or has failed, is not looked up: it may be said to be done.

        :param slot: where to look first.
        :return: ``None``: this worker of a shared crawl does not know.
        """

    def find_waiting(self, wanted: Set[bytes]) -> Iterator[set[bytes]]:
        """Which of these fingerprints are those of requests that are still to be crawled.

        That is: pending, delayed or leased; of a shared crawl, those that this worker has.  It may
        take long, and is told in portions, between which all may go on; what is accepted meanwhile
        may be passed over.

        :raises StoreError: what is stored cannot be read.
        """

    def failed(self) -> Iterator[tuple[bytes, PageFailure, bytes]]:
        """The same as :meth:`dead`, of failed requests; of a shared crawl there are none here."""

    def dead(self) -> Iterator[tuple[bytes, DeadLetter, bytes]]:
        """Key, why, and stored value of every dead letter, as the last commit left them."""

    def has_changes(self, notes: Mapping[str, bytes] = ...) -> bool:
        """Whether a commit with these notes would write anything."""

    def commit(
        self, notes: Mapping[str, bytes] = ..., *, wait: bool = False, whole: bool = False
    ) -> bool:
        """Write changes, in one atomic batch of bounded size; whether no further call is needed.

        *notes* (name -> bytes) go into the batch that completes them; if they must not be stored
        without all that has changed, it is one batch as a *whole*.  With *wait* it blocks for as
        long as the store is busy with itself.  After a StoreError a later call writes the batch.
        """

    @property
    def position(self) -> int:
        """A number that stands for all that was added so far."""

    def is_durable(self, position: int) -> bool:
        """Whether all that was added up to *position* is committed; also asked after the end."""

    def close(self, *, finished: bool = False, hold: bool = False) -> None:
        """Commit all, note whether the job is *finished*, and free every resource.

        With *hold* the job stays this process's until :meth:`CurrentRun.end` is called.  After a
        StoreError, what was committed before is safe, what came after is not.
        """

    def abandon(self) -> None:
        """Free every resource without committing; may be called at any time."""
