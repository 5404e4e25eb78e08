"""What is new to the frontier, until the server has decided on it."""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from collections import Counter, deque
from heapq import heappop, heappush
from itertools import chain

from ..changes import Kind
from ..clock import Clock
from ..contract import Verdict
from ..entry import Entry, Lease
from ..events import OnEvent, Refused
from ..options import Options
from ..store.records import encode_claim
from ..store.seen import digest_of_claim
from ..store.states import encode_value
from .ages import WorkerAges
from .batches import Addition
from .keys import slot_id_of
from .stream import Stream

#: Bytes of a request above which it stays on its worker: the server serves no other client while it
#: takes one in, and no client of Redis may send more than 512 MB at once.
MOST_BYTES = 16 * 1024 * 1024
#: A threshold for pages of earlier passes, whenever they were finished.
_OF_ANY_AGE = math.inf


class Known:
    """Seen keys that the server is known to have: most duplicates need not be asked for.

    Those that were asked for longest ago are forgotten first: at least *limit* are kept, at most
    twice as many.  Half a million take 38 MB.
    """

    def __init__(self, limit: int = 250_000) -> None:
        self._limit = limit
        self._recent: set[bytes] = set()
        self._older: set[bytes] = set()

    def __contains__(self, seen_key: bytes) -> bool:
        if seen_key in self._recent:
            return True
        if seen_key in self._older:
            self.add(seen_key)
            return True
        return False

    def add(self, seen_key: bytes) -> None:
        self._recent.add(seen_key)
        if len(self._recent) >= self._limit:
            self._older, self._recent = self._recent, set()

    def discard(self, seen_key: bytes) -> None:
        self._recent.discard(seen_key)
        self._older.discard(seen_key)

    def clear(self) -> None:
        """Ask the server again: seen keys were removed there."""
        self._recent.clear()
        self._older.clear()


