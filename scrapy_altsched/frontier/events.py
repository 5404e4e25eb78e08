"""What a frontier does by itself, or knows only later."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..errors import AltschedError
from .contract import Verdict
from .dead_letter import DeadLetter
from .entry import Entry


@dataclass(frozen=True, slots=True)
class DeadLettered:
    """A request that killed the process again and again is a dead letter now."""

    entry: Entry
    why: DeadLetter


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
    """A lease could not be recorded: if the process dies, it is not known that it was in flight."""


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
    """Fingerprints are no longer seen, or may not be: forget those that were remembered."""


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
    """For a frontier whose events are of no interest."""
