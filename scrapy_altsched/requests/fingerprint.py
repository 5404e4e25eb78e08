"""Request -> fingerprint: Scrapy's bytes, faster; or those of the request after URL rules.

Most of Scrapy's time for a fingerprint goes into ``w3lib.url.canonicalize_url``, and most URLs of
a crawl are canonical before it, or nearly so.  Two regular expressions tell which; all else goes
through Scrapy's own function, which stays the reference (scrapy/utils/request.py).

Why a URL that they match is canonical, with every w3lib since 2.0:

* scheme and host are lower-case ASCII, the port has no leading zero and is in range;
* the path has no character that w3lib escapes and no dot segment, and of its escapes those that are
  always undone have been;
* each field of the query has exactly one ``=`` and no escape, and its characters are kept by w3lib
  or, four of them, always escaped;
* the fragment does not count.
"""

from __future__ import annotations

import difflib
import json
import logging
import re
from collections.abc import Sequence
from functools import partial
from hashlib import sha1
from operator import attrgetter
from typing import TYPE_CHECKING

from scrapy import Request
from scrapy.utils.python import to_unicode
from scrapy.utils.request import RequestFingerprinter as ScrapyFingerprinter
from scrapy.utils.request import RequestFingerprinterProtocol
from scrapy.utils.request import fingerprint as scrapy_fingerprint

from ..canonical import Canonical, Rules
from ..engine.request_parts import reader_of
from ..errors import ConfigError
from . import DEDUPE_KEY, SKIP_RULES, VERBATIM

if TYPE_CHECKING:
    from scrapy.crawler import Crawler
    from scrapy.settings import BaseSettings
    from scrapy.statscollectors import StatsCollector
    from typing_extensions import Self

logger = logging.getLogger(__name__)

_MEMO_LIMIT = 10_000  # hosts
_RULES_SETTING = "ALTSCHED_URL_RULES"

_HOST = r"[a-z0-9._-]+"
_PORT = r":(?:[1-9][0-9]{0,3}|[1-5][0-9]{4})"
_PATH = r"[A-Za-z0-9._~!$&'()*+,=:@/-]*"
#: Escapes that stay: of a space, of some marks, and of what is not ASCII; and those that w3lib
#: undoes in a path: of !$&'()*+,:=@~ alone, so that no other escape and no dot segment comes of it.
_STAYS = r"%(?:20|22|3C|3E|5E|60|7B|7D|[89A-F][0-9A-F])"
_UNDONE = r"%(?:2[146-9A-C]|3[AD]|40|7E)"
_TEXT = r"[A-Za-z0-9._~+,/:@-]*"
_FIELD = rf"{_TEXT}={_TEXT}"
_QUERY = rf"{_FIELD}(?:&{_FIELD})*"
_VISIBLE = r"[!-~]*"

#: Of a URL without a fragment, group 1: the host.  If there is more than a path, or less, the last
#: group is 2, the query; 3, where :data:`_match_rest` goes on; or 4, empty: no path.
_match = re.compile(rf"https?://({_HOST})/{_PATH}(?:\?({_QUERY}))?").fullmatch
#: The same of all other URLs; group 1: with the port.
_match_rare = re.compile(
    rf"https?://({_HOST}(?:{_PORT})?)(?:/{_PATH}(?:\?({_QUERY})|([%?]{_VISIBLE}))?|())"
).fullmatch
_undo_escapes = partial(re.compile(_UNDONE).sub, lambda escape: chr(int(escape[0][1:], 16)))
#: Group 1: the rest of the path; group 2: the query.
_match_rest = re.compile(rf"((?:(?:{_STAYS}|{_UNDONE}){_PATH})*)(?:\?((?:{_QUERY})?))?").fullmatch

parts_of = reader_of("method", "body", "meta", "url")
parts_of_subclass = attrgetter("method", "body", "meta", "url")

#: The digest of all that comes before the URL of a plain request, as json.dumps() writes it with
#: sorted keys; to continue from a copy is faster than to begin.
_begin = sha1(b'{"body": "", "headers": {}, "method": "GET", "url": "').copy