class MemoryOnly:
    """Requests that cannot be encoded: they stay on this worker.

    :ivar pending: beginning of the order key, place, and the request, the next one first.
    :ivar delayed: when each is due, in the clock's monotonic seconds; which came first; the
        beginning of its order key; whether of equals the last is the first; the request.  A heap.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.pending: list[tuple[bytes, int, Entry]] = []
        self.delayed: list[tuple[float, int, bytes, bool, Entry]] = []
        self.accepted = self.leased = self._places = 0
        self.ended: Counter[Kind] = Counter()

    def add(self, level: bytes, inverted: bool, entry: Entry) -> None:
        self.accepted += 1
        self._places += 1
        if entry.delay is not None:
            wait = max(entry.delay.seconds, entry.delay.until - self._clock.wall())
            due = self._clock.monotonic() + wait
            heappush(self.delayed, (due, self._places, level, inverted, entry))
        else:
            self._put(level, inverted, entry)

    def _put(self, level: bytes, inverted: bool, entry: Entry) -> None:
        place = -self._places if inverted else self._places
        insort(self.pending, (level, place, entry))

    def take_due(self) -> None:
        """Make those pending that are due."""
        while self.delayed and self.delayed[0][0] <= self._clock.monotonic():
            *_, level, inverted, entry = heappop(self.delayed)
            self._places += 1
            self._put(level, inverted, entry)

    def lease(self) -> Lease:
        """Take out the first one; there is one."""
        self.leased += 1
        *place, entry = self.pending.pop(0)
        return Lease(b"", entry, place)

    def end(self, lease: Lease, kind: Kind) -> None:
        self.leased -= 1
        if kind is Kind.RELEASED:
            insort(self.pending, (*lease.origin, lease.entry))
        else:
            self.ended[kind] += 1

    @property
    def left(self) -> int:
        """How many are not over."""
        return len(self.pending) + len(self.delayed) + self.leased


class Additions:
    """Requests and seen keys on their way into the frontier.

    :ivar ages: how old their pages have to be to be crawled again.
    :ivar undecided: how many requests the server has not decided on.
    :ivar ended: marks of requests in memory only that have ended since the last commit.
    :ivar revision: how often anything was added, or found to be known: what a leased request rests
        on.
    """

    def __init__(self, options: Options, stream: Stream, on_event: OnEvent) -> None:
        self._order, self._skips_started = options.order, options.skip_started
        self.stream, self._on_event = stream, on_event
        self.here = MemoryOnly(options.clock)
        self.ages = WorkerAges(options)
        self._seen_key_of = stream.keys.seen_key_of
        self.known = Known()
        #: Seen key -> number of the addition that is to store it and has no answer yet.
        self._unacknowledged: dict[bytes, int] = {}
        #: Of requests that were seen because of such an addition: the revision then, and its
        #: number.  Both ascend: what is found later concerns all pages that earlier ones do.
        self._relied_on: deque[tuple[int, int]] = deque()
        self.undecided = self.revision = 0
        #: Requests in memory only -> the seen key that is sent with the first commit after their
        #: end: if this worker dies before, they are found again, and must not be known.
        self._unmarked: dict[Entry, bytes] = {}
        self.ended: list[Addition] = []
        #: Fingerprint -> how many start requests with it were added that need not be unique.
        self._claimed: dict[bytes, int] = {}

    def add(self, entry: Entry) -> Verdict:
        """The verdict on a request, as far as it is known here."""
        kind, seen_key, threshold = Kind.ADDED, b"", None
        starts_again = entry.from_start and entry.unique and self.stream.keys.restarts > 0
        if starts_again:
            # It may have been seen before the crawl was restarted, and is crawled once since then.
            self._mark_crawled(self._seen_key_of(entry.fingerprint))
            entry.unique = False
        if entry.unique:
            kind, seen_key = Kind.ADDED_UNIQUE, self._seen_key_of(entry.fingerprint)
            if seen_key in self.known:
                self.revision += 1
                if seen_key in self._unacknowledged:
                    self._rely_on(self._unacknowledged[seen_key])
                return Verdict.SEEN
            if self.ages.are_recorded:
                threshold = self.ages.threshold_of(entry)
        self._encode(entry)
        # It may raise, and nothing may be noted by then.
        level = self._order.level(entry.priority, entry.start)
        if (self._skips_started or starts_again) and entry.from_start and not entry.unique:
            occurrence = 0 if starts_again else self._claimed.get(entry.fingerprint, 0)
            self._claimed[entry.fingerprint] = occurrence + 1
            kind, seen_key = (
                Kind.ADDED_UNIQUE,
                digest_of_claim(
                    encode_claim(entry.fingerprint, occurrence), self.stream.keys.restarts
                ),
            )
        if entry.payload is None:
            if kind is Kind.ADDED:
                self.here.add(*level, entry)
                return Verdict.ADDED
            kind = Kind.CHECKED
            self._unmarked[entry] = seen_key
        self.revision += 1
        self.undecided += 1
        addition = self._addition(kind, seen_key, entry, level)
        addition.threshold = threshold
        self.stream.add(addition)
        if entry.unique:
            # Whatever the server says of this one, an equal one is seen: the page that brings it
            # does not end before this one is stored.
            self.known.add(seen_key)
            self._unacknowledged[seen_key] = addition.number
        return Verdict.UNDECIDED

    @staticmethod
    def _encode(entry: Entry) -> None:
        entry.encode()
        if entry.payload is not None and len(entry.payload) > MOST_BYTES:
            entry.payload = None

    def _addition(
        self, kind: Kind, seen_key: bytes, entry: Entry, level: tuple[bytes, bool]
    ) -> Addition:
        slot = slot_id_of(self._order.slot_of(entry.slot))
        row = b"" if entry.payload is None else encode_value(entry)
        addition = Addition(kind, seen_key, slot, *level, row, entry)
        if entry.delay is not None:
            addition.delay = math.ceil(entry.delay.seconds * 1000)
            addition.not_before = math.ceil(entry.delay.until * 1000)
        return addition

    def follow(self, entry: Entry, unique: bool) -> Addition | None:
        """What the end of another request is to bring; ``None``: it cannot leave this worker."""
        self._encode(entry)
        entry.unique = unique
        if entry.payload is None:
            return None
        level = self._order.level(entry.priority, entry.start)
        return self._addition(Kind.ADDED, b"", entry, level)

    def _rely_on(self, number: int) -> None:
        relied_on = self._relied_on
        while relied_on and relied_on[-1][1] >= number:
            relied_on.pop()
        relied_on.append((self.revision, number))

    @property
    def origin(self) -> tuple[int, int]:
        """What the end of a request rests on that is leased now: see :meth:`rests_after`."""
        return self.revision, self.stream.last_addition

    def rests_after(self, origin: tuple[int, int]) -> int:
        """After which addition those begin that the end of a leased request rests on.

        A request that is seen here may not be stored yet, if the server has no memory for it.

        :param origin: *revision*, and the number of the last addition, when it was leased.
        """
        relied_on = self._relied_on
        if not relied_on:
            return origin[1]
        last_answered = self.stream.last_answered
        while relied_on and relied_on[0][1] <= last_answered:
            relied_on.popleft()
        first = bisect_right(relied_on, origin[0], key=lambda found: found[0])
        return min(origin[1], relied_on[first][1] - 1) if first < len(relied_on) else origin[1]

    def end_here(self, entry: Entry) -> None:
        """A request that was in memory only is over: its seen key is to be known."""
        if (seen_key := self._unmarked.pop(entry, None)) is not None:
            # The row of no request, which says only whether it is unique.
            row = bytes((entry.unique,))
            self.ended.append(Addition(Kind.MARKED, seen_key, row=row, threshold=_OF_ANY_AGE))

    def free_ended(self) -> None:
        """Let the seen keys be sent of what has ended: a commit has saved what it led to."""
        for mark in self.ended:
            self.stream.add(mark)
        self.ended.clear()

    def _mark_crawled(self, seen_key: bytes) -> None:
        """Have a page be seen that is crawled in this pass, whether it was in an earlier one."""
        self.known.add(seen_key)
        self.stream.add(Addition(Kind.MARKED, seen_key, threshold=_OF_ANY_AGE))

    def forget_known(self) -> None:
        """Ask the server again: pages may have become old enough to be crawled again."""
        self.known.clear()
        # Of these, it does not know that they are still to be crawled.
        for seen_key in chain(self._unmarked.values(), (mark.seen_key for mark in self.ended)):
            self.known.add(seen_key)

    def mark_seen(self, fingerprint: bytes) -> bool:
        seen_key = self._seen_key_of(fingerprint)
        if seen_key in self.known:
            return True
        self.known.add(seen_key)
        self.stream.add(Addition(Kind.MARKED, seen_key))
        return False

    def forget(self, fingerprint: bytes) -> bool:
        seen_key = self._seen_key_of(fingerprint)
        was_known = seen_key in self.known
        self.known.discard(seen_key)
        self._unmarked = {entry: key for entry, key in self._unmarked.items() if key != seen_key}
        self.ended = [mark for mark in self.ended if mark.seen_key != seen_key]
        self.stream.add(Addition(Kind.FORGOTTEN, seen_key))
        return was_known

    def settle(self, addition: Addition, *, is_accepted: bool, is_over: bool = False) -> None:
        """Take the server's answer; *is_over*: its download slot may have no more requests."""
        if addition.kind is Kind.FORGOTTEN:
            self.known.discard(addition.seen_key)
            return
        entry = addition.entry
        if entry is None:
            return
        self.undecided -= 1
        if self._unacknowledged.get(addition.seen_key) == addition.number:
            del self._unacknowledged[addition.seen_key]
        if is_over:
            self.known.discard(addition.seen_key)
            self._on_event(Refused(entry, Verdict.OVER_BUDGET))
        elif not is_accepted:
            self._unmarked.pop(entry, None)
            self._on_event(Refused(entry, Verdict.SEEN if entry.unique else Verdict.STARTED))
        elif entry.payload is None:
            self.here.add(addition.level, addition.inverted, entry)

    def reset(self) -> None:
        """Forget what is known, and which start requests were added: the server may have, too."""
        self.known.clear()
        self._claimed.clear()
        self._unacknowledged.clear()
        self._relied_on.clear()
