"""Requests as people write them: a line each, which is a URL, or an object in JSON.

Such an object has the fields that Scrapy gives a request's dict, with strings for bytes:
https://docs.scrapy.org/en/latest/topics/request-response.html#scrapy.utils.request.request_from_dict
"""

from __future__ import annotations

import json
import reprlib
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import IO, Any
from urllib.parse import unquote, urlsplit

from scrapy import Request, Spider

from .actions import RequestFields

#: Of a line: more than a server takes of a request.
MOST_BYTES = 16 * 1024 * 1024
#: For messages: a value can be as long as a line.
_in_short = reprlib.Repr()
_in_short.maxstring = 200


def read_lines(file: IO[bytes]) -> Iterator[bytes]:
    """All lines of a file; of one that is too long for a request, the beginning."""
    read = partial(file.readline, MOST_BYTES + 1)
    while line := read():
        yield line
        while len(line) > MOST_BYTES and not line.endswith(b"\n"):
            line = read()


@dataclass(frozen=True, slots=True)
class RequestReader:
    """Reads requests, and says what is wrong with them.

    :ivar schemes: of URLs that can be downloaded.
    :ivar spider: the class that callbacks are methods of; ``None``: it is not known.
    :ivar common: fields of each request that is written as a URL alone.
    """

    schemes: Collection[str]
    spider: type[Spider] | None = None
    common: RequestFields = field(default_factory=dict)

    def read(self, line: bytes) -> RequestFields:
        """The request in a line; ValueError: there is none, and why."""
        if len(line) > MOST_BYTES:
            raise ValueError(f"it is longer than {MOST_BYTES:,} bytes")
        try:
            text = line.decode().strip()
        except UnicodeDecodeError as error:
            raise ValueError(f"it is not UTF-8 ({error})") from None
        fields = _parse(text) if text.startswith("{") else {**self.common, "url": text}
        if "url" not in fields:
            raise ValueError("it has no field 'url'")
        self.check_fields(fields)
        self._check_url(fields)
        return fields

    def check_fields(self, fields: RequestFields) -> None:
        """ValueError: there is no such field, or it cannot have this value."""
        if unknown := fields.keys() - _FIELDS.keys():
            known = ", ".join(_FIELDS)
            raise ValueError(f"a request has no field {min(unknown)!r}; its fields are {known}")
        for name, value in fields.items():
            is_right, must_be = _FIELDS[name]
            if not is_right(value):
                raise ValueError(
                    f"its field {name!r} must be {must_be}, not {_in_short.repr(value)}"
                )
        for name in ("callback", "errback"):
            method = fields.get(name)
            if method and self.spider and not callable(getattr(self.spider, method, None)):
                raise ValueError(f"the spider {self.spider.name!r} has no method {method!r}")

    def _check_url(self, fields: RequestFields) -> None:
        """Also what else Scrapy alone knows of."""
        methods = {"callback": None, "errback": None}
        url = _in_short.repr(fields["url"])
        scheme = urlsplit(fields["url"]).scheme
        if not scheme:
            raise ValueError(f"{url} is no URL: it does not begin with a scheme, as https:// is")
        if scheme not in self.schemes:
            known = ", ".join(sorted(self.schemes))
            raise ValueError(f"nothing downloads {scheme}: URLs in this project, but {known}")
        try:
            parts = urlsplit(Request(**{**fields, **methods}).url)
            host, _ = parts.hostname, parts.port  # which are read only now
        except (LookupError, UnicodeError) as error:
            raise ValueError(str(error)) from None
        if scheme in _NEED_HOST and (not host or " " in unquote(host)):
            raise ValueError(f"{url} is no URL: it has no host")


def _parse(text: str) -> dict[str, Any]:
    """The object that a line is, without the fields that are null."""
    try:
        fields = json.loads(text, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        problem = f"{error.msg} at character {error.pos + 1}"
        raise ValueError(f"it begins as JSON does, and is none: {problem}") from None
    except RecursionError:
        raise ValueError("its values are nested too deeply") from None
    return {name: value for name, value in fields.items() if value is not None}


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _are_texts(value: object) -> bool:
    return isinstance(value, list) and all(map(_is_text, value))


def _is_object(value: object) -> bool:
    return isinstance(value, dict)


def _are_headers(value: object) -> bool:
    return isinstance(value, dict) and all(_is_text(it) or _are_texts(it) for it in value.values())


def _are_cookies(value: object) -> bool:
    if isinstance(value, dict):
        return all(map(_is_text, value.values()))
    return isinstance(value, list) and all(
        isinstance(it, dict) and _is_text(it.get("name")) and _is_text(it.get("value"))
        for it in value
    )


def _is_priority(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63


_TEXT = _is_text, "a string"
_OBJECT = _is_object, "an object"
#: Whether a field's value is right, and what it must be.
_FIELDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "url": _TEXT,
    "method": _TEXT,
    "headers": (_are_headers, "an object of strings, or of lists of strings"),
    "body": _TEXT,
    "cookies": (_are_cookies, "an object of strings, or a list of objects with name and value"),
    "meta": _OBJECT,
    "priority": (_is_priority, "a whole number of 64 bits"),
    "dont_filter": (lambda value: isinstance(value, bool), "true or false"),
    "callback": _TEXT,
    "errback": _TEXT,
    "cb_kwargs": _OBJECT,
    "flags": (_are_texts, "a list of strings"),
    "encoding": _TEXT,
}
_NEED_HOST = frozenset({"http", "https", "ftp", "s3"})
