"""What a worker has leased: fetched ahead, handed out, or withheld as a suspect."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence

from ..changes import Kind
from ..entry import DeadLetter, Entry, Lease
from ..events import LeaseLost, OnEvent
from ..store.states import decode_value
from ..suspects import Suspects
from .additions import Additions
from .batches import Addition, Ending
from .keys import slot_id_of
from .pace import WorkerPace


class Leases:
    """The leases of one worker, in the order in which they are handed out.

    A suspect is handed out when the server knows of it, and can tell which request to blame if this
    worker cannot.

    :ivar by_key: all that the server has leased to this worker.
    :ivar fetched: those of them that were not asked for yet.
    :ivar given: how many are handed out and not over, those in memory only included.
    """

    def __init__(
        self, additions: Additions, suspects: Suspects, pace: WorkerPace, on_event: OnEvent
    ) -> None:
        self.by_key: dict[bytes, Lease] = {}
        self.fetched: deque[Lease] = deque()
        self.given = 0
        self._additions, self._here = additions, additions.here
        self._suspects, self._pace, self._on_event = suspects, pace, on_event
        #: Keys of suspects that are withheld, as the server was told.
        self._withheld: frozenset[bytes] = frozenset()
        #: A suspect that is handed out next, and whether the server knows.
        self._announced: Lease | None = None
        self._is_known = False

    def take(self, rows: Iterable[tuple[bytes, bytes]]) -> None:
        """Take keys and rows of what was leased; an empty row has expired since."""
        for key, row in rows:
            if row:
                if key in self.by_key:
                    # It has expired unnoticed, and been leased to this worker once more.
                    self.lose(key)
                self.by_key[key] = lease = Lease(key, decode_value(row), self._additions.origin)
                self.fetched.append(lease)

    def next(self) -> Lease | None:
        """Take out the next one, if there is one."""
        fetched, pending = self.fetched, self._here.pending
        while fetched:
            first = fetched[0]
            if pending and pending[0][0] <= first.key[8 : 8 + len(pending[0][0])]:
                break
            fetched.popleft()
            if self.by_key.get(first.key) is not first:
                continue
            if not self._pace.is_too_late(first):
                return first
            self._pace.note_given_back()
            self._return(first)
        return self._here.lease() if pending else None

    def _return(self, lease: Lease) -> None:
        """Have one put back with the next batch that was not asked for yet."""
        self._pace.note_unstarted(lease.key)
        self._drop(lease.key)
        self._additions.stream.give_back(lease.key, lease.entry)

    def return_fetched(self) -> None:
        """Have all put back that were not asked for yet."""
        for lease in self.fetched:
            if self.by_key.get(lease.key) is lease:
                self._return(lease)
        self.fetched.clear()

    def in_order(self) -> Iterator[tuple[bytes, Entry]]:
        """Slot id and request of those that :meth:`next` would take out; none is."""
        pending = deque(self._here.pending)
        for lease in self.fetched:
            while pending and pending[0][0] <= lease.key[8 : 8 + len(pending[0][0])]:
                entry = pending.popleft()[-1]
                yield slot_id_of(entry.slot), entry
            if self.by_key.get(lease.key) is lease:
                yield lease.key[:8], lease.entry
        for *_, entry in pending:
            yield slot_id_of(entry.slot), entry

    def hand_out(self, lease: Lease) -> Lease:
        self.given += 1
        self._suspects.note_lease(lease)
        return lease

    def end(
        self, lease: Lease, kind: Kind, reason: bytes = b"", then: Addition | None = None
    ) -> bool:
        """Tell how one has ended, with the next commit; whether it was this worker's still."""
        if self.by_key.get(lease.key) is not lease:
            return False
        if kind is Kind.RELEASED:
            self._pace.note_unstarted(lease.key)
        self._drop(lease.key)
        if kind is not Kind.RELEASED and self._suspects.suspicions:
            self._suspects.clear(lease.entry.fingerprint)
        stream = self._additions.stream
        rests_on = self._additions.rests_after(lease.origin), stream.last_addition
        stream.held.append(Ending(lease.key, kind, *rests_on, reason, lease.entry, then))
        return True

    def give_back_fetched(self) -> int:
        """Let others have what was fetched ahead; how many these are."""
        count = 0
        for lease in self.fetched:
            lease.origin = self._additions.origin  # it rests on nothing
            count += self.end(lease, Kind.RELEASED)
        self.fetched.clear()
        return count

    def lose(self, key: bytes) -> None:
        """One is another worker's now, if it was this one's."""
        if (lost := self._drop(key)) is not None:
            self._on_event(LeaseLost(lost.entry))

    def lose_doubtful(self) -> None:
        """Lose those that anything may have been added by, or found to be known by."""
        for lease in list(self.given_out()):
            if lease.origin[0] != self._additions.revision:
                self.lose(lease.key)

    def _drop(self, key: bytes) -> Lease | None:
        if self._suspects.matters:
            self._suspects.discard(key)
        self._pace.discard(key)
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
        withheld = frozenset(suspects.withheld)
        self._pace.withhold(withheld - self._withheld)
        self._withheld = withheld
        # One that had expired may be worked on still, and watched under the same key.
        if lease and (lease is suspects.alone or suspects.watched.get(lease.key) is lease):
            self._announced, self._is_known = lease, False
            return None
        return None if lease is None else self.hand_out(lease)
