"""What a frontier does by itself, or knows only later."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..errors import AltschedError
from .contract import Verdict
from .entry import DeadLetter, Entry


@dataclass(frozen=True, slots=True)
class Event:
    """What an :data:`OnEvent` is called with, from within calls to the frontier only."""


OnEvent = Callable[[Event], None]


def ignore_events(_: Event) -> None:
    """The events are of no interest."""


@dataclass(frozen=True, slots=True)
class DeadLettered(Event):
    """A request that killed the process again and again is a dead letter now."""

    entry: Entry
    why: DeadLetter


@dataclass(frozen=True, slots=True)
class Isolated(Event):
    """A request is leased alone: the process died *deaths* times while it was."""

    entry: Entry
    deaths: int


@dataclass(frozen=True, slots=True)
class IsolationEnded(Event):
    """Others are leased beside a request that was to be alone."""

    entry: Entry
    why: str


@dataclass(frozen=True, slots=True)
class Refused(Event):
    """An entry that was UNDECIDED is not accepted, but SEEN or STARTED."""

    entry: Entry
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class FailuresDropped(Event):
    """There were too many failed requests: the oldest *count* of them, in all, are done now."""

    count: int


class PaceChanged(Event):
    """A request that was to be downloaded later may be started now, or never: see :mod:`.pace`."""


@dataclass(frozen=True, slots=True)
class OtherLimits(Event):
    """The crawl has other limits than this worker brings, which obeys them: as texts."""

    theirs: str
    own: str


class LeasesReady(Event):
    """It is time to ask again: there is something to lease, or never will be."""


@dataclass(frozen=True, slots=True)
class Unreadable(Event):
    """What is stored could not be read; it is tried again."""

    error: AltschedError


class LeaseUnrecorded(Event):
    """A lease could not be recorded: if the process dies, it is not known that it was in flight."""


@dataclass(frozen=True, slots=True)
class Committed(Event):
    """A commit is stored; the number is over all runs of the job."""

    number: int


@dataclass(frozen=True, slots=True)
class LeaseLost(Event):
    """A request is no longer this worker's: what it does with it does not count any more."""

    entry: Entry


class ServerRolledBack(Event):
    """The server has lost its latest changes: start requests are to be added again."""


class SeenInvalidated(Event):
    """Fingerprints are no longer seen, or may not be: forget those that were remembered."""


class VersionOutdated(Event):
    """Another worker continues the crawl with a version that this one cannot follow."""


class FrontierLost(Event):
    """The crawl is gone from the server, or is another one: nothing can be done here any more."""


@dataclass(frozen=True, slots=True)
class FrontierFailed(Event):
    """The frontier has failed by an error of its own: it can do nothing more."""

    error: AltschedError


@dataclass(frozen=True, slots=True)
class MemoryFull(Event):
    """The server has no memory for *waiting* changes: they are sent again, all else goes on."""

    waiting: int


@dataclass(frozen=True, slots=True)
class Stalled(Event):
    """There is something to do, and for so long nothing was done; no *why*: it goes on now."""

    seconds: float
    why: str


class CrawlPaused(Event):
    """Nothing more is leased to any worker, as an operator has asked."""


class CrawlGoesOn(Event):
    """After :class:`CrawlPaused`, requests are leased again."""


class StopRequested(Event):
    """An operator has asked the workers that run to end."""


class AlreadyFinished(Event):
    """The crawl had finished before this worker came to it."""
