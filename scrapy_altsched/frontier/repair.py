"""Keeping of a damaged store what can be read.

The rows are copied one by one into a new store, which is put in the damaged one's place when it is
whole; the damaged one is kept beside it.  RocksDB's own repair drops a whole file for one damaged
block, so it is used only where the store does not open at all, and on links to its files.
"""

from __future__ import annotations

import heapq
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import repeat
from pathlib import Path
from typing import Any

from rocksdict import AccessType, DBRecoveryMode, Rdict, RdictIter

from ..errors import JobdirError, StoreDamagedError, StoreError
from .jobdir import REPAIRED, Identity, Jobdir, LastCommit
from .journal import Journal
from .order import Order
from .records import (
    DAMAGE,
    Batch,
    Counters,
    decode_crashes,
    decode_dead,
    decode_slot,
    decode_value,
)
from .reorder import Locate
from .rows import (
    FAMILIES,
    READ_ONLY,
    READ_WRITE,
    STRICT,
    UP_TO_DAMAGE,
    Rows,
    options_for,
    translated,
)
from .store import Store
from .unverified import unverified
from .view import files_of, link_files

#: Rows written at once.
_CHUNK = 5_000
#: Longest key that is looked past damage for, counted from its beginning.
_LEVELS = 40


@dataclass
class Repair:
    """What became of a store.

    :ivar kept: family -> number of rows that are in the new store.
    :ivar losses: what could not be read, and what follows from it, in sentences.
    :ivar damage: what is noted in the job until it is accepted; empty if nothing is missing.
    :ivar aside: where the damaged store is now.
    """

    kept: Counter[str] = field(default_factory=Counter)
    losses: list[str] = field(default_factory=list)
    damage: str = ""
    aside: Path | None = None


def repair(
    path: Path, owner: str, is_whole: Callable[[bytes], bool], locate: Locate | None = None
) -> Repair:
    """Put a store that agrees with itself in the place of the one in a job directory.

    :param owner: the spider's name.
    :param is_whole: whether a request's payload is as it was written.
    :param locate: payload -> (download slot, whether a start request), for requests whose slot's
        name was lost.
    :raises JobdirError: the directory cannot be used.
    :raises StoreError: nothing can be read, or the new store cannot be written.
    """
    jobdir = Jobdir(path, owner)
    try:
        with tempfile.TemporaryDirectory(prefix="altsched-repair-") as directory:
            source = _Source(jobdir.store, Path(directory), is_whole)
            try:
                return _Rebuild(jobdir, source, locate).run()
            finally:
                source.close()
    finally:
        jobdir.release()


def accept_loss(path: Path, owner: str) -> int:
    """No longer count as missing what a repair could not keep, so that the job can be finished.

    :return: how many requests are given up.
    :raises AltschedError: the job cannot be opened.
    """
    journal = Journal(path, owner)
    try:
        counters = journal.counters()
        pending = sum(count for _, count, _ in journal.slots())
        accounted = counters.done + counters.dead + pending
        counts = replace(counters, accepted=accounted)
        journal.write(Batch(counts, notes={DAMAGE: b""}), wait=True)
        return max(0, counters.accepted - accounted)
    finally:
        journal.close()