def fingerprint_page(url: str) -> bytes | None:
    """Scrapy's fingerprint (20 bytes) of a plain request for *url*; ``None``: ask w3lib."""
    match = _match(url) or _match_rare(url)
    return None if match is None or "/." in url else _digest(url, match)


def _digest(url: str, match: re.Match[str]) -> bytes | None:
    if match.lastindex != 1:
        url = _tidy(url, match)
        if not url:
            return None
    # It needs no escape in JSON.
    digest = _begin()
    digest.update(url.encode() + b'"}')
    return digest.digest()


def _tidy(url: str, match: re.Match[str]) -> str:
    """The canonical form of *url*, which has more than a path or less; empty: ask w3lib."""
    if match.lastindex == 4:
        return f"{url}/"
    if match.lastindex == 2:
        page, _, query = url.partition("?")
    else:
        if (rest := _match_rest(url, match.start(3))) is None:
            return ""
        page = url[: rest.end(1)]
        if rest[1]:
            page = _undo_escapes(page)
        if not (query := rest[2]):
            return page
    if "&" in query:
        # By key, then by value: a space sorts before any character of a key or value.
        fields = query.replace("=", " ").split("&")
        fields.sort()
        query = "&".join(fields).replace(" ", "=")
    if "/" in query or ":" in query or "@" in query or "," in query:
        query = query.replace("/", "%2F").replace(":", "%3A")
        query = query.replace("@", "%40").replace(",", "%2C")
    return f"{page}?{query}"


class RequestFingerprinter:
    """A ``REQUEST_FINGERPRINTER_CLASS``: Scrapy's fingerprints, after URL rules.

    :param stats: where to count, for each rule, the requests that it changed something in.
    """

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """One with the rules of the crawler's settings and spider; ConfigError: one is bad."""
        ScrapyFingerprinter.from_crawler(crawler)  # warns of settings without effect
        try:
            _refuse_misspelled(crawler.settings)
            rules = Rules.load(crawler.settings[_RULES_SETTING], name=_RULES_SETTING)
            return cls(rules.with_spider(crawler.spider or crawler.spidercls))
        except ConfigError as error:
            logger.critical("%s", error)
            raise

    def __init__(self, rules: Rules | None = None, *, stats: StatsCollector | None = None) -> None:
        self._rules = rules or Rules()
        #: Hosts, with ports, without any rule: to look into a set is cheaper than a call.
        self._free: set[str] | None = set() if rules else None
        self._stats = stats
        self._reported_bad_key = False

    def fingerprint(self, request: Request) -> bytes:
        # Where it is fast nothing is cached, as Scrapy does: the scheduler calls it once for each.
        if type(request) is Request:
            method, body, meta, url = parts_of(request)
        else:
            method, body, meta, url = parts_of_subclass(request)
        page, _, fragment = url.partition("#")
        is_plain = method == "GET" and not body and fragment.isascii()
        if is_plain and not (
            meta and (VERBATIM in meta or SKIP_RULES in meta or DEDUPE_KEY in meta)
        ):
            match = _match(page) or _match_rare(page)
            if (
                match is not None
                and "/." not in page
                and (
                    (free := self._free) is None or match[1] in free or self._spares(match[1], url)
                )
                and (made := _digest(page, match)) is not None
            ):
                return made
        if (key := self._dedupe_key(request)) is not None:
            return key
        if (canonical := self._canonicalize(request)) is None:
            is_page = is_plain and not (meta and meta.get(VERBATIM))
            return (is_page and fingerprint_page(page)) or scrapy_fingerprint(request)
        # As Scrapy does, from the canonical form.
        data = {
            "method": to_unicode(request.method),
            "url": canonical.url,
            "body": canonical.body.hex(),
            "headers": _headers(request, canonical.headers),
        }
        return sha1(json.dumps(data, sort_keys=True).encode()).digest()

    def _spares(self, netloc: str, url: str) -> bool:
        """Whether no rule changes anything in a request for *url* that has no body."""
        marks = self._rules.marks(netloc)
        for mark in marks:  # any() takes three times as long
            if mark in url:
                return False
        if not marks:
            assert self._free is not None
            if len(self._free) >= _MEMO_LIMIT:
                self._free.clear()
            self._free.add(netloc)
        return True

    def _dedupe_key(self, request: Request) -> bytes | None:
        if (key := request.meta.get(DEDUPE_KEY)) is None:
            return None
        if isinstance(key, (str, bytes)) and key:
            data = key.encode("utf-8", "surrogatepass") if isinstance(key, str) else key
            # No canonical request begins like this.
            return sha1(b"altsched_dedupe_key:" + data).digest()
        if self._stats is not None:
            self._stats.inc_value("altsched/dedupe_key/unusable")
        if not self._reported_bad_key:
            self._reported_bad_key = True
            logger.warning(
                "%(request)s has the meta key %(name)s = %(key)r, which must be str or bytes, not"
                " empty: its URL is used instead. No more of these will be logged.",
                {"request": request, "name": DEDUPE_KEY, "key": key},
            )
        return None

    def _canonicalize(self, request: Request) -> Canonical | None:
        """The canonical form of *request*; ``None``: no rule matches."""
        meta = request.meta
        if not self._rules or meta.get(SKIP_RULES) or meta.get(VERBATIM):
            return None
        body = request.body or b""
        content_type = (body and request.headers.get("Content-Type")) or b""
        canonical = self._rules.canonicalize(
            request.url, body=body, content_type=content_type.decode("latin-1")
        )
        if not canonical.rules:
            return None
        if self._stats is not None:
            for index in {step.rule for step in canonical.steps}:
                rule = self._rules.label(index)
                self._stats.inc_value(f"altsched/url_rules/{rule}")
        return canonical


