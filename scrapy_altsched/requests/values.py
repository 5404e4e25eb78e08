"""What a request carries, in msgpack, and back with exactly the same types.

msgpack knows ``None``, bool, int, float, str, bytes, list and dict.  A value of any other type is
an array whose first element, its head, is an empty extension type; the extension's code says which
type it is (:mod:`.kinds`), and the other elements what it is made of.  So nesting stays msgpack's
own, which takes neither recursion nor copies.  Any other type is refused, and so is a subclass.

Bytes from anywhere may be read: nothing is imported, no code of a project runs, and memory is
bounded by their length.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import msgpack

from ..errors import CodecError
from .kinds import CONTAINERS, KINDS, MAX_DEPTH, SCALARS, ValueKind, name_of, shorten

#: Longer bytes are checked for being complete before anything is created: each of 1,023 nested
#: arrays could declare as many elements as there are bytes, and msgpack allocates them at once.
_LONG = 4096
#: What msgpack takes for bytes or for extension types of ours, although told to be strict.
_ALIKE = frozenset({bytearray, memoryview, msgpack.ExtType, msgpack.Timestamp})


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
                raise CodecError(
                    f"its bytes are those of {name_of(type(fields))}, not of a request"
                )
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

    def _read_head(self, code: int, data: bytes) -> ValueKind:
        kind = KINDS.get(code)
        if kind is None or data:
            raise CodecError(f"its bytes have an unknown extension type ({code})")
        self._heads += 1
        return kind

    def _build(self, parts: list[Any]) -> Any:
        if parts and type(parts[0]) is ValueKind:
            self._heads -= 1
            return parts[0].build(*parts[1:])
        return parts


def _take_apart(value: Any) -> list[Any]:
    if type(value) not in _HEADS:
        raise TypeError(name_of(type(value)))
    head, kind = _HEADS[type(value)]
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
        if kind in SCALARS or name == "headers":
            continue
        if kind is dict:  # meta, and most often small and flat: worth a shorter path
            for key, value in part.items():
                if type(value) not in SCALARS or type(key) not in SCALARS:
                    break
            else:
                continue
        found |= _types_in(part) if kind in CONTAINERS else {kind}
    return found & _ALIKE if found else found


def _types_in(container: Any) -> set[type]:
    """The types in a container at all depths, other than those of scalars that msgpack knows."""
    found: set[type] = set()
    level = [container]
    # Level by level, since then only a container takes a step of Python, and not each value.
    for _ in range(MAX_DEPTH):
        inner: list[Any] = []
        for parts in level:
            if type(parts) is dict:
                parts = (*parts, *parts.values())
            types = set(map(type, parts)) - SCALARS
            if types:
                found |= types
                inner += [part for part in parts if type(part) in CONTAINERS]
        if not inner:
            return found
        level = inner
    raise ValueError("it is nested too deeply")


#: What stands for each type, as the first element of an array.
_HEADS = {kind.type: (msgpack.ExtType(code, b""), kind) for code, kind in KINDS.items()}
