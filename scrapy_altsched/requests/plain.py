"""What a request carries, as JSON, and back with exactly the same types.

JSON knows ``None``, bool, int, float, str, list, and dict with keys that are texts.  Any other
value is an object with one key, ``$`` and the name of its type: ``{"$bytes": "text/html"}``, each
byte being the character with its number, or ``{"$datetime": [2026, 1, 31, ...]}``, what
it is made of (:mod:`.kinds`).  No other type can be carried.
"""

from __future__ import annotations

import json
import math
from typing import Any

from ..errors import CodecError
from .kinds import BY_TYPE, MAX_DEPTH, find_problem

_MARK = "$"
_MOST = 1 << 63  # of an int that every program reads as one
_NAMED = {kind.__name__: BY_TYPE[kind] for kind in BY_TYPE}
_AS_THEY_ARE = frozenset({type(None), bool, str})
_UNORDERED = frozenset({set, frozenset})


def to_plain(fields: dict[str, Any]) -> dict[str, Any]:
    """The attributes of a request by name, or other values, as JSON has them.

    :raises CodecError: a value cannot be carried, as in "meta['a'] is a FormItem, which ...".
    """
    try:
        return {name: _write(value, 1) for name, value in fields.items()}
    except MemoryError:
        raise
    except Exception as error:  # such as a time zone without a name
        raise CodecError(find_problem(fields, "JSON") or str(error)) from error


def from_plain(plain: dict[str, Any]) -> dict[str, Any]:
    """The inverse of :func:`to_plain`; CodecError: it is not what that has made."""
    try:
        return {name: _read(value) for name, value in plain.items()}
    except MemoryError:
        raise
    except Exception as error:  # whatever values of wrong types lead to
        raise CodecError(f"{type(error).__name__}: {error}") from error


def _write(value: Any, depth: int) -> Any:
    kind = type(value)
    if kind in _AS_THEY_ARE or (kind is int and -_MOST <= value < _MOST):
        return value
    if kind is float:
        return value if math.isfinite(value) else _marked(kind, repr(value))
    if kind is bytes:
        return _marked(kind, value.decode("latin-1"))
    if depth > MAX_DEPTH:
        raise ValueError("it is nested too deeply")
    depth += 1
    if kind is list:
        return [_write(part, depth) for part in value]
    if kind is dict:
        if all(type(key) is str and not key.startswith(_MARK) for key in value):
            return {key: _write(part, depth) for key, part in value.items()}
        pairs = [[_write(key, depth), _write(part, depth)] for key, part in value.items()]
        return _marked(kind, pairs)
    parts = [_write(part, depth) for part in BY_TYPE[kind].take_apart(value)]
    # That of the same elements is the same in each process.
    return _marked(kind, sorted(parts, key=json.dumps) if kind in _UNORDERED else parts)


def _marked(kind: type, value: Any) -> dict[str, Any]:
    return {_MARK + kind.__name__: value}


def _read(value: Any) -> Any:
    if type(value) is list:
        return [_read(part) for part in value]
    if type(value) is not dict:
        return value
    [name, *others] = value or [""]
    if not name.startswith(_MARK):
        return {key: _read(part) for key, part in value.items()}
    if others:
        raise ValueError(f"{name} has other keys beside it")
    inner = value[name]
    match name.removeprefix(_MARK):
        case "bytes":
            return inner.encode("latin-1")
        case "float":
            return float(inner)
        case "dict":
            return {_read(key): _read(part) for key, part in inner}
        case kind:
            return _NAMED[kind].build(*map(_read, inner))
