"""Forgetting pages that were finished long ago."""

from __future__ import annotations

import json
from itertools import islice

from ..errors import JobdirError
from ..frontier.store.journal import Journal
from ..frontier.store.records import Batch
from ..frontier.store.seen import SINCE, end_time_of
from .progress import follow
from .rewriter import CHUNK


def purge(journal: Journal, before: float) -> tuple[int, int]:
    """Forget pages that were finished *before*; how many these were, and how many were seen.

    They are found as if they were new.  Pages that are not finished stay, and so do those of which
    it is not known when.  Some thousand are forgotten at a time, each portion in one step.

    :param before: epoch seconds.
    :raises JobdirError: the job does not record when pages are finished.
    :raises StoreError: it could not be read or written.
    """
    note = journal.note(SINCE)
    if note is None:
        raise JobdirError(
            f"The job in {journal.jobdir.path} does not record when its pages are finished. Set"
            " ALTSCHED_RECRAWL_AFTER, run it, and purge what is old enough after that."
        )
    since = json.loads(note)
    purged = seen = 0
    rows = follow("Reading what was seen", journal.seen(), journal.counters().done)
    while portion := list(islice(rows, CHUNK)):
        seen += len(portion)
        batch = Batch(journal.counters())
        for key, value in portion:
            end = end_time_of(value, since)
            if end is not None and end < before:
                batch.forgotten.append(key)
        if batch.forgotten:
            if batch.counters.seen is not None:
                batch.counters.seen -= len(batch.forgotten)
            journal.write(batch, wait=True)
            purged += len(batch.forgotten)
    return purged, seen
