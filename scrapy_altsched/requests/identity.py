"""The single place that decides which page a request is, and that recognizes recent ones by URL.

Most duplicates need neither fingerprint nor look-up: of the links of a site nine in ten lead to
pages that were linked to among the last few thousand (recorded: 99.7 % of those of docs.python.org,
97.4 % of sqlite.org's, with the 4,096 last URLs).  The answer is exact: a URL that was seen stays
so, until it is forgotten.
"""

from __future__ import annotations

from collections.abc import Callable

from scrapy import Request

from ..engine.engine import reader_of
from . import DEDUPE_KEY, EVERY_RUN, SKIP_RULES, VERBATIM
from .fingerprint import fingerprint_page

_parts_of = reader_of("method", "body", "meta", "url")

#: Whether none of the meta keys is present that change what the URL means.
_has_none_of = frozenset((VERBATIM, DEDUPE_KEY, SKIP_RULES, EVERY_RUN)).isdisjoint

#: URLs in each of two generations.
_GENERATION = 4_096


def page_of(request: Request) -> str | None:
    """The URL up to ``#``, if it alone identifies *request*; ``None``: it does not.

    For Scrapy's own fingerprints, without rules.
    """
    if type(request) is Request:
        method, body, meta, url = _parts_of(request)
    else:
        method, body, meta, url = request.method, request.body, request.meta, request.url
    if method != "GET" or body:
        return None
    # Most links have their depth and nothing else: to check for that takes half as long.
    if meta and (len(meta) > 1 or "depth" not in meta) and not _has_none_of(meta):
        return None
    page: str
    page, _, fragment = url.partition("#")
    # Some of what is not ASCII cannot be encoded, and Scrapy refuses it.
    return page if fragment.isascii() else None


def no_page(_: Request) -> str | None:
    """For fingerprints of more than the URL: no URL alone tells pages apart."""
    return None


class PageIdentity:
    """Decides which page a request is; remembers at least the last 4,096 different URLs.

    :param fingerprint: request -> its fingerprint, of at most 255 bytes.
    :param page_of: request -> the URL, if that alone identifies it; ``None``: it does not.
    :param is_refused: whether another package's filter, which keeps its own record, refuses a
        request; ``None``: the frontier keeps the record.
    :param are_sha1: whether all fingerprints are SHA-1 hashes.
    :ivar newest: the newest half of the URLs, always the same set: to look there first saves a
        call.
    """

    def __init__(
        self,
        fingerprint: Callable[[Request], bytes],
        page_of: Callable[[Request], str | None] = no_page,
        is_refused: Callable[[Request], bool] | None = None,
        *,
        are_sha1: bool = False,
    ) -> None:
        self._fingerprint = fingerprint
        self.page_of = page_of
        self.is_refused = is_refused
        self.are_sha1 = are_sha1
        self.newest: set[str] = set()
        self._old: set[str] = set()

    def of(self, request: Request, page: str | None = None) -> bytes:
        """The fingerprint of *request*; *page*: what :attr:`page_of` returns for it."""
        return (page is not None and fingerprint_page(page)) or self._fingerprint(request)

    def is_recent(self, page: str) -> bool:
        """Whether *page* was seen a moment ago."""
        if page in self.newest:
            return True
        if page in self._old:
            self.remember(page)
            return True
        return False

    def remember(self, page: str) -> None:
        """Note that *page* was seen."""
        newest = self.newest
        if len(newest) >= _GENERATION:
            self._old = newest.copy()
            newest.clear()
        newest.add(page)

    def forget_recent(self) -> None:
        """Forget all URLs."""
        self.newest.clear()
        self._old.clear()
