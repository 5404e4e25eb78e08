"""What is read of a damaged store of SQLite, page by page."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from scrapy_altsched.errors import AltschedError, StoreDamagedError
from scrapy_altsched.frontier.store.database import Row, RowBatch
from scrapy_altsched.frontier.store.engines import database_at
from scrapy_altsched.frontier.store.sqlite.database import PAGE
from scrapy_altsched.frontier.store.sqlite.salvage import SqliteSalvage
from scrapy_altsched.frontier.store.states import FAMILIES

from ..damage import overwrite

FILE, LOG = "store.sqlite", "store.sqlite-wal"
Rows = dict[str, list[Row]]


@dataclass
class Stored:
    """A store, and what is in it.

    :ivar before: what is in its file, without the log.
    :ivar deleted: rows of before that.
    """

    path: Path
    rows: Rows
    before: Rows
    deleted: Rows


def key(number: int) -> bytes:
    return number.to_bytes(16, "big")


def put(path: Path, family: str, rows: list[Row], *, removed: tuple[bytes, ...] = ()) -> None:
    """Write rows, and leave them in the log."""
    database = database_at(path, "sqlite")
    database.open(path, create=True)
    batch = RowBatch()
    batch.delete(family, removed)
    batch.put(family, rows)
    database.write(batch, wait=True)
    database.abandon()


def read_all(path: Path) -> Rows:
    database = database_at(path)
    database.open_read_only(path)
    try:
        return {family: list(database.iterate(family)) for family in FAMILIES}
    finally:
        database.close()


def write_back(path: Path, *statements: str) -> None:
    """Run statements that leave freed pages as they are, and have all of the log in the file."""
    with closing(sqlite3.connect(path / FILE)) as connection:
        for statement in ("PRAGMA secure_delete = OFF", *statements):
            connection.execute(statement)
        connection.commit()
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


@pytest.fixture(scope="session")
def original(tmp_path_factory: pytest.TempPathFactory) -> Stored:
    """With trees of three levels, values of many pages, free pages with rows, and a log."""
    path = tmp_path_factory.mktemp("original") / "store"
    chosen = random.Random(1)
    put(path, "meta", [(b"commit", bytes(8)), (b"identity", b"{}")])
    put(path, "seen", sorted((chosen.randbytes(20), b"") for _ in range(2_500)))
    put(path, "dead", [(key(n), chosen.randbytes(n * 1_000)) for n in range(1, 101, 9)])
    # Rows of which few are in a page: many pages, and some in the third level.
    put(path, "pending", [(key(n), chosen.randbytes(900)) for n in range(4_000)])
    write_back(path)
    before = read_all(path)["pending"]
    write_back(path, f"DELETE FROM pending WHERE key < x'{key(2_500).hex()}'")
    stored = read_all(path)
    put(path, "pending", [(key(n), b"later") for n in range(5_000, 5_400)], removed=(key(3_000),))
    put(path, "meta", [(b"commit", b"1" * 8)])
    return Stored(path, read_all(path), stored, {"pending": before[:2_500]})


@pytest.fixture
def store(original: Stored, tmp_path: Path) -> Stored:
    """A copy of it, to be damaged."""
    path = tmp_path / "store"
    shutil.copytree(original.path, path)
    return Stored(path, original.rows, original.before, original.deleted)


@pytest.fixture
def plain(store: Stored) -> Stored:
    """The same without a log."""
    write_back(store.path)
    return store


@contextmanager
def salvage_of(path: Path) -> Iterator[SqliteSalvage]:
    with closing(SqliteSalvage(path, path, lambda _: True)) as salvage:
        yield salvage


def salvaged(path: Path) -> tuple[Rows, list[str], set[str]]:
    """All rows, what was lost, and of which families."""
    with salvage_of(path) as salvage:
        rows = {family: list(salvage.rows(family)) for family in FAMILIES}
        return rows, salvage.losses, salvage.incomplete


def lost(before: Rows, after: Rows) -> Rows:
    """Rows that are not there any more; the others are as they were, and in order."""
    for family, rows in after.items():
        assert list(filter(set(rows).__contains__, before[family])) == rows
    found = {family: sorted(set(before[family]) - set(after[family])) for family in FAMILIES}
    return {family: rows for family, rows in found.items() if rows}


def page_of(family: str) -> int:
    """The first page of a family."""
    return FAMILIES.index(family) + 2


def kinds(path: Path, kind: int) -> list[int]:
    """Pages of a kind that are in use: 2 are inner ones, 10 leaves."""
    with salvage_of(path) as salvage:
        parents, pages = salvage._parents, salvage._pages
        return [
            number
            for number in range(2, pages.count + 1)
            if parents[number] and pages.read(number)[0] == kind
        ]


def zero(path: Path, number: int) -> None:
    overwrite(path / FILE, (number - 1) * PAGE, bytes(PAGE))


def test_a_whole_store_is_read_wholly(store: Stored) -> None:
    before = {name.name: name.read_bytes() for name in store.path.iterdir()}
    assert salvaged(store.path) == (store.rows, [], set())
    assert {name.name: name.read_bytes() for name in store.path.iterdir()} == before


def test_a_store_that_was_rewritten_with_other_first_pages_is_read_wholly(plain: Stored) -> None:
    write_back(plain.path, "DROP TABLE suspects")
    with closing(sqlite3.connect(plain.path / FILE)) as connection:
        connection.execute("VACUUM")
    assert salvaged(plain.path) == (plain.rows, [], set())


def test_a_page_that_is_lost_costs_its_rows(plain: Stored) -> None:
    chosen = random.Random(2)
    for number in chosen.sample(kinds(plain.path, 10), 5):
        copy = plain.path.with_name("copy")
        shutil.copytree(plain.path, copy)
        zero(copy, number)
        rows, losses, incomplete = salvaged(copy)
        missing = lost(plain.rows, rows)
        assert len(missing) <= 1
        if missing:
            [(family, gone)] = missing.items()
            assert len(gone) < 200
            assert losses == [f"A part of {family!r} is damaged: page {number} of {FILE}."]
            assert incomplete == {family}
        shutil.rmtree(copy)


def test_an_inner_page_that_is_lost_costs_no_row_below_it(plain: Stored) -> None:
    inner = kinds(plain.path, 2)
    roots = {page_of(family) for family in ("seen", "pending")}
    assert roots < set(inner)
    for number in (*roots, *random.Random(2).sample(inner, 4)):
        copy = plain.path.with_name("copy")
        shutil.copytree(plain.path, copy)
        zero(copy, number)
        rows, losses, incomplete = salvaged(copy)
        [(family, gone)] = lost(plain.rows, rows).items()
        assert len(gone) < 200
        assert incomplete == {family}
        assert losses == [f"A part of {family!r} is damaged: page {number} of {FILE}."]
        shutil.rmtree(copy)


def test_rows_of_free_pages_do_not_come_back(plain: Stored) -> None:
    """Deleted rows are still there: a page that no tree has may be one that is free."""
    content = (plain.path / FILE).read_bytes()
    assert sum(value in content for _, value in plain.deleted["pending"]) > 500
    zero(plain.path, page_of("pending"))
    rows, _, _ = salvaged(plain.path)
    assert not set(plain.deleted["pending"]).intersection(rows["pending"])


@pytest.mark.parametrize("damage", [0, 16, 32, 36, 100, 103, 108])
def test_a_first_page_that_is_damaged_costs_no_row(plain: Stored, damage: int) -> None:
    overwrite(plain.path / FILE, damage, b"\xff\xff\xff\xff")
    rows, _, incomplete = salvaged(plain.path)
    assert (rows, incomplete) == (plain.rows, set())


def test_a_wrong_number_of_a_family_s_first_page_costs_no_row(plain: Stored) -> None:
    """It leads to one of the pages below, which is whole."""
    table = (plain.path / FILE).read_bytes()
    text = b"seen" * 2
    place = table.index(text) + len(text)
    assert table[place] == page_of("seen")
    child = next(number for number in kinds(plain.path, 10) if number > page_of("dead"))
    overwrite(plain.path / FILE, place, bytes([child]))
    rows, losses, incomplete = salvaged(plain.path)
    assert rows == plain.rows
    assert losses == ["Some pages of 'seen' are not where they should be."]
    assert incomplete == {"seen"}


def test_deleted_rows_that_may_be_back_are_said(plain: Stored) -> None:
    zero(plain.path, 1)
    zero(plain.path, page_of("pending"))
    rows, losses, incomplete = salvaged(plain.path)
    assert set(plain.deleted["pending"]).intersection(rows["pending"])
    assert "Rows of 'pending' that were deleted may be there again." in losses
    assert incomplete == {"pending"}
    for family in set(FAMILIES) - {"pending"}:
        assert rows[family] == plain.rows[family]


def test_a_lost_part_of_a_long_value_costs_that_row(plain: Stored) -> None:
    before = plain.rows["dead"]
    content = (plain.path / FILE).read_bytes()
    place = content.index(before[-1][1][50_000:50_020])
    overwrite(plain.path / FILE, place, bytes(20))
    rows, losses, incomplete = salvaged(plain.path)
    assert rows["dead"] == before[:-1]
    assert incomplete == {"dead"}
    assert len(losses) == 1


def test_a_length_beyond_the_file_is_no_row(plain: Stored) -> None:
    content = (plain.path / FILE).read_bytes()
    place = content.index(key(3_500))
    overwrite(plain.path / FILE, place - 6, b"\xff" * 6)
    rows, _, incomplete = salvaged(plain.path)
    assert key(3_500) in dict(plain.rows["pending"])
    assert key(3_500) not in dict(rows["pending"])
    assert incomplete == {"pending"}


def test_rows_that_a_page_hides_are_missed(plain: Stored) -> None:
    """It says that it has one row less than it has."""
    number = kinds(plain.path, 10)[-1]
    place = (number - 1) * PAGE + 4
    [count] = (plain.path / FILE).read_bytes()[place : place + 1]
    overwrite(plain.path / FILE, place, bytes([count - 1]))
    rows, _, incomplete = salvaged(plain.path)
    [(family, gone)] = lost(plain.rows, rows).items()
    assert len(gone) == 1
    assert incomplete == {family}
    with pytest.raises(StoreDamagedError, match="malformed"):
        read_all(plain.path)


# The log


def remove_log(path: Path) -> None:
    (path / LOG).unlink()


def empty_log(path: Path) -> None:
    os.truncate(path / LOG, 0)


def cut_log(path: Path) -> None:
    os.truncate(path / LOG, 32 + 24 + PAGE + 100)


def overwrite_log_header(path: Path) -> None:
    overwrite(path / LOG, 0)


def overwrite_log(path: Path) -> None:
    overwrite(path / LOG, 32 + 24 + 100)


@pytest.mark.parametrize(
    ("damage", "is_said"),
    [
        (remove_log, False),
        (empty_log, False),
        (cut_log, False),
        (overwrite_log_header, True),
        (overwrite_log, True),
    ],
)
def test_a_log_is_used_up_to_its_damage(
    store: Stored, damage: Callable[[Path], None], is_said: bool
) -> None:
    damage(store.path)
    rows, losses, incomplete = salvaged(store.path)
    assert (rows, incomplete) == (store.before, set())
    assert bool(losses) == is_said
    assert read_all(store.path) == store.before


def test_a_log_ends_with_a_commit(store: Stored) -> None:
    """The last one is cut short; those before it are whole."""
    os.truncate(store.path / LOG, (store.path / LOG).stat().st_size - 1)
    rows, losses, _ = salvaged(store.path)
    assert losses == []
    assert rows == {**store.rows, "meta": store.before["meta"]}
    assert rows == read_all(store.path)


def test_pages_of_the_log_are_read_without_a_file(store: Stored) -> None:
    (store.path / FILE).unlink()
    rows, _, incomplete = salvaged(store.path)
    assert {(key(n), b"later") for n in range(5_000, 5_400)} <= set(rows["pending"])
    assert "pending" in incomplete
    assert rows["meta"] == store.rows["meta"]


@pytest.mark.parametrize("length", [0, 1, 100, PAGE // 2, PAGE])
def test_nothing_is_kept_of_a_store_without_rows(plain: Stored, length: int) -> None:
    os.truncate(plain.path / FILE, length)
    with pytest.raises(StoreDamagedError, match="not one of its rows can be read"):
        salvaged(plain.path)


# Anything


def flip(path: Path, place: int, chosen: random.Random) -> None:
    with path.open("r+b") as file:
        file.seek(place)
        [byte] = file.read(1)
        file.seek(place)
        file.write(bytes([byte ^ 1 << chosen.randrange(8)]))


DAMAGE: list[Callable[[Path, int, random.Random], None]] = [
    flip,
    lambda path, place, chosen: overwrite(path, place, bytes(500)),
    lambda path, place, chosen: overwrite(path, place, chosen.randbytes(500)),
    lambda path, place, chosen: overwrite(path, place - place % PAGE, bytes(PAGE)),
    lambda path, place, chosen: os.truncate(path, place),
]


def damage_at_random(store: Stored, seed: int) -> None:
    """Salvage keeps nothing that was not written, and what it misses is said."""
    chosen = random.Random(seed)
    print(f"seed {seed}")
    path = store.path / (FILE if chosen.random() < 0.7 else LOG)
    for _ in range(chosen.choice((1, 1, 2, 5))):
        place = chosen.randrange(path.stat().st_size or 1)
        if chosen.random() < 0.4:  # at the beginning of a page, where it tells what is in it
            place -= place % PAGE - chosen.randrange(24)
        chosen.choice(DAMAGE)(path, place, chosen)
    try:
        rows, losses, incomplete = salvaged(store.path)
    except AltschedError:
        return
    may_be_old = any("deleted may be there" in loss for loss in losses)
    for family in FAMILIES:
        found, now = rows[family], store.rows[family]
        assert [name for name, _ in found] == sorted({name for name, _ in found})
        old = set(store.before[family]) if path.name == LOG else set()
        if may_be_old:
            old |= set(store.deleted.get(family, ()))
        assert set(found) <= set(now) | old
        if family not in incomplete:
            assert found in (now, store.before[family] if path.name == LOG else now)


def test_any_damage(original: Stored, tmp_path: Path) -> None:
    first = random.randrange(1 << 30)
    for seed in range(first, first + 10):
        shutil.copytree(original.path, tmp_path / "store")
        damage_at_random(
            Stored(tmp_path / "store", original.rows, original.before, original.deleted), seed
        )
        shutil.rmtree(tmp_path / "store")
