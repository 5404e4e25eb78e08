"""Importing requests that another scheduler has stored into a frontier that is open."""

from __future__ import annotations

from collections.abc import Callable

from ..frontier.contract import Frontier, Verdict
from .importing import Imported, Source

#: What is added before it is waited for.
_PORTION = 2_000


def add_all(frontier: Frontier, source: Source, count_refused: Callable[[], int]) -> Imported:
    """Add what *source* holds; requests that are dead there are left out, and counted.

    If it is interrupted it may be done again: what is filtered is not added twice.

    :param count_refused: how many requests the frontier has refused since, by its events.
    :raises StoreError: some of it could not be added.
    """
    imported = Imported()
    refused = 0
    for number, (entry, why) in enumerate(source.requests(), 1):
        if why is not None:
            imported.dead += 1
        elif frontier.add(entry) in (Verdict.ADDED, Verdict.UNDECIDED):
            imported.pending += 1
        else:
            refused += 1
        if not number % _PORTION:
            _settle(frontier)
    for number, fingerprint in enumerate(source.fingerprints(), 1):
        if not frontier.mark_seen(fingerprint):
            imported.done += 1
        if not number % _PORTION:
            _settle(frontier)
    _settle(frontier)
    # It must not have changed while it was read.
    source.parts()
    later = count_refused()
    imported.pending -= later
    imported.duplicates = refused + later
    source.imported = imported
    return imported


def _settle(frontier: Frontier) -> None:
    while not frontier.commit(wait=True):
        pass
