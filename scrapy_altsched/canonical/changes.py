"""What the rules that match a URL change in it.

Which rules these are is decided once, before any change.  A flag is what the last of them says;
what is ignored, kept and removed adds up.  The parts of a URL are then processed from left to
right: scheme, port, ``www.``, path parameters, segments, case, trailing slash, query, fragment.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, NamedTuple
from urllib.parse import quote, unquote_plus, unquote_to_bytes, urlencode

from w3lib.url import canonicalize_url, parse_qsl_to_bytes, parse_url, safe_url_string

from .globs import Globs
from .patterns import join, split
from .rule import Rule

_DEFAULT_PORTS = {"http": ":80", "https": ":443", "ftp": ":21"}
_WWW = re.compile(r"(?:www[0-9]*\.)+(?=[^.]+\.)")
#: Group 1: percent escapes; without it: all up to the next of them.
_ESCAPES_AND_TEXT = re.compile("((?:%[0-9A-Fa-f]{2})+)|(?:(?!%[0-9A-Fa-f]{2}).)+", re.DOTALL)
_FORM = "application/x-www-form-urlencoded"


class Step(NamedTuple):
    """One change, by one key (*what*) of the rule with that index.

    :ivar before: the whole URL before it (or the body, for the keys of the body).
    """

    rule: int
    what: str
    before: str
    after: str


class Canonicalizer:
    """Applies some rules, with their indexes, together to the URLs that they match."""

    def __init__(self, rules: Sequence[tuple[int, Rule]]) -> None:
        self.headers = tuple(sorted({name for _, rule in rules for name in rule.count_headers}))
        #: Flag -> what the last rule with it says, and which that is.
        self._flags: dict[str, tuple[int, Any]] = {
            name: (index, getattr(rule, name))
            for index, rule in rules
            for name in _FLAGS
            if getattr(rule, name) is not None
        }
        self._path_params, self._ignore_params, self._body_fields = (
            [(index, Globs(getattr(rule, key))) for index, rule in rules if getattr(rule, key)]
            for key in ("ignore_path_params", "ignore_params", "ignore_body_fields")
        )
        self._segments = [(i, rule.remove_segments) for i, rule in rules if rule.remove_segments]
        keeping = [index for index, rule in rules if rule.keep_params is not None]
        kept = (name for _, rule in rules for name in rule.keep_params or ())
        #: What the last of several rules leaves, which each of them adds to.
        self._keep_params = (keeping[-1], Globs(kept)) if keeping else None

    def apply_to_url(self, canonical: str, given: str) -> tuple[str, list[Step]]:
        """The canonical form of a URL, and the steps to it.

        :param canonical: the URL as w3lib writes it, with its fragment.
        :param given: the same as it was given, for the order of its query.
        """
        walk = _Walk(canonical)
        self._change_host(walk)
        self._change_path(walk)
        self._change_query(walk, given)
        index, keep = self._flags.get("keep_fragment", (0, False))
        if keep is True or (keep and walk.hidden_fragment.startswith("!")):
            walk.set(index, "keep_fragment", fragment=walk.hidden_fragment)
        return walk.url(), walk.steps

    def _find_flag(self, name: str) -> int | None:
        """The index of the rule that sets a flag; ``None``: none does."""
        index, value = self._flags.get(name, (None, None))
        return index if value else None

    def _change_host(self, walk: _Walk) -> None:
        is_web = walk.scheme in {"http", "https"}
        scheme_rule = self._find_flag("ignore_scheme")
        if (port_rule := self._find_flag("ignore_default_port")) is not None:
            ports = {_DEFAULT_PORTS.get(walk.scheme)}
            if is_web and scheme_rule is not None:
                ports = {":80", ":443"}  # else https://a:80 would not always have the same form
            name, colon, port = walk.netloc.rpartition(":")
            if colon + port in ports:
                walk.set(port_rule, "ignore_default_port", netloc=name)
        if is_web and scheme_rule is not None:
            walk.set(scheme_rule, "ignore_scheme", scheme="https")
        if (www_rule := self._find_flag("ignore_www")) is not None:
            user, at, host = walk.netloc.rpartition("@")
            if www := _WWW.match(host):
                walk.set(www_rule, "ignore_www", netloc=user + at + host[www.end() :])

    def _change_path(self, walk: _Walk) -> None:
        for index, names in self._path_params if ";" in walk.path else ():
            path = "/".join(_remove_path_params(part, names) for part in walk.path.split("/"))
            if path != walk.path:
                # As w3lib writes it: what was removed may have turned a segment into "..".
                path = split(canonicalize_url(f"{walk.scheme}://h{path}"))[2]
                walk.set(index, "ignore_path_params", path=path)
        for index, positions in self._segments:
            segments = walk.path.split("/")[1:]
            gone = {at + len(segments) if at < 0 else at for at in positions}
            path = "".join(f"/{part}" for at, part in enumerate(segments) if at not in gone)
            walk.set(index, "remove_segments", path=path or "/")
        if (case_rule := self._find_flag("ignore_path_case")) is not None:
            walk.set(case_rule, "ignore_path_case", path=_ESCAPES_AND_TEXT.sub(_lower, walk.path))
        if (slash_rule := self._find_flag("ignore_trailing_slash")) is not None:
            walk.set(slash_rule, "ignore_trailing_slash", path=walk.path.rstrip("/") or "/")

    def _change_query(self, walk: _Walk, given: str) -> None:
        if not walk.query:
            return
        index, is_sorted = self._flags.get("sort_query", (0, True))
        if not is_sorted:
            query = parse_url(safe_url_string(given)).query
            walk.set(index, "sort_query", query=urlencode(parse_qsl_to_bytes(query, True)))
        if self._keep_params is not None:
            index, kept = self._keep_params
            walk.filter_query(index, "keep_params", kept, keeps=True)
        for index, ignored in self._ignore_params:
            walk.filter_query(index, "ignore_params", ignored, keeps=False)

    def apply_to_body(self, body: bytes, content_type: str) -> tuple[bytes, list[Step]]:
        """The canonical form of a body, and the steps to it."""
        if (index := self._find_flag("ignore_body")) is not None:
            return b"", [Step(index, "ignore_body", _text(body), "")]
        steps: list[Step] = []
        for index, names in self._body_fields:
            changed = _without_fields(body, content_type, names)
            if changed != body:
                steps.append(Step(index, "ignore_body_fields", _text(body), _text(changed)))
                body = changed
        return body, steps


#: What of several rules the last one decides.
_FLAGS = [item.name for item in fields(Rule) if item.default is None and item.name != "keep_params"]


def find_marks(rule: Rule, netloc: str) -> set[str]:
    """Strings of which a URL with that netloc must contain one for the rule to change it.

    An empty one: it may change any.  Bodies do not count.
    """
    anywhere = rule.remove_segments or rule.ignore_path_case or rule.ignore_trailing_slash
    marks = {
        "": (anywhere or rule.ignore_scheme or rule.count_headers)
        or (rule.ignore_www and "www" in netloc.lower())
        or (rule.ignore_default_port and ":" in netloc),
        "?": rule.ignore_params or rule.keep_params is not None or rule.sort_query is False,
        "#": rule.keep_fragment,
        ";": rule.ignore_path_params,
    }
    return {mark for mark, is_needed in marks.items() if is_needed}


class _Walk:
    """A URL on its way to the canonical form."""

    def __init__(self, url: str) -> None:
        self.scheme, self.netloc, self.path, self.query, self.hidden_fragment = split(url)
        self.fragment = ""
        self.steps: list[Step] = []

    def url(self) -> str:
        return join(self.scheme, self.netloc, self.path, self.query, self.fragment)

    def filter_query(self, rule: int, what: str, names: Globs, *, keeps: bool) -> None:
        """Keep only the fields of the query that have one of these names, or else all others."""
        given = self.query.split("&") if self.query else []
        kept = [item for item in given if (_decode_name(item) in names) is keeps]
        if len(kept) < len(given):
            self.set(rule, what, query="&".join(kept))

    def set(self, rule: int, what: str, **parts: str) -> None:
        """Give parts a new value, and record the step if the URL changes."""
        before = self.url()
        for name, value in parts.items():
            setattr(self, name, value)
        after = self.url()
        if after != before:
            self.steps.append(Step(rule, what, before, after))


def _decode_name(field: str) -> str:
    name = field.partition("=")[0]
    return unquote_plus(name) if "%" in name or "+" in name else name


def _remove_path_params(segment: str, names: Globs) -> str:
    name, *params = segment.split(";")
    kept = [param for param in params if _decode_name(param.replace("+", "%2B")) not in names]
    return ";".join([name, *kept])


def _lower(found: re.Match[str]) -> str:
    """Text in lower case; of percent escapes, what they encode, and their own letters in upper."""
    escaped = found[1]
    if not escaped:
        return found[0].lower()
    try:
        text = unquote_to_bytes(escaped).decode()
    except UnicodeDecodeError:
        return escaped.upper()
    return escaped.upper() if text.isascii() else quote(text.lower(), safe="")


def _text(body: bytes) -> str:
    return body.decode("utf-8", "backslashreplace")


def _without_fields(body: bytes, content_type: str, names: Globs) -> bytes:
    """A JSON or form body as data, without those fields; any other body as it is."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind == _FORM:
        given = parse_qsl_to_bytes(body.decode("latin-1"), True)
        kept = [item for item in given if item[0].decode("utf-8", "replace") not in names]
        return urlencode(sorted(kept)).encode()
    looks_like_json = not kind and body.lstrip()[:1] in (b"{", b"[")
    if kind == "application/json" or kind.endswith("+json") or looks_like_json:
        try:
            data = json.loads(body)
            _remove(data, "", names)
            return json.dumps(data, sort_keys=True, separators=(",", ":")).encode()
        except (ValueError, RecursionError):
            return body
    return body


def _remove(data: Any, path: str, names: Globs) -> None:
    """Take fields out of JSON data; that of an object inside is named by its path, with dots."""
    if isinstance(data, dict):
        for key in [key for key in data if f"{path}{key}" in names]:
            del data[key]
    elif isinstance(data, list):
        data = dict(enumerate(data))
    else:
        return
    for key, item in data.items():
        _remove(item, f"{path}{key}.", names)
