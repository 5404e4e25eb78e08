"""What a worker has leased: fetched ahead, handed out, or withheld as a suspect."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence

from ..entry import Lease
from ..events import LeaseUnrecorded, OnEvent
from ..store.lease_log import ALONE, LEASED, LeaseLog, NullLeaseLog
from ..suspects import Suspects
from .memory_only import MemoryOnly


class Leases:
    """The leases of one worker, in the order in which they are given out.

    A suspect is given out when the server knows of it, so that the server can tell whom to blame if
    nobody else can.

    :param here: requests that no server has.
    :param log: where leases are recorded.
    :param give_up: makes a dead letter of a lease that is given out, for a reason.
    :ivar by_key: all that the server has leased to this worker.
    :ivar fetched: those of them that nobody has asked for yet.
    :ivar given: how many are given out and not over, those of *here* included.
    """

    def __init__(
        self,
        here: MemoryOnly,
        suspects: Suspects,
        log: LeaseLog | NullLeaseLog,
        give_up: Callable[[Lease, str], None],
        on_event: OnEvent,
    ) -> None:
        self.by_key: dict[bytes, Lease] = {}
        self.fetched: deque[Lease] = deque()
        self.given = 0
        self._here = here
        self._suspects = suspects
        self._log = log
        self._give_up = give_up
        self._on_event = on_event
        #: A suspect that is given out next, and whether the server knows.
        self._announced: Lease | None = None
        self._is_known = False

    def take(self, lease: Lease) -> None:
        """Take what was leased."""
        self.by_key[lease.key] = lease
        self.fetched.append(lease)

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

    def hand_out(self, lease: Lease, what: int = LEASED) -> Lease:
        """Record that somebody works on it now."""
        self.given += 1
        try:
            self._log.note(lease.entry.fingerprint, what)
        except OSError:
            self._on_event(LeaseUnrecorded())
        return lease

    def end(self, lease: Lease) -> bool:
        """One that was given out is over; whether it was the one that was leased alone."""
        self.given -= 1
        self._log.note_over(lease.entry.fingerprint)
        return self._suspects.matters and self._suspects.note_end(lease)

    def lose(self, key: bytes) -> Lease | None:
        """Let go of one that is this worker's no longer, if it was."""
        if self._suspects.matters:
            self._suspects.discard(key)
        return self.by_key.pop(key, None)

    def given_out(self) -> Iterator[Lease]:
        """Those of the server's that are given out and not over, or lost."""
        waiting = {lease.key for lease in self.fetched} | self._suspects.withheld.keys()
        if self._announced is not None:
            waiting.add(self._announced.key)
        return (lease for key, lease in self.by_key.items() if key not in waiting)

    # Suspects

    @property
    def alone(self) -> bytes:
        """Fingerprint of the one that is worked on alone."""
        lease = self._suspects.alone
        return b"" if lease is None else lease.entry.fingerprint

    @property
    def beside(self) -> bytes:
        """Fingerprints of the suspects that are worked on beside others, one after the other."""
        return b"".join(lease.entry.fingerprint for lease in self._suspects.beside.values())

    @property
    def is_announcing(self) -> bool:
        """Whether the server is to be told of a suspect."""
        return self._announced is not None and not self._is_known

    def mark_announced(self, told: Sequence[bytes]) -> bool:
        """The server knows what a batch said to be worked on; whether it is what was announced.

        :param told: :attr:`alone` and :attr:`beside` as of that batch.
        """
        announced = self._announced
        if announced is not None:
            name, (alone, beside) = announced.entry.fingerprint, told
            starts = range(0, len(beside), len(name))
            self._is_known = name == alone or any(beside.startswith(name, at) for at in starts)
        return self._is_known

    def next_with_suspects(self, *, others: bool) -> Lease | None:
        """As :meth:`next`, and given out, where some may have killed a process.

        :param others: whether anything else is pending on the server.
        """
        suspects = self._suspects
        announced = self._announced
        if announced is not None:
            if not self._is_known and announced.key in self.by_key:
                return None
            self._announced = None
            if self.by_key.get(announced.key) is announced:
                return self.hand_out(announced, ALONE if suspects.is_alone(announced) else LEASED)
            suspects.note_end(announced)
        lease = suspects.next(
            self.next,
            self._give_up_taken,
            in_flight=lambda: self.given > 0,
            others=lambda: others or bool(self.fetched),
        )
        if lease is None:
            return None
        if suspects.is_watched(lease):
            self._announced, self._is_known = lease, False
            return None
        return self.hand_out(lease)

    def _give_up_taken(self, lease: Lease, reason: str) -> None:
        self.given += 1
        self._give_up(lease, reason)
