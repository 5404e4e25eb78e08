"""The single place that decides which page a request is, and that recognizes recent ones by URL.

Most duplicates need neither fingerprint nor look-up: of a site's links, nine in ten lead to pages
that were linked to among the last few thousand (of docs.python.org's, 99.7 % to one of the 4,096
last URLs; of sqlite.org's, 97.4 %).  The answer is exact: a URL stays seen until it is forgotten.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from shlex import quote
from typing import TYPE_CHECKING

from scrapy import Request
from scrapy.utils.python import global_object_name
from scrapy.utils.request import RequestFingerprinter as ScrapyFingerprinter

from ..canonical import Rules
from ..command_line import given_options
from . import DEDUPE_KEY, EVERY_RUN, FOLLOWS, SKIP_RULES, VERBATIM
from .fingerprint import RequestFingerprinter, fingerprint_page, parts_of, parts_of_subclass

if TYPE_CHECKING:
    from scrapy import Spider
    from scrapy.settings import BaseSettings
    from scrapy.utils.request import RequestFingerprinterProtocol

logger = logging.getLogger(__name__)

#: Whether a request's meta has no key that changes what its URL means, or how it is accepted.
_has_none_of = frozenset((VERBATIM, DEDUPE_KEY, SKIP_RULES, EVERY_RUN, FOLLOWS)).isdisjoint

#: URLs in each of two generations.
_GENERATION = 4_096

#: Name of the frontier's note about what made the fingerprints of a job.
NOTE = "fingerprints"
#: Settings that decide which fingerprint a request has.
_SETTINGS = ("ALTSCHED_URL_RULES", "REQUEST_FINGERPRINTER_CLASS", "DUPEFILTER_CLASS")
_SCRAPYS_OWN = global_object_name(ScrapyFingerprinter)
#: Classes that make nothing but SHA-1 hashes, also where rules or requests change what is hashed.
_SHA1_CLASSES = {_SCRAPYS_OWN, "scrapy_altsched.stock.fingerprints.ScrapyRedisFingerprinter"}


def page_of(request: Request) -> str | None:
    """The URL up to ``#``, if Scrapy's own fingerprint of *request* depends on that alone.

    ``None`` also where more than the URL tells how it is to be accepted.
    """
    if type(request) is Request:
        method, body, meta, url = parts_of(request)
    else:
        method, body, meta, url = parts_of_subclass(request)
    if method != "GET" or body:
        return None
    # Most links have their depth and nothing else: to check for that takes half as long.
    if meta and (len(meta) > 1 or "depth" not in meta) and not _has_none_of(meta):
        return None
    page: str
    page, _, fragment = url.partition("#")
    # Some of what is not ASCII cannot be encoded, and Scrapy refuses it.
    return page if fragment.isascii() else None


class PageIdentity:
    """Decides which page a request is; remembers at least the last 4,096 different URLs.

    :param fingerprint: request -> its fingerprint, of at most 255 bytes.
    :ivar note: what makes the fingerprints, by :func:`describe`.
    :ivar page_of: request -> the URL, if that alone identifies it; ``None``: it does not.
    :ivar is_refused: whether another package's filter, which keeps its own record, refuses a
        request; ``None``: the frontier keeps the record.
    :ivar are_sha1: whether all fingerprints are SHA-1 hashes.
    :ivar newest: the newest half of the URLs, always the same set; *older*: the other half.  To
        look there first saves most calls.
    """

    def __init__(
        self,
        fingerprint: Callable[[Request], bytes],
        note: bytes,
        page_of: Callable[[Request], str | None] | None = None,
        is_refused: Callable[[Request], bool] | None = None,
        *,
        is_hashed: bool = True,
    ) -> None:
        self._fingerprint = fingerprint
        self.note = note
        self.page_of = page_of or (lambda _: None)
        self.is_refused = is_refused
        self.are_sha1 = is_hashed and are_sha1(note)
        self.newest: set[str] = set()
        self.older: set[str] = set()

    def of(self, request: Request, page: str | None = None) -> bytes:
        """The fingerprint of *request*; *page*: what :attr:`page_of` returns for it."""
        return (page is not None and fingerprint_page(page)) or self._fingerprint(request)

    def is_recent(self, page: str) -> bool:
        """Whether *page* was remembered lately, which it is again."""
        if page in self.newest:
            return True
        if page in self.older:
            self.remember(page)
            return True
        return False

    def remember(self, page: str) -> None:
        newest = self.newest
        if len(newest) >= _GENERATION:
            self.older = newest.copy()
            newest.clear()
        newest.add(page)

    def forget_recent(self) -> None:
        self.newest.clear()
        self.older.clear()

    def notes(self) -> dict[str, bytes]:
        """The frontier's note about what makes the fingerprints."""
        return {NOTE: self.note}

    def warn_if_changed(
        self,
        read: Callable[[str], bytes | None],
        jobdir: str,
        spider: Spider | None,
        settings: BaseSettings | None,
    ) -> None:
        """Warn if the fingerprints of a job, whose notes *read* returns, were made otherwise."""
        if not (found := differences(read(NOTE), self.note)):
            return
        given = () if settings is None else given_options(settings, _SETTINGS)
        logger.warning(
            "The fingerprints in JOBDIR %(jobdir)s were made with %(differences)s: pending and done"
            " requests are not recognized when they are found again, and may be crawled twice. To"
            " recompute those of pending requests, stop this crawl and run: scrapy altsched"
            " refingerprint %(command)s",
            {
                "jobdir": jobdir,
                "differences": " and ".join(found),
                "command": " ".join([quote(jobdir), *given]),
            },
            extra={"spider": spider},
        )


def describe(fingerprinter: RequestFingerprinterProtocol, rules: Rules) -> bytes:
    """The note about fingerprints that *fingerprinter* makes after *rules*."""
    kind = type(fingerprinter)
    name = _SCRAPYS_OWN if kind is RequestFingerprinter else global_object_name(kind)
    return json.dumps({"class": name, "rules": rules.digest}).encode()


def are_sha1(note: bytes | str) -> bool:
    """Whether the fingerprints that *note* describes are known to be SHA-1 hashes."""
    return json.loads(note)["class"] in _SHA1_CLASSES


def differences(stored: bytes | None, current: bytes) -> list[str]:
    """How a job's fingerprints differ from those made now, as phrases; ``None``: it has no note."""
    before, now = json.loads(stored or b'{"rules": ""}'), json.loads(current)
    found = []
    if before["rules"] != now["rules"]:
        found.append(
            "other URL rules (ALTSCHED_URL_RULES, url_rules of the spider), or by a version of"
            " scrapy_altsched that applied the same ones in another way"
        )
    if before.get("class", now["class"]) != now["class"]:
        found.append(f"{before['class']} as REQUEST_FINGERPRINTER_CLASS")
    return found
