"""A store of RocksDB: what its options lead to."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from scrapy_altsched.frontier.store.database import RowBatch

if TYPE_CHECKING:
    from rocksdict import Options

    from scrapy_altsched.frontier.store.rocksdb.database import RocksDatabase
    from scrapy_altsched.frontier.store.rocksdb.options import Recovery

pytestmark = pytest.mark.rocksdb
FAMILIES = ("pending", "seen")


def database_at(place: Path) -> RocksDatabase:
    from scrapy_altsched.frontier.store.rocksdb.database import RocksDatabase

    database = RocksDatabase(place)
    database.open(place, create=True)
    return database


def row(number: int) -> tuple[bytes, bytes]:
    """In no order, and much like others."""
    key = (number * 2_654_435_761 % (1 << 32)).to_bytes(10, "big")
    return key, f"https://host-{number % 7}.example/catalogue/list.html?id={number}".encode() * 3


def write(database: RocksDatabase, numbers: Iterable[int]) -> None:
    rows = RowBatch()
    for family in FAMILIES:
        rows.put(family, [row(number) for number in numbers])
    database.write(rows, wait=True)


def compact(database: RocksDatabase) -> None:
    for family in FAMILIES:
        database.families[family].compact_range(None, None)


def has_all(database: RocksDatabase, count: int) -> bool:
    rows = sorted(map(row, range(count)))
    return all(list(database.iterate(family)) == rows for family in FAMILIES)


def as_before(recovery: Recovery) -> Options:
    """Options of a store before its log was compressed, and its tables were merged by size."""
    from rocksdict import DBRecoveryMode, Options

    options = Options(raw_mode=True)
    options.create_missing_column_families(True)
    options.set_atomic_flush(True)
    options.set_wal_recovery_mode(getattr(DBRecoveryMode, recovery.value)())
    return options


def use_earlier_options(patch: pytest.MonkeyPatch) -> None:
    from scrapy_altsched.frontier.store.rocksdb import database

    def of_families(names: Iterable[str], recovery: Recovery) -> dict[str, Options]:
        return {name: as_before(recovery) for name in names}

    patch.setattr(database, "options_for", as_before)
    patch.setattr(database, "options_of_families", of_families)


def test_the_log_is_compressed(tmp_path: Path) -> None:
    with closing(database_at(tmp_path)) as database:
        write(database, range(1_000))
        logged = sum(path.stat().st_size for path in tmp_path.glob("*.log"))
    assert logged < sum(len(key) + len(value) for key, value in map(row, range(1_000)))


def test_a_store_of_an_earlier_version_goes_on_and_an_earlier_version_can_read_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    earlier, later, earlier_again = (tmp_path / name for name in ("1", "2", "3"))
    with monkeypatch.context() as patch:
        use_earlier_options(patch)
        with closing(database_at(earlier)) as database:
            write(database, range(500))
            compact(database)
            write(database, range(500, 1_000))
            # As a kill leaves it: some is in the log only.
            shutil.copytree(earlier, later)
    with closing(database_at(later)) as database:
        assert has_all(database, 1_000)
        # More tables than are left unmerged.
        for first in range(1_000, 5_000, 100):
            write(database, range(first, first + 100))
            database.flush()
        compact(database)
    with closing(database_at(later)) as database:
        write(database, range(5_000, 6_000))
        assert has_all(database, 6_000)
        shutil.copytree(later, earlier_again)
    with monkeypatch.context() as patch:
        use_earlier_options(patch)
        with closing(database_at(earlier_again)) as database:
            assert has_all(database, 6_000)
            write(database, range(6_000, 6_500))
            compact(database)
            assert has_all(database, 6_500)
