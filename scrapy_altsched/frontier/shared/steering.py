"""What an operator changes in a crawl on a server, while workers may run."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import NamedTuple

from ...errors import SharedError
from ...redis_client import read_script
from ...redis_client.connection import explain_errors
from .batches import PAUSED, Reply, pack
from .content import CrawlReader
from .exchange import script_of
from .keys import field_of, slot_id_of
from .looking import split_delayed
from .queues import split_member
from .stream import NO_PACE, Stream

#: Requests, or seen keys, that a script removes: in a few ms, in which the server serves no other.
_AT_ONCE = 1_000
#: In place of the ms for which a slot is left alone: for no longer.
_UNDEFER = -1


class WaitingRequest(NamedTuple):
    """A request that is pending or delayed.

    :ivar place: number of the key that has it, among those of :file:`discard.lua`.
    :ivar member: how that key has it; *row*: what is stored of it.
    """

    place: int
    member: bytes
    slot: bytes
    row: bytes

    @property
    def fingerprint(self) -> bytes:
        return self.row[2 : 2 + self.row[1]]


class SteeredCrawl(CrawlReader):
    """A crawl on a server that is steered, too."""

    def pause(self) -> bool:
        """Have nothing leased until :meth:`resume`; false: it was paused already."""
        return self._flag("pause") > 0

    def resume(self) -> bool:
        """Have requests leased again; whether it was paused."""
        return self._flag("resume") > 0

    def stop(self) -> int:
        """Tell the workers that run to end; how many these are."""
        return self._flag("stop")

    def _flag(self, verb: str) -> int:
        keys = [self.keys.meta, self.keys.deadlines]
        return self._run("flags.lua", keys, [verb, PAUSED])

    def _run(self, name: str, keys: Sequence[bytes], arguments: Sequence[str | bytes]) -> int:
        """Run a script on the crawl that is there now; SharedError: there is another by then."""
        crawl, *_ = self._look_up()
        with explain_errors(self._client):
            script = self._client.register_script(read_script(__package__, name))
            found = int(script(keys, [crawl, *arguments]))
        if found < 0:
            raise SharedError(
                f"The shared crawl {self.name} was replaced meanwhile: run the command again."
            )
        return found

    def defer(self, slot: str, seconds: float) -> Reply:
        """Leave a slot alone for so long, if the crawl has a pace, which the answer says."""
        return self._tell_of(slot, max(0, round(seconds * 1000)))

    def rests(self, slot: str) -> bool:
        """Whether a slot is left alone, by its delay or otherwise."""
        with explain_errors(self._client):
            return self._client.zscore(self.keys.resting, slot_id_of(slot)) is not None

    def undefer(self, slot: str) -> Reply:
        """Leave a slot alone no longer than its delay, as for :meth:`defer`."""
        return self._tell_of(slot, _UNDEFER)

    def _tell_of(self, slot: str, milliseconds: int) -> Reply:
        return self._visit([*NO_PACE[:-1], [slot_id_of(slot), milliseconds]])

    def _visit(self, pace: Sequence[object] = NO_PACE, times: int = 1) -> Reply:
        """Join it and leave at once, as a worker that brings nothing; the last answer."""
        crawl, *_ = self._look_up()
        stream = Stream(self.keys, partial(os.urandom, 16), b"", 1, crawl=crawl)
        with explain_errors(self._client):
            script = script_of(self._client)
            for _ in range(times):
                stream.acknowledge(script(stream.build(leaving=True, pace=pace)))
        return stream.reply

    def finish_again(self) -> None:
        """Have it be finished if nothing is left in it, and no worker is there."""
        # The second visit sees that nothing has happened since the first.
        self._visit(times=2)

    def forget(self, fingerprints: Iterable[bytes]) -> int:
        """Let pages be found again that were seen; how many of them were."""
        crawl, seen_key_of = self.seen_keys()
        rest, count = iter(fingerprints), 0
        while portion := list(islice(rest, _AT_ONCE)):
            keys, chosen = [self.keys.meta], list[object]()
            for seen_key in map(seen_key_of, portion):
                keys.append(self.keys.bucket(crawl, seen_key))
                chosen += len(keys), field_of(seen_key)
            count += self._run("forget.lua", keys, [pack(chosen)])
        return count

    def waiting(self, slot: str | None = None) -> Iterator[WaitingRequest]:
        """All that is pending or delayed; it may be discarded meanwhile.

        :param slot: of what is pending, only what is in the queue of this slot.
        """
        members = self.members() if slot is None else self.queue(slot_id_of(slot))
        for member in members:
            key, row = split_member(member)
            yield WaitingRequest(2, member, key[:8], row)
        for member, _ in self.in_order(self.keys.delayed):
            yield WaitingRequest(4, member, *split_delayed(member))

    def discard(self, chosen: Iterable[WaitingRequest]) -> int:
        """Drop requests, as if they had never been accepted; how many of them waited still."""
        keys = self.keys
        names = [keys.meta, keys.pending, keys.ready, keys.delayed, keys.budgets, keys.suspects]
        rest, count = iter(chosen), 0
        while portion := list(islice(rest, _AT_ONCE)):
            packed = [
                [it.place, it.member, it.slot, bool(it.row[0] & 1), it.fingerprint]
                for it in portion
            ]
            count += self._run("discard.lua", names, [pack(packed)])
        return count
