"""A worker's part in the pace of a shared crawl: its permits, and what it tells of downloads.

The server decides; see ``batch/pace.lua``.  A lease of a slot with a delay is a permit to start its
request within :data:`VALID` seconds since the batch that asked for it was built.  What comes too
late asks for a new one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from ...limit import Limit
from ..clock import Clock
from ..entry import Lease
from ..options import SharedOptions
from ..pace import Pace, Start
from .batches import Reply
from .keys import slot_id_of

#: Seconds for which a permit is valid.
VALID = 0.4
#: In place of the ms ago of a start.
_NEVER_STARTED = -1
#: How many requests a worker leases ahead at first where there is a pace: the permits of more would
#: run out here.
_AHEAD_FIRST = 16


class WorkerPace:
    """The :class:`~..pace.Pace` of one worker.

    :param holds: whether a lease is still this worker's.
    :param flush: has what is told here sent soon.
    :ivar is_on: whether the crawl has a pace.
    """

    def __init__(
        self,
        shared: SharedOptions,
        clock: Clock,
        holds: Callable[[Lease], bool],
        flush: Callable[[], object],
    ) -> None:
        self._own, self._is_unpaced, self._clock = shared.limits, shared.unpaced, clock
        self._holds, self._flush = holds, flush
        self._prefetch = shared.prefetch
        self._ahead = min(_AHEAD_FIRST, shared.prefetch)
        self.crawls_limit: Limit | None = None
        #: Key of a lease -> number of its permit, and until when it is valid.
        self._permits: dict[bytes, tuple[int, float]] = {}
        #: Key of a lease that waits for a permit -> it.
        self._awaited: dict[bytes, Lease] = {}
        self._has_changed = False
        #: Key of a lease that may be downloaded and was not sent yet -> number of its permit.
        self._unsent: dict[bytes, int] = {}
        self._started: list[tuple[bytes, int, float]] = []
        self._downloaded: list[bytes] = []
        #: Slot -> its delay in seconds, as this worker has told it; and those that it has not told.
        self._delays: dict[bytes, float] = {}
        self._told: dict[bytes, float] = {}
        self._deferred: dict[bytes, float] = {}
        #: The last of these in the batch that was built last.
        self._sent: dict[bytes, float] = {}
        #: How many of this worker's own limits of single slots are others than the crawl's.
        self._differing = 0
        self._built_at = 0.0

    @property
    def is_on(self) -> bool:
        return self.crawls_limit is not None

    @property
    def may_begin(self) -> bool:
        """Whether what this worker tells of a slot may give a pace to a crawl that has none."""
        return self._own is not None

    @property
    def ahead(self) -> int:
        """How many requests to lease ahead."""
        return self._ahead if self.is_on else self._prefetch

    @property
    def has_news(self) -> bool:
        """Whether anything waits to be told."""
        return bool(self._started or self._downloaded or self._told or self._deferred)

    @property
    def is_awaited(self) -> bool:
        """Whether a request waits for a permit."""
        return bool(self._awaited)

    def start(self, lease: Lease) -> Start:
        key = lease.key
        if not key:  # it is in memory only, and no other worker knows of it
            return Start.NOW
        permit = self._permits.get(key)
        if not self._holds(lease):
            return Start.NEVER
        if permit is None:
            return Start.NOW
        tick, until = permit
        if self._clock.since_boot() > until:
            self._awaited[key] = lease
            self._flush()
            return Start.LATER
        self._awaited.pop(key, None)
        self._permits[key] = (0, until)
        if tick:
            self._unsent[key] = tick
        return Start.NOW

    def note_sent(self, lease: Lease) -> None:
        tick = self._unsent.pop(lease.key, 0)
        if tick:
            self._started.append((lease.key, tick, self._clock.since_boot()))
            self._flush()

    def note_unstarted(self, key: bytes) -> None:
        """A lease goes back: if its permit was not used, its slot need not rest for that."""
        tick, _ = self._permits.get(key, (0, 0.0))
        if tick:
            self._started.append((key, tick, math.inf))

    def is_too_late(self, lease: Lease) -> bool:
        """Whether a request that is not handed out yet has a permit that has run out."""
        permit = self._permits.get(lease.key)
        return permit is not None and self._clock.since_boot() > permit[1]

    def note_given_back(self) -> None:
        """A permit has run out before its request was handed out: fewer are to be leased ahead."""
        self._ahead = max(1, self._ahead * 3 // 4)

    def note_none_left(self) -> None:
        """All that was leased ahead was handed out in time."""
        self._ahead = min(self._prefetch, self._ahead + max(1, self._ahead // 8))

    def note_downloaded(self, lease: Lease) -> None:
        if self.is_on and lease.key:
            self.note_sent(lease)
            self._permits.pop(lease.key, None)
            self._downloaded.append(lease.key)
            self._flush()

    def withhold(self, keys: Iterable[bytes]) -> None:
        """Have suspects that are not handed out yet count as closed, until each asks anew."""
        if self.is_on:
            for key in keys:
                self._permits[key] = (0, -1.0)
                self._downloaded.append(key)

    def discard(self, key: bytes) -> None:
        """A lease is over, or lost."""
        self._permits.pop(key, None)
        self._unsent.pop(key, None)
        if self._awaited.pop(key, None) is not None:
            self._has_changed = True

    def set_delay(self, slot: str, seconds: float) -> None:
        if self.may_begin:
            key = slot_id_of(slot)
            self._delays[key] = self._told[key] = seconds
            self._flush()

    def defer(self, slot: str, seconds: float) -> None:
        """Have a slot left alone for so long."""
        key, until = slot_id_of(slot), self._clock.since_boot() + seconds
        self._deferred[key] = max(until, self._deferred.get(key, until))
        self._flush()

    def take(self) -> list[object]:
        """What the next batch tells of the pace, with this worker's limits.

        They are what the crawl is to have if no other worker is there: a limit and whether it is
        set, or that it is to have none, or ``False``, and those of single slots; then delays of
        slots in ms; key, number of the permit and ms ago of what was started, or -1 of what will
        not be; keys of what was downloaded; keys that need a permit; and slots to be left alone,
        with a number of ms.
        """
        now = self._built_at = self._clock.since_boot()
        own = self._own
        brought: object = b"off" if self._is_unpaced else False
        slots: list[object] = []
        if own is not None:
            brought = [*_encode(own.default), own.are_set]
            for name, limit in own.slots.items():
                slots += slot_id_of(name), _encode(limit)
        told: list[object] = []
        for key, delay in self._told.items():
            told += key, _milliseconds(delay)
        started: list[object] = []
        for key, tick, at in self._started:
            started += key, tick, int((now - at) * 1000) if at < math.inf else _NEVER_STARTED
        for key, tick in self._unsent.items():
            # This process has stood still since it was let start: it is sent now at the earliest.
            if now > self._permits[key][1]:
                started += key, tick, 0
        deferred: list[object] = []
        for key, until in self._deferred.items():
            deferred += key, max(0, _milliseconds(until - now))
        found: list[object] = [brought, slots, told, started]
        found += self._downloaded, list(self._awaited), deferred
        self._sent = self._deferred
        self._started, self._downloaded, self._told, self._deferred = [], [], {}, {}
        return found

    def take_back(self) -> None:
        """The server has lost the last batches.  What it misses of downloads only slows it."""
        self._told = self._delays.copy()
        self._deferred = self._sent | self._deferred

    def take_change(self) -> bool:
        """Whether anything has changed for what waits, since the last call."""
        has_changed, self._has_changed = self._has_changed, False
        return has_changed

    def take_reply(self, reply: Reply) -> None:
        """Take permits, and the crawl's limits."""
        until = self._built_at + VALID
        for (key, _), tick in zip(reply.leases, reply.ticks, strict=False):
            if tick:
                self._permits[key] = (tick, until)
        for key, tick in reply.permits:
            if key in self._permits:
                self._permits[key] = (tick, until)
        self.crawls_limit = None
        if reply.limits:
            delay, jitter, cap, differing = reply.limits
            self.crawls_limit = Limit(delay / 1000, jitter / 1000, cap)
            self._differing = self._differing or differing
        self._has_changed |= bool(reply.permits)

    def describe_difference(self) -> tuple[str, str] | None:
        """The crawl's limits and this worker's, if those are others."""
        theirs, own = self.crawls_limit, self._own
        if theirs is None:
            return None
        if own is None:
            return str(theirs), "that each worker has a pace of its own"
        if _encode(theirs) != _encode(own.default):
            return str(theirs), str(own.default)
        if self._differing:
            return (
                "other limits for single ones",
                f"DOWNLOAD_SLOTS, of which {self._differing} differ",
            )
        return None


def _milliseconds(seconds: float) -> int:
    return round(seconds * 1000)


def _encode(limit: Limit) -> list[int]:
    return [_milliseconds(limit.delay), round(limit.jitter * 1000), limit.cap]


if TYPE_CHECKING:
    _conforms: type[Pace] = WorkerPace
