"""What the rules that match a URL change in it.

Which rules these are is decided once, before any change.  A flag is what the last of them says;
what is ignored, kept and removed adds up.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import fields
from typing import Any, NamedTuple
from urllib.parse import quote, unquote_plus, unquote_to_bytes, urlencode

from w3lib.url import canonicalize_url, parse_qsl_to_bytes, parse_url, safe_url_string

from .globs import Globs
from .patterns import join, split
from .rule import Rule

_DEFAULT_PORTS = {"http": ":80", "https": ":443", "ftp": ":21"}
_WWW = re.compile(r"^(?:www[0-9]*\.)+(?=[^.]+\.)")
#: Group 1: percent escapes; without it: all up to the next of them.
_ESCAPES_AND_TEXT = re.compile("((?:%[0-9A-Fa-f]{2})+)|(?:(?!%[0-9A-Fa-f]{2}).)+", re.DOTALL)


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
        self._changes = _combine(rules, _KEYS)
        self._body_changes = _combine(rules, ("ignore_body", "ignore_body_fields"))
        self._ignores_scheme = any(key == "ignore_scheme" for _, key, _ in self._changes)

    def apply_to_url(self, canonical: str, given: str) -> tuple[str, list[Step]]:
        """The canonical form of a URL, and the steps to it.

        :param canonical: the URL as w3lib writes it, with its fragment.
        :param given: the same as it was given, for the order of its query.
        """
        scheme, netloc, path, query, hidden_fragment = split(canonical)
        fragment = ""
        is_web = scheme in {"http", "https"}
        url, steps = join(scheme, netloc, path, query, fragment), list[Step]()
        for index, key, value in self._changes:
            match key:
                case "ignore_default_port":
                    ports = {_DEFAULT_PORTS.get(scheme)}
                    if is_web and self._ignores_scheme:
                        ports = {":80", ":443"}  # else https://a:80 would not always be the same
                    name, colon, port = netloc.rpartition(":")
                    netloc = name if colon + port in ports else netloc
                case "ignore_scheme":
                    scheme = "https" if is_web else scheme
                case "ignore_www":
                    user, at, host = netloc.rpartition("@")
                    netloc = user + at + _WWW.sub("", host)
                case "ignore_path_params" if ";" in path:
                    kept = "/".join(_remove_path_params(part, value) for part in path.split("/"))
                    if kept != path:
                        # As w3lib writes it: what was removed may have turned a segment into "..".
                        path = split(canonicalize_url(f"{scheme}://h{kept}"))[2]
                case "remove_segments":
                    segments = path.split("/")[1:]
                    gone = {at + len(segments) if at < 0 else at for at in value}
                    left = (part for at, part in enumerate(segments) if at not in gone)
                    path = "".join(f"/{part}" for part in left) or "/"
                case "ignore_path_case":
                    path = _ESCAPES_AND_TEXT.sub(_lower, path)
                case "ignore_trailing_slash":
                    path = path.rstrip("/") or "/"
                case "sort_query" if query:
                    query = parse_url(safe_url_string(given)).query
                    query = urlencode(parse_qsl_to_bytes(query, True))
                case "keep_params" | "ignore_params":
                    keeps = key == "keep_params"
                    found = [it for it in query.split("&") if (_decode_name(it) in value) is keeps]
                    query = "&".join(found)
                case "keep_fragment" if value is True or hidden_fragment.startswith("!"):
                    fragment = hidden_fragment
            before, url = url, join(scheme, netloc, path, query, fragment)
            if url != before:
                steps.append(Step(index, key, before, url))
        return url, steps

    def apply_to_body(self, body: bytes, content_type: str) -> tuple[bytes, list[Step]]:
        """The canonical form of a body, and the steps to it."""
        steps = []
        for index, key, value in self._body_changes:
            left = b"" if key == "ignore_body" else _without_fields(body, content_type, value)
            if left != body:
                steps.append(Step(index, key, _text(body), _text(left)))
                body = left
        return body, steps


#: What is done to a URL, in this order: from left to right.
_KEYS = (
    *("ignore_default_port", "ignore_scheme", "ignore_www"),
    *("ignore_path_params", "remove_segments", "ignore_path_case", "ignore_trailing_slash"),
    *("sort_query", "keep_params", "ignore_params", "keep_fragment"),
)
_UNSET = {item.name: item.default for item in fields(Rule)}


def _combine(rules: Sequence[tuple[int, Rule]], keys: Iterable[str]) -> list[tuple[int, str, Any]]:
    """What rules do together: which of them, by which key, and with which value of it."""
    done: list[tuple[int, str, Any]] = []
    for key in keys:
        said = [(at, it) for at, rule in rules if (it := getattr(rule, key)) != _UNSET[key]]
        if key == "keep_params":
            # What the last of several rules leaves, which each of them adds to.
            kept = [name for _, names in said for name in names]
            said = [(index, kept) for index, _ in said[-1:]]
        elif _UNSET[key] is None:  # a flag, which the last of several rules decides
            said = [(at, flag) for at, flag in said[-1:] if bool(flag) is (key != "sort_query")]
        has_names = key.endswith(("_params", "_fields"))
        done += [(at, key, Globs(value) if has_names else value) for at, value in said]
    return done


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
    if kind == "application/x-www-form-urlencoded":
        given = parse_qsl_to_bytes(body.decode("latin-1"), True)
        kept = [item for item in given if item[0].decode("utf-8", "replace") not in names]
        return urlencode(sorted(kept)).encode()
    looks_like_json = not kind and body.lstrip()[:1] in (b"{", b"[")
    if kind == "application/json" or kind.endswith("+json") or looks_like_json:
        with suppress(ValueError, RecursionError):
            data = json.loads(body)
            _remove(data, "", names)
            return json.dumps(data, sort_keys=True, separators=(",", ":")).encode()
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
