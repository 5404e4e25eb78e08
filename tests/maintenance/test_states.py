"""A state that is added to the table of states: audit, repair and the rest need nothing more."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from scrapy.settings import Settings

from scrapy_altsched.command import refingerprint as refingerprint_command
from scrapy_altsched.command.job import Job
from scrapy_altsched.command.project import Project
from scrapy_altsched.errors import StoreDamagedError
from scrapy_altsched.frontier import Counts, Entry
from scrapy_altsched.frontier.entry import DeadLetter
from scrapy_altsched.frontier.queue.order import Order
from scrapy_altsched.frontier.store import engines, records, states
from scrapy_altsched.frontier.store.database import Database
from scrapy_altsched.frontier.store.engines import Choice, database_at
from scrapy_altsched.frontier.store.jobdir import Identity
from scrapy_altsched.frontier.store.journal import Journal
from scrapy_altsched.frontier.store.records import Batch, Counters
from scrapy_altsched.frontier.store.salvage import Salvage
from scrapy_altsched.frontier.store.seen import digest_of
from scrapy_altsched.frontier.store.states import DEAD, PENDING, State, encode_value
from scrapy_altsched.frontier.store.store import Store
from scrapy_altsched.frontier.store.view import View
from scrapy_altsched.maintenance.audit import audit
from scrapy_altsched.maintenance.refingerprint import Refingerprinted, refingerprint
from scrapy_altsched.maintenance.repair import repair

from ..damage import ENGINES, targets
from ..frontiers import OWNER

ORDER = Order("slots", "fifo")
SLOT = (1).to_bytes(8, "big")


def join(until: str, value: bytes) -> bytes:
    return until.encode().rjust(8) + value


def split(row: bytes) -> tuple[str, bytes]:
    if len(row) < 8:
        raise ValueError("it is cut short")
    return row[:8].decode().lstrip(), row[8:]


#: The state that is made up here; the detail says until when.
PARKED = State("parked", "parked request", "parked", join, split)


@dataclass(slots=True)
class CountersWithParked(Counters):
    parked: int = 0


@dataclass(frozen=True, slots=True)
class CountsWithParked(Counts):
    parked: int = 0


@pytest.fixture
def parking(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package as it is once the state is in the table, and its numbers among the others.

    Whatever any module has imported of these is replaced: nobody is told of the state by name.
    """
    replaced = [
        (states.STATES, (*states.STATES, PARKED)),
        (states.UNQUEUED, (*states.UNQUEUED, PARKED)),
        (states.FAMILIES, (*states.FAMILIES, PARKED.family)),
        (records.Counters, CountersWithParked),
        (Counts, CountsWithParked),
        (states.FAMILIES, (*states.FAMILIES, PARKED.family)),
    ]
    for name, module in list(sys.modules.items()):
        if name.startswith("scrapy_altsched"):
            for attribute, value in list(vars(module).items()):
                for old, new in replaced:
                    if value is old:
                        monkeypatch.setattr(module, attribute, new)


def entry(name: str) -> Entry:
    return Entry(name.encode(), "host.example", payload=f"payload of {name}".encode())


def key(number: int) -> bytes:
    return SLOT + ORDER.encode(0, False, number)


#: One request in each state, and two in the one that is made up.
DETAILS = {
    "a": (PENDING, ""),
    "b": (DEAD, DeadLetter("why")),
    "c": (PARKED, "9:30"),
    "d": (PARKED, "10:00"),
}


def a_batch(parked: int = 2) -> Batch:
    """What makes a store of them.

    :param parked: how many are in the made-up state, by the counters.
    """
    counters = CountersWithParked(
        accepted=6, done=2, dead=1, parked=parked, next_sequence=9, next_slot=2, run=1
    )
    batch = Batch(counters, slots=[(SLOT, 1, "host.example")])
    batch.notes["order"] = str(ORDER).encode()
    for number, (name, (state, detail)) in enumerate(DETAILS.items(), 1):
        row = state.join(detail, encode_value(entry(name)))
        batch.stored[state].append((key(number), row))
        batch.seen.append(digest_of(name.encode()))
    return batch


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Choice:
    choice: Choice = request.param
    return choice


def make_job(path: Path, engine: Choice = "auto") -> Path:
    """A job with a store of them, closed."""
    journal = Journal(path, OWNER, engine=engine)
    journal.write(a_batch())
    journal.database.flush()
    journal.close()
    return path


@pytest.fixture
def job(parking: None, tmp_path: Path, engine: Choice) -> Path:
    return make_job(tmp_path / "job", engine)


