"""Equal start requests, many of them: what each costs does not depend on how many came before."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scrapy_altsched.frontier import Entry, Options, Order, Verdict
from scrapy_altsched.frontier.local.frontier import LocalFrontier
from scrapy_altsched.frontier.local.persistence import Persistence
from scrapy_altsched.frontier.store.jobdir import Identity
from scrapy_altsched.frontier.store.rows import Rows
from scrapy_altsched.frontier.store.runs import SCRAPY_ALTSCHED
from scrapy_altsched.frontier.store.store import Store
from scrapy_altsched.maintenance.importing import import_job

from ..frontiers import DiskKind, page
from ..stores import INSTALLED

COUNT = 400
#: Look-ups that one start request may cost: of its last claim and of its next one, each among those
#: that are committed and those that are not.
MOST = 4


@pytest.fixture
def lookups(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Every look-up of a claim: in stores, and see :func:`count_claims`."""
    found: list[object] = []
    claimed = Rows.claimed

    def count(rows: Rows, fingerprint: bytes, occurrence: int) -> int | None:
        found.append(occurrence)
        return claimed(rows, fingerprint, occurrence)

    monkeypatch.setattr(Rows, "claimed", count)
    return found


def count_claims(frontier: LocalFrontier, lookups: list[object]) -> None:
    """Have look-ups among the claims that wait for a commit counted, too."""

    class Claims(dict[bytes, int]):
        def get(self, claim: bytes, default: Any = None) -> Any:
            lookups.append(claim)
            return super().get(claim, default)

    kept = frontier._kept
    assert isinstance(kept, Persistence)
    kept.claims = Claims()


def start(frontier: LocalFrontier, count: int, *, unique: bool = False) -> list[Verdict]:
    return [frontier.add(page("a", from_start=True, unique=unique)) for _ in range(count)]


@pytest.mark.parametrize("commit_after", [1, 150, COUNT])
def test_equal_start_requests_cost_the_same_each(
    disk: DiskKind, lookups: list[object], commit_after: int
) -> None:
    frontier = disk.open()
    count_claims(frontier, lookups)
    for _ in range(0, COUNT, commit_after):
        assert set(start(frontier, commit_after)) == {Verdict.ADDED}
        frontier.commit()
    assert len(lookups) <= COUNT * MOST
    frontier.close()


@pytest.mark.long
@pytest.mark.parametrize("commit_after", [1, 150, COUNT])
@pytest.mark.parametrize("unique", [True, False])
@pytest.mark.parametrize("skip", [True, False])
def test_they_do_so_at_a_resume(
    disk: DiskKind, lookups: list[object], skip: bool, unique: bool, commit_after: int
) -> None:
    frontier = disk.open()
    start(frontier, COUNT)
    while not frontier.commit():
        pass
    disk.crash(frontier)
    frontier = disk.open(Options(skip_started=skip))
    count_claims(frontier, lookups)
    lookups.clear()
    verdicts: list[Verdict] = []
    while len(verdicts) < COUNT + 5:
        verdicts += start(frontier, min(commit_after, COUNT + 5 - len(verdicts)), unique=unique)
        frontier.commit()
    skipped = COUNT if skip else 0
    assert verdicts[:skipped] == [Verdict.STARTED] * skipped
    assert verdicts[skipped] is Verdict.ADDED
    assert set(verdicts[skipped + 1 :]) == {Verdict.SEEN if unique else Verdict.ADDED}
    assert len(lookups) <= (COUNT + 5) * MOST
    frontier.close()


def test_start_requests_that_differ_are_not_held_in_memory(disk: DiskKind) -> None:
    frontier = disk.open()
    for number in range(COUNT):
        frontier.add(page(str(number), from_start=True))
    while not frontier.commit():
        pass
    kept = frontier._kept
    assert isinstance(kept, Persistence)
    assert not kept._claimed
    assert not kept.claims
    frontier.close()


class EqualStartRequests:
    """A job of Scrapy's scheduler with nothing but equal start requests in its queue."""

    notes: dict[str, bytes] = {}
    ended = is_trusted = True

    def parts(self) -> dict[str, str]:
        return {"requests.queue/0s": "1"}

    def examine(self, parts: object, runs: object, *, has_job: bool) -> int:
        return COUNT

    def requests(self) -> Iterator[tuple[Entry, None]]:
        for _ in range(COUNT):
            yield page("a", start=True, unique=False, from_start=True), None

    def fingerprints(self) -> Iterator[bytes]:
        return iter(())


def test_equal_start_requests_of_scrapys_scheduler_cost_the_same_each(
    tmp_path: Path, lookups: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scrapy_altsched.maintenance.rewriter.CHUNK", 10)
    store = Store(tmp_path / "frontier", INSTALLED[0])
    store.create(Identity.new("spider"))
    source: Any = EqualStartRequests()
    import_job(store, source, Order(), SCRAPY_ALTSCHED, is_new=True)
    assert len(lookups) <= COUNT * MOST
    assert sum(1 for _ in store.started()) == COUNT
    store.close()