class _Source:
    """What of a damaged store can be opened, in whatever way.

    :param directory: a temporary one, for links to the store's files.
    :ivar losses: what could not be read, in sentences.
    :ivar incomplete: families of which rows may be missing.
    """

    def __init__(self, store: Path, directory: Path, is_whole: Callable[[bytes], bool]) -> None:
        self._store = store
        self._directory = directory
        self._is_whole = is_whole
        self.losses: list[str] = []
        self.incomplete: set[str] = set()
        try:
            self._readers = [self._open_as_it_is(self._link("as it is"))]
        except StoreDamagedError as error:
            self.losses.append(str(error))
            self._readers = self._open_somehow()

    def rows(self, family: str) -> Iterator[tuple[bytes, bytes]]:
        """All rows of a family that can be read, in key order; of equal keys the newest."""
        readers = self._readers
        if family == "pending" and len(readers) > 1 and readers[0].is_accounted_for():
            readers = readers[:1]  # an older one would bring back what was done since
        streams = [zip(repeat(rank), reader.rows(family)) for rank, reader in enumerate(readers)]
        last = None
        for _, (key, value) in heapq.merge(*streams, key=lambda item: (item[1][0], item[0])):
            if key != last:
                last = key
                yield key, value

    def meta(self) -> dict[bytes, bytes]:
        """All rows of the family ``meta`` that can be read."""
        found = dict(self.rows("meta"))
        for reader in reversed(self._readers):
            found.update(reader.essentials())
        return found

    def close(self) -> None:
        """Free everything."""
        for reader in self._readers:
            reader.close()

    def _link(self, name: str) -> Path:
        links = self._directory / name
        links.mkdir()
        link_files(self._store, links)
        return links

    def _open_as_it_is(self, links: Path) -> _Reader:
        try:
            return self._reader(links, READ_ONLY, STRICT)
        except StoreDamagedError as error:
            reader = self._reader(links, READ_ONLY, UP_TO_DAMAGE)
            self.losses.append(f"{error} What was committed after that is lost.")
            return reader

    def _reader(self, *how: Any) -> _Reader:
        reader = _Reader(self._store, self._is_whole, self.losses, self.incomplete)
        reader.open(*how)
        return reader

    def _open_somehow(self) -> list[_Reader]:
        links = self._link("with another CURRENT")
        if self._name_manifest(links):
            with suppress(StoreDamagedError):
                return [self._open_as_it_is(links)]
        # Each of the two may lack what the other has: the first one's tables, the second one's log.
        newest = self._open_without_tables()
        return [reader for reader in (newest, self._open_rebuilt()) if reader is not None]

    def _name_manifest(self, links: Path) -> bool:
        """Write CURRENT anew if there is only one file that it can name; whether that was done."""
        manifests = [name for name in files_of(self._store) if name.startswith("MANIFEST-")]
        if len(manifests) != 1:
            return False
        current = links / "CURRENT"
        current.unlink(missing_ok=True)
        current.write_text(f"{manifests[0]}\n")
        return True

    def _open_without_tables(self) -> _Reader | None:
        """As a secondary instance, which does without tables that are missing."""
        links = self._link("without tables")
        secondary = AccessType.secondary(str(self._directory / "secondary"))
        while True:
            try:
                return self._reader(links, secondary, UP_TO_DAMAGE)
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
        with translated("Repairing", self._store, links):
            Rdict.repair(str(links), options_for(UP_TO_DAMAGE))
        dropped = {path.name for path in links.glob("lost/*.sst")}
        named = {name for text in self.losses for name in _tables_in(text)}
        dropped |= {name for name in named if not (self._store / name).exists()}
        if dropped:
            files = ", ".join(sorted(dropped))
            self.losses.append(f"What was in {files} is lost: it cannot be read at all.")
            self.incomplete.update(FAMILIES)
        return self._reader(links, READ_WRITE, UP_TO_DAMAGE)