@pytest.fixture
def store(parking: None, tmp_path: Path, engine: Choice) -> Iterator[Store]:
    store = Store(tmp_path / "store", engine)
    store.create(Identity.new(OWNER))
    yield store
    store.close()


def sentences(rows: View | Store) -> list[str]:
    return [problem.sentence for problem in audit(rows)]


def parked_in(path: Path) -> list[tuple[bytes, str, bytes]]:
    """Key, detail and fingerprint of the requests of the made-up state."""
    with View(path / "frontier") as view:
        rows = [(key, PARKED.split(row)) for key, row in view.requests(PARKED)]
    return [(key, detail, states.decode_value(value).fingerprint) for key, (detail, value) in rows]


PARKED_ROWS = [(key(3), "9:30", b"c"), (key(4), "10:00", b"d")]


def is_whole(payload: bytes) -> bool:
    return payload in {f"payload of {name}".encode() for name in DETAILS}


# Writing and auditing


def test_a_batch_writes_requests_of_the_state_and_removes_them(store: Store) -> None:
    batch = a_batch()
    store.write(batch)
    assert list(store.requests(PARKED)) == batch.stored[PARKED]
    leaving = Batch(batch.counters)
    leaving.removed[PARKED].append(key(3))
    store.write(leaving)
    assert [key for key, _ in store.requests(PARKED)] == [key(4)]


def test_an_audit_counts_the_state(store: Store) -> None:
    store.write(a_batch())
    assert sentences(store) == []


def test_an_audit_finds_a_wrong_number(store: Store) -> None:
    store.write(a_batch(parked=1))
    assert sentences(store) == [
        "The number of parked requests is 2, not 1.",
        (
            "The number of accepted requests is 6, but 2 done, 1 pending, 0 delayed, 1 dead, 0"
            " failed and 1 parked make 5."
        ),
    ]


def test_an_audit_finds_a_request_that_is_cut_short(store: Store) -> None:
    batch = a_batch()
    batch.stored[PARKED][0] = (key(3), b"9:30")
    store.write(batch)
    assert sentences(store) == [f"The parked request {key(3).hex()} is cut short."]


# Repair and salvage


def test_a_repair_copies_the_state(job: Path) -> None:
    result = repair(job, OWNER, is_whole)
    assert (result.kept["parked"], result.losses, result.damage) == (2, [], "")
    assert parked_in(job) == PARKED_ROWS
    with View(job / "frontier") as view:
        assert sentences(view) == []
        counters = view.counters()
    assert isinstance(counters, CountersWithParked)
    assert (counters.parked, counters.accepted) == (2, 6)


def test_a_repair_marks_requests_of_the_state_as_seen(
    parking: None, tmp_path: Path, engine: Choice
) -> None:
    journal = Journal(tmp_path / "job", OWNER, engine=engine)
    batch = a_batch()
    batch.seen.clear()
    journal.write(batch)
    journal.close()
    repair(tmp_path / "job", OWNER, is_whole)
    with View(tmp_path / "job" / "frontier") as view:
        assert sorted(dict(view.seen())) == sorted(digest_of(name.encode()) for name in DETAILS)


def test_a_repair_notes_a_request_of_the_state_that_is_lost(
    parking: None, tmp_path: Path, engine: Choice
) -> None:
    journal = Journal(tmp_path / "job", OWNER, engine=engine)
    batch = a_batch()
    batch.stored[PARKED][0] = (key(3), b"9:30")
    journal.write(batch)
    journal.close()
    result = repair(tmp_path / "job", OWNER, is_whole)
    assert result.kept["parked"] == 1
    assert "1 request could not be read" in result.damage
    assert parked_in(tmp_path / "job") == PARKED_ROWS[1:]
    with View(tmp_path / "job" / "frontier") as view:
        counters = view.counters()
        assert isinstance(counters, CountersWithParked)
        assert counters.parked == 1


@contextmanager
def salvage_of(job: Path, directory: Path) -> Iterator[Salvage]:
    directory.mkdir()
    salvage = engines.salvage(job / "frontier", directory, is_whole)
    try:
        yield salvage
    finally:
        salvage.close()


def test_salvage_reads_the_state(job: Path, tmp_path: Path) -> None:
    with salvage_of(job, tmp_path / "links") as salvage:
        assert list(salvage.rows("parked")) == a_batch().stored[PARKED]
        assert not salvage.incomplete


