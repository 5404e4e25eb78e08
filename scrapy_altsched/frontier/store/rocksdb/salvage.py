"""What can still be read of a damaged store.

RocksDB's own repair drops a whole file for one damaged block, so it is used only where the store
does not open at all, and on links to its files.  Otherwise rows are read around the damage.
"""

from __future__ import annotations

import heapq
import re
import shutil
from collections.abc import Iterator
from contextlib import closing, suppress
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path

from rocksdict import Rdict, RdictIter

from ....errors import StoreDamagedError, StoreError
from ..database import Row, translated
from ..records import DAMAGE, Counters
from ..rows import find_last_commit, find_lost_commits
from ..salvage import IsWhole, Salvage
from ..seen import run_of
from ..states import FAMILIES, STATES
from .database import RocksDatabase, explain, link_files
from .options import READ_ONLY, READ_WRITE, Access, Recovery, options_for, secondary
from .unverified import unverified

#: In a list of files, what comes before the name of a new family, with its number; and before the
#: number of a new table, with its level: https://github.com/facebook/rocksdb/blob/main/db/version_edit.h.
_ADDS_FAMILY, _ADDS_TABLE = rb"\xc8\x01(.)\xc9\x01", rb"\x67[\x00-\x06]"
#: No row of any family has it.
_NO_KEY = b"\xff" * 400


class RocksSalvage(Salvage):
    """A damaged store, of which as much is read as can be opened, in whatever way."""

    def __init__(self, store: Path, directory: Path, is_whole: IsWhole) -> None:
        super().__init__(store, directory, is_whole)
        try:
            self._readers = self._open_as_it_is(self._link("as it is"))
        except StoreDamagedError as error:
            self.losses.append(error.problem)
            self._readers = self._open_somehow()

    def rows(self, family: str) -> Iterator[Row]:
        readers = self._readers
        if family == "pending" and len(readers) > 1 and readers[0].is_accounted_for():
            readers = readers[:1]  # an older one would bring back what was done since
        # Of equal keys, the first is that of the first reader.
        merged = heapq.merge(*(reader.rows(family) for reader in readers), key=itemgetter(0))
        for _, rows in groupby(merged, itemgetter(0)):
            yield next(rows)

    def meta(self) -> dict[bytes, bytes]:
        found = dict(self.rows("meta"))
        for reader in reversed(self._readers):
            found.update(reader.essentials())
        return found

    def close(self) -> None:
        for reader in self._readers:
            reader.database.close()

    def _link(self, name: str) -> Path:
        links = self.directory / name
        links.mkdir()
        link_files(self.store, links)
        return links

    def _open_as_it_is(self, links: Path) -> list[_Reader]:
        try:
            reader = _Reader(self, links, READ_ONLY, Recovery.STRICT)
            if lost := find_lost_commits(reader.database):
                reader = self._open_before(lost[0], links) or reader
            return [reader]
        except StoreDamagedError as error:
            reader = _Reader(self, links, READ_ONLY)
            self.losses.append(f"{error.problem} What was committed after that is lost.")
            return [reader]

    def _open_before(self, commit: int, links: Path) -> _Reader | None:
        """Without the logs that came after the end of one was lost, and the commits in these.

        ``None``: that does not lead to the commit before *commit*, the first one that was lost.
        """
        before = links.with_name(f"{links.name}, before the gap")
        shutil.copytree(links, before, symlinks=True)
        logs = sorted(path.name for path in links.glob("*.log"))
        for name in reversed(logs[1:]):
            (before / name).unlink()
            with suppress(StoreDamagedError):
                reader = _Reader(self, before, READ_ONLY, Recovery.STRICT)
                if find_last_commit(reader.database) == commit - 1:
                    self.losses.append(f"Commit {commit:,} is lost: all after it was dropped.")
                    return reader
                reader.database.close()
        return None

    def _open_somehow(self) -> list[_Reader]:
        links = self._link("with another CURRENT")
        manifests = list(links.glob("MANIFEST-*"))
        if len(manifests) == 1:  # all that CURRENT can name
            current = links / "CURRENT"
            current.unlink(missing_ok=True)
            current.write_text(f"{manifests[0].name}\n")
            with suppress(StoreDamagedError):
                return self._open_as_it_is(links)
        # Each of the two may lack what the other has: the first one's tables, the second one's log.
        readers = self._open_without_tables(), self._open_rebuilt()
        return [reader for reader in readers if reader is not None]

    def _open_without_tables(self) -> _Reader | None:
        """As a secondary instance, which does without tables that are missing."""
        links = self._link("without tables")
        access = secondary(self.directory / "secondary")
        while True:
            try:
                return _Reader(self, links, access)
            except StoreDamagedError as error:
                unusable = [links / name for name in _tables_in(str(error))]
                if not any(path.is_symlink() for path in unusable):
                    return None
                for path in unusable:
                    path.unlink(missing_ok=True)
            except StoreError:  # it takes a missing list of files for one that was just replaced
                return None

    def _open_rebuilt(self) -> _Reader:
        """With a new list of files, made by RocksDB, without those that it cannot use."""
        links = self._link("rebuilt")
        edits = b"".join(path.read_bytes() for path in links.glob("MANIFEST-*"))
        self._make_families_known(links, edits)
        with translated("Repairing", partial(explain, self.store, links)):
            Rdict.repair(str(links), options_for(Recovery.UP_TO_DAMAGE))
        # One that was being written is named nowhere: tables are forced to the disk before.
        lost = [path.name for path in links.glob("lost/*.sst")]
        dropped = {name for name in lost if not edits or _is_named(name, edits)}
        named = {name for text in self.losses for name in _tables_in(text)}
        dropped |= {name for name in named if not (self.store / name).exists()}
        if dropped:
            files = ", ".join(sorted(dropped))
            self.losses.append(f"What was in {files} is lost: it cannot be read at all.")
            self.incomplete.update(FAMILIES)
        return _Reader(self, links, READ_WRITE)

    def _make_families_known(self, links: Path, edits: bytes) -> None:
        """Give each family a table: without one, a repair drops what it has in the log only.

        https://github.com/facebook/rocksdb/blob/main/db/repair.cc: families are made of what tables
        say of theirs.
        """
        names = {}
        for name in FAMILIES:
            text = name.encode()
            if found := re.search(_ADDS_FAMILY + bytes((len(text),)) + text, edits, re.DOTALL):
                names[found[1][0]] = name
        place = self.directory / "families"
        options = options_for(Recovery.STRICT)
        options.create_if_missing(True)
        with closing(Rdict(str(place), options)) as database:
            # They are numbered as they are made.
            for number in range(1, max(names, default=0) + 1):
                name = names.get(number, f"unused {number}")
                family = database.create_column_family(name, options)
                if number in names:
                    # It is older than all that is stored, and so hides nothing.
                    del family[_NO_KEY]
                    family.flush()
                family.close()
        used = max(int(path.stem) for path in links.iterdir() if path.stem.isdigit())
        for number, table in enumerate(sorted(place.glob("*.sst")), used + 1):
            table.rename(links / f"{number:06}.sst")


