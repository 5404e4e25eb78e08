"""What may happen to the files of a store, by its engine."""

from __future__ import annotations

import os
import random
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from scrapy_altsched.frontier.store.engines import engine_of
from scrapy_altsched.frontier.store.sqlite.database import PAGE

#: Parameters of tests that are about stores of every engine.
ENGINES = [pytest.param("rocksdb", marks=pytest.mark.rocksdb), "sqlite"]
#: Engine -> what a store of it cannot do without, and the files that are of each kind.
KINDS = {
    "rocksdb": {
        "log": "*.log",
        "table": "*.sst",
        "list of files": "MANIFEST-*",
        "CURRENT": "CURRENT",
    },
    "sqlite": {"log": "*.sqlite-wal", "table": "*.sqlite"},
}
#: Parameters of tests that are about each of them.
FILES = [
    pytest.param(engine, kind, marks=pytest.mark.rocksdb if engine == "rocksdb" else ())
    for engine, kinds in KINDS.items()
    for kind in kinds
]


def targets(store: Path, kind: str) -> list[str]:
    """The names of the files of a kind."""
    return sorted(path.name for path in store.glob(KINDS[engine_of(store)][kind]))


def largest_table(store: Path) -> Path:
    """The one with the pending requests."""
    return max((store / name for name in targets(store, "table")), key=lambda p: p.stat().st_size)


def keep_from_opening(store: Path) -> None:
    """Damage what a store is opened by, and none of its rows."""
    if engine_of(store) == "rocksdb":
        (store / "CURRENT").unlink()
    else:
        write_back(store)
        overwrite(store / "store.sqlite", 0)


def write_back(store: Path) -> None:
    """Have nothing in the log of a store of SQLite."""
    with closing(sqlite3.connect(store / "store.sqlite")) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


# Kinds of damage


def remove(path: Path) -> None:
    path.unlink()


def empty(path: Path) -> None:
    os.truncate(path, 0)


def halve(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def cut_end(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 7)


def fill_with_garbage(path: Path) -> None:
    path.write_bytes(random.Random(1).randbytes(path.stat().st_size))


def flip(path: Path, offset: int) -> None:
    """Change one bit."""
    content = bytearray(path.read_bytes())
    content[offset] ^= 0x40
    path.write_bytes(content)


def overwrite_requests(table: Path) -> None:
    """Damage so many bytes that some pending request is among them."""
    offset = table.stat().st_size // 2
    if table.name == "store.sqlite":
        write_back(table.parent)
        # A page with requests, and not with fingerprints; rows are at its end.
        offset = table.read_bytes().index(b"http://", offset) // PAGE * PAGE + PAGE - 500
    overwrite(table, offset)


def overwrite(path: Path, offset: int, content: bytes = random.Random(1).randbytes(500)) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(content)


def flip_at(part: float) -> Callable[[Path], None]:
    def flip_there(path: Path) -> None:
        flip(path, int((path.stat().st_size - 1) * part))

    flip_there.__name__ = f"flip_at_{part}"
    return flip_there


DAMAGE: list[Callable[[Path], None]] = [remove, empty, halve, cut_end, fill_with_garbage]
DAMAGE += [flip_at(part) for part in (0, 0.01, 0.3, 0.5, 0.7, 0.9, 0.97, 1)]
