"""A request as bytes, and back.

The form is a version byte, a checksum and a pickle of the attributes that differ from a plain
request's.  Pickle, as in Scrapy's own disk queues (scrapy/squeues.py): a job directory is trusted
as the project's code is.  The checksum is there because a damaged pickle may well load, as another
request, or take all memory.
"""

from __future__ import annotations

import marshal
import pickle
import struct
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from scrapy import Request
from scrapy.utils.misc import load_object
from scrapy.utils.request import request_from_dict

from ..engine.request_parts import REQUEST_PARTS, reader_of, slot_of
from ..errors import CodecError
from . import VERBATIM

if TYPE_CHECKING:
    from scrapy import Spider

#: The first byte of payloads: of those made here, and in :mod:`.portable`.
PICKLED = b"\x01"
PORTABLE = b"\x02"
_PROTOCOL = 4
_pack_head = struct.Struct(">cI").pack

#: Whether this Scrapy's requests have no other parts.
_KNOWN = set(REQUEST_PARTS).issuperset(Request.attributes)
_TAKES_VERBATIM = Request("http://site.test/ ", meta={VERBATIM: True}).url.endswith(" ")
#: With these fields alone the URL need not be made safe once more, two thirds of the cost of a new
#: request.  With encodings that are not like ASCII, escapes would be escaped again.
_URL_IS_SAFE = frozenset(REQUEST_PARTS if _TAKES_VERBATIM else ()) - {"encoding"}
_has_no_calls = frozenset(("callback", "errback")).isdisjoint
_COMMON = ("url", "headers", "meta", "callback", "errback")
_RARE = tuple(name for name in REQUEST_PARTS if name not in _COMMON)
_common_parts_of = reader_of(*_COMMON)
_rare_parts_of = reader_of(*_RARE)
_USUAL = _rare_parts_of(Request("http://site.test/"))
#: Parts whose values may be changed in place, unless they are immutable.
_MAPPINGS = ("meta", "cb_kwargs")
_are_immutable = frozenset({str, bytes, int, float, bool, type(None)}).issuperset


def encode_request(request: Request, spider: Spider) -> bytes:
    """The bytes of *request*, as it is now.

    :raises CodecError: a callback is not a method of *spider*, something cannot be pickled, or the
        request's class cannot be found under its name.
    """
    try:
        fields = fields_of(request, spider)
        path = fields.get("_class")
        # Scrapy's own queues fail when it is too late.
        if path and load_object(path) is not type(request):
            raise ValueError(f"{path} is another class than the request's, {type(request)!r}")
        return wrap(pickle.dumps(fields, _PROTOCOL), PICKLED)
    except MemoryError:
        raise
    except Exception as error:  # pickling runs code of whatever the request carries
        raise CodecError(str(error)) from error


def decode_request(payload: bytes, spider: Spider | None) -> Request:
    """The request that :func:`encode_request` made *payload* from.

    :param spider: ``None``: without its callbacks, in case they are gone.
    :raises CodecError: a callback is no longer a method of *spider*, a class is gone, or the bytes
        are damaged or of a newer version; so do all that read a payload.
    """
    pickled = unwrap(payload)
    try:
        if spider is None:
            return request_from_dict({**pickle.loads(pickled), "callback": None, "errback": None})
        return request_of(pickle.loads(pickled), spider)
    except MemoryError:
        raise
    except Exception as error:  # unpickling runs code of whatever the request carries
        raise CodecError(f"{type(error).__name__}: {error}") from error


def decode_fields(payload: bytes) -> dict[str, Any]:
    """What :func:`fields_of` gave of the request in *payload*."""
    pickled = unwrap(payload)
    try:
        return dict(pickle.loads(pickled))
    except MemoryError:
        raise
    except Exception as error:  # as above
        raise CodecError(f"{type(error).__name__}: {error}") from error


def url_of(payload: bytes) -> str | None:
    """The URL in *payload*, which is unpickled; ``None``: it cannot be read."""
    try:
        return str(decode_fields(payload)["url"])
    except (CodecError, KeyError):
        return None


