"""Older formats of a job, brought up to date when the job is opened.

Each step may write rows that no reader of the old format knows, and returns the batch that makes
the rest true, and says the new format: one that was cut short starts again.

To change the format: raise ``FORMAT`` in :mod:`.jobdir`, and add the step from the one before.

2: what is held against a suspect is more than a number of deaths;
3: a dead letter has its cause as a number, not in the words of its text;
4: the store may be one of SQLite, which earlier versions take for a damaged one;
5: requests may be delayed, or have failed, which earlier versions would count as lost;
6: rows of what was seen may say when pages were finished, which earlier versions take for damage;
7: what was seen may have been brought from a server, which earlier versions would not recognize;
8: counters have the number of what was seen, which earlier versions neither read nor count.
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


def _tell_causes_apart(store: Store) -> Batch:
    batch = Batch(store.counters())
    batch.stored[DEAD] += [(key, DEAD.join(why, value)) for key, why, value in store.dead()]
    return batch


#: Format -> what takes a store of it to the next one.
STEPS: dict[int, Callable[[Store], Batch]] = {
    # Both forms are read, but a version before this reads one.
    1: lambda store: Batch(store.counters(), suspects=list(store.suspects())),
    2: _tell_causes_apart,
    3: lambda store: Batch(store.counters()),
    4: lambda store: Batch(store.counters()),
    5: lambda store: Batch(store.counters()),
    6: lambda store: Batch(store.counters()),
    7: lambda store: Batch(store.counters()),
}


def migrate(store: Store, identity: Identity) -> Identity:
    """Bring *store* up to date, or, with a StoreError, to a format in between; what it is then."""
    while identity.format < FORMAT:
        batch = STEPS[identity.format](store)
        identity = replace(identity, format=identity.format + 1)
        batch.identity = identity.encode()
        store.write(batch, wait=True)
        logger.info("The store %s is of format %d now", store.path, identity.format)
    return identity
