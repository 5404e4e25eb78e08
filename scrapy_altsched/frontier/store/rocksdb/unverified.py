"""Rows of a damaged block, read in a process of its own, which may die of it.

RocksDB believes what a block with a right checksum says of lengths.  In one whose checksum is wrong
they can lead it out of the memory of its process (``DecodeEntry`` in table/block_based/block.cc
adds two lengths in 32 bits before it compares them with what is left).
"""

from __future__ import annotations

import marshal
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from rocksdict import ReadOptions

from .database import RocksDatabase
from .options import Recovery, secondary


def unverified(
    store: Path, family: str, low: bytes, high: bytes | None
) -> Iterator[tuple[bytes, bytes]]:
    """Rows between two keys, or after *low*, be they as they were written or not.

    The *store* may be open; a directory next to it is written to.
    """
    path = os.pathsep.join(folder or os.curdir for folder in sys.path)
    with subprocess.Popen(
        (sys.executable, "-m", __name__),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": path},
    ) as reader:
        assert reader.stdin is not None
        assert reader.stdout is not None
        try:
            with suppress(BrokenPipeError), reader.stdin as question:
                question.write(marshal.dumps((os.fspath(store), family, low, high)))
            # It ends so as well when the process dies, in the middle of a row or not.
            with suppress(EOFError):
                while True:
                    yield marshal.load(reader.stdout)
        finally:
            reader.kill()


def _answer() -> None:
    path, family, low, high = marshal.load(sys.stdin.buffer)
    store = Path(path)
    # As a secondary instance, which does without tables that are missing.
    beside = store.with_name(f"{store.name}, unverified")
    database = RocksDatabase(store)
    database.open_as(store, secondary(beside), Recovery.UP_TO_DAMAGE, families=(family,))
    options = ReadOptions()
    options.set_verify_checksums(False)
    rows = database.families[family].iter(options)
    rows.seek(low + b"\0")
    while rows.valid() and (high is None or rows.key() < high):
        if rows.key() > low:
            marshal.dump((rows.key(), rows.value()), sys.stdout.buffer)
            # What is not sent when the process dies is lost.
            sys.stdout.buffer.flush()
        rows.next()


if __name__ == "__main__":
    _answer()