class _WrappedFingerprinter(RequestFingerprinter):
    """Another fingerprinter, given a changed copy of a request if a rule changes it."""

    def __init__(
        self, wrapped: RequestFingerprinterProtocol, rules: Rules, stats: StatsCollector | None
    ) -> None:
        super().__init__(rules, stats=stats)
        self._wrapped = wrapped

    def fingerprint(self, request: Request) -> bytes:
        if (key := self._dedupe_key(request)) is not None:
            return key
        if (canonical := self._canonicalize(request)) is None:
            return self._wrapped.fingerprint(request)
        headers = _headers(request, canonical.headers)
        if canonical.steps:
            request = request.replace(url=canonical.url, body=canonical.body)
        made = self._wrapped.fingerprint(request)
        if headers:
            return sha1(made + json.dumps(headers, sort_keys=True).encode()).digest()
        return made


def apply_rules(
    fingerprinter: RequestFingerprinterProtocol, rules: Rules, stats: StatsCollector | None = None
) -> RequestFingerprinterProtocol:
    """A fingerprinter that gives *fingerprinter* the canonical request, and counts in *stats*."""
    if type(fingerprinter) in {ScrapyFingerprinter, RequestFingerprinter}:
        return RequestFingerprinter(rules, stats=stats)
    if isinstance(fingerprinter, RequestFingerprinter):  # a subclass of ours has its own rules
        return fingerprinter
    return _WrappedFingerprinter(fingerprinter, rules, stats)


def _refuse_misspelled(settings: BaseSettings) -> None:
    """ConfigError: the rules' setting is misspelled; maybe no scheduler of ours checks it."""
    for name in map(str, settings):
        rest = name.removeprefix("ALTSCHED_")
        if rest not in {name, "URL_RULES"} and difflib.get_close_matches(
            rest.upper(), ["URL_RULES"], 1, 0.7
        ):
            raise ConfigError(f"Unknown setting {name} (did you mean {_RULES_SETTING}?).")


def _headers(request: Request, names: Sequence[str]) -> dict[str, list[str]]:
    """Those of the headers with *names* that *request* has, as Scrapy's fingerprints hold them."""
    return {
        name.encode().hex(): [value.hex() for value in request.headers.getlist(name)]
        for name in names
        if name in request.headers
    }


def shorten(fingerprint: bytes) -> bytes:
    """*fingerprint*, or its hash if it has more than the 255 bytes that a frontier takes."""
    is_short = len(fingerprint) <= 255
    return fingerprint if is_short else sha1(fingerprint, usedforsecurity=False).digest()