def fields_of(request: Request, spider: Spider) -> dict[str, Any]:
    """The attributes of *request* that differ from a plain request's; of a subclass, all of them.

    They are its own objects, but for a callback, which is the name of a method of *spider*, and
    ``_class``, the path of a subclass.

    :raises Exception: a callback is not a method of *spider*; or whatever a subclass raises.
    """
    if not _KNOWN or type(request) is not Request:
        return request.to_dict(spider=spider)
    url, headers, meta, callback, errback = _common_parts_of(request)
    fields: dict[str, Any] = {"url": url}
    if headers:
        fields["headers"] = dict.copy(headers)  # in less time than dict(), as it is a subclass
    if meta:
        fields["meta"] = meta
    if callback is not None:
        if not _is_method(callback, spider):
            # Scrapy's own search, slow and thorough, finds it or says why not.
            return request.to_dict(spider=spider)
        fields["callback"] = callback.__name__
    if errback is not None:
        if not _is_method(errback, spider):
            return request.to_dict(spider=spider)
        fields["errback"] = errback.__name__
    rest = _rare_parts_of(request)
    if rest != _USUAL:
        fields.update(
            (name, part)
            for name, part, usual in zip(_RARE, rest, _USUAL, strict=True)
            if part != usual and (part or usual)
        )
    return fields


def _is_method(function: Callable[..., Any], spider: Spider) -> bool:
    """Whether *spider* has it under its own name."""
    is_own = getattr(function, "__self__", None) is spider
    return is_own and getattr(spider, function.__name__, None) == function


def request_of(fields: dict[str, Any], spider: Spider) -> Request:
    """The request that :func:`fields_of` gave *fields* of, which must not be used afterwards.

    :param fields: its headers are believed; ``_class`` may also be the class itself.
    :raises Exception: as :func:`decode_request`, or a value is nothing that a request can have.
    """
    is_safe = _URL_IS_SAFE.issuperset(fields)
    if not is_safe or VERBATIM in (meta := fields.setdefault("meta", {})):
        return request_from_dict(fields, spider=spider)
    meta[VERBATIM] = True
    headers = fields.pop("headers", None)
    if _has_no_calls(fields):  # to look through them once more takes a seventh of the time
        request = Request(**fields)
    else:
        request = request_from_dict(fields, spider=spider)
    del request.meta[VERBATIM]
    if headers:
        # They were a request's: to normalize names and values again takes a fifth of the time.
        dict.update(request.headers, headers)
    return request


def is_whole(payload: bytes) -> bool:
    """Whether the bytes are as :func:`wrap` made them."""
    return payload[:1] in (PICKLED, PORTABLE) and payload == wrap(payload[5:], payload[:1])


class PickleCodec:
    """The codec of one spider's job directory."""

    # A partial() with a keyword takes three times as long as a method.
    def __init__(self, spider: Spider) -> None:
        self._spider = spider
        self.url_of = url_of

    def encode(self, request: Request) -> bytes:
        return encode_request(request, self._spider)

    def decode(self, payload: bytes) -> Request:
        return decode_request(payload, self._spider)

    def is_as_encoded(self, request: Request, payload: bytes) -> bool:
        """Whether *request* is all that :meth:`decode` would make of *payload*.

        True if meta and cb_kwargs hold only immutable values, and nothing was changed since.
        """
        if not _KNOWN or type(request) is not Request:
            return False
        try:
            fields = fields_of(request, self._spider)
            for name in _MAPPINGS:
                values = fields.get(name)
                if values and not _are_immutable(map(type, values.values())):
                    return False
            return pickle.dumps(fields, _PROTOCOL) == payload[5:]
        except Exception:  # whatever was put into it since
            return False


def wrap(data: bytes, version: bytes) -> bytes:
    """A payload: *version*, one byte, and a checksum before *data*."""
    return _pack_head(version, zlib.crc32(data)) + data


def unwrap(payload: bytes, version: bytes = PICKLED) -> bytes:
    """The data in *payload*; CodecError: it is damaged, or of another version."""
    if payload[:1] != version:
        raise CodecError(f"it is of an unknown version ({payload[:1].hex() or 'empty'})")
    data = payload[5:]
    if payload[:5] != _pack_head(version, zlib.crc32(data)):
        raise CodecError("its bytes are damaged")
    return data


def adopt_record(record: bytes) -> bytes:
    """The payload of a request in one of Scrapy's disk queues; CodecError: it is of no queue."""
    if not record.startswith(b"\x80"):
        try:
            record = pickle.dumps(marshal.loads(record), _PROTOCOL)
        except (EOFError, ValueError, TypeError) as error:
            raise CodecError(f"{type(error).__name__}: {error}") from error
    return wrap(record, PICKLED)


def locate(payload: bytes) -> tuple[str, bool]:
    """Download slot of a stored request, and whether it is a start request, or CodecError."""
    fields = decode_fields(payload)
    meta = fields.get("meta") or {}
    return slot_of(fields["url"], meta), bool(meta.get("is_start_request"))
