"""The numbered batches of one worker, in order, one in flight.

A batch is encoded once and sent again unchanged until it is answered: the server knows by its
number whether it was applied, as with Kafka's idempotent producer (KIP-98).  Should the server not
know the number before it, it has lost history: then the worker begins a new stream under a new
token, and its first batch says which leases it keeps.

Nothing here waits, or knows the time.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence, Sized
from dataclasses import replace
from itertools import accumulate, chain
from typing import NamedTuple

from ..changes import Kind
from ..entry import Entry
from .batches import NUMBERS, PROTOCOL, Addition, Ending, Reply, Status, pack
from .keys import Keys, field_of

#: Most additions and most endings in a batch: the server serves no other client meanwhile.
_MOST = 500
#: Bytes of requests in a batch, if it is more than one.
_MOST_BYTES = 4 * 1024 * 1024
#: What is told of the pace where there is none.
NO_PACE: Sequence[object] = (False, (), (), (), (), (), ())
#: Additions in a batch while the server has no memory: enough to see whether it has again.
_PROBE = 8


class EncodedBatch(NamedTuple):
    """What is sent, and every key that it touches; *leaving*: whether it is a worker's last."""

    keys: list[bytes]
    blob: bytes
    leaving: bool = False


class Stream:
    """What a worker has to send, and what of it was acknowledged.

    :param about: what the crawl is to be created with, if it does not exist yet.
    :param timeout: ms for which leases last after a batch.
    :param crawl: the crawl's id, if it is known.
    :param earlier: tokens of the same worker before it was started again, or has begun a new
        stream; it takes their leases.
    :param suspected: fingerprints of which the first answer says what is held against them.
    :param restarts: whether a crawl that is finished starts again from nothing; ``b"stopped"``:
        also one that is not, while no worker is there.
    :param keep_failed: how many failed requests are kept.
    :param budget: how many unique requests of a download slot are accepted; 0: all.
    :param records_ages: whether the crawl is to record from now on when pages are finished.
    :ivar held: endings that are not sent before :meth:`release_endings`.
    :ivar judged: fingerprint -> what is held against it from now on.
    :ivar reply: what the server answered last.
    :ivar is_full: whether the server had no memory for additions.
    :ivar has_asked: whether the batch in flight, or the last one, asked for something to lease.
    """

    def __init__(
        self,
        keys: Keys,
        new_token: Callable[[], bytes],
        about: bytes,
        timeout: int,
        crawl: bytes = b"",
        earlier: Sequence[bytes] = (),
        suspected: Collection[bytes] = (),
        restarts: bool | bytes = False,
        keep_failed: int = 100_000,
        budget: int = 0,
        *,
        records_ages: bool = False,
    ) -> None:
        self.keys, self.crawl, self.earlier = keys, crawl, list(earlier)
        self._new_token, self._about, self._timeout = new_token, about, timeout
        self._suspected, self._restarts = list(suspected), restarts
        self.keep_failed, self._budget, self._records_ages = keep_failed, budget, records_ages
        self.reply = Reply(Status.OK)
        self.token = new_token()
        self._number = 0
        #: Keys of the leases that the first batch of a stream keeps; ``None``: all.
        self._kept: list[bytes] | None = None
        self.judged: dict[bytes, bytes] = {}
        self.last_addition = 0
        self._additions: list[Addition] = []
        self.held: list[Ending] = []
        self._free: deque[Ending] = deque()
        self._sent: tuple[list[Addition], list[Ending], dict[bytes, bytes]] | None = None
        #: Whether additions wait until :meth:`try_again`, and the endings that rest on them.
        self.is_full = self._is_resting = False
        self._resting: list[Ending] = []
        self.has_asked = False

    @property
    def is_in_flight(self) -> bool:
        return self._sent is not None

    @property
    def waiting(self) -> int:
        """How many changes could be sent now."""
        additions = 0 if self._is_resting else len(self._additions)
        return additions + len(self._free) + len(self.judged)

    @property
    def unacknowledged(self) -> int:
        """How many changes have no answer yet, those that must not be sent yet included."""
        endings = len(self.held) + len(self._free) + len(self._resting)
        sent: Iterable[Sized] = self._sent or ()
        in_flight = sum(map(len, sent))
        return len(self._additions) + endings + len(self.judged) + in_flight

    @property
    def last_answered(self) -> int:
        """Number of an addition; it and all before it are answered."""
        first = (self._sent[0] if self._sent else None) or self._additions
        return first[0].number - 1 if first else self.last_addition

    def add(self, addition: Addition) -> None:
        self.last_addition += 1
        addition.number = self.last_addition
        self._additions.append(addition)

    def give_back(self, key: bytes, entry: Entry) -> None:
        """Have a lease put back that nothing rests on: with the next batch, before any commit."""
        last = self.last_addition
        self._free.append(Ending(key, Kind.RELEASED, last, last, b"", entry))

    def release_endings(self) -> None:
        self._free += self.held
        self.held.clear()

    def try_again(self) -> None:
        """Let additions be sent for which the server had no memory, some of them at first."""
        self._is_resting = False
        self._free.extendleft(reversed(self._resting))
        self._resting.clear()

    def build(
        self,
        *,
        want: int = 0,
        feeding: bool | bytes = False,
        leaving: bool = False,
        alone: bytes = b"",
        watched: bytes = b"",
        pace: Sequence[object] = NO_PACE,
    ) -> EncodedBatch:
        """The next batch; none may be in flight.

        :param want: how many requests to lease.
        :param feeding: whether this worker has more to bring; ``b"waits"``: it will have as long as
            it lives, and a finished crawl is reopened.
        :param leaving: whether this worker ends: what it has leased goes back.
        :param alone: fingerprint of a request that is worked on alone, from the answer on;
            *watched*: of suspects next to others, likewise, joined.
        :param pace: see :meth:`.pace.Pace.take`.
        """
        assert self._sent is None
        self.has_asked = want > 0
        sent = self._take_additions(), self._take_endings(), self.judged
        self._sent = additions, endings, judged = sent
        self.judged = {}
        self._number += 1
        keys = [*self.keys.fixed, self.keys.leases(self.token)]
        places: dict[bytes, int] = {}

        def place(key: bytes) -> int:
            keys.append(key)
            return places.setdefault(key, len(keys))

        adopt: object = False
        if self._number == 1 and self.earlier:
            old: list[object] = []
            for token in self.earlier:
                old += token, place(self.keys.leases(token))
            adopt = [old, False if self._kept is None else self._kept, self._suspected]
        changes: list[object] = []
        for addition in additions:
            at, field = 0, b""
            if addition.kind is not Kind.ADDED:
                bucket = self.keys.bucket(self.crawl, addition.seen_key)
                at = places.get(bucket) or place(bucket)
                field = field_of(addition.seen_key)
            changes += addition.number, NUMBERS[addition.kind], at, field
            changes += addition.request()
        ends: list[object] = []
        for ending in endings:
            ends += ending.key, NUMBERS[ending.kind], ending.after, ending.upto, ending.reason
            ends.append(ending.then is not None and ending.then.request())
        aging: object = False
        if self._records_ages or self.reply.time >= 0:
            thresholds: list[object] = []
            for addition in additions:
                if addition.threshold is not None:
                    thresholds += addition.number, addition.threshold
            finishing: list[object] = []
            for ending in endings:
                if ending.finishes_page:
                    seen_key = self.keys.seen_key_of(ending.entry.fingerprint)
                    bucket = self.keys.bucket(self.crawl, seen_key)
                    at = places.get(bucket) or place(bucket)
                    finishing += ending.key, at, field_of(seen_key)
            aging = [thresholds, finishing]
        reply = self.reply
        is_idle = not (feeding or reply.pending or reply.leased or reply.feeders)
        observed = reply.version if is_idle else -1
        overdue = [reply.late, place(self.keys.leases(reply.late))] if reply.late else False
        assert self.crawl or not additions
        create = False if self.crawl else [self.token, self._about, self._restarts]
        whose = [PROTOCOL, self.crawl, self.token, self._number]
        batch = [*whose, feeding, want, changes, ends, adopt, observed, overdue, self._timeout]
        batch += create, leaving, [alone, watched], list(chain(*judged.items())), self.keep_failed
        batch += pace, self._budget, aging
        return EncodedBatch(keys, pack(batch), leaving)

    def _take_additions(self) -> list[Addition]:
        if self._is_resting:
            return []
        taken = self._additions[: _PROBE if self.is_full else _MOST]
        sizes = list(accumulate(len(addition.row) for addition in taken))
        count = max(1, bisect_right(sizes, _MOST_BYTES))
        taken = self._additions[:count]
        del self._additions[:count]
        return taken

    def _take_endings(self) -> list[Ending]:
        taken: list[Ending] = []
        kept: list[Ending] = []
        while self._free and len(taken) < _MOST:
            ending = self._free.popleft()
            (kept if self._depends_on_unsent(ending) else taken).append(ending)
        self._keep(kept)
        return taken

    def _keep(self, endings: list[Ending]) -> None:
        """Send endings later: with the next batch, or when what they rest on may be sent."""
        if self._is_resting:
            self._resting += endings
        else:
            self._free.extendleft(reversed(endings))

    def _depends_on_unsent(self, ending: Ending) -> bool:
        unsent = self._additions
        first = bisect_right(unsent, ending.after, key=lambda addition: addition.number)
        return first < len(unsent) and unsent[first].number <= ending.upto

    def acknowledge(self, reply: Reply) -> tuple[list[Addition], list[Ending]]:
        """Take the answer to the batch in flight; what was not applied is sent again.

        :return: additions that are decided on; endings that are over: stored, or void.
        """
        assert self._sent is not None
        (additions, endings, _), self._sent = self._sent, None
        self.earlier.clear()
        self.reply, self.crawl = reply, reply.crawl
        full, skipped = set(reply.full), set(reply.skipped)
        if additions:
            self.is_full = self._is_resting = bool(full)
        self._additions[:0] = [addition for addition in additions if addition.number in full]
        self._keep([ending for ending in endings if ending.key in skipped])
        over = [ending for ending in endings if ending.key not in skipped]
        if reply.void:
            over += self._drop(set(reply.void))
        return [addition for addition in additions if addition.number not in full], over

    def _drop(self, void: set[bytes]) -> list[Ending]:
        """Take out endings whose leases the server has lost: others may have their keys soon."""
        dropped = []
        for queue in (self._free, self.held, self._resting):
            endings = list(queue)
            queue.clear()
            queue.extend(ending for ending in endings if ending.key not in void)
            dropped += [ending for ending in endings if ending.key in void]
        return dropped

    def restart(self, kept: Collection[bytes]) -> None:
        """Begin a new stream, after the server has lost the end of this one.

        Additions without an answer are sent again.  Endings are dropped, and so must be the leases
        they end: what they rest on may be lost.  Those with keys in *kept* stay this worker's.
        """
        if self._sent is not None:
            self._additions[:0] = self._sent[0]
            self.judged = self._sent[2] | self.judged
        self._sent = None
        for queue in (self._free, self.held, self._resting):
            queue.clear()
        self.earlier.append(self.token)
        self.token = self._new_token()
        self._number = 0
        self._kept = list(kept)
        # At this version it was over once, in a history that is lost.
        self.reply = replace(self.reply, version=-1)
