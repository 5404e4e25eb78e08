"""Request -> fingerprint: Scrapy's bytes, sooner.

Most of Scrapy's time for a fingerprint goes into ``w3lib.url.canonicalize_url``, and most URLs of
a crawl are canonical before it, or nearly so.  Two regular expressions tell which; whatever they
do not match goes through Scrapy's own function, which stays the reference
(scrapy/utils/request.py).

Why a URL that they match is canonical, with every w3lib since 1.17:

* scheme and host are lower-case ASCII, the port has no leading zero and is in range;
* the path has no character that w3lib escapes, no escape that it undoes, and no dot segment;
* each field of the query has exactly one ``=`` and no escape, and its characters are kept by w3lib
  or, four of them, escaped wherever they stand;
* the fragment does not count.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from hashlib import sha1
from typing import TYPE_CHECKING

from scrapy.utils.request import fingerprint as scrapy_fingerprint

if TYPE_CHECKING:
    from scrapy import Request

_NETLOC = r"[a-z0-9._-]+(?::(?:[1-9][0-9]{0,3}|[1-5][0-9]{4}))?"
_PATH = r"[A-Za-z0-9._~!$&'()*+,=:@/-]*"
#: Escapes that stay: of a space, and of what is not ASCII.
_ESCAPE = r"%(?:20|[89A-F][0-9A-F])"
_TEXT = r"[A-Za-z0-9._~+,/:@-]*"
_FIELD = rf"{_TEXT}={_TEXT}"
_VISIBLE = r"[!-~]*"

#: Group 1: the host, with a port; group 2, if it matched last: where :data:`_match_rest` goes on;
#: group 3, if it did: there is no path.
_match = re.compile(rf"https?://({_NETLOC})(?:/{_PATH}([%?#]{_VISIBLE})?|())").fullmatch
#: Group 1: the rest of the path; group 2: the query.
_match_rest = re.compile(
    rf"((?:{_ESCAPE}{_PATH})*)(?:\?((?:{_FIELD}(?:&{_FIELD})*)?))?(?:#{_VISIBLE})?"
).fullmatch


def fingerprint(
    request: Request,
    *,
    include_headers: Iterable[bytes | str] | None = None,
    keep_fragments: bool = False,
) -> bytes:
    """What ``scrapy.utils.request.fingerprint`` answers to the same arguments: 20 bytes.

    Nothing is remembered from call to call for the requests that this is fast for: a request is
    fingerprinted once, when it is scheduled.
    """
    meta = request.meta
    if (
        request.method == "GET"
        and not (request.body or include_headers or keep_fragments)
        # Since Scrapy 2.17 it has the URL count as it stands.
        and not (meta and meta.get("verbatim_url"))
    ):
        url = request.url
        match = _match(url)
        if match is not None and "/." not in url:
            if match.lastindex != 1:
                url = _tidy(url, match)
            if url:
                # As json.dumps() writes it with sorted keys; nothing in the URL needs an escape.
                form = f'{{"body": "", "headers": {{}}, "method": "GET", "url": "{url}"}}'
                return sha1(form.encode()).digest()
    return scrapy_fingerprint(
        request, include_headers=include_headers, keep_fragments=keep_fragments
    )


def _tidy(url: str, match: re.Match[str]) -> str:
    """The canonical form of *url*, which has more than a path or less; empty: ask w3lib.

    :param match: what :data:`_match` found in it.
    """
    if match.lastindex == 3:
        return f"{url}/"
    rest = _match_rest(url, match.start(2))
    if rest is None:
        return ""
    page = url[: rest.end(1)]
    query = rest[2]
    if not query:
        return page
    if "&" in query:
        # By key, then by value: a space comes before all that a key or value has in it.
        fields = query.replace("=", " ").split("&")
        fields.sort()
        query = "&".join(fields).replace(" ", "=")
    if "/" in query or ":" in query or "@" in query or "," in query:
        query = query.replace("/", "%2F").replace(":", "%3A")
        query = query.replace("@", "%40").replace(",", "%2C")
    return f"{page}?{query}"
