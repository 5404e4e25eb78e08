"""Which rules match a URL, by url-matcher's patterns.

A pattern is a host, with its subdomains if nothing follows it; the beginning of a path, with ``*``
as wildcard and ``|`` for the end; parameters of the query; the beginning of a fragment.  The
look-up is ours: url-matcher's tries every pattern of a registered domain, and a thousand rules must
cost nothing where they do not match.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import product
from typing import TypeAlias
from urllib.parse import parse_qs, quote

from url_matcher import Patterns, patterns
from url_matcher.matcher import PatternsMatcher
from w3lib.url import canonicalize_url

_MEMO_LIMIT = 10_000  # hosts
_PLAIN_NETLOC = re.compile(r"[a-z0-9._-]+(?::[0-9]+)?").fullmatch
#: The schemes of Scrapy's download handlers; a pattern without a scheme matches any.
_SCHEMES = ("http", "https", "ftp", "s3")
_HOST = re.compile(r"(?:(?:[a-z0-9_-]+\.)*[a-z0-9_-]+\.?|\[[0-9a-f:.]+\])(?::[0-9]+)?").fullmatch
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*").fullmatch
_PORT = re.compile(r":[0-9]*$")


def split(url: str) -> tuple[str, str, str, str, str]:
    """Scheme, netloc, path with its parameters, query and fragment of a canonical URL."""
    scheme, _, rest = url.partition("://")
    rest, _, fragment = rest.partition("#")
    rest, _, query = rest.partition("?")
    netloc, slash, path = rest.partition("/")
    return scheme, netloc, slash + path, query, fragment


def join(scheme: str, netloc: str, path: str, query: str, fragment: str) -> str:
    """The reverse of :func:`split`."""
    url = f"{scheme}://{netloc}{path}"
    if query:
        url = f"{url}?{query}"
    return f"{url}#{fragment}" if fragment else url


@lru_cache(10_000)  # each is needed twice, by the check and by the index
def compile_patterns(include: tuple[str, ...], exclude: tuple[str, ...]) -> PatternsMatcher:
    """A matcher for canonical URLs; ValueError: a pattern is invalid, or none ever matches."""
    included = [_normalize(pattern, "include") for pattern in include]
    excluded = [_normalize(pattern, "exclude") for pattern in exclude]
    # url-matcher looks up the registered domain of each, which :class:`Index` has no use for, and
    # has tldextract fetch a list of these from the network.
    names = vars(patterns)
    get_domain, names["get_domain"] = names.get("get_domain"), str
    try:
        matcher = PatternsMatcher(None, Patterns(included, excluded))
    finally:
        names["get_domain"] = get_domain
    for pattern in () if include else excluded:
        scheme, netloc, path, query, fragment = patterns.pattern_parse(pattern)
        if not (scheme or netloc or query or fragment) and path.rstrip("*") in {"", "/"}:
            raise ValueError("exclude leaves no URL at all")
    for given, pattern in zip(include, included, strict=True):
        if not any(map(matcher.match, _make_examples(pattern))):
            because = " (exclude removes all that it matches)" if exclude else ""
            raise ValueError(f"the pattern {given!r} never matches a URL{because}")
    return matcher


def _normalize(pattern: str, key: str) -> str:
    """The pattern that matches the canonical forms of the URLs that this one matches."""
    bad = f"the {key} pattern {pattern!r}"
    if not pattern.strip():
        raise ValueError(f"{bad} is empty: leave it out for every URL")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            parsed = patterns.pattern_parse(re.sub(r"\{\w*\}", "*", pattern.strip()))
            scheme, netloc, path, query, fragment = parsed
            why = ""
            if netloc:
                netloc = split(canonicalize_url(f"http://{netloc}/"))[1]
            elif key == "include":
                why = "has no host: write it as example.com/path"
            elif scheme:
                why = "has a scheme, but no host"
            if scheme and scheme not in _SCHEMES:
                why = f"has none of the schemes {', '.join(_SCHEMES)}: leave it out for any"
            elif netloc in {"http", "https"}:
                why = "has no host: a scheme is followed by ://"
            elif "*" in netloc:
                why = (
                    "has a wildcard in its host, which is not supported: example.com also"
                    " matches all its subdomains if nothing follows it"
                )
            elif netloc and not _HOST(netloc):
                why = f"never matches: {netloc!r} is not a host"
            path = _canonicalize_part(path, "http://h{}", path)
            fragment = _canonicalize_part(fragment, "http://h/#{}", "")
    except (ValueError, Warning) as error:
        raise ValueError(f"{bad} cannot be read: {error}") from None
    if why:
        raise ValueError(f"{bad} {why}")
    if any("*" in name for name in parse_qs(query, keep_blank_values=True)):
        raise ValueError(f"{bad} has a wildcard in the name of a parameter: only values have them")
    return join(scheme, netloc, path, query, fragment).removeprefix("://")


def _canonicalize_part(text: str, template: str, default: str) -> str:
    """A path or a fragment of a pattern as w3lib writes it; a ``|`` at its end stays."""
    if not text:
        return default
    body, end = (text[:-1], "|") if text.endswith("|") else (text, "")
    url = canonicalize_url(template.format(body), keep_fragments=True)
    return split(url)[4 if "#" in template else 2] + end


def _make_examples(pattern: str) -> Iterator[str]:
    """URLs of which a pattern should match at least one, unless it never matches."""
    scheme, netloc, path, query, fragment = patterns.pattern_parse(pattern)
    hosts = [netloc] if path or query or fragment else [netloc, f"zq.{netloc}"]
    needed = "&".join(
        f"{quote(name)}={quote(values[0].replace('*', ''))}"
        for name, values in parse_qs(query, keep_blank_values=True).items()
    )
    for parts in product(
        [scheme] if scheme else ["https", "http"],
        hosts,
        [_fill_in(path or "/", more) for more in ("", "zq", "7", "/zq7/")],
        [needed, f"{needed}&zq=7"],
        [_fill_in(fragment, end) for end in ("", "zq")],
    ):
        with suppress(ValueError):
            yield canonicalize_url(join(*parts), keep_fragments=True)


def _fill_in(pattern: str, more: str) -> str:
    """A path or a fragment that a pattern for it should match."""
    end = "" if pattern.endswith("|") else more
    return pattern.removesuffix("|").replace("*", more) + end


#: The patterns of a host: length of what their paths begin with -> that -> their numbers.
_Host: TypeAlias = dict[int, dict[str, set[int]]]


class Index:
    """All patterns, by the numbers of their rules; one look-up finds those that may match a URL."""

    def __init__(self, matchers: Sequence[PatternsMatcher]) -> None:
        self._matchers = matchers
        self._everywhere = {at for at, it in enumerate(matchers) if not it.patterns.include}
        self._hosts: dict[str, _Host] = {}
        self._hosts_of = lru_cache(_MEMO_LIMIT)(self._look_up)
        for number, matcher in enumerate(matchers):
            for pattern in matcher.patterns.include:
                _, netloc, path, _, _ = patterns.pattern_parse(pattern)
                beginning, star, _ = path.partition("*")
                beginning = (beginning if star else beginning.removesuffix("|")).lower()
                host = self._hosts.setdefault(_PORT.sub("", netloc), {})
                host.setdefault(len(beginning), {}).setdefault(beginning, set()).add(number)

    def candidates(self, netloc: str, path: str | None = None) -> set[int]:
        """Those that may match a URL with *netloc*, as it is written there; *path*: lower case."""
        if (hosts := self._hosts_of(netloc)) is None:
            return set()
        numbers = set(self._everywhere)
        for host in hosts:
            for length, by_beginning in host.items():
                if path is None:
                    numbers.update(*by_beginning.values())
                else:
                    numbers |= by_beginning.get(path[:length], frozenset())
        return numbers

    def together(self) -> Iterator[set[int]]:
        """Those that may match one URL: for each host, and for all others."""
        yield self._everywhere
        yield from map(self.candidates, self._hosts)

    def match(self, url: str) -> list[int]:
        """Those that match a canonical URL, ascending."""
        scheme, netloc, path, query, fragment = split(url)
        # Otherwise there is no host, and the :// is part of something else.
        numbers = self.candidates(netloc, path.lower()) if _SCHEME(scheme) else ()
        if "@" in netloc:
            url = join(scheme, netloc.rpartition("@")[2], path, query, fragment)
        try:
            return [number for number in sorted(numbers) if self._matchers[number].match(url)]
        except ValueError:  # a URL that w3lib accepts, but the standard library does not
            return []

    def _look_up(self, netloc: str) -> list[_Host] | None:
        """The patterns for a host and its parents; ``None``: no URL with it can be matched."""
        host = netloc.rpartition("@")[2].lower()
        if not _PLAIN_NETLOC(host):
            try:
                host = split(canonicalize_url(f"http://{host}/"))[1]
            except ValueError:
                return None  # such a URL has no canonical form
        name, found = _PORT.sub("", host), []
        while name:
            if name in self._hosts:
                found.append(self._hosts[name])
            name = name.partition(".")[2]
        return found if host else None


class UrlPattern:
    """One pattern, for URLs as they are; ValueError: it is invalid, or never matches."""

    def __init__(self, pattern: str) -> None:
        self._index = Index([compile_patterns((pattern,), ())])

    def matches(self, url: str | None) -> bool:
        """Whether a URL does; ``None``, and what is none, does not."""
        try:
            return bool(url and self._index.match(canonicalize_url(url, keep_fragments=True)))
        except ValueError:  # a URL that w3lib cannot parse
            return False
