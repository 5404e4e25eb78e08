"""Recording, from now on, when the pages of a job are finished."""

from __future__ import annotations

import json
from contextlib import suppress

from ..frontier.store.journal import Journal
from ..frontier.store.seen import SINCE, UNFINISHED
from ..frontier.store.states import STATES
from .rewriter import Rewriter


def record_ages(journal: Journal, now: float) -> None:
    """Note since when, and which pages are not finished; pages that are count as finished *now*.

    Nothing is done if the job records ages already.  What was written before a death is harmless.

    :param now: epoch seconds.
    :raises StoreError: it could not be read or written.
    """
    if journal.note(SINCE) is not None:
        return
    rewriter = Rewriter(journal)
    for state in STATES:
        for _, row in journal.requests(state):
            with suppress(IndexError, ValueError):  # it is damaged, which a check tells
                entry = state.decode(row)
                if entry.unique:
                    key = journal.seen_key(entry.fingerprint)
                    rewriter.rows.seen_rows.append((key, UNFINISHED))
                    rewriter.flush_if_full()
    rewriter.final.notes[SINCE] = json.dumps(now).encode()
    rewriter.finish()
