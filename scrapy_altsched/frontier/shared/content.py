"""A crawl on a server as a whole: all that it consists of, and one made of that.

What the keys hold is said in :file:`batch/entering.lua`.  A crawl that is being filled has a
protocol that no worker speaks, until all of it is there.
"""

from __future__ import annotations

import json
import os
import struct
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from typing import Any

import redis

from ...errors import ConfigError, SharedError
from ...redis_client.connection import explain_errors
from ..content import (
    Claim,
    Content,
    Head,
    Part,
    SeenPage,
    SlotBudget,
    StoredRequest,
    Suspect,
    place_of,
)
from ..queue.order import Order, size_of_int
from ..store.records import SHARED_CLAIMS, Counters, Suspicion
from ..store.seen import BEGINNINGS, DIGESTS, FINGERPRINTS, KEY_MAKERS, digest_of_claim
from ..store.states import (
    DEAD,
    DELAYED,
    FAILED,
    PENDING,
    State,
    decode_failed_key,
    decode_value,
    encode_value,
)
from .batches import FILLING, UNPACED, pack
from .keys import LAST_SEQUENCE, field_of, slot_id_of
from .looking import CrawlView
from .operating import HASHED, SharedCrawl

#: Buckets of seen keys that are read at once, and parts that are written.
_READ_AT_ONCE, _WRITTEN_AT_ONCE = 500, 1_000
#: Before the token of a worker, among what is held against requests.
_WAS, _WAS_SIZE = b"was:", 4 + 16
_SIZE = struct.Struct(">I")
_SEQUENCE = struct.Struct(">Q")
#: Begins it, if there is neither a crawl nor a rest of one.
_BEGIN = """if redis.call('EXISTS', unpack(KEYS)) > 0 then return 0 end
redis.call('HSET', KEYS[1], 'crawl', ARGV[1], 'protocol', ARGV[2], 'about', ARGV[3])
return 1"""
#: Lets workers see it, if it is still there.
_END = """if redis.call('HGET', KEYS[1], 'crawl') ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], unpack(ARGV, 2))
return 1"""


class CrawlReader(CrawlView):
    """A crawl that is read as a whole, while no worker changes it."""

    def content(self, note: str) -> Content:
        """All of it; SharedError, while the parts are gone through: it was changed meanwhile.

        :param note: the name of the note about fingerprints.
        """
        before = self._version()
        crawl, about, state = self._look_up("about", "state")
        counts = self.look().counts
        known = json.loads(about)
        counters = Counters(
            accepted=counts.accepted,
            done=counts.done,
            dead=counts.dead,
            delayed=counts.delayed,
            failed=counts.failed,
            next_sequence=max(1, int(before[-1] or 0)),
            run=1,
            finished=state == b"finished",
        )
        keys = DIGESTS if known["fingerprints"].endswith(HASHED) else BEGINNINGS
        notes = {note: known["fingerprints"].removesuffix(HASHED).encode()}
        head = Head(known["spider"], Order.parse(known["order"]), keys, counters, notes)
        with explain_errors(self._client):
            if budgets := self._client.hlen(self.keys.budgets):
                head.remarks.append(
                    f"How much of ALTSCHED_SLOT_BUDGET is used is left out ({budgets:,} download"
                    " slots): a server does not know their names."
                )
        total = counts.left + counts.failed + counts.dead + counts.accepted
        return Content(head, self._parts(crawl, before), total)

    def _version(self) -> list[Any]:
        return self._look_up("version", "accepted", "done", "dead", "leased", "tick", "sequence")

    def _parts(self, crawl: bytes, before: list[Any]) -> Iterator[Part]:
        for key, row in self.pending():
            yield _held(PENDING, key[8:], row)
        for key, row in self._leases():
            yield _held(PENDING, key[8:], row)
        for member, due in self.in_order(self.keys.delayed):
            # Which is the first of equals, and the slot; the order key lacks its sequence number.
            end = 17 + size_of_int(member[17:]) + 1
            order_key = member[17:end] + member[:8]
            yield _held(DELAYED, order_key, member[end:], at=int(due))
        for key, why, row in self.failed():
            when, pending_key = decode_failed_key(key)
            yield _held(FAILED, pending_key[8:], row, at=when, why=why)
        for key, letter, row in self.read_dead():
            yield _held(DEAD, key[8:], row, why=letter)
        yield from map(SeenPage, self._seen(crawl))
        yield Claim(SHARED_CLAIMS, 1)
        for fingerprint, held in self.scan(self._client.hscan_iter, self.keys.suspects):
            if not (len(fingerprint) == _WAS_SIZE and fingerprint.startswith(_WAS)):
                yield Suspect(fingerprint, Suspicion.parse(held))
        if self._version() != before:
            raise SharedError(
                f"Workers have changed the shared crawl {self.name} while it was read, so that what"
                " was read is of no one moment. Stop its workers, and run this command again; what"
                " they have in flight is pending in the copy."
            )

    def _leases(self) -> Iterator[tuple[bytes, bytes]]:
        with explain_errors(self._client):
            tokens: Any = self._client.hkeys(self.keys.workers)
            for token in tokens:
                yield from self.scan(self._client.hscan_iter, self.keys.leases(token))

    def _seen(self, crawl: bytes) -> Iterator[bytes]:
        buckets = ((number.to_bytes(2, "big"), key) for number, key in self._buckets(crawl))
        while portion := list(islice(buckets, _READ_AT_ONCE)):
            with (
                explain_errors(self._client),
                self._client.pipeline(transaction=False) as together,
            ):
                for _, key in portion:
                    together.hkeys(key)
                found = together.execute()
            for (beginning, _), fields in zip(portion, found, strict=True):
                for number in sorted(map(int, fields)):
                    yield beginning + number.to_bytes(8, "big", signed=True)

    def _buckets(self, crawl: bytes) -> Iterator[tuple[int, bytes]]:
        return enumerate(self.keys.buckets(crawl))


