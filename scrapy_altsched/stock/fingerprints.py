"""The fingerprints in a dupefilter key of scrapy-redis, and who makes the same."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from scrapy.utils.request import fingerprint
from w3lib.url import canonicalize_url

if TYPE_CHECKING:
    from scrapy import Request


class ScrapyRedisFingerprinter:
    """A ``REQUEST_FINGERPRINTER_CLASS`` that makes what scrapy-redis 0.8 and later make.

    For crawls that were begun there: the pages that they have seen are then known here.
    """

    def fingerprint(self, request: Request) -> bytes:
        """A digest of the method, the canonical URL and the body of *request*."""
        parts = {
            "body": request.body.hex(),
            "method": request.method,
            "url": canonicalize_url(request.url),
        }
        return hashlib.sha1(json.dumps(parts).encode(), usedforsecurity=False).digest()


def _make_older(request: Request) -> bytes:
    """What Scrapy before 2.7 made, and scrapy-redis up to 0.7."""
    digest = hashlib.sha1(usedforsecurity=False)
    for part in (request.method.encode(), canonicalize_url(request.url).encode(), request.body):
        digest.update(part)
    return digest.digest()


#: Who may have made the fingerprints, as a sentence names them.
KNOWN: Mapping[str, Callable[[Request], bytes]] = {
    "those of REQUEST_FINGERPRINTER_CLASS = 'scrapy_altsched.ScrapyRedisFingerprinter'": (
        ScrapyRedisFingerprinter().fingerprint
    ),
    "Scrapy's own (REQUEST_FINGERPRINTER_CLASS = 'scrapy.utils.request.RequestFingerprinter', and"
    " no rules for URLs)": fingerprint,
    "those of Scrapy before 2.7 (REQUEST_FINGERPRINTER_CLASS needs a class of yours that makes"
    " them)": _make_older,
}


def count_known(
    make: Callable[[Request], bytes],
    requests: Sequence[Request],
    are_there: Callable[[Iterable[bytes]], Sequence[bool]],
) -> int:
    """How many of *requests* have a fingerprint that is there.

    :param are_there: says of each fingerprint whether it is.
    """
    return sum(are_there([make(request) for request in requests])) if requests else 0


def find_maker(
    requests: Sequence[Request], are_there: Callable[[Iterable[bytes]], Sequence[bool]]
) -> str | None:
    """Who makes the fingerprints of most of *requests* that are there; ``None``: nobody known."""
    for name, make in KNOWN.items():
        if 2 * count_known(make, requests, are_there) > len(requests):
            return name
    return None
