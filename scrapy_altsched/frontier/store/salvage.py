"""What can still be read of a damaged store."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

from .database import Row

#: Whether a request's payload is as it was written.
IsWhole: TypeAlias = Callable[[bytes], bool]


class Salvage(ABC):
    """A damaged store, which is read around its damage, and not changed.

    :param directory: a temporary one, for files of its own.
    :ivar losses: what could not be read, in sentences.
    :ivar incomplete: families of which rows may be missing.
    :raises StoreDamagedError: nothing of it can be read.
    """

    def __init__(self, store: Path, directory: Path, is_whole: IsWhole) -> None:
        self.store = store
        self.directory = directory
        self.is_whole = is_whole
        self.losses: list[str] = []
        self.incomplete: set[str] = set()

    @abstractmethod
    def rows(self, family: str) -> Iterator[Row]:
        """All rows of a family that can be read, in key order; of equal keys the newest."""

    @abstractmethod
    def meta(self) -> dict[bytes, bytes]:
        """The rows of ``meta``; the most important ones even if others are damaged."""

    @abstractmethod
    def close(self) -> None:
        """Close all that is open."""
