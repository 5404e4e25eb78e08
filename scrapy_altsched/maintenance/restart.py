"""Having a job begin again, all of it or nothing."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import closing
from itertools import chain, islice
from pathlib import Path
from time import time

from ..frontier.shared.record import refuse_worker
from ..frontier.store.database import Row, RowBatch
from ..frontier.store.engines import database_at
from ..frontier.store.journal import Journal
from ..frontier.store.records import Counters
from ..frontier.store.runs import Runs
from ..frontier.store.seen import KEYS, PASS, SINCE, UNFINISHED, encode_end, first_day_of
from ..requests.identity import NOTE
from ..steering.actions import NOTE as ACTIONS
from .convert import replace_store
from .progress import follow
from .rewriter import CHUNK

#: Notes that belong to what was seen; and the one that says which actions were applied, of which
#: some may still be in the spool.
_OF_SEEN, _OF_SPOOL = (SINCE, PASS, NOTE), ACTIONS


def restart(path: Path, owner: str, remedy: str, *, keeps_seen: bool) -> None:
    """Have the job in a directory begin again with its next run.

    :param remedy: what to do instead with the directory of a worker, in a sentence.
    :param keeps_seen: whether pages that were seen stay seen, with their ages.
    :raises JobdirError: a crawl runs, or the directory is a worker's, or has no space; StoreError:
        the store cannot be read.  The job is as it was.
    """

    def write(journal: Journal) -> bool:
        refuse_worker(journal, path, remedy)
        _write_anew(journal, _OF_SEEN if keeps_seen else ())
        journal.jobdir.forget_status()
        return True

    replace_store(path, owner, write)


def _write_anew(journal: Journal, kept: tuple[str, ...]) -> None:
    """Make a store beside that of a job, as if its last run had finished it with no request."""
    counters = journal.counters()
    new = database_at(journal.path, journal.engine)
    with closing(new):
        new.open(journal.jobdir.partial, create=True)
        if kept:
            rows = _end_pages(follow("Copying seen", journal.seen(), counters.accepted), journal)
            while portion := list(islice(rows, CHUNK)):
                batch = RowBatch()
                batch.put("seen", portion)
                new.write(batch, wait=True)
        batch = RowBatch()
        batch.put("meta", sorted(_meta(journal, counters, kept)))
        new.write(batch, wait=True)
        new.flush()
        new.sync()


def _end_pages(rows: Iterable[Row], journal: Journal) -> Iterator[Row]:
    """Seen rows, of which those of pages that are not finished say that they are, as of now."""
    since = journal.note(SINCE)
    if since is None:
        yield from rows
        return
    end = encode_end(max(time(), journal.counters().time) - first_day_of(json.loads(since)))
    for key, value in rows:
        yield key, end if value == UNFINISHED else value


def _meta(journal: Journal, counters: Counters, kept: tuple[str, ...]) -> Iterator[Row]:
    # The job stays the same one: its commits and runs are counted on.
    for key, value in journal.database.iterate("meta"):
        if key in (b"identity", b"commit") or key.startswith(b"commit:"):
            yield key, value
    anew = Counters(run=counters.run, finished=True, time=counters.time)
    yield b"counters", anew.encode()
    notes = {name: journal.note(name) for name in (KEYS, _OF_SPOOL, *kept)}
    for name, note in chain(notes.items(), Runs(journal).settle().items()):
        if note is not None:
            yield b"note:" + name.encode(), note
