"""Where rows end in a file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO

_CHUNK = 1024 * 1024  # bytes


def cut_torn_row(path: Path, *, quoted: bool, floor: int = 0) -> int:
    """Cut what follows the last whole row of a text file.

    Zeros are what a power cut leaves where a disk has the length of a file and not its content: the
    first ends what is whole.

    :param quoted: whether a line feed between double quotes does not end a row, as in CSV.
    :param floor: bytes at the beginning that are whole rows, whatever is in them; not looked at.
    :return: how many bytes were cut.
    :raises OSError: the file cannot be read or written.
    """
    with path.open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        if size <= floor:
            return 0
        whole = find_zeros(file, floor)
        end = _end_of_last_row(file, size if whole is None else whole, quoted=quoted, floor=floor)
        if end < size:
            file.truncate(end)
    return size - end


def find_zeros(file: IO[bytes], start: int = 0) -> int | None:
    """Position of the first zero byte from *start* on, which no row has; ``None``: none."""
    file.seek(start)
    for chunk in iter(lambda: file.read(_CHUNK), b""):
        if (found := chunk.find(b"\0")) >= 0:
            return start + found
        start += len(chunk)
    return None


def ends_a_line(path: Path) -> bool:
    """Whether a file that is not empty ends with a line feed.

    :raises OSError: it cannot be read.
    """
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read() == b"\n"


def _end_of_last_row(file: IO[bytes], size: int, *, quoted: bool, floor: int) -> int:
    # Whether a line feed is inside quotes shows in the number of quotes before it, odd or even.
    inside = quoted and bool(_count_quotes(file, floor, size) % 2)
    position = size
    while position > floor:
        start = max(floor, position - _CHUNK)
        file.seek(start)
        chunk = file.read(position - start)
        at = len(chunk)
        while (found := chunk.rfind(b"\n", 0, at)) >= 0:
            if quoted:
                inside ^= bool(chunk.count(b'"', found, at) % 2)
            if not inside:
                return start + found + 1
            at = found
        if quoted:
            inside ^= bool(chunk.count(b'"', 0, at) % 2)
        position = start
    return floor


def _count_quotes(file: IO[bytes], start: int, end: int) -> int:
    file.seek(start)
    chunks = (file.read(min(_CHUNK, end - at)) for at in range(start, end, _CHUNK))
    return sum(chunk.count(b'"') for chunk in chunks)
