"""Older formats of a job, brought up to date when the job is opened.

Each step takes a store from one format to the next.  It may write rows that no reader of the old
format knows, and returns the batch that makes the rest true; that batch also says the new format.
So a step is done completely or not at all, and one that was cut short starts again.

To change the format: raise ``FORMAT`` in :mod:`.jobdir`, and add the step from the one before.

======  ===========================================================================================
2       What is held against a suspect is more than a number of deaths.
3       A dead letter has its cause as a number, not in the words of its text.
======  ===========================================================================================
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from .jobdir import FORMAT, Identity
from .records import Batch
from .states import DEAD
from .store import Store

logger = logging.getLogger(__name__)


def _tell_deaths_apart(store: Store) -> Batch:
    """Have suspects in their new form; both are read, but a version before this reads one."""
    return Batch(store.counters(), suspects=list(store.suspects()))


def _tell_causes_apart(store: Store) -> Batch:
    batch = Batch(store.counters())
    batch.stored[DEAD] += [(key, DEAD.join(why, value)) for key, why, value in store.dead()]
    return batch


#: Format -> what takes a store of it to the next one.
STEPS: dict[int, Callable[[Store], Batch]] = {
    1: _tell_deaths_apart,
    2: _tell_causes_apart,
}


def migrate(store: Store, identity: Identity) -> Identity:
    """Bring *store* up to date; what it says of itself then.

    :raises StoreError: a read or write failed; the store is of a format between the two.
    """
    while identity.format < FORMAT:
        batch = STEPS[identity.format](store)
        identity = replace(identity, format=identity.format + 1)
        batch.identity = identity.encode()
        store.write(batch, wait=True)
        logger.info("The store %s is of format %d now", store.path, identity.format)
    return identity
