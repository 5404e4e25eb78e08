"""Many requests written into a store, all of them or none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from scrapy_altsched.frontier.store.jobdir import Identity
from scrapy_altsched.frontier.store.records import Counters
from scrapy_altsched.frontier.store.states import DEAD
from scrapy_altsched.frontier.store.store import Store
from scrapy_altsched.maintenance import rewriter as module
from scrapy_altsched.maintenance.rewriter import Rewriter

from ..stores import INSTALLED

CHUNK = 3


@pytest.fixture(params=INSTALLED)
def store(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Store]:
    """A store with requests 0 and 1 in slot "a", and 2 in slot "b"."""
    monkeypatch.setattr(module, "CHUNK", CHUNK)
    store = Store(tmp_path / "store", request.param)
    store.create(Identity.new("spider"))
    rewriter = Rewriter(store)
    for number, name in enumerate("aab"):
        rewriter.add(name, bytes((number,)), b"old")
    rewriter.finish()
    yield store
    store.close()


def queue_of(store: Store) -> dict[str, list[tuple[int, bytes]]]:
    """Name of each slot -> order key and value of its requests; all counts are as they should."""
    found = {}
    for slot_id, count, name in store.slots():
        rows = [
            (key[8], value)
            for key, value in store.database.iterate("pending", slot_id.to_bytes(8, "big"))
        ]
        assert len(rows) == count
        found[name] = rows
    assert sum(map(len, found.values())) == sum(1 for _ in store.pending()), "rows of nobody"
    return found


OLD = {"a": [(0, b"old"), (1, b"old")], "b": [(2, b"old")]}


@pytest.mark.parametrize("replaces", [True, False])
def test_a_rewriter_that_was_cut_short_leaves_nothing(store: Store, replaces: bool) -> None:
    before = store.counters()
    rewriter = Rewriter(store)
    requests = [("c", bytes((number,)), b"new") for number in range(CHUNK + 1)]
    if replaces:
        rewriter.replace_queue(requests)
    else:
        for request in requests:
            rewriter.add(*request)
    rewriter.flush()
    # No reader knows them, but they are there.
    assert sum(1 for _ in store.pending()) == 3 + CHUNK + 1
    assert store.counters() == before
    Rewriter(store)
    assert queue_of(store) == OLD


def test_a_queue_is_replaced_under_ids_that_were_never_used(store: Store) -> None:
    number, known = store.commit_number, store.counters().next_slot
    rewriter = Rewriter(store)
    rewriter.replace_queue(("b", bytes((order,)), b"new") for order in range(2 * CHUNK + 1))
    rewriter.final.counters.accepted = 7
    rewriter.finish()
    assert queue_of(store) == {"b": [(order, b"new") for order in range(2 * CHUNK + 1)]}
    assert [slot_id for slot_id, _, _ in store.slots()] == [known]
    assert store.counters() == Counters(accepted=7, next_slot=known + 1)
    # Two chunks, and the final batch with the last row.
    assert store.commit_number == number + 3


def test_a_slot_that_only_a_key_was_made_of_is_not_stored_and_its_id_not_used_again(
    store: Store,
) -> None:
    rewriter = Rewriter(store)
    key = rewriter.key("c", b"x")
    rewriter.rows.stored[DEAD].append((key, b"\0\0\0\0\0\0"))
    rewriter.finish()
    assert queue_of(store) == OLD
    assert [found for found, _, _ in store.dead()] == [key]
    assert Rewriter(store).key("c", b"x") > key