def _held(
    state: State, order_key: bytes, row: bytes, at: int = 0, why: Any = None
) -> StoredRequest:
    entry = decode_value(row)
    entry.priority, entry.start, sequence = place_of(order_key, LAST_SEQUENCE)
    return StoredRequest(state, entry, None, sequence, at, why)


def fill_crawl(
    client: redis.Redis,
    key: str,
    content: Content,
    order: Order,
    note: str,
    *,
    are_sha1: bool,
    words: str | None = None,
) -> None:
    """Make a crawl of *content* on a server: all of it, or nothing.

    :param order: in which its requests are to be; their entries have payloads for servers.
    :param note: the name of the note about fingerprints.
    :param are_sha1: whether all fingerprints are known to be SHA-1 hashes.
    :param words: as for :class:`~.operating.SharedCrawl`.
    :raises SharedError: there is a crawl of that name, or the server cannot be reached, or has no
        memory.  What goes through *content* may raise, too.
    """
    crawl = SharedCrawl(client, key, words)
    filling = _Filling(client, crawl, content.head, order, note, are_sha1=are_sha1)
    filling.begin()
    try:
        while portion := list(islice(content.parts, _WRITTEN_AT_ONCE)):
            filling.write(portion)
        filling.finish()
    except BaseException:  # nothing is to be left of it, whatever has ended it
        with suppress(ConfigError, SharedError):
            filling.discard()
        raise