class _Reader(Rows):
    """A store that is read around its damaged parts."""

    def __init__(
        self,
        store: Path,
        is_whole: Callable[[bytes], bool],
        losses: list[str],
        incomplete: set[str],
    ) -> None:
        super().__init__(store)
        self._is_whole = is_whole
        self._losses = losses
        self._incomplete = incomplete

    def open(self, place: Path, access: AccessType, recovery: DBRecoveryMode) -> None:
        """Open it where its files, or links to them, are."""
        self._place = place
        self._open_database(place, access, recovery)

    def close(self) -> None:
        """Close it."""
        self._close_database()

    def is_accounted_for(self) -> bool:
        """Whether it holds as many pending requests as its counters say."""
        with suppress(StoreDamagedError):
            counters = self.counters()
            pending = sum(1 for _ in self.pending())
            return counters.accepted == counters.done + pending + counters.dead
        return False

    def essentials(self) -> dict[bytes, bytes]:
        """Rows of ``meta`` read one by one: the newest may be whole where older ones are not."""
        found = {}
        for name in ("identity", "commit", "counters", "note:order", f"note:{DAMAGE}"):
            with suppress(StoreDamagedError):
                value = self._read(name)
                if value is not None:
                    found[name.encode()] = value
        return found

    def rows(self, family: str) -> Iterator[tuple[bytes, bytes]]:
        """All rows of a family but those that are damaged, in key order."""
        with self._reading:
            cursor = self._cf[family].iter()
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
                beyond = self._past_damage(family, cursor, last)
                yield from self._unverified(family, last, beyond[0][0] if beyond else None, reason)
                if not beyond:
                    return
                yield from beyond
                last = beyond[-1][0]
                cursor.seek(last)
                if not cursor.valid():
                    continue
                cursor.next()

    def _past_damage(
        self, family: str, cursor: RdictIter, last: bytes
    ) -> list[tuple[bytes, bytes]]:
        """The next rows after *last* that can be read, back to the end of the damage.

        Keys farther and farther away are tried until one is past the damaged block; from there it
        is read backwards.
        """
        back = self._cf[family].iter()
        found: list[tuple[bytes, bytes]] = []
        for key in _farther_and_farther(last):
            cursor.seek(key)
            if cursor.valid():
                found.append((cursor.key(), cursor.value()))
                back.seek(cursor.key())
                back.prev()
                break
            if _status(cursor) is None:  # there is none from that key on
                back.seek_to_last()
                break
        while back.valid() and back.key() > last:
            found.append((back.key(), back.value()))
            back.prev()
        return sorted(found)

    def _unverified(
        self, family: str, low: bytes, high: bytes | None, reason: str
    ) -> Iterator[tuple[bytes, bytes]]:
        """Rows of a damaged block that seem to be whole: one flipped bit need not cost them all."""
        self._losses.append(f"A part of {family!r} is damaged: {reason}.")
        self._incomplete.add(family)
        for key, value in unverified(self._place, family, low, high):
            if self._seems_whole(family, value):
                yield key, value

    def _seems_whole(self, family: str, value: bytes) -> bool:
        if family == "seen":
            return not value
        try:
            if family == "dead":
                value = decode_dead(value)[1]
            elif family != "pending":
                return False
            return self._is_whole(decode_value(value).payload or b"")
        except (IndexError, ValueError):
            return False


