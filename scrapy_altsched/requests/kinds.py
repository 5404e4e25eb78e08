"""The types of values that a request can carry to another machine, and what each is made of."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterable
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from functools import cache
from operator import attrgetter
from typing import Any, NamedTuple
from uuid import UUID, SafeUUID
from zoneinfo import ZoneInfo, available_timezones

#: How deep a request's values may be nested.  msgpack's own limit depends on its version, and one
#: version reads less than it writes; Python's is 1,000 calls, some of which are in use.
MAX_DEPTH = 200
SCALARS = frozenset({type(None), bool, int, float, str, bytes})
CONTAINERS = frozenset({list, dict, tuple, set, frozenset})


class ValueKind(NamedTuple):
    """A type that msgpack does not know; *build* is called with what *take_apart* returns."""

    type: type[Any]
    take_apart: Callable[[Any], Iterable[Any]]
    build: Callable[..., Any]


def _only(kind: type, part: Any) -> Any:
    """*part*, if it is a *kind*: ``bytearray(10**12)`` would take all memory."""
    if type(part) is not kind:
        raise TypeError(f"{name_of(kind)} is needed, not {name_of(type(part))}")
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
KINDS = {
    1: ValueKind(tuple, tuple, lambda *parts: parts),
    2: ValueKind(set, list, lambda *parts: set(parts)),
    3: ValueKind(frozenset, list, lambda *parts: frozenset(parts)),
    4: ValueKind(  # of more than 64 bits
        int,
        lambda value: [value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True)],
        lambda it: int.from_bytes(_only(bytes, it), "big", signed=True),
    ),
    5: ValueKind(bytearray, lambda value: [bytes(value)], lambda it: bytearray(_only(bytes, it))),
    6: ValueKind(complex, attrgetter("real", "imag"), lambda *parts: complex(*map(float, parts))),
    7: ValueKind(Decimal, lambda value: [str(value)], lambda it: Decimal(_only(str, it))),
    8: ValueKind(
        UUID,
        attrgetter("bytes", "is_safe.value"),
        lambda data, safe: UUID(bytes=_only(bytes, data), is_safe=SafeUUID(safe)),
    ),
    9: ValueKind(date, attrgetter("year", "month", "day"), date),
    10: ValueKind(time, _time_parts, lambda *parts: time(*parts[:-1], fold=parts[-1])),
    11: ValueKind(
        datetime,
        lambda value: [value.year, value.month, value.day, *_time_parts(value)],
        lambda *parts: datetime(*parts[:-1], fold=parts[-1]),
    ),
    12: ValueKind(timedelta, attrgetter("days", "seconds", "microseconds"), timedelta),
    13: ValueKind(timezone, lambda value: value.__getinitargs__(), timezone),
    14: ValueKind(ZoneInfo, _zone_parts, lambda name: ZoneInfo(_require_zone(_only(str, name)))),
}
BY_TYPE = {kind.type: kind for kind in KINDS.values()}
CARRIED = SCALARS | CONTAINERS | BY_TYPE.keys()


def find_problem(fields: dict[str, Any], form: str = "msgpack") -> str | None:
    """Which value of *fields* cannot be carried, as in "meta['a'] is a FormItem, which ...".

    :param form: what does not carry it.
    """
    waiting = [(part, name, 1) for name, part in reversed(fields.items())]
    while waiting:
        value, path, depth = waiting.pop()
        if type(value) not in CARRIED:
            return f"{shorten(path)} is {name_of(type(value))}, which {form} cannot carry"
        if depth > MAX_DEPTH and type(value) in CONTAINERS:
            return f"{shorten(path)} is nested more than {MAX_DEPTH} deep, or contains itself"
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
    elif kind not in SCALARS:
        yield from ((part, f"a part of {path}") for part in BY_TYPE[kind].take_apart(value))


def _show(key: Any) -> str:
    try:
        return reprlib.repr(key) if type(key) in SCALARS else "..."
    except ValueError:  # an int of more than 4,300 digits
        return "..."


def name_of(kind: type) -> str:
    """The name of a type, with its article."""
    name = kind.__name__
    return f"{'an' if name[0] in 'AEIOUaeiou' else 'a'} {name}"


def shorten(text: str) -> str:
    """The beginning of a *text* for a message, in one line: it may be as long as any payload."""
    text = text if text.isprintable() else ascii(text)[1:-1]
    return text if len(text) <= 200 else f"{text[:200]}..."
