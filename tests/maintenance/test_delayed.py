"""What changes, checks and repairs of a whole job make of requests that wait."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from scrapy_altsched.frontier import Entry, Options, Order
from scrapy_altsched.frontier.entry import Delay
from scrapy_altsched.frontier.local.frontier import LocalFrontier
from scrapy_altsched.frontier.store.database import RowBatch
from scrapy_altsched.frontier.store.engines import Choice
from scrapy_altsched.frontier.store.jobdir import FORMAT
from scrapy_altsched.frontier.store.journal import Journal
from scrapy_altsched.frontier.store.seen import digest_of
from scrapy_altsched.frontier.store.states import DELAYED
from scrapy_altsched.maintenance.convert import convert
from scrapy_altsched.maintenance.opening import open_frontier
from scrapy_altsched.maintenance.refingerprint import Refingerprinted, refingerprint
from scrapy_altsched.maintenance.repair import repair

from ..clocks import ManualClock
from ..frontiers import OWNER, journal_of, page, problems_of, work_off
from ..stores import INSTALLED

CHUNK = 3
pytestmark = pytest.mark.usefixtures("small_chunks")


def late(name: str, seconds: float, slot: str = "") -> Entry:
    entry = page(name, slot)
    entry.delay = Delay(seconds)
    return entry


class Job:
    """A job in a directory, and its clock."""

    def __init__(self, path: Path, engine: Choice) -> None:
        self.path = path
        self.clock = ManualClock()
        self.options = Options(order=Order("slots", "fifo", None), clock=self.clock, store=engine)

    def open(self) -> LocalFrontier:
        frontier = open_frontier(self.path, OWNER, self.options)
        assert isinstance(frontier, LocalFrontier)
        return frontier

    def fill(self, *entries: Entry) -> None:
        frontier = self.open()
        for entry in entries:
            frontier.add(entry)
        frontier.close()

    def change(self, write: Callable[[RowBatch], None]) -> None:
        """Damage it by hand."""
        journal = Journal(self.path, OWNER)
        rows = RowBatch()
        write(rows)
        journal.database.write(rows, wait=True)
        journal.close()

    def keys(self) -> list[bytes]:
        journal = Journal(self.path, OWNER)
        try:
            return [key for key, _ in journal.requests(DELAYED)]
        finally:
            journal.close()

    def problems(self) -> list[str]:
        frontier = self.open()
        try:
            return problems_of(frontier)
        finally:
            frontier.abandon()


@pytest.fixture(params=INSTALLED)
def job(request: pytest.FixtureRequest, tmp_path: Path) -> Job:
    return Job(tmp_path / "job", request.param)


def refingerprinted(job: Job, names: dict[str, str]) -> Refingerprinted:
    def make(payload: bytes) -> bytes:
        name = payload.decode().removeprefix("payload of ")
        return names.get(name, name).encode()

    journal = Journal(job.path, OWNER)
    try:
        return refingerprint(journal, make, {})
    finally:
        journal.close()


def test_delayed_requests_have_the_new_fingerprints_and_their_times(job: Job) -> None:
    job.fill(page("now", "x"), *(late(f"{number}", 10 + number, "x") for number in range(10)))
    outcome = refingerprinted(job, {f"{number}": f"new {number}" for number in range(10)})
    assert (outcome.pending, outcome.unqueued[DELAYED], outcome.changed) == (1, 10, 10)
    assert job.problems() == []
    frontier = job.open()
    assert frontier.counts().delayed == 10
    assert work_off(frontier) == ["now"]
    for number in range(10):
        job.clock.advance(10.01 if not number else 1)
        assert work_off(frontier) == [f"new {number}"]
    assert problems_of(frontier) == []
    # Twice, the id of their queue is another one each time.
    frontier.add(late("again", 5))
    frontier.close()
    assert refingerprinted(job, {"again": "once more"}).changed == 1
    assert job.problems() == []


def test_the_pending_one_of_equal_pages_stays_and_else_the_one_that_is_due_first(
    job: Job,
) -> None:
    job.fill(late("a late", 5), page("a"), late("b later", 9), late("b late", 7), late("c", 1))
    names = {"a late": "A", "a": "A", "b later": "B", "b late": "B"}
    outcome = refingerprinted(job, names)
    assert outcome.merged == 2
    assert job.problems() == []
    frontier = job.open()
    counts = frontier.counts()
    assert (counts.pending, counts.delayed, counts.done) == (1, 2, 2)
    assert work_off(frontier) == ["A"]
    job.clock.advance(6.99)
    assert work_off(frontier) == ["c"]
    job.clock.advance(0.02)
    assert work_off(frontier) == ["B"]
    frontier.close()


def test_nothing_is_left_of_a_change_that_was_cut_short(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.fill(*(late(f"{number}", 10) for number in range(10)))
    before = job.keys()
    stop = KeyboardInterrupt()

    def die(*_: object) -> None:
        raise stop

    monkeypatch.setattr("scrapy_altsched.maintenance.rewriter.Rewriter.finish", die)
    with pytest.raises(KeyboardInterrupt):
        refingerprinted(job, {"3": "new"})
    monkeypatch.undo()
    assert len(job.keys()) > len(before)
    assert job.problems() == []
    assert job.keys() == before


@pytest.mark.parametrize("order", ["one/lifo/fifo", "slots/lifo/none"])
def test_a_change_of_order_leaves_them_alone(job: Job, order: str) -> None:
    job.fill(*(late(f"{number}", 10) for number in range(10)))
    before = job.keys()
    job.options = Options(order=Order.parse(order), clock=job.clock)
    assert job.problems() == []
    assert job.keys() == before


def test_an_audit_finds_what_is_wrong_with_them(job: Job) -> None:
    job.fill(late("a", 10), late("b", 20), late("c", 30))
    first, second, third = job.keys()
    job.change(lambda rows: rows.delete(DELAYED.family, [first]))
    assert job.problems() == [
        "The number of delayed requests is 2, not 3.",
    ]
    job.change(lambda rows: rows.put(DELAYED.family, [(second, b"cut")]))
    assert f"The delayed request {second.hex()} is cut short." in job.problems()
    job.change(lambda rows: rows.put(DELAYED.family, [(third[:20], b"cut")]))
    assert f"The delayed request {third[:20].hex()} is cut short." in job.problems()
    job.change(lambda rows: rows.delete(DELAYED.family, [second, third[:20]]))
    job.change(lambda rows: rows.delete("seen", [digest_of(b"c")]))
    assert f"The delayed request {third.hex()} is not among the seen ones." in job.problems()


@pytest.mark.parametrize("lost", ["nothing", "meta"])
def test_a_repair_keeps_them(job: Job, lost: str) -> None:
    job.fill(page("now"), *(late(f"{number}", 10 + number) for number in range(5)))
    refingerprinted(job, {"3": "new"})
    if lost == "meta":
        job.change(lambda rows: rows.delete("meta", [b"counters"]))
    result = repair(job.path, OWNER, lambda _: True)
    assert result.kept["delayed"] == 5
    assert job.problems() == []
    frontier = job.open()
    assert frontier.counts().delayed == 5
    assert work_off(frontier) == ["now"]
    job.clock.advance(20)
    assert work_off(frontier) == ["0", "1", "2", "new", "4"]
    frontier.add(late("later", 1))
    job.clock.advance(2)
    assert work_off(frontier) == ["later"]
    assert problems_of(frontier) == []
    frontier.close()


def test_what_a_repair_could_not_keep_of_them_is_told(job: Job) -> None:
    job.fill(*(late(f"{number}", 10) for number in range(5)))
    key = job.keys()[2]
    job.change(lambda rows: rows.put(DELAYED.family, [(key, b"\0\0\0\x09cut")]))
    result = repair(job.path, OWNER, lambda _: True)
    assert result.kept["delayed"] == 4
    assert result.losses == [f"The delayed request {key.hex()} is cut short."]
    frontier = job.open()
    assert frontier.counts().delayed == 4
    assert frontier.job.damage is not None
    assert "1 request could not be read" in frontier.job.damage
    frontier.abandon()


@pytest.mark.rocksdb
@pytest.mark.parametrize(("before", "after"), [("rocksdb", "sqlite"), ("sqlite", "rocksdb")])
def test_another_engine_has_the_same_ones(tmp_path: Path, before: Choice, after: str) -> None:
    job = Job(tmp_path / "job", before)
    job.fill(*(late(f"{number}", 10) for number in range(10)))
    keys = job.keys()
    convert(job.path, OWNER, after)
    assert job.keys() == keys
    frontier = job.open()
    assert journal_of(frontier).engine == after
    job.clock.advance(11)
    assert len(work_off(frontier)) == 10
    frontier.close()


def test_a_job_of_the_format_before_goes_on(job: Job) -> None:
    job.fill(page("a"), page("b"))
    journal = Journal(job.path, OWNER)
    text = journal.database.get("meta", b"counters")
    assert text is not None
    journal.close()
    old = {
        name: value
        for name, value in json.loads(text).items()
        if name not in ("delayed", "delayed_queue", "time")
    }
    identity = json.loads((job.path / "altsched.json").read_text())
    identity["format"] = 4
    new = json.dumps(identity).encode()
    job.change(
        lambda rows: rows.put("meta", [(b"counters", json.dumps(old).encode()), (b"identity", new)])
    )
    (job.path / "altsched.json").write_bytes(new)
    frontier = job.open()
    frontier.add(late("c", 5))
    assert work_off(frontier) == ["a", "b"]
    job.clock.advance(6)
    assert work_off(frontier) == ["c"]
    frontier.close()
    assert json.loads((job.path / "altsched.json").read_text())["format"] == FORMAT
