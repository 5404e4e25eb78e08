"""A request as a frontier sees it, the right to work on it, and how many there are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


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
    :ivar from_start: whether ``Spider.start()`` itself yielded it: a resumed job may skip it.
    """

    __slots__ = (
        "fingerprint",
        "from_start",
        "payload",
        "priority",
        "request",
        "slot",
        "start",
        "unique",
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
        from_start: bool = False,
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
        self.from_start = from_start

    def encode(self) -> None:
        """Fill in what only an accepted request needs.

        A frontier calls it once, when it knows that the entry is not refused and before anything
        is recorded: most of what a crawl adds are duplicates, which must not cost an encoding.
        """

    def __repr__(self) -> str:
        return f"<Entry {self.fingerprint.hex()} slot={self.slot!r} priority={self.priority}>"


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
