"""The single place that decides which page a request is.

It combines the rules for URLs, the project's fingerprinter, what was seen a moment ago, and another
package's filter, if the project has one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from .fingerprint import fingerprint_page
from .recent import RecentURLs

if TYPE_CHECKING:
    from scrapy import Request


class PageIdentity:
    """Decides which page a request is, and recognizes most of those that were seen.

    :param fingerprint: request -> its fingerprint, of at most 255 bytes.
    :param recent: what was seen a moment ago, where the URL alone tells pages apart.
    :param is_refused: whether another package's filter, which keeps its own record, refuses a
        request; ``None``: the frontier keeps the record.
    :param are_sha1: whether all fingerprints are SHA-1 hashes.
    :ivar page_of: request -> the URL, if that alone identifies it; ``None``: it does not.
    :ivar newest: such URLs that were seen last; to look there first is quicker.
    :ivar is_recent: whether such a URL was seen a moment ago.
    :ivar remember: records that such a URL was seen.
    """

    def __init__(
        self,
        fingerprint: Callable[[Request], bytes],
        recent: RecentURLs | None = None,
        is_refused: Callable[[Request], bool] | None = None,
        *,
        are_sha1: bool = False,
    ) -> None:
        self.recent = recent or RecentURLs(no_page)
        self.is_refused = is_refused
        self.are_sha1 = are_sha1
        self.page_of = self.recent.page_of
        self.newest = self.recent.newest
        self.is_recent = self.recent.has
        self.remember = self.recent.add
        self._fingerprint = fingerprint

    def of(self, request: Request, page: str | None = None) -> bytes:
        """The fingerprint of *request*; *page*: what :attr:`page_of` returns for it."""
        return (page is not None and fingerprint_page(page)) or self._fingerprint(request)


def no_page(_: Request) -> str | None:
    """For fingerprints of more than the URL: no URL alone tells pages apart."""
    return None
