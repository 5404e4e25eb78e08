"""What the keys of a crawl on the server are called, and where a fingerprint is in them."""

from __future__ import annotations

from binascii import hexlify
from collections.abc import Callable, Iterator
from functools import lru_cache
from hashlib import blake2b

from ..store.seen import digest_of

_HASH, _ZSET, _SET, _LIST = b"hash", b"zset", b"set", b"list"
#: The first keys of each call, in the order of ``batch/entering.lua``, and their types.
FIXED = {
    b"meta": _HASH,
    b"pending": _ZSET,
    b"ready": _ZSET,
    b"busy": _HASH,
    b"workers": _HASH,
    b"deadlines": _ZSET,
    b"feeding": _ZSET,
    b"dead": _HASH,
    b"suspects": _HASH,
    b"heard": _ZSET,
    b"delayed": _ZSET,
    b"failed": _ZSET,
    b"resting": _ZSET,
    b"slots": _HASH,
    b"open": _HASH,
    b"downloaded": _SET,
    b"budgets": _HASH,
}
#: All keys with names of their own, and their types: batches touch no history.
TYPES = {**FIXED, b"history": _HASH, b"samples": _LIST}

#: The greatest sequence number: that of :file:`batch/entering.lua`.
LAST_SEQUENCE = 1 << 52


# Most requests are of few slots.
@lru_cache(maxsize=4_096)
def slot_id_of(name: str) -> bytes:
    """The slot *name* on the server.  Two that have the same digest share a queue, no more."""
    return blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest()


def field_of(seen_key: bytes) -> bytes:
    """The field of a seen key in its bucket: an integer, which a listpack stores in 8 bytes."""
    return b"%d" % int.from_bytes(seen_key[2:], "big", signed=True)


class Keys:
    """The keys of a crawl, of which there is one partition so far."""

    def __init__(self, crawl: str) -> None:
        self._prefix = prefix = f"altsched:{{{crawl}:0}}:".encode("utf-8", "surrogatepass")
        self.fixed = [prefix + name for name in FIXED]
        self.meta, self.pending, self.ready, _, self.workers, self.deadlines = self.fixed[:6]
        self.dead, self.suspects, self.heard, self.delayed, self.failed = self.fixed[7:12]
        self.resting, self.slots = self.fixed[12:14]
        self.budgets = self.fixed[16]
        self.named = [prefix + name for name in TYPES]
        self.history, self.samples = self.named[-2:]
        #: What all workers of the crawl keep of a fingerprint.
        self.seen_key_of: Callable[[bytes], bytes] = digest_of
        #: How often the crawl was restarted with what it had seen.
        self.restarts = 0

    @staticmethod
    def mark_of(crawl: bytes) -> bytes:
        """What of a crawl's id is in the names of its buckets: one with the same has the same."""
        return crawl[:3]

    def leases(self, token: bytes) -> bytes:
        return self._prefix + b"leases:" + token

    def bucket(self, crawl: bytes, seen_key: bytes) -> bytes:
        """Where a seen key is, in the crawl with this id: one that is restarted has other buckets.

        65,536 buckets serve 20 million URLs.
        """
        number = hexlify(seen_key[:2])
        return b"%sseen:%s:%s" % (self._prefix, hexlify(self.mark_of(crawl)), number)

    def buckets(self, crawl: bytes) -> Iterator[bytes]:
        """All keys in which seen keys of a crawl can be."""
        return (self.bucket(crawl, number.to_bytes(2, "big")) for number in range(256**2))
