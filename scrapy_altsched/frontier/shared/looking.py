"""Looking into a crawl on a server, by commands that change nothing there."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from typing import Any

from ...redis_client.connection import explain_errors
from ..history import Sample
from ..queue.order import Order, size_of_int
from ..store.records import encode_claim
from ..store.seen import beginning_of, digest_of, digest_of_claim
from .keys import field_of, slot_id_of
from .operating import HASHED, SharedCrawl
from .queues import PAST_ALL, SlotQueue, read_queues, split_member
from .sampling import read_samples

#: Requests of a slot that are read at once, and of all slots.
_READ_AT_ONCE, _WALKED_AT_ONCE = 16, 500
#: A load is so much for each leased request, and the tick of the last lease.
_LEASED_ONCE = 1 << 40


def split_delayed(member: bytes) -> tuple[bytes, bytes]:
    """Slot and stored form of a delayed request; IndexError: it is cut short."""
    # 9 bytes for which is the first of equals; the order key lacks its sequence number.
    return member[9:17], member[9 + 8 + size_of_int(member[17:]) + 1 :]


class CrawlView(SharedCrawl):
    """A crawl on a server that is looked into, too."""

    def order(self) -> Order:
        """In which its requests are."""
        return Order.parse(self.about()["order"])

    def history(self) -> list[Sample]:
        """How it stood over its whole life, the oldest sample first."""
        crawl, *_ = self._look_up()
        with explain_errors(self._client):
            return read_samples(self._client, self.keys, crawl)

    def queues(self) -> list[SlotQueue] | None:
        """What is pending in each slot; ``None``: there are too many queues to look at."""
        self._look_up()
        with explain_errors(self._client):
            return read_queues(self._client, self.keys)

    def next_rows(
        self, limit: int, slot: str | None = None
    ) -> Iterator[tuple[bytes, bytes, float | None]]:
        """Key and stored form of pending requests, in the order in which they will be leased.

        :param limit: how many are wanted at most; more may come.
        :param slot: only those of this slot.
        :return: the third is when the slot may be asked again, in seconds since the epoch, if it
            rests; infinity: once one of its downloads is over.
        """
        self._look_up()
        if slot is not None:
            name = slot_id_of(slot)
            with explain_errors(self._client):
                rest = self._client.zscore(self.keys.resting, name)
            for member in self.queue(name):
                yield *split_member(member), None if rest is None else rest / 1000
            return
        for member in self._ready(limit):
            yield *split_member(member), None
        for name, until in self.in_order(self.keys.resting):
            for member in self.queue(name):
                yield *split_member(member), until / 1000

    def pending(self) -> Iterator[tuple[bytes, bytes]]:
        """Key and stored form of all pending requests, in the order of keys."""
        return map(split_member, self.members())

    def members(self) -> Iterator[bytes]:
        """The same, joined as the server has them."""
        start = b"-"
        with explain_errors(self._client):
            while True:
                found: Any = self._client.zrangebylex(
                    self.keys.pending, start, b"+", start=0, num=_WALKED_AT_ONCE
                )
                yield from found
                if len(found) < _WALKED_AT_ONCE:
                    return
                start = b"(" + found[-1]

    def delayed(self) -> Iterator[tuple[float, bytes]]:
        """When each delayed request is due, in seconds since the epoch, and its stored form."""
        for member, due in self.in_order(self.keys.delayed):
            yield due / 1000, split_delayed(member)[1]

    def leased(self) -> Iterator[tuple[str, bytes]]:
        """Token of a worker, and stored form of a request that is in flight with it, of all."""
        with explain_errors(self._client):
            tokens: Any = self._client.hkeys(self.keys.workers)
            for token in tokens:
                for _, value in self.scan(self._client.hscan_iter, self.keys.leases(token)):
                    yield token.hex(), value

    def has_seen(self, fingerprint: bytes) -> bool:
        """Whether a page with this fingerprint was found."""
        crawl, key_of = self.seen_keys()
        return self._has(crawl, key_of(fingerprint))

    def has_started(self, fingerprint: bytes) -> bool:
        """Whether a start request with this fingerprint was accepted that is not filtered."""
        crawl, about = self._look_up("about")
        restarts = json.loads(about).get("restarts", 0)
        return self._has(crawl, digest_of_claim(encode_claim(fingerprint, 0), restarts))

    def _has(self, crawl: bytes, seen_key: bytes) -> bool:
        with explain_errors(self._client):
            found: Any = self._client.hexists(self.keys.bucket(crawl, seen_key), field_of(seen_key))
        return bool(found)

    def seen_keys(self) -> tuple[bytes, Callable[[bytes], bytes]]:
        """The id of the crawl, and what it keeps of a fingerprint."""
        crawl, about = self._look_up("about")
        is_hashed = json.loads(about)["fingerprints"].endswith(HASHED)
        return crawl, digest_of if is_hashed else beginning_of

    def about(self) -> dict[str, str]:
        """What its first worker has said of it: spider, order, and the note about fingerprints."""
        _, about = self._look_up("about")
        known: dict[str, str] = json.loads(about)
        return {**known, "fingerprints": known["fingerprints"].removesuffix(HASHED)}

    def _ready(self, limit: int) -> Iterator[bytes]:
        """Pending requests of slots that may be asked, as :file:`batch/leases.lua` takes them."""
        with explain_errors(self._client):
            found: Any = self._client.zrange(self.keys.ready, 0, limit - 1, withscores=True)
            tick = int(self._client.hget(self.keys.meta, "tick") or 0)
        loads = [(int(load), name) for name, load in found]
        heapify(loads)
        queues = {name: self.queue(name) for _, name in loads}
        while loads:
            load, name = heappop(loads)
            for member in queues[name]:
                yield member
                tick += 1
                heappush(loads, ((load // _LEASED_ONCE + 1) * _LEASED_ONCE + tick, name))
                break

    def queue(self, slot: bytes) -> Iterator[bytes]:
        """Pending requests of the slot with this id, the next one first."""
        start, limit = b"[" + slot, 1
        with explain_errors(self._client):
            while True:
                found: Any = self._client.zrangebylex(
                    self.keys.pending, start, b"[" + slot + PAST_ALL, start=0, num=limit
                )
                yield from found
                if len(found) < limit:
                    return
                start, limit = b"(" + found[-1], _READ_AT_ONCE