class _Rebuild:
    """A new store out of the rows of a damaged one."""

    def __init__(self, jobdir: Jobdir, source: _Source, locate: Locate | None) -> None:
        self._jobdir = jobdir
        self._source = source
        self._locate = locate
        self._result = Repair()
        self._last_run = 1
        #: Whether the counters that were read are those of the last commit.
        self._is_newest = False

    def run(self) -> Repair:
        jobdir, result = self._jobdir, self._result
        meta = self._source.meta()
        identity = self._identify(meta.get(b"identity"))
        jobdir.check(identity)
        partial = jobdir.store.with_name(jobdir.store.name + ".partial")
        try:
            shutil.rmtree(partial, ignore_errors=True)
            shutil.rmtree(jobdir.path / REPAIRED, ignore_errors=True)
            store = Store(partial)
            store.create(identity)
            try:
                self._fill(store, meta)
                store.flush()
            finally:
                store.close()
            last = LastCommit(identity.store_id, store.commit_number, 0, 0)
            self._put_in_place(partial, identity)
        except OSError as error:
            raise JobdirError(
                f"The repaired store {partial} cannot be written ({error}). Nothing was changed;"
                " see that the disk has space for a copy of the store."
            ) from error
        jobdir.note_commit(last)
        return result

    def _identify(self, stored: bytes | None) -> Identity:
        if stored is not None:
            with suppress(ValueError):
                return Identity.parse(stored)
        return self._jobdir.identity or Identity.new(self._jobdir.owner)

    def _put_in_place(self, partial: Path, identity: Identity) -> None:
        """A death in between leaves a job whose repaired store is put in place at the next open."""
        jobdir = self._jobdir
        number = 1
        while (aside := jobdir.store.with_name(f"{jobdir.store.name}.damaged-{number}")).exists():
            number += 1
        jobdir.write_identity(identity)
        repaired = jobdir.path / REPAIRED
        partial.rename(repaired)
        jobdir.store.rename(aside)
        repaired.rename(jobdir.store)
        self._result.aside = aside

    def _fill(self, store: Store, meta: dict[bytes, bytes]) -> None:
        counters, notes = self._read_meta(meta)
        last, number = self._jobdir.last_commit, int.from_bytes(meta.get(b"commit", b""), "big")
        self._is_newest = last is not None and number >= last.number
        store.commit_number = max(number, last.number if last is not None else 0)
        names = self._read_slots()
        held, last_sequence = self._copy_pending(store, counters, names, notes)
        dead = self._copy_dead(store)
        self._copy_others(store)
        final = Batch(self._settle(counters, held.total(), dead, last_sequence))
        final.slots = [
            (slot_id.to_bytes(8, "big"), count, names[slot_id]) for slot_id, count in held.items()
        ]
        final.counters.next_slot = max([counters.next_slot, *(slot_id + 1 for slot_id in held)])
        damage = self._note_damage(notes.get(DAMAGE, b"").decode())
        final.notes = {**notes, DAMAGE: damage.encode()}
        store.write(final, wait=True)

    def _read_meta(self, meta: dict[bytes, bytes]) -> tuple[Counters, dict[str, bytes]]:
        notes = {
            key[len(b"note:") :].decode(): value
            for key, value in meta.items()
            if key.startswith(b"note:")
        }
        try:
            return Counters.parse(meta.get(b"counters", b"")), notes
        except ValueError:
            self._result.losses.append(
                "How many requests were accepted and done is not known any more."
            )
            self._source.incomplete.add("meta")
            known = self._jobdir.last_commit
            done = known.done if known is not None else 0
            accepted = known.accepted if known is not None else 0
            # A number that no request has had; 2**62 more can follow.
            # A number that no request has had; 2**62 more can follow.
            return Counters(accepted=accepted, done=done, next_sequence=1 << 62), notes

    def _read_slots(self) -> dict[int, str]:
        names: dict[int, str] = {}
        for key, value in self._source.rows("slots"):
            with suppress(ValueError):
                names[int.from_bytes(key, "big")] = decode_slot(value)[1]
        return names

    def _copy_pending(
        self,
        store: Store,
        counters: Counters,
        names: dict[int, str],
        notes: dict[str, bytes],
    ) -> tuple[Counter[int], int]:
        """Number of requests of each slot, and the highest sequence number among them."""
        order = Order.parse(notes["order"].decode()) if "order" in notes else None
        may_be_orphans = "meta" not in self._source.incomplete
        held: Counter[int] = Counter()
        highest = 0
        batch = Batch(counters)
        for key, value in self._source.rows("pending"):
            slot_id = int.from_bytes(key[:8], "big")
            if slot_id >= counters.next_slot and may_be_orphans:
                continue  # a change of order was cut short before it was true
            try:
                entry = decode_value(value)
                if order is not None:
                    highest = max(highest, order.decode(key[8:])[2])
            except (IndexError, ValueError):
                self._result.losses.append(f"The pending request {key.hex()} is cut short.")
                self._source.incomplete.add("pending")
                continue
            if slot_id not in names:
                names[slot_id] = self._name_slot(slot_id, entry.payload or b"", order, names)
            held[slot_id] += 1
            batch.pending.append((key, value))
            if entry.unique:
                batch.seen.append(entry.fingerprint)
            self._write_if_full(store, batch)
        store.write(batch, wait=True)
        self._result.kept["pending"] = held.total()
        return held, highest

    def _name_slot(
        self, slot_id: int, payload: bytes, order: Order | None, names: dict[int, str]
    ) -> str:
        name = f"slot {slot_id}"
        if order is not None and order.policy == "one":
            name = ""
        elif self._locate is not None:
            with suppress(ValueError):  # a CodecError is one
                name = self._locate(payload)[0]
        return name if name not in names.values() else f"slot {slot_id}"

    def _copy_dead(self, store: Store) -> int:
        batch = Batch(Counters())
        for key, value in self._source.rows("dead"):
            with suppress(IndexError, ValueError):
                entry = decode_value(decode_dead(value)[1])
                batch.dead.append((key, value))
                if entry.unique:
                    batch.seen.append(entry.fingerprint)
        store.write(batch, wait=True)
        self._result.kept["dead"] = len(batch.dead)
        return len(batch.dead)

    def _copy_others(self, store: Store) -> None:
        batch = Batch(Counters())
        kept = self._result.kept
        for key, _ in self._source.rows("seen"):
            batch.seen.append(key)
            kept["seen"] += 1
            self._write_if_full(store, batch)
        for key, value in self._source.rows("started"):
            run = int.from_bytes(value, "big")
            self._last_run = max(self._last_run, run)
            batch.started.append((key, run))
            kept["started"] += 1
            self._write_if_full(store, batch)
        for key, value in self._source.rows("suspects"):
            with suppress(ValueError):
                batch.suspects.append((key, decode_crashes(value)))
                kept["suspects"] += 1
        store.write(batch, wait=True)

    @staticmethod
    def _write_if_full(store: Store, batch: Batch) -> None:
        if len(batch.pending) + len(batch.seen) + len(batch.started) >= _CHUNK:
            store.write(batch, wait=True)
            batch.pending, batch.seen, batch.started = [], [], []

    def _settle(self, counters: Counters, pending: int, dead: int, highest: int) -> Counters:
        """Counters that agree with what was kept; what is missing stays accepted."""
        missing = counters.accepted - counters.done - pending - dead
        done = counters.done if missing >= 0 else max(0, counters.done + missing)
        accepted = max(counters.accepted, done + pending + dead)
        if missing > 0:
            self._result.damage = f"{missing} requests could not be read"
        elif missing < 0 or (self._source.incomplete and not self._is_newest):
            self._result.damage = "how many requests could not be read is not known"
        return replace(
            counters,
            accepted=accepted,
            done=done,
            dead=dead,
            run=max(counters.run, self._last_run),
            next_sequence=max(counters.next_sequence, highest + 1),
            finished=counters.finished and not pending,
        )

    def _note_damage(self, earlier: str) -> str:
        result, source = self._result, self._source
        result.losses = source.losses + result.losses
        if "seen" in source.incomplete:
            result.losses.append(
                "Some fingerprints of done requests may be lost: those may be crawled again."
            )
        if not result.damage:
            return earlier
        day = datetime.now().astimezone().date().isoformat()
        result.damage = f"in the repair of {day}, {result.damage}."
        return f"{earlier} {result.damage}".strip()


def _status(cursor: RdictIter) -> str | None:
    """Why an iterator stopped; ``None``: at the end."""
    try:
        cursor.status()
    except Exception as error:  # rocksdict raises nothing narrower
        return " ".join(str(error).split()).rstrip(".")
    return None


def _farther_and_farther(key: bytes) -> Iterator[bytes]:
    """Keys after *key*, in order: first very near, then at ever larger steps."""
    digits = key[:_LEVELS].ljust(24, b"\0")
    for level in reversed(range(len(digits))):
        for digit in range(digits[level] + 1, 256):
            yield digits[:level] + bytes((digit,))


def _tables_in(text: str) -> set[str]:
    """The names of the table files that a message speaks of."""
    return set(re.findall(r"\d+\.sst", text))
