"""A request as a frontier sees it, the right to work on it, where it is, and how it ends."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

from ..age import Age


@dataclass(frozen=True, slots=True)
class Delay:
    """When a request may be leased at the earliest: the later one of two times.

    :ivar seconds: from the moment on in which it is accepted; *until*: seconds since the epoch.
    """

    seconds: float = 0.0
    until: float = 0.0


@dataclass(slots=True, eq=False, repr=False)
class Entry:
    """A request as a frontier sees it.

    :ivar fingerprint: bytes of any length up to 255; equal ones mean the same page.
    :ivar slot: download slot's name; *priority*: any int, higher first.
    :ivar start: whether it goes to the start requests' own queue.
    :ivar payload: the encoded request, or ``None`` for one that lives in memory only.
    :ivar request: the object, as long as it is among the newest or there is no payload.
    :ivar unique: whether it is refused if its fingerprint was seen (Scrapy's ``not dont_filter``).
    :ivar from_start: whether ``Spider.start()`` itself yielded it: a resumed job may skip it.
    :ivar delay: until when it has to wait; looked at when it is accepted, and not later.
    :ivar again: whether it had failed, and all its tries are before it once more.
    :ivar seen_key: under what the frontier has looked its fingerprint up, if it is unique.
    """

    fingerprint: bytes
    slot: str = ""
    priority: int = 0
    start: bool = False
    payload: bytes | None = None
    request: Any = None
    unique: bool = True
    from_start: bool = False
    delay: Delay | None = None
    again: bool = False
    seen_key: bytes = b""

    def __post_init__(self) -> None:
        if len(self.fingerprint) > 255:
            raise ValueError(f"a fingerprint has at most 255 bytes, not {len(self.fingerprint)}")

    def encode(self) -> None:
        """Fill in what only an accepted request needs: called once, before it is recorded."""

    def find_age(self) -> Age | None:
        """How old its page has to be to be crawled again, if it says so itself."""
        return None

    def find_slot(self) -> str:
        """The download slot, before it is encoded."""
        return self.slot

    def __repr__(self) -> str:
        return f"<Entry {self.fingerprint.hex()} slot={self.slot!r} priority={self.priority}>"


class Reason(enum.IntEnum):
    """What has kept a page from being crawled; the numbers are stored."""

    #: There was no response.
    DOWNLOAD = 1
    #: Its response had a status of ``RETRY_HTTP_CODES`` each time.
    STATUS = 2
    #: Its callback or errback raised an exception.
    CALLBACK = 3


@dataclass(frozen=True, slots=True)
class PageFailure:
    """How a request has failed, in the end.

    :ivar text: what has happened, in one line, such as an exception.
    :ivar status: of the last response; 0: there was none.
    :ivar tries: how often it was asked for, by Scrapy's count of retries.
    """

    reason: Reason
    text: str
    status: int = 0
    tries: int = 1

    @property
    def exception(self) -> str:
        """The class of the exception that the text begins with; empty: it is about none."""
        name = self.text.partition(":")[0]
        return name if name.isidentifier() else ""


@dataclass(slots=True, eq=False)
class Lease:
    """The right to work on one request, until :meth:`Frontier.finish` or ``release``.

    :ivar key: the request's key in the frontier; unique among all that are pending or leased.
    :ivar entry: ``slot``, ``priority`` and ``start`` are only set if this process has added it.
    :ivar origin: where a release puts it back; the frontier's own.
    :ivar in_hand: whether its response was received.
    :ivar held: whether :meth:`Frontier.hold` was told of it.
    :ivar failure: how it has failed, if :meth:`Frontier.finish` is to say that it has.
    """

    key: bytes
    entry: Entry
    origin: Any
    in_hand: bool = False
    held: bool = False
    failure: PageFailure | None = None


class Cause(enum.IntEnum):
    """What made a dead letter of a request; the numbers are stored."""

    #: Whatever else: it ends the process, or has no fingerprint.  The job can be finished.
    OTHER = 1
    #: The spider's code cannot restore it.  The job is not finished without it.
    UNRESTORABLE = 2
    #: As before, and the operator does without it.
    GIVEN_UP = 3


#: How the sentence begins in which a dead letter is told, and kept on a server.
_PREFIXES = {
    Cause.UNRESTORABLE: "it cannot be restored: ",
    Cause.GIVEN_UP: "given up, since it cannot be restored: ",
    Cause.OTHER: "",
}


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """Why a request is a dead letter: a clause, without what the cause says already."""

    text: str
    cause: Cause = Cause.OTHER

    def __str__(self) -> str:
        return _PREFIXES[self.cause] + self.text

    @classmethod
    def parse(cls, text: str) -> DeadLetter:
        """The inverse of ``str()``: the form of job format 2, and of shared crawls."""
        cause = next(cause for cause, prefix in _PREFIXES.items() if text.startswith(prefix))
        return cls(text.removeprefix(_PREFIXES[cause]), cause)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a request is that has a certain fingerprint.

    :ivar state: "pending", "in flight", "delayed", "failed" or "dead"; "done"; "never seen"; or
        "seen", if it is not done and in no other of these.
    :ivar payload: the stored request, if it is one of the first five.
    :ivar ahead: of one that is pending, how many of its queue come before it.
    :ivar at: when it is due, has failed, or was done, in seconds since the epoch, if that is known.
    :ivar why: what kept it from being crawled; *tries*: how often it was asked for.
    :ivar worker: of a shared crawl, the one that it is in flight with.
    """

    state: str
    payload: bytes = b""
    ahead: int | None = None
    at: float | None = None
    why: str = ""
    tries: int | None = None
    worker: str = ""


#: Where a start request is that was accepted, and of which nothing else is known: it was not to be
#: filtered, most often.
STARTED = Place("done", why="a start request; its page is not seen, and crawled if it is found")
NEVER_SEEN = Place("never seen")


#: The numbers in :class:`Counts` that are of no state.
_NO_STATES = frozenset(("accepted", "memory_only", "undecided", "seen"))


@dataclass(frozen=True, slots=True)
class Counts:
    """How many requests are in which state.

    :ivar accepted: all that were ever accepted by this job, in all its runs.
    :ivar memory_only: of those that are left, how many live in memory only.
    :ivar undecided: entries that were taken and are in none of these states yet.
    :ivar seen: how many fingerprints the duplicates filter holds; ``None``: that is not known.
    """

    accepted: int = 0
    pending: int = 0
    leased: int = 0
    done: int = 0
    dead: int = 0
    delayed: int = 0
    failed: int = 0
    memory_only: int = 0
    undecided: int = 0
    seen: int | None = None

    @property
    def left(self) -> int:
        """How many are still to be worked on."""
        return self.pending + self.leased + self.delayed

    @property
    def unaccounted(self) -> int:
        """Requests that were accepted and are in no state: 0, or something was lost."""
        states = self.__dataclass_fields__.keys() - _NO_STATES
        accounted: int = sum(getattr(self, state) for state in states)
        return self.accepted - accounted
