"""Whether what is stored agrees with itself."""

from __future__ import annotations

from collections import Counter

from .journal import Journal
from .records import decode_value


def audit(journal: Journal) -> list[str]:
    """Verify every invariant of a store that has no uncommitted changes.

    :return: a sentence for each invariant that does not hold.
    :raises StoreError: it could not be read to the end.
    """
    problems: list[str] = []
    unseen: list[str] = []
    found: Counter[int] = Counter()
    for key, value in journal.pending():
        found[int.from_bytes(key[:8], "big")] += 1
        try:
            entry = decode_value(value)
        except (IndexError, ValueError):
            problems.append(f"The pending request {key.hex()} is cut short.")
            continue
        if entry.unique and not journal.has_seen(entry.fingerprint):
            unseen.append(f"The pending request {key.hex()} is not among the seen ones.")
    named: set[int] = set()
    for slot_id, count, name in journal.slots():
        named.add(slot_id)
        if found[slot_id] != count:
            problems.append(
                f"Slot {name!r} should hold {count} requests and holds {found[slot_id]}."
            )
    problems += [
        f"{count} pending requests belong to slot {slot_id}, which has no name."
        for slot_id, count in found.items()
        if slot_id not in named
    ]
    counters = journal.counters()
    if len(unseen) > counters.forgotten:
        problems += unseen
    dead = sum(1 for _ in journal.dead())
    if dead != counters.dead:
        problems.append(f"{counters.dead} dead requests were counted and {dead} are kept.")
    accounted = counters.done + found.total() + counters.dead
    if counters.accepted != accounted:
        problems.append(
            f"{counters.accepted} requests were accepted, but {counters.done} done,"
            f" {found.total()} pending and {counters.dead} dead are {accounted}."
        )
    return problems
