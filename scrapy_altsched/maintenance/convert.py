"""Writing a job's store again with another engine, all of it or nothing."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import closing
from itertools import islice
from pathlib import Path

from ..errors import JobdirError
from ..frontier.store.database import RowBatch
from ..frontier.store.engines import database_at
from ..frontier.store.journal import Journal
from ..frontier.store.states import FAMILIES, PENDING, UNQUEUED
from .progress import follow
from .rewriter import CHUNK


def convert(path: Path, owner: str, engine: str) -> str:
    """Give the job in a directory a store of *engine*; the name of the engine that it had.

    :raises ConfigError: one of the engines is not installed.
    :raises JobdirError: the directory cannot be used, or has no space; StoreError: the store cannot
        be read.  The job is as it was.
    """

    def write(journal: Journal) -> bool:
        if journal.engine != engine:
            _copy(journal, engine)
        return journal.engine != engine

    return replace_store(path, owner, write).engine


def replace_store(path: Path, owner: str, write: Callable[[Journal], bool]) -> Journal:
    """Give the job in a directory another store; its journal, which is closed.

    :param write: writes the store, at the place for a partial one; whether there is to be one.
    :raises AltschedError: as :func:`convert`.
    """
    journal = Journal(path, owner)
    jobdir = journal.jobdir
    try:
        try:
            is_other = write(journal)
        finally:
            journal.close(hold=True)
        if is_other:
            jobdir.replace_store()
    except OSError as error:
        raise JobdirError(
            f"Another store of {path} cannot be written ({error}). Nothing was changed; check that"
            " the disk has space for a copy of the store."
        ) from error
    finally:
        # What could not be finished would keep a full disk full.
        shutil.rmtree(jobdir.partial, ignore_errors=True)
        jobdir.release()
    return journal


def _copy(journal: Journal, engine: str) -> None:
    counters, total = journal.counters(), journal.counts()
    numbers = {"seen": counters.accepted, PENDING.family: total.pending}
    numbers.update((state.family, counters.count(state)) for state in UNQUEUED)
    new = database_at(journal.path, engine)
    with closing(new):
        new.open(journal.jobdir.partial, create=True)
        for family in FAMILIES:
            rows = journal.database.iterate(family)
            if family in numbers:
                rows = follow(f"Copying {family}", rows, numbers[family])
            while portion := list(islice(rows, CHUNK)):
                batch = RowBatch()
                batch.put(family, portion)
                new.write(batch, wait=True)
        new.flush()
        new.sync()