def damage_table_of(job: Path, text: bytes) -> None:
    """Flip a bit of the last byte of *text* in the only table that holds it.

    What comes before it may be compressed into other rows, too.
    """
    store = job / "frontier"
    tables = [store / name for name in targets(store, "table")]
    (path,) = [path for path in tables if text in path.read_bytes()]
    content = bytearray(path.read_bytes())
    content[content.index(text) + len(text) - 1] ^= 0x40
    path.write_bytes(content)


def test_salvage_keeps_what_is_whole_in_a_damaged_block_of_the_state(
    job: Path, tmp_path: Path
) -> None:
    damage_table_of(job, b"payload of c")
    with View(job / "frontier") as view, pytest.raises(StoreDamagedError):
        list(view.requests(PARKED))
    with salvage_of(job, tmp_path / "links") as salvage:
        assert list(salvage.rows("parked")) == a_batch().stored[PARKED][1:]
        assert salvage.incomplete == {"parked"}


@pytest.mark.parametrize("engine", ENGINES[:1], indirect=True)
def test_salvage_accounts_for_the_state(job: Path, tmp_path: Path) -> None:
    with salvage_of(job, tmp_path / "links") as salvage:
        assert salvage._readers[0].is_accounted_for()


# New fingerprints


def change_fingerprints(job: Path) -> Refingerprinted:
    """Write all fingerprints of a job in capitals."""
    journal = Journal(job, OWNER)
    try:
        return refingerprint(
            journal, lambda payload: payload.removeprefix(b"payload of ").upper(), {}
        )
    finally:
        journal.close()


def test_requests_of_the_state_get_new_fingerprints(job: Path) -> None:
    change_fingerprints(job)
    assert parked_in(job) == [(key, detail, name.upper()) for key, detail, name in PARKED_ROWS]
    with View(job / "frontier") as view:
        assert sentences(view) == []
        assert view.has_seen(b"C")
        assert view.has_seen(b"D")
        assert not view.has_seen(b"c")
        assert not view.has_seen(b"d")


def test_the_command_says_how_many_requests_of_the_state_got_new_ones(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refingerprint_command._show(change_fingerprints(job))
    assert "of 1 pending, 0 delayed, 1 dead, 0 failed and 2 parked." in capsys.readouterr().out


def test_check_prints_the_number_of_the_state(job: Path) -> None:
    rows = Job(Project(Settings()), job).examine().rows
    assert (
        "requests",
        "6 accepted: 2 done, 1 pending, 0 delayed, 1 dead, 0 failed, 2 parked",
    ) in rows


# Jobs that were stored before the state was in the table


@pytest.fixture
def earlier(tmp_path: Path, request: pytest.FixtureRequest, engine: Choice) -> Path:
    """A job whose store has no family for the state: it was made before the state was."""
    journal = Journal(tmp_path / "earlier", OWNER, engine=engine)
    batch = Batch(Counters(accepted=1, next_sequence=9, next_slot=2, run=1))
    batch.slots.append((SLOT, 1, "host.example"))
    batch.notes["order"] = str(ORDER).encode()
    batch.stored[PENDING].append((key(1), encode_value(entry("a"))))
    batch.seen.append(digest_of(b"a"))
    journal.write(batch)
    journal.database.flush()
    journal.close()
    request.getfixturevalue("parking")
    return tmp_path / "earlier"


def test_an_earlier_job_can_be_looked_into(earlier: Path) -> None:
    with View(earlier / "frontier") as view:
        assert list(view.requests(PARKED)) == []
        assert sentences(view) == []


def test_an_earlier_job_can_be_repaired(earlier: Path) -> None:
    damage_table_of(earlier, b"payload of a")
    result = repair(earlier, OWNER, is_whole)
    assert (result.kept["pending"], result.kept["parked"]) == (0, 0)
    assert "1 request could not be read" in result.damage


def test_an_earlier_job_can_be_opened_and_gets_the_family(earlier: Path) -> None:
    make_job(earlier)
    assert parked_in(earlier) == PARKED_ROWS


@pytest.mark.parametrize(
    "read",
    [
        lambda database: database.get("parked", b"key"),
        lambda database: list(database.iterate("parked")),
    ],
)
def test_a_family_that_was_not_asked_for_is_not_taken_as_empty(
    earlier: Path, read: Callable[[Database], object]
) -> None:
    database = database_at(earlier / "frontier")
    database.open_read_only(earlier / "frontier", ("meta",))
    with pytest.raises(Exception, match="closed"):
        read(database)
    database.close()
