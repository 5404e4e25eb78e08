"""A stored request in another form than it was stored in.

Job directories have pickles (:mod:`.codec`), servers data only (:mod:`.portable`), exported files
JSON (:mod:`.plain`).  No request is created for it, and no code of a project runs but what a pickle
asks for.
"""

from __future__ import annotations

import base64
import pickle
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from scrapy.utils.misc import load_object

from ..engine.request_parts import slot_of
from ..errors import CodecError
from .codec import PICKLED, PORTABLE, decode_fields, unwrap, wrap
from .kinds import find_problem, shorten
from .plain import from_plain, to_plain

if TYPE_CHECKING:
    from ..settings import Config

_PROTOCOL = 4
#: Instead of its attributes, a request as it is stored, in Base64.
STORED = "$stored"
NEEDS_TRUST = (
    "it holds a pickle, which can execute code: only `scrapy altsched import` loads it, with"
    " --trust-pickle"
)


def fields_in(payload: bytes, *, trusted: bool) -> dict[str, Any]:
    """The attributes of a stored request by name; CodecError: it cannot be read, or must not be.

    :param trusted: whether it may be loaded if it is a pickle.
    """
    if payload[:1] == PICKLED:
        if not trusted:
            raise CodecError(NEEDS_TRUST)
        return decode_fields(payload)
    from .values import ValueCodec  # what it needs is optional

    return ValueCodec().unpack(unwrap(payload, PORTABLE))


def slot_in(payload: bytes, *, trusted: bool) -> str:
    """The download slot of a stored request; empty: as where :func:`fields_in` raises."""
    try:
        fields = fields_in(payload, trusted=trusted)
        return slot_of(fields["url"], fields.get("meta") or {})
    except (CodecError, KeyError, TypeError, ValueError):
        return ""


def url_in(payload: bytes, *, trusted: bool) -> str | None:
    """The URL of a stored request; ``None``: as where :func:`fields_in` raises."""
    try:
        return str(fields_in(payload, trusted=trusted)["url"])
    except (CodecError, KeyError):
        return None


def pickled(payload: bytes) -> bytes:
    """The same request as job directories have it; CodecError: it cannot be read."""
    return payload if payload[:1] == PICKLED else _pickle(fields_in(payload, trusted=False))


def _pickle(fields: dict[str, Any]) -> bytes:
    return wrap(pickle.dumps(fields, _PROTOCOL), PICKLED)


def portable(payload: bytes) -> bytes:
    """The same request as servers have it; CodecError: msgpack cannot carry it, or it is large."""
    from .portable import require_size
    from .values import ValueCodec

    if payload[:1] == PICKLED:
        fields = decode_fields(payload)
        try:
            payload = wrap(ValueCodec().pack(fields), PORTABLE)
        except CodecError as error:
            raise CodecError(find_problem(fields) or str(error)) from error
    require_size(payload)
    return payload


def to_json(payload: bytes, *, as_stored: bool, trusted: bool) -> dict[str, Any]:
    """A stored request as JSON has it.

    :param as_stored: whether one that JSON cannot carry, or that :func:`fields_in` raises for, is
        left as it is.
    :raises CodecError: it is such a one, and is not.
    """
    try:
        return to_plain(fields_in(payload, trusted=trusted))
    except CodecError:
        if not as_stored:
            raise
        return {STORED: base64.b64encode(payload).decode("ascii")}


def from_json(plain: dict[str, Any], *, trusted: bool) -> bytes:
    """The stored request that :func:`to_json` made *plain* from, a pickle.

    :param trusted: whether a pickle in it may be loaded.
    :raises CodecError: it is not what that has made; or a pickle, and may not be loaded.
    """
    if STORED not in plain:
        return _pickle(from_plain(plain))
    if not trusted:
        raise CodecError(NEEDS_TRUST)
    try:
        return base64.b64decode(plain[STORED], validate=True)
    except (TypeError, ValueError) as error:
        raise CodecError(f"its Base64 cannot be read: {error}") from error


def check_of(config: Config) -> Callable[[bytes], bytes]:
    """A function for what an untrusted server says: it returns the payload that it is given.

    It raises CodecError if, to make the request again, a pickle would be loaded, or a class be
    imported that the settings do not allow.
    """
    from .portable import allowed_classes, read_fields

    allowed = allowed_classes([load_object(path) for path in config.shared_request_classes])

    def check(payload: bytes) -> bytes:
        if payload[:1] == PICKLED:
            raise CodecError(NEEDS_TRUST)
        path = read_fields(payload).get("_class")
        if path is not None and not (type(path) is str and path in allowed):
            raise CodecError(
                f"its class, {shorten(str(path))}, is to be imported from what a server says: add"
                " it to ALTSCHED_SHARED_REQUEST_CLASSES"
            )
        return payload

    return check
