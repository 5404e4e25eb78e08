"""What a request carries, in msgpack, and back with exactly the same types.

msgpack knows ``None``, bool, int, float, str, bytes, list and dict.  A value of any other type is
an array whose first element, its head, is an empty extension type; the extension's code says which
type it is, and the other elements what it is made of.  So nesting stays msgpack's own, which takes
neither recursion nor copies.  Any other type is refused, and so is a subclass.

Bytes from anywhere may be read: nothing is imported, no code of a project runs, and memory is
bounded by their length.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterable
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from functools import cache, partial
from operator import attrgetter
from typing import Any, NamedTuple
from uuid import UUID, SafeUUID
from zoneinfo import ZoneInfo, available_timezones

import msgpack

from ..errors import CodecError

#: How deep a request's values may be nested.  msgpack's own limit depends on its version, and one
#: version reads less than it writes; Python's is 1,000 calls, some of which are in use.
_MAX_DEPTH = 200
#: Longer bytes are checked for being complete before anything is created: each of 1,023 nested
#: arrays could declare as many elements as there are bytes, and msgpack allocates them at once.
_LONG = 4096
#: What msgpack takes for bytes or for extension types of ours, although told to be strict.
_ALIKE = frozenset({bytearray, memoryview, msgpack.ExtType, msgpack.Timestamp})
_SCALARS = frozenset({type(None), bool, int, float, str, bytes})
_CONTAINERS = frozenset({list, dict, tuple, set, frozenset})


class _Kind(NamedTuple):
    """A type that msgpack does not know; *build* is called with what *take_apart* returns."""

    type: type[Any]
    take_apart: Callable[[Any], Iterable[Any]]
    build: Callable[..., Any]


class ValueCodec:
    """Turns the attributes of requests into msgpack, and back.  For one thread only."""

    def __init__(self) -> None:
        self._pack = msgpack.Packer(default=_take_apart, strict_types=True).pack
        # The text of a broken page may have lone surrogates.  Slower by a third.
        self._pack_surrogates = msgpack.Packer(
            default=_take_apart, strict_types=True, unicode_errors="surrogatepass"
        ).pack
        self._unpack = partial(
            msgpack.unpackb,
            ext_hook=self._read_head,
            list_hook=self._build,
            strict_map_key=False,
            unicode_errors="surrogatepass",
        )
        #: How many heads were read that are not, or not yet, at the beginning of an array.
        self._heads = 0

    def pack(self, fields: dict[str, Any]) -> bytes:
        """The bytes of attributes by name; headers are believed to be made of bytes.

        :raises CodecError: a value cannot be carried; :func:`find_problem` tells which.
        """
        try:
            data = self._pack_any(fields)
            if alike := _alike_in(fields):
                if alike != {bytearray}:
                    raise TypeError("it would come back as another type")
                data = self._pack_any(_mark_bytearrays(fields))
        except MemoryError:
            raise
        except Exception as error:  # msgpack's own errors have several unrelated classes
            raise CodecError(f"msgpack cannot carry it: {error}") from error
        return data

    def _pack_any(self, fields: dict[str, Any]) -> bytes:
        packed: bytes
        try:
            packed = self._pack(fields)
        except UnicodeEncodeError:
            packed = self._pack_surrogates(fields)
        return packed

    def unpack(self, data: bytes) -> dict[str, Any]:
        """The attributes that :meth:`pack` made *data* from; CodecError: it did not."""
        self._heads = 0
        try:
            if len(data) > _LONG:
                unpacker = msgpack.Unpacker(max_buffer_size=len(data))
                unpacker.feed(data)
                unpacker.skip()
            # Its limits of lengths follow from the length of the data.
            fields = self._unpack(data)
            if type(fields) is not dict:
                raise CodecError(f"its bytes are those of {_a(type(fields))}, not of a request")
            # msgpack reads its own timestamps, of code -1, without asking us.
            is_extended = self._heads != 0 or msgpack.Timestamp in _alike_in(fields)
        except (CodecError, MemoryError):
            raise
        except Exception as error:  # as above, and whatever values of wrong types lead to
            what = f"{type(error).__name__}: {shorten(str(error))}"
            raise CodecError(f"its bytes are not those of a request: {what}") from error
        if is_extended:
            raise CodecError("its bytes have an extension type where none belongs")
        return fields

    def _read_head(self, code: int, data: bytes) -> _Kind:
        kind = _KINDS.get(code)
        if kind is None or data:
            raise CodecError(f"its bytes have an unknown extension type ({code})")
        self._heads += 1
        return kind

    def _build(self, parts: list[Any]) -> Any:
        if parts and type(parts[0]) is _Kind:
            self._heads -= 1
            return parts[0].build(*parts[1:])
        return parts


def _take_apart(value: Any) -> list[Any]:
    if type(value) not in _BY_TYPE:
        raise TypeError(_a(type(value)))
    head, kind = _BY_TYPE[type(value)]
    return [head, *kind.take_apart(value)]


def _mark_bytearrays(value: Any) -> Any:
    kind = type(value)
    if kind is dict:
        return {key: _mark_bytearrays(part) for key, part in value.items()}
    if kind is list or kind is tuple:
        return kind(map(_mark_bytearrays, value))
    return _take_apart(value) if kind is bytearray else value


def _alike_in(fields: dict[str, Any]) -> set[type]:
    """The types of :data:`_ALIKE` in *fields*, headers aside; ValueError: too deep a nesting."""
    found: set[type] = set()
    for name, part in fields.items():
        kind = type(part)
        if kind in _SCALARS or name == "headers":
            continue
        if kind is dict and (  # meta, and most often flat: worth a shorter path
            _SCALARS.issuperset(map(type, part.values())) and _SCALARS.issuperset(map(type, part))
        ):
            continue
        found |= _types_in(part) if kind in _CONTAINERS else {kind}
    return found & _ALIKE if found else found


def _types_in(container: Any) -> set[type]:
    """The types in a container at all depths, other than those of scalars that msgpack knows."""
    found: set[type] = set()
    level = [container]
    # Level by level, since then only a container takes a step of Python, and not each value.
    for _ in range(_MAX_DEPTH):
        inner: list[Any] = []
        for parts in level:
            if type(parts) is dict:
                parts = (*parts, *parts.values())
            types = set(map(type, parts)) - _SCALARS
            if types:
                found |= types
                inner += [part for part in parts if type(part) in _CONTAINERS]
        if not inner:
            return found
        level = inner
    raise ValueError("it is nested too deeply")


def find_problem(fields: dict[str, Any]) -> str | None:
    """Which value of *fields* cannot be carried, as in "meta['a'] is a FormItem, which ..."."""
    waiting = [(part, name, 1) for name, part in reversed(fields.items())]
    while waiting:
        value, path, depth = waiting.pop()
        if type(value) not in _CARRIED:
            return f"{shorten(path)} is {_a(type(value))}, which msgpack cannot carry"
        if depth > _MAX_DEPTH and type(value) in _CONTAINERS:
            return f"{shorten(path)} is nested more than {_MAX_DEPTH} deep, or contains itself"
        try:
            parts = list(_parts_of(value, path))
        except Exception as error:  # such as a time zone without a name
            return f"{shorten(path)} cannot be carried: {error}"
        waiting += [(part, where, depth + 1) for part, where in reversed(parts)]
    return None


def _parts_of(value: Any, path: str) -> Iterable[tuple[Any, str]]:
    kind = type(value)
    if kind is dict:
        for key, part in value.items():
            yield key, f"a key of {path}"
            yield part, f"{path}[{_show(key)}]"
    elif kind is list or kind is tuple:
        yield from ((part, f"{path}[{index}]") for index, part in enumerate(value))
    elif kind is set or kind is frozenset:
        where = f"an element of {path.removeprefix('an element of ')}"
        yield from ((part, where) for part in value)
    elif kind not in _SCALARS:
        yield from ((part, f"a part of {path}") for part in _BY_TYPE[kind][1].take_apart(value))


def _show(key: Any) -> str:
    try:
        return reprlib.repr(key) if type(key) in _SCALARS else "..."
    except ValueError:  # an int of more than 4,300 digits
        return "..."


def _a(kind: type) -> str:
    name = kind.__name__
    return f"{'an' if name[0] in 'AEIOUaeiou' else 'a'} {name}"


def shorten(text: str) -> str:
    """The beginning of a *text* for a message, in one line: it may be as long as any payload."""
    text = text if text.isprintable() else ascii(text)[1:-1]
    return text if len(text) <= 200 else f"{text[:200]}..."


def _only(kind: type, part: Any) -> Any:
    """*part*, if it is a *kind*: ``bytearray(10**12)`` would take all memory."""
    if type(part) is not kind:
        raise TypeError(f"{_a(kind)} is needed, not {_a(type(part))}")
    return part


def _time_parts(value: datetime | time) -> list[Any]:
    clock = [value.hour, value.minute, value.second, value.microsecond]
    return [*clock, value.tzinfo, value.fold]


#: Other names of time zones are not even looked for in the file system.
_zones = cache(available_timezones)


def _require_zone(name: str) -> str:
    if name not in _zones():
        raise ValueError(f"the time zone {name} is not known on this machine")
    return name


def _zone_parts(zone: ZoneInfo) -> list[Any]:
    zone.__reduce__()  # raises if it was read from a file: the name is not all of it
    return [_require_zone(zone.key)]


#: Code of the extension type that is the head -> what it stands for.  What is stored has these
#: codes: one that is no longer used is not given to another type.
_KINDS = {
    1: _Kind(tuple, tuple, lambda *parts: parts),
    2: _Kind(set, list, lambda *parts: set(parts)),
    3: _Kind(frozenset, list, lambda *parts: frozenset(parts)),
    4: _Kind(  # of more than 64 bits
        int,
        lambda value: [value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True)],
        lambda it: int.from_bytes(_only(bytes, it), "big", signed=True),
    ),
    5: _Kind(bytearray, lambda value: [bytes(value)], lambda it: bytearray(_only(bytes, it))),
    6: _Kind(complex, attrgetter("real", "imag"), lambda *parts: complex(*map(float, parts))),
    7: _Kind(Decimal, lambda value: [str(value)], lambda it: Decimal(_only(str, it))),
    8: _Kind(
        UUID,
        attrgetter("bytes", "is_safe.value"),
        lambda data, safe: UUID(bytes=_only(bytes, data), is_safe=SafeUUID(safe)),
    ),
    9: _Kind(date, attrgetter("year", "month", "day"), date),
    10: _Kind(time, _time_parts, lambda *parts: time(*parts[:-1], fold=parts[-1])),
    11: _Kind(
        datetime,
        lambda value: [value.year, value.month, value.day, *_time_parts(value)],
        lambda *parts: datetime(*parts[:-1], fold=parts[-1]),
    ),
    12: _Kind(timedelta, attrgetter("days", "seconds", "microseconds"), timedelta),
    13: _Kind(timezone, lambda value: value.__getinitargs__(), timezone),
    14: _Kind(ZoneInfo, _zone_parts, lambda name: ZoneInfo(_require_zone(_only(str, name)))),
}
_BY_TYPE = {kind.type: (msgpack.ExtType(code, b""), kind) for code, kind in _KINDS.items()}
_CARRIED = _SCALARS | _CONTAINERS | _BY_TYPE.keys()
