"""How a store is opened: RocksDB's options and modes.

See https://github.com/facebook/rocksdb/wiki: WAL-Recovery-Modes, WAL-Compression, Atomic-flush,
Universal-Compaction, and MemTable.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from pathlib import Path

from rocksdict import (
    BlockBasedOptions,
    Cache,
    DBCompactionStyle,
    DBCompressionType,
    DBRecoveryMode,
    MemtableFactory,
    Options,
)

_MIB = 1024 * 1024
#: The log is compressed, so that half as much is written for a new request: a file says that, as
#: rocksdict has no method for it.
_COMPRESSED_LOG = Path(__file__).with_name("compressed_log")
#: Families with a row for each request -> from how many tables on some are merged.  The more, the
#: fewer bytes are written, and the longer it takes to find a key: of seen ones, for each link.
_TABLES = {"pending": 32, "seen": 12}


class Recovery(enum.Enum):
    """What is recovered from a log that is damaged; the values are rocksdict's names."""

    #: What is there, if a dying machine tore off the end of the log; with other damage, nothing.
    STRICT = "tolerate_corrupted_tail_records"
    #: The last state before whatever is damaged in the log; what came after it is dropped.
    UP_TO_DAMAGE = "point_in_time"


#: What a store is opened for: rocksdict's name for it, and what it has to know of it.
Access = tuple[str, ...]
READ_WRITE: Access = ("read_write",)
READ_ONLY: Access = ("read_only",)


def secondary(directory: object) -> Access:
    """To be read while others may write it, or without some tables; *directory*: for its files."""
    return "secondary", str(directory)


def options_for(recovery: Recovery) -> Options:
    """RocksDB's options for the database, and for what all families have in common."""
    options, _ = Options.load_latest(str(_COMPRESSED_LOG))
    options.create_missing_column_families(True)
    # Without it a lost WAL file opens without error, with queue and seen of different times.
    options.set_atomic_flush(True)
    options.set_wal_recovery_mode(getattr(DBRecoveryMode, recovery.value)())
    options.set_keep_log_file_num(2)
    options.set_max_log_file_size(4 * _MIB)
    options.set_stats_dump_period_sec(0)
    # Open files must not grow with the crawl.
    options.set_max_open_files(256)
    # After a kill the log of all that is only in there is read again: some 20 ms a MiB.
    options.set_db_write_buffer_size(16 * _MIB)
    options.set_max_total_wal_size(96 * _MIB)
    options.set_max_background_jobs(2)
    # There is one writer; and only skip lists could take more.
    options.set_allow_concurrent_memtable_write(False)
    return options


def options_of_families(names: Iterable[str], recovery: Recovery) -> dict[str, Options]:
    """RocksDB's options for each family; they share one cache."""
    by_name, cache = {}, Cache(8 * _MIB)
    for name in names:
        options = by_name[name] = options_for(recovery)
        options.set_write_buffer_size(16 * _MIB)
        # While a table is written, 8 bytes for each of its keys are in memory.
        options.set_target_file_size_base(16 * _MIB)
        table = BlockBasedOptions()
        table.set_block_cache(cache)
        table.set_format_version(5)
        if name == "seen":
            table.set_bloom_filter(10, False)
            # A look-up reads and checks a block, for a row of some ten bytes; with the usual 4 KiB
            # it took a fifth longer.  The index, of 25 bytes a block, is in memory.
            table.set_block_size(1024)
            # Memtables have no filter of their own, and most look-ups are for absent keys.
            options.set_memtable_whole_key_filtering(True)
            options.set_memtable_prefix_bloom_ratio(0.1)
        if name in _TABLES:
            # Keys come in no order: tables are merged with others of their size, and not with all
            # that is there, which would write most of it again each time.
            options.set_compaction_style(DBCompactionStyle.universal())
            options.set_level_zero_file_num_compaction_trigger(_TABLES[name])
            # More come while these are merged: RocksDB's own limits would refuse writes by then.
            options.set_level_zero_slowdown_writes_trigger(3 * _TABLES[name])
            options.set_level_zero_stop_writes_trigger(4 * _TABLES[name])
        if name == "slots":
            # Read when the store is opened, and written in each commit: put in order when flushed.
            # To find a place for each row among a hundred thousand took a third of a commit.
            options.set_memtable_factory(MemtableFactory.vector())
        if name == "pending":
            # Each is written several times and read once: a third fewer bytes are written, and a
            # backlog takes 40 % of the disk.
            #
            # The last level's table is most of a large backlog.  Zstandard makes it smaller still;
            # that takes longer, in the background.
            fast, small = DBCompressionType.lz4(), DBCompressionType.zstd()
            options.set_compression_per_level([fast] * 6 + [small])
        options.set_block_based_table_factory(table)
    return by_name
