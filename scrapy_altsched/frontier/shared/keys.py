"""What the keys of a crawl on the server are called, and where a fingerprint is in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from hashlib import blake2b

#: Bytes of a fingerprint that are kept: two of 100 million pages share one with a
#: probability of 4e-9.
SEEN_KEY_BYTES = 10
_SHA1_BYTES = 20
#: Fingerprint -> what is kept of it.
SeenKeyOf = Callable[[bytes], bytes]
_SLOT_BYTES = 8
_ID_BYTES = 3
#: Bytes of a seen key that choose its bucket: 65,536 buckets serve 20 million URLs.
_BUCKET_BYTES = 2

_FIXED = {
    b"meta": b"hash",
    b"pending": b"zset",
    b"ready": b"zset",
    b"busy": b"hash",
    b"workers": b"hash",
    b"deadlines": b"zset",
    b"feeding": b"zset",
    b"dead": b"hash",
    b"suspects": b"hash",
    b"heard": b"zset",
}


def seen_key_of(fingerprint: bytes) -> bytes:
    """What is kept of a fingerprint: a digest, as its bytes may all begin alike."""
    return blake2b(fingerprint, digest_size=SEEN_KEY_BYTES).digest()


def seen_key_of_sha1(fingerprint: bytes) -> bytes:
    """What is kept of a fingerprint that is a SHA-1 hash: its beginning.

    Crawls that an older version began keep this of all fingerprints with as many bytes.
    """
    if len(fingerprint) == _SHA1_BYTES:
        return fingerprint[:SEEN_KEY_BYTES]
    return seen_key_of(fingerprint)


def claim_key_of(fingerprint: bytes, occurrence: int) -> bytes:
    """What is kept of the n-th of equal start requests, from 0 on."""
    return blake2b(
        fingerprint + occurrence.to_bytes(4, "big"), digest_size=SEEN_KEY_BYTES, person=b"start"
    ).digest()


def slot_id_of(name: str) -> bytes:
    """The download slot *name* on the server.

    A digest needs no table of names.  Two slots that have the same one share a queue, no more.
    """
    return blake2b(name.encode("utf-8", "surrogatepass"), digest_size=_SLOT_BYTES).digest()


def field_of(seen_key: bytes) -> bytes:
    """The field of a seen key in its bucket: an integer, which a listpack stores in 8 bytes."""
    return b"%d" % int.from_bytes(seen_key[2:], "big", signed=True)


class Keys:
    """The keys of one partition of a crawl.

    :param crawl: the crawl's name.
    :ivar fixed: the first keys of each call, in the order of ``shared.lua``.
    :ivar kinds: of which type each of them is.
    :ivar meta: the first of them.
    :ivar pending: where the pending requests are.
    :ivar deadlines: where the workers are that are heard of.
    :ivar heard: when each worker was heard of last.
    :ivar workers: where the workers are.
    :ivar dead: where the dead letters are.
    :ivar of_requeue: the keys of ``requeue.lua``.
    """

    def __init__(self, crawl: str, partition: int = 0) -> None:
        self._prefix = f"altsched:{{{crawl}:{partition}}}:".encode("utf-8", "surrogatepass")
        self.fixed = [self._prefix + name for name in _FIXED]
        self.kinds = list(_FIXED.values())
        self.meta = self.fixed[0]
        self.pending = self._prefix + b"pending"
        self.deadlines = self._prefix + b"deadlines"
        self.heard = self._prefix + b"heard"
        self.workers = self._prefix + b"workers"
        self.dead = self._prefix + b"dead"
        self.of_requeue = [*self.fixed[:4], self.dead]

    def leases(self, token: bytes) -> bytes:
        """Where the requests are that a worker has leased."""
        return self._prefix + b"leases:" + token

    def bucket(self, crawl: bytes, seen_key: bytes) -> bytes:
        """Where a seen key is, in the crawl with this id."""
        return self._seen(crawl) + seen_key[:_BUCKET_BYTES].hex().encode()

    def buckets(self, crawl: bytes) -> Iterator[bytes]:
        """All keys in which seen keys of a crawl can be."""
        for number in range(256**_BUCKET_BYTES):
            yield self._seen(crawl) + b"%0*x" % (2 * _BUCKET_BYTES, number)

    def _seen(self, crawl: bytes) -> bytes:
        # A crawl that starts again from nothing has other buckets, at once.
        return b"%sseen:%s:" % (self._prefix, crawl[:_ID_BYTES].hex().encode())
