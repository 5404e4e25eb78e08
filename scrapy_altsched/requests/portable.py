"""A request as bytes that may be read from a server which others can write to.

A pickle from there can execute any code.  This form is data only: a version byte and a checksum, as
in :mod:`.codec`, and the request's attributes as :mod:`.values` packs them.  Request classes come
from a list, and callbacks are methods of the spider.  What others write still decides which URLs
are requested, and what is in their meta.
"""

from __future__ import annotations

from collections.abc import Sequence
from inspect import getattr_static
from types import MethodType
from typing import TYPE_CHECKING, Any

from scrapy import FormRequest, Request
from scrapy.http import Headers, JsonRequest, XmlRpcRequest

from ..errors import CodecError
from ..frontier.shared.additions import MOST_BYTES
from .codec import (
    PICKLED,
    PORTABLE,
    decode_request,
    encode_request,
    fields_of,
    request_of,
    unwrap,
    url_of,
    wrap,
)
from .kinds import find_problem, shorten
from .values import ValueCodec

if TYPE_CHECKING:
    from scrapy import Spider

_SCRAPYS_OWN: tuple[type[Request], ...] = (Request, FormRequest, JsonRequest, XmlRpcRequest)


class PortableCodec:
    """Encodes and decodes the requests of one spider.  For one thread only.

    :param request_classes: those that may be encoded and created, besides Scrapy's own.
    :param pickle: whether to use pickles for what msgpack cannot carry, and to load any pickle:
        everyone who can write to the server can then execute code here.
    """

    def __init__(
        self, spider: Spider, request_classes: Sequence[type[Request]] = (), *, pickle: bool = False
    ) -> None:
        self._spider = spider
        self._pickle = pickle
        self._classes = allowed_classes(request_classes)
        self._own = vars(spider)
        #: Names that were found to be methods of the spider's class.
        self._methods: set[str] = set()
        self._values = ValueCodec()

    def encode(self, request: Request) -> bytes:
        """The bytes of *request*, as it is now.

        :raises CodecError: a callback is not a method of the spider, the class is not allowed, it
            is too large, or neither msgpack nor, if allowed, pickle can carry a value.
        """
        require_size(request.body)
        try:
            fields = fields_of(request, self._spider)
            if type(request) is not Request:
                self._require_class(type(request), fields.get("_class"))
            self._require_methods(fields)
        except (CodecError, MemoryError):
            raise
        except Exception as error:  # code of a subclass runs
            raise CodecError(str(error)) from error
        try:
            payload = wrap(self._values.pack(fields), PORTABLE)
        except CodecError as error:
            if not self._pickle:
                raise CodecError(find_problem(fields) or str(error)) from error
            payload = encode_request(request, self._spider)
        require_size(payload)
        return payload

    def is_as_encoded(self, request: Request, payload: bytes) -> bool:  # noqa: ARG002
        """Never: to find out takes as long as :meth:`decode`."""
        return False

    def decode(self, payload: bytes) -> Request:
        """The request that :meth:`encode` made *payload* from; CodecError: it makes no such bytes.

        Unless pickles are allowed, these may come from anywhere: no code of the project runs but
        that of allowed request classes, and nothing is imported but Python's text encodings, which
        any page can name.
        """
        if payload[:1] == PICKLED:
            if not self._pickle:
                raise CodecError(
                    "it is a pickle (version 01): one from a shared server could run any code"
                )
            request = decode_request(payload, self._spider)
            self._require_class(type(request), _path_of(type(request)))
            return request
        fields = self._values.unpack(unwrap(payload, PORTABLE))
        try:
            if "_class" in fields:
                # The class itself: of a path, Scrapy would import what it names.
                fields["_class"] = self._class_named(fields["_class"])
            self._require_methods(fields)
            headers = fields.get("headers")
            if headers and not _are_normal(headers):
                fields["headers"] = dict(Headers(headers, fields.get("encoding", "utf-8")))
            return request_of(fields, self._spider)
        except (CodecError, MemoryError):
            raise
        except Exception as error:  # whatever values of wrong types lead to
            raise CodecError(f"{type(error).__name__}: {shorten(str(error))}") from error

    def url_of(self, payload: bytes) -> str | None:
        """The URL in *payload*; ``None``: it cannot be read, or must not be."""
        return url_of(payload) if self._pickle and payload[:1] == PICKLED else read_url(payload)

    def _require_class(self, request_class: type[Request], path: Any) -> None:
        if self._class_named(path) is not request_class:
            raise CodecError(f"{path} is another class than the request's, {request_class!r}")

    def _class_named(self, path: Any) -> type[Request]:
        if type(path) is str and path in self._classes:
            return self._classes[path]
        raise CodecError(
            f"its class, {shorten(str(path))}, is not allowed in a shared crawl: add it to"
            " ALTSCHED_SHARED_REQUEST_CLASSES"
        )

    def _require_methods(self, fields: dict[str, Any]) -> None:
        for part in ("callback", "errback"):
            name = fields.get(part)
            if name is not None and not self._is_method(name):
                what = f"its {part}, {shorten(str(name))},"
                raise CodecError(f"{what} is not a method of {self._spider}")

    def _is_method(self, name: Any) -> bool:
        # No code is run for it, such as a property's.
        if type(name) is not str:
            return False
        is_own = name in self._own
        if not is_own and name in self._methods:
            return True
        found = getattr_static(self._spider, name, None)
        if not is_own and (callable(found) or isinstance(found, classmethod)):
            found = getattr(self._spider, name)
        # The spider's or its class's, not one of something that they refer to.
        is_theirs = isinstance(found, MethodType) and (
            found.__self__ is self._spider or found.__self__ is type(self._spider)
        )
        if not is_theirs or (name.startswith("__") and name.endswith("__")):
            return False
        if not is_own:
            self._methods.add(name)
        return True


def allowed_classes(request_classes: Sequence[type[Request]]) -> dict[str, type[Request]]:
    """The classes of requests that are created from a server's bytes, by their paths.

    :param request_classes: those besides Scrapy's own.
    """
    return {_path_of(cls): cls for cls in (*_SCRAPYS_OWN, *request_classes)}


def read_fields(payload: bytes) -> dict[str, Any]:
    """What *payload* says of a request; empty: it cannot be read, or is a pickle."""
    try:
        fields: dict[str, Any] = ValueCodec().unpack(unwrap(payload, PORTABLE))
    except CodecError:
        return {}
    return fields


def read_url(payload: bytes) -> str | None:
    """The URL in *payload*; ``None``: as for :func:`read_fields`."""
    fields = read_fields(payload)
    return str(fields["url"]) if "url" in fields else None


def require_size(data: bytes) -> None:
    """CodecError: a request of these bytes is too large for a server."""
    if len(data) > MOST_BYTES:
        raise CodecError(
            f"it has {len(data):,} bytes, and one that goes to the server of a shared crawl has at"
            f" most {MOST_BYTES:,}"
        )


def _path_of(cls: type) -> str:
    # As Request.to_dict() has it.
    return f"{cls.__module__}.{cls.__name__}"


def _are_normal(headers: Any) -> bool:
    if type(headers) is not dict:
        return False
    for name, values in headers.items():
        if type(name) is not bytes or type(values) is not list:
            return False
        for value in values:
            if type(value) is not bytes:
                return False
    return True
