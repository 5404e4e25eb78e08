"""What can still be read of a damaged store.

A family is a tree of pages, and each row tells by its checksum whether it is whole, and of which
family it is.  Pages below one that is damaged are found among those that no tree has.
"""

from __future__ import annotations

import heapq
from array import array
from collections import defaultdict
from collections.abc import Iterator
from itertools import accumulate, groupby, pairwise
from operator import itemgetter
from pathlib import Path

from ....errors import StoreDamagedError
from ....inflection import inflect
from ..database import Row, remedy
from ..salvage import IsWhole, Salvage
from ..states import FAMILIES
from .database import PAGE, SqliteDatabase, checked, seed_of
from .pages import Node, Pages, row_of

_FILE = SqliteDatabase.FILE
#: At most so many pages are named in a sentence.
_NAMED = 8
#: Past every key.
_END = b"\xff" * 300


class SqliteSalvage(Salvage):
    """A damaged store, read page by page."""

    def __init__(self, store: Path, directory: Path, is_whole: IsWhole) -> None:
        super().__init__(store, directory, is_whole)
        self._pages = pages = Pages(store / _FILE, PAGE)
        try:
            roots = pages.roots()
            self._free, self._knows_free = pages.free()
            #: Page -> the one that it is below; a first page is below itself; 0: none is known.
            self._parents = array("L", [0]) * (pages.count + 1)
            #: Family -> its pages that are damaged, and where in it rows may be missing.
            self._damaged: defaultdict[str, set[int]] = defaultdict(set)
            self._gaps: defaultdict[str, set[tuple[bytes, bytes]]] = defaultdict(set)
            #: Family -> first row's key and number of its pages that are in no tree.
            self._strays: defaultdict[str, list[tuple[bytes, int]]] = defaultdict(list)
            # Each new store has them so.
            self._roots = {name: number for number, name in enumerate(FAMILIES, 2)}
            if roots is None:
                self.losses.append(f"The first page of {_FILE} is damaged.")
            else:
                self._roots = {name: roots[name] for name in FAMILIES if name in roots}
            if not self._survey():
                raise StoreDamagedError(
                    f"Reading the store {store} failed: not one of its rows can be read.",
                    remedy(store),
                )
        except BaseException:  # nothing else would close the files
            pages.close()
            raise

    def rows(self, family: str) -> Iterator[Row]:
        # Of equal keys, the first is that of the tree.
        merged = heapq.merge(self._tree(family), self._stray_rows(family), key=itemgetter(0))
        for _, same in groupby(merged, itemgetter(0)):
            yield next(same)

    def meta(self) -> dict[bytes, bytes]:
        return dict(self.rows("meta"))

    def close(self) -> None:
        self._pages.close()

    def _survey(self) -> bool:
        """Find all pages that have rows, and what is damaged; whether there are rows."""
        has_rows = False
        for family in self._roots:
            for _ in self._tree(family):
                has_rows = True
        used = {number for number in self._free if self._parents[number]}
        if used or not self._knows_free:
            self.losses.append("The list of pages that are free is damaged.")
        self._free -= used
        for number in range(2, self._pages.count + 1):
            if not self._parents[number] and number not in self._free:
                has_rows |= self._note_stray(number)
        if self._pages.log_damage is not None:
            whole, length = self._pages.log_damage
            self.losses.append(
                f"{_FILE}-wal is damaged after {whole:,} of its {length:,} bytes. What was"
                " committed after that is lost."
            )
        for family, numbers in self._damaged.items():
            named = ", ".join(map(str, sorted(numbers)[:_NAMED]))
            if (more := len(numbers) - _NAMED) > 0:
                named += f" and {more:,} more"
            pages = f"{inflect(len(numbers), 'page')} {named} of {_FILE}"
            self.losses.append(f"A part of {family!r} is damaged: {pages}.")
        for family in self._strays:
            if family not in self._damaged:
                self.losses.append(f"Some pages of {family!r} are not where they should be.")
            if not self._knows_free:
                self.losses.append(f"Rows of {family!r} that were deleted may be there again.")
        self.incomplete.update(self._damaged, self._strays)
        return has_rows

    def _tree(self, family: str) -> Iterator[Row]:
        """Rows that are found from the first page of a family on, in key order.

        What is damaged is noted, however often it is met.
        """
        if (root := self._roots.get(family)) is not None:
            yield from self._below(family, root, root, b"", _END)

    def _below(
        self, family: str, number: int, parent: int, low: bytes, high: bytes
    ) -> Iterator[Row]:
        """The same from one page on, which has keys between two."""
        node = self._pages.node(number)
        rows = [
            row if row is not None and low < row[0] < high else None for row in _whole(family, node)
        ]
        found = [row for row in rows if row is not None]
        is_right = bool(found) or (number == parent and node == Node([], [], is_sound=True))
        if node is None or not is_right or self._parents[number] not in (0, parent):
            self._damaged[family].add(number)
            self._gaps[family].add((low, high))
            return
        self._parents[number] = parent
        is_ordered = node.is_sound and all(one < other for one, other in pairwise(found))
        if not is_ordered or None in rows:
            self._damaged[family].add(number)
        if not node.children or not is_ordered:
            if node.children:
                self._gaps[family].add((low, high))
            yield from sorted(found)
            return
        # A child has keys between the nearest ones that can be read on both sides of it.
        keys = [row and row[0] for row in rows]
        lows = accumulate(keys, _nearest, initial=low)
        highs = reversed([*accumulate(reversed(keys), _nearest, initial=high)])
        places = zip(node.children, (*rows, None), lows, highs, strict=True)
        for child, row, *between in places:
            yield from self._below(family, child, number, *between)
            if row is not None:
                yield row

    def _note_stray(self, number: int) -> bool:
        """Note a page that no tree has, if it has rows; whether it has."""
        if (node := self._pages.node(number)) is None:
            return False
        for family in FAMILIES:
            if rows := self._accepted(family, node):
                self._strays[family].append((rows[0][0], number))
                return True
        return False

    def _accepted(self, family: str, node: Node | None) -> list[Row]:
        """Rows of a page that no tree has, in key order."""
        rows = sorted(row for row in _whole(family, node) if row is not None)
        if self._knows_free:
            return rows
        # The page may be a free one, whose rows were deleted.
        gaps = self._gaps[family]
        return [row for row in rows if any(low < row[0] < high for low, high in gaps)]

    def _stray_rows(self, family: str) -> Iterator[Row]:
        """Rows of pages that no tree has, in key order."""
        begun: list[Row] = []
        for first, number in sorted(self._strays[family]):
            while begun and begun[0][0] < first:
                yield heapq.heappop(begun)
            for row in self._accepted(family, self._pages.node(number)):
                heapq.heappush(begun, row)
        while begun:
            yield heapq.heappop(begun)


def _whole(family: str, node: Node | None) -> Iterator[Row | None]:
    """The rows of a page; ``None``: one that is not what was written, or of another family."""
    seed = seed_of(family)
    for payload in node.payloads if node is not None else ():
        row = row_of(payload)
        value = checked(seed, *row) if row is not None else None
        yield (row[0], value) if row is not None and value is not None else None


def _nearest(last: bytes, key: bytes | None) -> bytes:
    return last if key is None else key


SALVAGE = SqliteSalvage
