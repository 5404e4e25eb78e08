"""The rows of what was seen: which fingerprint, and what is known of its page.

A key is a digest of the fingerprint, of 10 bytes: two of 100 million pages share one with a
probability of 4e-9.  In jobs that were begun by an earlier version it is the fingerprint, and in
those that came from a server, where SHA-1 hashes are not hashed again, it may be its beginning.
Values:

=================================  ==============================================================
empty                              nothing
one zero byte                      it is not finished yet; only in jobs that record ages
4 bytes, high bit clear            it was seen under another scheduler: number of the run
4 bytes, high bit set              when it was finished: seconds since the first day of ages
=================================  ==============================================================
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import blake2b

#: Name of the note that says what keys are; without it, they are fingerprints.
KEYS, FINGERPRINTS, DIGESTS, BEGINNINGS = "seen keys", b"", b"digests", b"beginnings"
_DIGEST_BYTES, _SHA1_BYTES = 10, 20
#: Names of the notes that say since when a job records ages, and when this pass began: JSON, in
#: epoch seconds.
SINCE, PASS = "ages since", "pass began"
_AGED = 1 << 31
_DAY = 86_400  # seconds
#: Of a page that is pending, delayed, leased, dead or has failed.
UNFINISHED = b"\0"


#: To continue from a copy is faster than to begin.
_begin = blake2b(digest_size=_DIGEST_BYTES).copy


def digest_of(fingerprint: bytes) -> bytes:
    """The key of a fingerprint."""
    digest = _begin()
    digest.update(fingerprint)
    return digest.digest()


def digest_of_claim(claim: bytes, restarts: int = 0) -> bytes:
    """The key of a claim to a start request, which is among the seen ones on servers.

    :param restarts: how often the crawl was restarted with what it had seen: start requests are
        crawled once after each.
    """
    salt = restarts.to_bytes(16, "big")
    return blake2b(claim, digest_size=_DIGEST_BYTES, person=b"start", salt=salt).digest()


def beginning_of(fingerprint: bytes) -> bytes:
    """The key of a fingerprint where that is the beginning of one that is a SHA-1 hash."""
    if len(fingerprint) == _SHA1_BYTES:
        return fingerprint[:_DIGEST_BYTES]
    return digest_of(fingerprint)


#: What keys are -> fingerprint -> its key.
KEY_MAKERS: Mapping[bytes, Callable[[bytes], bytes]] = {
    FINGERPRINTS: bytes,
    DIGESTS: digest_of,
    BEGINNINGS: beginning_of,
}


def may_be_digest(key: bytes) -> bool:
    """Whether a key can be one."""
    return len(key) == _DIGEST_BYTES


def encode_run(run: int) -> bytes:
    """The value of what was seen in this *run*, under another scheduler; 0: under ours."""
    return run.to_bytes(4, "big") if run else b""


def run_of(value: bytes) -> int:
    """The inverse of :func:`encode_run`, 0 for other values; ValueError: *value* is damaged."""
    if value in (b"", UNFINISHED):
        return 0
    if len(value) != 4:
        raise ValueError(f"{value.hex()} does not say what is known of a page")
    number = int.from_bytes(value, "big")
    return 0 if number & _AGED else number


def encode_end(seconds: float) -> bytes:
    """The value of a page that was finished so many *seconds* after the first day began."""
    return (_AGED | min(max(int(seconds), 0), _AGED - 1)).to_bytes(4, "big")


def end_of(value: bytes) -> int | None:
    """The inverse of :func:`encode_end`; ``None``: it says no time."""
    number = int.from_bytes(value, "big") if len(value) == 4 else 0
    return number & ~_AGED if number & _AGED else None


def first_day_of(since: float) -> int:
    """The time from which ends are counted, in a job that records ages *since* then."""
    return int(since) // _DAY * _DAY


def end_time_of(value: bytes, since: float) -> float | None:
    """When a page with this row was finished, in epoch seconds; ``None``: it is not.

    Those that were finished before ages were recorded count as finished then.
    """
    if value == UNFINISHED:
        return None
    end = end_of(value)
    return since if end is None else float(first_day_of(since) + end)
