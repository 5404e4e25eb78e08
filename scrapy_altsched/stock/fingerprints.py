"""The fingerprints in a dupefilter key of scrapy-redis, and who makes the same."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
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
    parts = (request.method.encode(), canonicalize_url(request.url).encode(), request.body)
    return hashlib.sha1(b"".join(parts), usedforsecurity=False).digest()


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
