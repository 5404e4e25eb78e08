"""Pages of a database of SQLite, read without SQLite, which a damaged page keeps from all below it.

https://www.sqlite.org/fileformat2.html
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path

from ..database import Row

#: Every database begins with it.
_MAGIC = b"SQLite format 3\0"
#: Kinds of pages.
_INNER_INDEX, _LEAF_INDEX, _LEAF_TABLE = 2, 10, 13
_LOG_HEADER, _FRAME_HEADER = struct.Struct(">8I"), struct.Struct(">6I")
_LOG_MAGIC = 0x377F0682
#: A payload is not longer.
_LONGEST = 1 << 30


@dataclass(frozen=True, slots=True)
class Node:
    """A page of a tree.

    :ivar children: the page left of each row, and that right of the last one; empty: it is a leaf.
    :ivar payloads: of its rows; ``None``: it cannot be read.
    :ivar is_sound: whether its parts are where the page says that they are, and nothing else is.
    """

    children: list[int]
    payloads: list[bytes | None]
    is_sound: bool


class Pages:
    """The pages of a file, or of its log where that has newer ones; nothing raises OSError.

    :param size: bytes a page.
    :ivar count: how many pages there are; the first has number 1.
    :ivar log_damage: how many bytes of the log are used, and of how many, if it goes on after them.
    """

    def __init__(self, file: Path, size: int) -> None:
        self._size = size
        self._file = _open(file)
        self._log = _open(file.with_name(f"{file.name}-wal"))
        #: Page -> where it is in the log.
        self._logged: dict[int, int] = {}
        #: Bytes of a payload that are in its page, at least and at most, and in each page after it.
        self._least = (size - 12) * 32 // 255 - 23
        self._most = (size - 12) * 64 // 255 - 23
        self._more = size - 4
        self.count = -(-_length(self._file) // size)
        self.log_damage: tuple[int, int] | None = None
        self._read_log()

    def close(self) -> None:
        for descriptor in (self._file, self._log):
            if descriptor is not None:
                os.close(descriptor)

    def _read_log(self) -> None:
        """Find the newest page of each number, up to the last commit that is whole."""
        length, step = _length(self._log), _FRAME_HEADER.size + self._size
        found: dict[int, int] = {}
        used = place = 0
        salts = None
        with suppress(struct.error):
            header = _read(self._log, 0, _LOG_HEADER.size)
            magic, _, size, _, *stated, first, second = _LOG_HEADER.unpack(header)
            words = "<" if magic == _LOG_MAGIC else ">"
            total = _add_up(words, header[:-8], (0, 0))
            if (magic & ~1, size, *total) == (_LOG_MAGIC, self._size, first, second):
                salts, used, place = stated, len(header), len(header)
            while salts is not None:
                frame = _read(self._log, place, step)
                number, pages, *stated, first, second = _FRAME_HEADER.unpack_from(frame)
                total = _add_up(words, frame[:8] + frame[_FRAME_HEADER.size :], total)
                if stated != salts or total != (first, second) or len(frame) < step:
                    break
                found[number] = place + _FRAME_HEADER.size
                place += step
                if pages:  # a commit
                    self._logged.update(found)
                    self.count = max(self.count, pages)
                    used = place
        if salts is None:
            is_damaged = length > step
        else:
            # What a process that died was writing is at the end, without pages after it.
            salt = struct.pack(">2I", *salts)
            rest = range(place + step, length, step)
            is_damaged = any(_read(self._log, later + 8, 8) == salt for later in rest)
        if is_damaged:
            self.log_damage = used, length

    def read(self, number: int) -> bytes:
        """A page, with zeros for what cannot be read of it."""
        page = b""
        if (place := self._logged.get(number)) is not None:
            page = _read(self._log, place, self._size)
        elif 0 < number <= self.count:
            page = _read(self._file, (number - 1) * self._size, self._size)
        return page.ljust(self._size, b"\0")

    def roots(self) -> dict[str, int] | None:
        """Table -> first page of its tree; ``None``: that cannot be read."""
        page = self.read(1)
        node = self._parse(page, 100) if page.startswith(_MAGIC) else None
        if node is None or not node.is_sound:
            return None
        found = {}
        for payload in node.payloads:
            try:
                _, name, _, root, _ = _decode(payload or b"")
                found[name.decode()] = int.from_bytes(root, "big")
            except (IndexError, ValueError):
                return None
        return found

    def free(self) -> tuple[set[int], bool]:
        """Pages that are not in use, and whether those are all."""
        page = self.read(1)
        trunk, expected = struct.unpack_from(">2I", page, 32)
        found: set[int] = set()
        while trunk and trunk not in found and trunk <= self.count:
            found.add(trunk)
            page = self.read(trunk)
            trunk, count = struct.unpack_from(">2I", page)
            listed = struct.unpack_from(f">{min(count, self._size // 4 - 2)}I", page, 8)
            found.update(number for number in listed if 1 < number <= self.count)
        return found, not trunk and len(found) == expected and self.roots() is not None

    def node(self, number: int) -> Node | None:
        """A page of a table without row ids; ``None``: it is none."""
        page = self.read(number)
        return self._parse(page, 0) if page[0] in (_INNER_INDEX, _LEAF_INDEX) else None

    def _parse(self, page: bytes, start: int) -> Node | None:
        kind, block, count, content, fragments = struct.unpack_from(">B3HB", page, start)
        if kind not in (_INNER_INDEX, _LEAF_INDEX, _LEAF_TABLE):
            return None
        is_inner = kind == _INNER_INDEX
        begin = start + (12 if is_inner else 8)
        fitting = min(count, (self._size - begin) // 2)
        children: list[int] = []
        payloads: list[bytes | None] = []
        used: list[tuple[int, int]] = []
        for place in struct.unpack_from(f">{fitting}H", page, begin):
            payload, end = None, place
            with suppress(IndexError, struct.error):
                at = place
                if is_inner:
                    children += struct.unpack_from(">I", page, at)
                    at += 4
                payload, end = self._read_payload(page, at, has_id=kind == _LEAF_TABLE)
            payloads.append(payload)
            used.append((place, max(end, place + 4)))
        if is_inner:
            children = children if len(children) == fitting else [0] * fitting
            children += struct.unpack_from(">I", page, start + 8)
        last = 0
        while last < block <= self._size - 4:  # what is free between rows, in order
            last = block
            block, length = struct.unpack_from(">2H", page, last)
            used.append((last, last + length))
        used.sort()
        is_sound = (
            count == fitting
            and not block
            and begin + 2 * count <= (content or 1 << 16) <= min(chain(*used), default=self._size)
            and all(end <= place for (_, end), (place, _) in pairwise(used))
            and sum(end - place for place, end in used) + fragments == self._size - content
        )
        return Node(children, payloads, is_sound)

    def _read_payload(self, page: bytes, at: int, *, has_id: bool) -> tuple[bytes | None, int]:
        """A payload and where it ends in its page; IndexError, struct.error: that is not known."""
        length, at = _number(page, at)
        if has_id:
            _, at = _number(page, at)
        most = self._size - 35 if has_id else self._most
        if length <= most:
            if at + length > self._size:
                raise IndexError
            return page[at : at + length], at + length
        here = self._least + (length - self._least) % self._more
        here = here if here <= most else self._least
        parts = [page[at : at + here]]
        (more,) = struct.unpack_from(">I", page, at + here)
        for _ in range(-(-(length - here) // self._more)) if length <= _LONGEST else ():
            if not 0 < more <= self.count:
                break
            following = self.read(more)
            (more,) = struct.unpack_from(">I", following)
            parts.append(following[4:])
        payload = b"".join(parts)[:length]
        return payload if len(payload) == length else None, at + here + 4


def row_of(payload: bytes | None) -> Row | None:
    """The key and the value in a payload; ``None``: it is none of a row of two."""
    with suppress(IndexError, ValueError):
        key, value = _decode(payload or b"")
        return key, value
    return None


def _decode(payload: bytes) -> Iterator[bytes]:
    """The columns of a record, numbers as bytes; IndexError: it is none."""
    end, at = _number(payload, 0)
    place = end
    while at < end:
        kind, at = _number(payload, at)
        length = (kind - 12) // 2 if kind >= 12 else (0, 1, 2, 3, 4, 6, 8, 8, 0, 0)[kind]
        yield payload[place : place + length]
        place += length
    if place != len(payload):
        raise IndexError


def _number(data: bytes, at: int) -> tuple[int, int]:
    """The number of variable length at a place, and where it ends."""
    found = 0
    for place in range(at, at + 8):
        byte = data[place]
        found = found << 7 | byte & 0x7F
        if byte < 0x80:
            return found, place + 1
    return found << 8 | data[at + 8], at + 9


def _add_up(words: str, data: bytes, total: tuple[int, int]) -> tuple[int, int]:
    """The checksum of a log, with *data* added to it."""
    first, second = total
    for one, other in struct.iter_unpack(f"{words}2I", data):
        first = first + one + second & 0xFFFFFFFF
        second = second + other + first & 0xFFFFFFFF
    return first, second


def _open(file: Path) -> int | None:
    with suppress(OSError):
        return os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    return None


def _length(descriptor: int | None) -> int:
    return 0 if descriptor is None else os.fstat(descriptor).st_size


def _read(descriptor: int | None, place: int, length: int) -> bytes:
    with suppress(OSError):  # a bad sector, too, is damage
        return b"" if descriptor is None else os.pread(descriptor, length, place)
    return b""