class _Reader:
    """Reads a store, or links to its files in *place*, around its damaged parts."""

    def __init__(
        self, salvage: Salvage, place: Path, access: Access, how: Recovery = Recovery.UP_TO_DAMAGE
    ) -> None:
        self.database = RocksDatabase(salvage.store)
        self._salvage = salvage
        self._place = place
        self.database.open_as(place, access, how)

    def is_accounted_for(self) -> bool:
        """Whether it holds as many pending requests as its counters say."""
        with suppress(StoreDamagedError):
            pending = sum(1 for _ in self.database.iterate("pending"))
            counters = Counters.parse(self.database.get("meta", b"counters") or b"{}")
            return not counters.as_counts(pending).unaccounted
        return False

    def essentials(self) -> dict[bytes, bytes]:
        """Rows of ``meta`` read one by one: the newest may be whole where older ones are not."""
        found = {}
        for name in (b"identity", b"commit", b"counters", b"note:order", f"note:{DAMAGE}".encode()):
            with suppress(StoreDamagedError):
                if (value := self.database.get("meta", name)) is not None:
                    found[name] = value
        return found

    def rows(self, family: str) -> Iterator[Row]:
        """All rows of a family but those that are damaged, in key order."""
        if family in self.database.absent:
            return
        with self.database.reading:
            cursor = self.database.families[family].iter()
            cursor.seek(b"")
            last = b""
            while True:
                while cursor.valid():
                    last = cursor.key()
                    yield last, cursor.value()
                    cursor.next()
                reason = _status(cursor)
                if reason is None:
                    return
                self._salvage.losses.append(f"A part of {family!r} is damaged: {reason}.")
                self._salvage.incomplete.add(family)
                beyond = self._past_damage(family, cursor, last)
                # Of a damaged block, rows may be whole: one flipped bit need not cost them all.
                for row in unverified(self._place, family, last, beyond[0][0] if beyond else None):
                    if self._seems_whole(family, row[1]):
                        yield row
                if not beyond:
                    return
                yield from beyond
                last = beyond[-1][0]
                cursor.seek(last + b"\0")

    def _past_damage(self, family: str, cursor: RdictIter, last: bytes) -> list[Row]:
        """The next rows after *last* that can be read, back to the end of the damage.

        Keys farther and farther away are tried until one is past the damaged block; from there it
        is read backwards.
        """
        back = self.database.families[family].iter()
        found: list[Row] = []
        for key in _farther_and_farther(last):
            cursor.seek(key)
            if cursor.valid():
                back.seek(cursor.key())
                break
            if _status(cursor) is None:  # there is none from that key on
                back.seek_to_last()
                break
        while back.valid() and back.key() > last:
            found.append((back.key(), back.value()))
            back.prev()
        return sorted(found)

    def _seems_whole(self, family: str, value: bytes) -> bool:
        # StopIteration: a family of which no row says whether it is whole.
        with suppress(IndexError, StopIteration, ValueError):
            if family == "seen":
                return not run_of(value)
            state = next(state for state in STATES if state.family == family)
            return self._salvage.is_whole(state.decode(value).payload or b"")
        return False


def _status(cursor: RdictIter) -> str | None:
    """Why an iterator stopped; ``None``: at the end."""
    try:
        cursor.status()
    except Exception as error:  # rocksdict raises nothing narrower
        return " ".join(str(error).split()).rstrip(".")
    return None


def _farther_and_farther(key: bytes) -> Iterator[bytes]:
    """Keys after *key*, in order: first very near, then at ever larger steps."""
    digits = key[:40].ljust(24, b"\0")
    for level in reversed(range(len(digits))):
        for digit in range(digits[level] + 1, 256):
            yield digits[:level] + bytes((digit,))


def _is_named(table: str, edits: bytes) -> bool:
    """Whether lists of files may name a table: by chance their bytes look as if they did."""
    number, digits = int(table.partition(".")[0]), bytearray()
    while number >= 128:
        digits.append(number % 128 + 128)
        number //= 128
    digits.append(number)
    return bool(re.search(_ADDS_TABLE + re.escape(bytes(digits)), edits, re.DOTALL))


def _tables_in(text: str) -> set[str]:
    """The names of the table files that a message speaks of."""
    return set(re.findall(r"\d+\.sst", text))


SALVAGE = RocksSalvage
