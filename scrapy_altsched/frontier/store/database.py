"""The seam in front of the engines of stores: families of rows, read in order, written in batches.

:mod:`.rocksdb` and :mod:`.sqlite` are behind it, and :mod:`.engines` chooses between them.
"""

from __future__ import annotations

import enum
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from shlex import quote
from typing import Any, ClassVar

from ...errors import StoreDamagedError, StoreError
from .directory import find

#: A key and its value.
Row = tuple[bytes, bytes]


class Operation(enum.Enum):
    """What a batch does to rows of a family."""

    PUT = enum.auto()
    DELETE = enum.auto()
    DELETE_RANGE = enum.auto()


class RowBatch:
    """Changes to rows that one write applies, in their order.

    :ivar changes: operation, family, and rows for ``PUT``, keys for ``DELETE``, first key and first
        one past the end for ``DELETE_RANGE``; each may be gone through once.
    """

    __slots__ = ("changes",)

    def __init__(self) -> None:
        self.changes: list[tuple[Operation, str, Iterable[Any]]] = []

    def put(self, family: str, rows: Iterable[Row]) -> None:
        self.changes.append((Operation.PUT, family, rows))

    def delete(self, family: str, keys: Iterable[bytes]) -> None:
        self.changes.append((Operation.DELETE, family, keys))

    def delete_range(self, family: str, start: bytes, end: bytes) -> None:
        self.changes.append((Operation.DELETE_RANGE, family, (start, end)))


class translated:  # noqa: N801  (reads as a verb; a class, as generators cost 1 us on hot paths)
    """Every error of an engine as a :class:`StoreError`.

    :param what: what was tried, such as "Reading".
    :param explain: of *what* and an error, makes ours; ``None``: it is none of the engine's.
    """

    __slots__ = ("_explain", "_what")

    def __init__(self, what: str, explain: Callable[[str, Exception], StoreError | None]) -> None:
        self._what = what
        self._explain = explain

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: object
    ) -> None:
        if isinstance(error, Exception) and not isinstance(error, StoreError):
            explained = self._explain(self._what, error)
            if explained is not None:
                raise explained from error


class Database(ABC):
    """A database, closed until one of the ``open`` methods is called.

    Its errors are StoreError: a read or write failed; StoreStalledError: it cannot be written now,
    and nothing is wrong; StoreDamagedError: files are damaged or missing.

    :param path: its directory, as messages name it.
    :cvar FILE: the file without which it cannot be opened.
    :cvar BATCH: how many changes one write is to have at most, if each of them takes long.
    :cvar SUITS: how many requests a job may have before another engine costs much less, if any.
    :ivar reading: turns errors of the engine into ours, in a ``with`` statement.
    :ivar absent: families that are not there: it is read only, and was last written before there
        were such rows.
    """

    FILE: ClassVar[str]
    BATCH: ClassVar[float] = math.inf
    SUITS: ClassVar[int | None] = None

    path: Path
    absent: frozenset[str]
    reading: translated

    @abstractmethod
    def open(self, place: Path, *, create: bool = False) -> None:
        """Open it to be read and written, as of the last batch that can be read back.

        :param place: a path to its directory.
        :param create: whether it is made if it is not there; families always are.
        """

    @abstractmethod
    def open_read_only(
        self, place: Path, families: Sequence[str] | None = None
    ) -> StoreDamagedError | None:
        """Open it while it is written by no other; what is wrong with its log, if anything is.

        :param families: those that are to be read, if not all.
        """

    def open_undamaged(self, place: Path, families: Sequence[str] | None = None) -> None:
        """Open it like :meth:`open_read_only`, but without what :meth:`open` would drop.

        :raises StoreError: it does not open.
        """
        self.open_read_only(place, families)

    def _check_file(self, place: Path) -> None:
        if find(place / self.FILE) is None:
            problem = f"The store {self.path} lacks its file {self.FILE}."
            raise StoreDamagedError(problem, remedy(self.path))

    @abstractmethod
    def open_view(self) -> StoreDamagedError | None:
        """Open it as it is now, even while a crawl writes it: see :meth:`open_read_only`."""

    @property
    @abstractmethod
    def is_open(self) -> bool:
        """Whether it was opened, and neither closed nor abandoned."""

    @abstractmethod
    def close(self) -> None:
        """Close it, with all that was written in its tables."""

    @abstractmethod
    def abandon(self) -> None:
        """Leave everything as if the process had died now; it counts as closed."""

    @abstractmethod
    def has(self, family: str, key: bytes) -> bool:
        """Whether a key is there.

        It is asked for each link: errors are the engine's own, which the caller turns into ours
        with :attr:`reading`.
        """

    @abstractmethod
    def get(self, family: str, key: bytes) -> bytes | None:
        """The value of a key, if it is there."""

    @abstractmethod
    def read(
        self, family: str, prefix: bytes, start: bytes, limit: int, most_bytes: int
    ) -> list[Row]:
        """At most *limit* rows whose keys start with *prefix*, from key *start* on.

        It stops at the one with which the values come to *most_bytes*, too.
        """

    @abstractmethod
    def iterate(self, family: str, prefix: bytes = b"", start: bytes = b"") -> Iterator[Row]:
        """Rows of a family in key order, from key *start* on.

        Rows that are written meanwhile may be among them or not.
        """

    @abstractmethod
    def write(self, batch: RowBatch, *, wait: bool) -> None:
        """Apply all of *batch* or nothing.

        :raises StoreStalledError: it is behind with its own work, and *wait* is false.
        """

    @abstractmethod
    def sync(self) -> None:
        """Force everything that was written to the disk; blocks, and may be called in a thread."""

    @abstractmethod
    def flush(self) -> None:
        """Move everything from the log into tables."""


NEEDS_LOCKS = (
    "A file system without locks or shared memory, as those of networks may be, cannot be used: set"
    " JOBDIR to a directory on a local disk."
)


def advise(error: str | None) -> str:
    """What to do about an error of the operating system, by its text."""
    text = (error or "").lower()
    if "too many open files" in text:
        return (
            "This process, or the machine, has too many files open: raise the limit (`ulimit -n`),"
            " or have the crawl open fewer."
        )
    if "no locks" in text:
        return NEEDS_LOCKS
    return "Check that its disk has space and can be written to."


def held_elsewhere(file: str) -> str:
    """What to do about a store that another process has open, which its *file* tells."""
    return (
        "Another process has the store open, such as a tool that looks into it: end that one"
        f" (`fuser` on its file {file} finds it), and run the same command again."
    )


def remedy(store: Path) -> str:
    """What to do about a store that is damaged."""
    return (
        f"Run `scrapy altsched check {quote(str(store.parent))} --repair` to keep what can be read"
        " of it (without --repair: to see what is wrong); or restore the JOBDIR from a copy, or"
        " delete it to start the crawl over."
    )


def after(prefix: bytes) -> bytes | None:
    """The first key past all that start with *prefix*; ``None``: there is no end."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes((stripped[-1] + 1,)) if stripped else None
