"""Download slots of which only so many requests are accepted, in every frontier."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from scrapy_altsched.frontier import Entry, Options, Order, Verdict
from scrapy_altsched.frontier.entry import Delay
from scrapy_altsched.maintenance.repair import repair

from ..frontiers import KINDS, OWNER, DiskKind, MemoryKind, commit, page, take, work_off

TWO = Options(slot_budget=2)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest, tmp_path: Path) -> MemoryKind:
    return KINDS[request.param](tmp_path)


def test_what_is_over_budget_is_not_seen(kind: MemoryKind) -> None:
    frontier = kind.open(TWO)
    for name in "abc":
        expected = Verdict.OVER_BUDGET if name == "c" else Verdict.ADDED
        assert frontier.add(page(name, "full")) is expected
    assert frontier.add(page("a", "full")) is Verdict.SEEN
    assert frontier.add(page("c", "other")) is Verdict.ADDED
    assert frontier.counts().accepted == 3
    assert sorted(work_off(frontier)) == ["a", "b", "c"]
    # What is done has had its place.
    assert frontier.add(page("d", "full")) is Verdict.OVER_BUDGET
    kind.verify()


def test_retries_and_others_that_are_not_unique_cost_nothing(kind: MemoryKind) -> None:
    frontier = kind.open(TWO)
    for _ in range(5):
        assert frontier.add(page("a", "full", unique=False)) is Verdict.ADDED
    frontier.finish(take(frontier), Entry(b"a", "full", payload=b"again"))
    assert frontier.add(page("b", "full")) is Verdict.ADDED
    assert frontier.add(page("c", "full")) is Verdict.ADDED
    assert frontier.add(page("d", "full")) is Verdict.OVER_BUDGET
    kind.verify()


def test_it_holds_over_all_runs_of_a_job(disk: DiskKind) -> None:
    frontier = disk.open(TWO)
    frontier.add(page("a", "full"))
    commit(frontier)
    frontier.add(page("b", "full"))
    # What no commit has stored has not been.
    disk.crash(frontier)
    frontier = disk.open(TWO)
    assert frontier.add(page("c", "full")) is Verdict.ADDED
    assert frontier.add(page("d", "full")) is Verdict.OVER_BUDGET
    frontier.close()
    frontier = disk.open(Options(slot_budget=3))
    assert frontier.add(page("d", "full")) is Verdict.ADDED
    assert frontier.add(page("e", "full")) is Verdict.OVER_BUDGET
    frontier.close()
    frontier = disk.open()
    assert frontier.add(page("e", "full")) is Verdict.ADDED
    disk.verify()


@pytest.mark.parametrize("order", [Order("slots"), Order("one")], ids=str)
@pytest.mark.parametrize("is_stored", [True, False])
@pytest.mark.parametrize("delay", [None, Delay(3_600.0)], ids=["pending", "delayed"])
def test_what_is_discarded_makes_room_for_others(
    disk: DiskKind, order: Order, is_stored: bool, delay: Delay | None
) -> None:
    """Where one queue has all, the slot is found in what is stored of a request."""
    options = replace(TWO, order=order)
    frontier = disk.open(options)
    for name, slot, unique in (("a", "full", True), ("b", "full", False), ("c", "other", True)):
        frontier.add(replace(page(name, slot, unique=unique), delay=delay))
    frontier.add(page("d", "full"))
    if is_stored:
        frontier.close()
        frontier = disk.open(options)
    slots = {f"payload of {name}".encode(): "full" for name in ("a", "b", "d")}

    def locate(payload: bytes) -> tuple[str, bool]:
        return slots[payload], False

    def is_meant(_: str, entry: Entry) -> bool:
        return entry.fingerprint in b"ab"

    assert sum(frontier.discard(is_meant, locate)) == 2
    expected = [Verdict.ADDED, Verdict.OVER_BUDGET]
    assert [frontier.add(page(name, "full")) for name in "ef"] == expected
    assert [frontier.add(page(name, "other")) for name in "gh"] == expected
    disk.verify()


def test_a_repair_keeps_the_counts(disk: DiskKind) -> None:
    frontier = disk.open(TWO)
    frontier.add(page("a", "full"))
    frontier.add(page("b", "full"))
    frontier.close()
    repair(disk.path, OWNER, lambda _: True)
    frontier = disk.open(TWO)
    assert frontier.add(page("c", "full")) is Verdict.OVER_BUDGET
    disk.verify()