class _Filling:
    def __init__(
        self,
        client: redis.Redis,
        crawl: SharedCrawl,
        head: Head,
        order: Order,
        note: str,
        *,
        are_sha1: bool,
    ) -> None:
        self.crawl, self._keys = crawl, crawl.keys
        self._client, self._head, self._order = client, head, order
        self._id = os.urandom(16)
        keys = head.keys
        if keys == FINGERPRINTS:
            keys = BEGINNINGS if are_sha1 else DIGESTS
            self._convert = KEY_MAKERS[keys]
        else:
            self._convert = bytes
        self._about = {
            "spider": head.spider,
            "order": str(order),
            "fingerprints": head.notes[note].decode() + (HASHED if keys == DIGESTS else ""),
        }
        #: Slots of the pending requests that are being written.
        self._ready: set[bytes] = set()
        self._counts: Counter[State] = Counter()
        #: How many pages are seen; ``None``: claims to start requests are among them.
        self._seen: int | None = 0

    def begin(self) -> None:
        if self.crawl.find() is not None:
            raise SharedError(
                f"There is a shared crawl {self.crawl.name} already, and two cannot be merged: set"
                " ALTSCHED_SHARED_KEY to another name, or delete it with all that it knows: scrapy"
                f" altsched drop {self.crawl.words}"
            )
        fixed, about = self._keys.fixed, json.dumps(self._about)
        with explain_errors(self._client):
            if not self._client.eval(_BEGIN, len(fixed), *fixed, self._id, FILLING, about):
                raise SharedError(
                    f"Keys of a shared crawl {self.crawl.name} are there, though no crawl is. If no"
                    f" worker has just begun one, delete them: {self._keys.meta.decode()!r} and"
                    " those that begin alike."
                )

    def write(self, parts: list[Part]) -> None:
        """Write parts; SharedError: the server has no memory for them, or cannot be reached."""
        with explain_errors(self._client):
            with self._client.pipeline(transaction=False) as together:
                pages = []  # where the answers are that tell whether one is new
                for part in parts:
                    if isinstance(part, SeenPage):
                        pages.append(len(together))
                    self._add(together, part)
                if self._ready:
                    together.zadd(self._keys.ready, dict.fromkeys(self._ready, 0))
                    self._ready.clear()
                replies = together.execute(raise_on_error=False)
            for reply in replies:
                if isinstance(reply, Exception):
                    raise reply
            if self._seen is not None:
                self._seen += sum(replies[place] for place in pages)

    def _add(self, server: Any, part: Part) -> None:
        keys = self._keys
        match part:
            case StoredRequest():
                self._add_request(server, part)
            case SeenPage():
                self._mark(server, self._convert(part.key))
            case Claim():
                if part.key == SHARED_CLAIMS:  # they are among the seen ones
                    self._seen = None
                else:
                    self._mark(server, digest_of_claim(part.key))
            case Suspect():
                server.hset(keys.suspects, part.fingerprint, part.suspicion.encode())
            case SlotBudget():
                server.hset(keys.budgets, slot_id_of(part.slot), part.accepted)

    def _mark(self, server: Any, seen_key: bytes) -> None:
        # Its age, in minutes since the crawl began.
        server.hset(self._keys.bucket(self._id, seen_key), field_of(seen_key), 0)

    def _add_request(self, server: Any, part: StoredRequest) -> None:
        keys, entry, row = self._keys, part.entry, encode_value(part.entry)
        slot = slot_id_of(self._order.slot_of(part.slot or ""))
        level, inverted = self._order.level(entry.priority, entry.start)
        key = (
            slot
            + level
            + _SEQUENCE.pack(LAST_SEQUENCE - part.sequence if inverted else part.sequence)
        )
        self._counts[part.state] += 1
        if part.state is PENDING:
            server.zadd(keys.pending, {key + row: 0})
            self._ready.add(slot)
        elif part.state is DELAYED:
            member = _SEQUENCE.pack(part.sequence) + bytes((inverted,)) + slot + level + row
            server.zadd(keys.delayed, {member: part.at})
        elif part.state is FAILED:
            member = _SIZE.pack(len(key)) + key + FAILED.join(part.why, row)
            server.zadd(keys.failed, {member: part.at})
        else:
            reason = str(part.why).encode("utf-8", "replace")
            server.hset(keys.dead, key, pack([reason, row]))

    def finish(self) -> None:
        """Let workers see it."""
        counters, counts = self._head.counters, self._counts
        is_open = not counters.finished or counts[PENDING] or counts[DELAYED]
        with explain_errors(self._client):
            seconds, micros = self._client.time()
            fields: dict[Any, Any] = {
                "state": "open" if is_open else "finished",
                "previous": "",
                "created": seconds * 1000 + micros // 1000,
                "accepted": counters.done + counts.total(),
                "done": counters.done,
                "dead": counts[DEAD],
                "leased": 0,
                "version": 1,
                "sequence": counters.next_sequence,
                "tick": 0,
                "epoch": 0,
                "dropped": 0,
                "protocol": UNPACED,
            }
            if self._seen is not None:
                fields["seen"] = self._seen
            values = [it for field in fields.items() for it in field]
            if not self._client.eval(_END, 1, self._keys.meta, self._id, *values):
                raise SharedError(
                    f"The shared crawl {self.crawl.name} was deleted while it was being imported."
                    " Nothing is left of it; to import it, run this command again."
                )

    def discard(self) -> None:
        """Delete what was written, unless another crawl has its name by now."""
        found = self.crawl.find(of_any_version=True)
        if found is not None and found[0] == self._id:
            self.crawl.drop()
        with explain_errors(self._client):
            self.crawl.unlink_seen(self._id)
