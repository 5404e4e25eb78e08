"""A request as bytes, and back.

The form is a version byte, a checksum and a pickle of the attributes that differ from a plain
request's, callbacks as names of the spider's methods.  Pickle, as in Scrapy's own disk queues
(scrapy/squeues.py): a job directory is trusted as the project's code is.  The checksum is there
because a damaged pickle may well load, as another request, or take all memory.
"""

from __future__ import annotations

import pickle
import zlib
from typing import TYPE_CHECKING, Any

from scrapy import Request
from scrapy.utils.misc import load_object
from scrapy.utils.request import request_from_dict

from .errors import CodecError

if TYPE_CHECKING:
    from scrapy import Spider

_VERSION = b"\x01"
_PROTOCOL = 4

#: Attributes of a request and their values in ``Request(url)``; empty ones count as these.
_DEFAULTS: dict[str, Any] = {
    "method": "GET",
    "body": b"",
    "cookies": {},
    "meta": {},
    "encoding": "utf-8",
    "priority": 0,
    "dont_filter": False,
    "flags": [],
    "cb_kwargs": {},
}
#: Whether those are all that this Scrapy's requests have.
_KNOWN = {*_DEFAULTS, "url", "callback", "errback", "headers"}.issuperset(Request.attributes)


def encode_request(request: Request, spider: Spider) -> bytes:
    """The bytes of *request*, as it is now.

    :raises CodecError: a callback is not a method of *spider*, something cannot be pickled, or the
        request's class is not to be found under its name.
    """
    try:
        if _KNOWN and type(request) is Request:
            fields = _plain_fields(request, spider)
        else:
            fields = request.to_dict(spider=spider)
            _check_class(request, fields)
        pickled = pickle.dumps(fields, _PROTOCOL)
    except MemoryError:
        raise
    except Exception as error:  # pickling runs code of whatever the request carries
        raise CodecError(str(error)) from error
    return _VERSION + _checksum(pickled) + pickled


def decode_request(payload: bytes, spider: Spider) -> Request:
    """The request that :func:`encode_request` made *payload* from.

    :raises CodecError: its callback is no longer a method of *spider*, a class it refers to is
        gone, or the bytes are damaged or of a newer version.
    """
    if payload[:1] != _VERSION:
        raise CodecError(f"it is of an unknown version ({payload[:1].hex() or 'empty'})")
    pickled = payload[5:]
    if payload[1:5] != _checksum(pickled):
        raise CodecError("its bytes are damaged")
    try:
        return request_from_dict(pickle.loads(pickled), spider=spider)
    except MemoryError:
        raise
    except Exception as error:  # unpickling runs code of whatever the request carries
        raise CodecError(f"{type(error).__name__}: {error}") from error


def _checksum(data: bytes) -> bytes:
    return zlib.crc32(data).to_bytes(4, "big")


def _plain_fields(request: Request, spider: Spider) -> dict[str, Any]:
    fields: dict[str, Any] = {"url": request.url}
    for name, default in _DEFAULTS.items():
        value = getattr(request, name)
        if value != default:
            fields[name] = value
    if request.headers:
        fields["headers"] = dict(request.headers)
    for name in ("callback", "errback"):
        function = getattr(request, name)
        if function is not None:
            fields[name] = _method_name(function, spider)
            if fields[name] is None:
                # Scrapy's own search, slow and thorough, finds it or says why not.
                return request.to_dict(spider=spider)
    return fields


def _check_class(request: Request, fields: dict[str, Any]) -> None:
    """See that the class will be found again; Scrapy's queues find out when it is too late."""
    path = fields.get("_class")
    if path is not None and load_object(path) is not type(request):
        raise ValueError(f"{path} is another class than the request's, {type(request)!r}")


def _method_name(function: Any, spider: Spider) -> str | None:
    """The name under which *function* is a method of *spider*, if it is the obvious one."""
    if getattr(function, "__self__", None) is not spider:
        return None
    name: str = function.__name__
    return name if getattr(spider, name, None) == function else None
