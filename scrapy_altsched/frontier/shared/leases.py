"""What a worker has leased: fetched ahead, handed out, or withheld as a suspect."""

from __future__ import annotations

from bisect import insort
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence

from ..changes import Kind
from ..dead_letter import DeadLetter
from ..entry import Entry, Lease
from ..suspects import Suspects


class MemoryOnly:
    """Requests that cannot be encoded: they stay on this worker.

    :ivar pending: beginning of the order key, place, and the request, the next one first.
    """

    def __init__(self) -> None:
        self.pending: list[tuple[bytes, int, Entry]] = []
        self.accepted = self.leased = 0
        self.ended: Counter[Kind] = Counter()

    def add(self, level: bytes, inverted: bool, entry: Entry) -> None:
        self.accepted += 1
        place = -self.accepted if inverted else self.accepted
        insort(self.pending, (level, place, entry))

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
        return len(self.pending) + self.leased


class Leases:
    """The leases of one worker, in the order in which they are handed out.

    A suspect is handed out when the server knows of it, and can tell which request to blame if this
    worker cannot.

    :ivar by_key: all that the server has leased to this worker.
    :ivar fetched: those of them that were not asked for yet.
    :ivar given: how many are handed out and not over, those of *here* included.
    """

    def __init__(self, here: MemoryOnly, suspects: Suspects) -> None:
        self.by_key: dict[bytes, Lease] = {}
        self.fetched: deque[Lease] = deque()
        self.given = 0
        self._here = here
        self._suspects = suspects
        #: A suspect that is handed out next, and whether the server knows.
        self._announced: Lease | None = None
        self._is_known = False

    def next(self) -> Lease | None:
        """Take out the next one, if there is one."""
        fetched, pending = self.fetched, self._here.pending
        while fetched:
            first = fetched[0]
            if pending and pending[0][0] <= first.key[8 : 8 + len(pending[0][0])]:
                break
            fetched.popleft()
            if self.by_key.get(first.key) is first:
                return first
        return self._here.lease() if pending else None

    def hand_out(self, lease: Lease) -> Lease:
        self.given += 1
        self._suspects.note_lease(lease)
        return lease

    def lose(self, key: bytes) -> Lease | None:
        """Drop one that is this worker's no longer, if it was."""
        if self._suspects.matters:
            self._suspects.discard(key)
        return self.by_key.pop(key, None)

    def given_out(self) -> Iterator[Lease]:
        """Those of the server's that are handed out and not over, or lost."""
        waiting = {lease.key for lease in self.fetched} | self._suspects.withheld.keys()
        if self._announced is not None:
            waiting.add(self._announced.key)
        return (lease for key, lease in self.by_key.items() if key not in waiting)

    @property
    def is_announcing(self) -> bool:
        return self._announced is not None and not self._is_known

    def mark_announced(self, told: Sequence[bytes]) -> bool:
        """Whether *told*, as in a reply, has what was announced, for the first time."""
        if self._announced is None or self._is_known:
            return False
        name, (alone, watched) = self._announced.entry.fingerprint, told
        starts = range(0, len(watched), len(name))
        self._is_known = name == alone or any(watched.startswith(name, at) for at in starts)
        return self._is_known

    def next_with_suspects(
        self, give_up: Callable[[Lease, DeadLetter], object], *, others: bool
    ) -> Lease | None:
        """As :meth:`next`, and handed out, where some may have killed a process.

        :param others: whether anything else is pending on the server.
        """
        suspects, announced = self._suspects, self._announced
        if announced is not None:
            held = self.by_key.get(announced.key)
            if held is not None and not self._is_known:
                return None
            self._announced = None
            if held is announced:
                return self.hand_out(announced)
            suspects.discard_lease(announced)
        lease = suspects.next(
            self.next,
            give_up,
            in_flight=self.given > 0,
            others=lambda: others or bool(self.fetched),
        )
        if lease is not None and (lease is suspects.alone or lease.key in suspects.watched):
            self._announced, self._is_known = lease, False
            return None
        return None if lease is None else self.hand_out(lease)
