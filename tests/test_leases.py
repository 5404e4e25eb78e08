"""The log of leases: whom it tells of after a death, whatever became of its two files."""

from __future__ import annotations

import random
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from scrapy_altsched.frontier.leases import LeaseLog, LeaseRecord, find_suspects

STORE = "0" * 32


def told(directory: Path, run: int = 1, store: str = STORE) -> list[bytes]:
    """The fingerprints that the next process finds."""
    return [record.fingerprint for record in LeaseLog(directory, store).read(run)]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[LeaseLog]:
    found = LeaseLog(tmp_path, STORE)
    found.restart(1)
    yield found
    found.close()


def newest(directory: Path) -> Path:
    return max(directory.iterdir(), key=lambda path: path.read_bytes()[8:16])


def test_each_lease_is_told_in_order_with_what_was_said_of_it(
    tmp_path: Path, log: LeaseLog
) -> None:
    log.note(b"a")
    log.note(b"\xff" * 255, alone=True)
    log.note(b"a", over=True)
    log.note(b"")
    assert LeaseLog(tmp_path, STORE).read(1) == [
        LeaseRecord(b"a"),
        LeaseRecord(b"\xff" * 255, alone=True),
        LeaseRecord(b"a", over=True),
        LeaseRecord(b""),
    ]


def test_a_log_that_began_anew_tells_what_was_held_then_and_came_since(
    tmp_path: Path, log: LeaseLog
) -> None:
    for generation in range(5):
        for number in range(10 - generation):  # what is longer lies beyond what is shorter
            log.note(b"over %d" % number)
        log.restart(1, [(b"held", False), (b"alone", True)])
        assert told(tmp_path) == [b"held", b"alone"]
        assert LeaseLog(tmp_path, STORE).read(1)[1].alone
        log.note(b"new")
        assert told(tmp_path) == [b"held", b"alone", b"new"]


def test_a_log_of_an_earlier_run_or_of_another_store_tells_nothing(
    tmp_path: Path, log: LeaseLog
) -> None:
    log.restart(7, [(b"a", False)])
    assert told(tmp_path, run=7) == [b"a"]
    assert told(tmp_path, run=6) == [b"a"]  # the store was set back
    assert told(tmp_path, run=8) == []
    assert told(tmp_path, store="1" * 32) == []
    assert told(tmp_path / "nowhere") == []


def test_a_process_that_goes_on_begins_after_what_it_read(tmp_path: Path, log: LeaseLog) -> None:
    log.note(b"a")
    for run in range(2, 7):
        following = LeaseLog(tmp_path, STORE)
        assert [record.fingerprint for record in following.read(run - 1)] == [b"a"]
        following.restart(run, [(b"a", False)])
        following.close()


def test_a_death_while_it_begins_anew_leaves_the_old_log_or_the_new_one(
    tmp_path: Path, log: LeaseLog
) -> None:
    log.restart(1, [(b"a", False)])
    log.restart(1, [(b"a", False), (b"b", True)])
    log.note(b"c")
    old = {path: path.read_bytes() for path in tmp_path.iterdir()}
    log.restart(1, [(b"c", False), (b"d", False)])
    path = newest(tmp_path)
    content = path.read_bytes()
    outcomes = set()
    for length in range(len(content)):
        path.write_bytes(content[:length] + old[path][length:])
        outcomes.add(tuple(told(tmp_path)))
    path.write_bytes(content)
    assert outcomes == {(b"a", b"b", b"c")}
    assert told(tmp_path) == [b"c", b"d"]


def test_a_record_that_was_cut_or_damaged_ends_the_log(tmp_path: Path, log: LeaseLog) -> None:
    names = [b"page %d" % number for number in range(20)]
    for name in names:
        log.note(name)
    path = newest(tmp_path)
    content = path.read_bytes()
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    for _ in range(200):
        at = rng.randrange(len(content))
        damaged = bytearray(content)
        damaged[at] ^= 1 << rng.randrange(8)
        for text in (content[:at], bytes(damaged)):
            path.write_bytes(text)
            found = told(tmp_path)
            assert found == names[: len(found)] != names


def test_what_could_not_be_written_is_an_error_and_is_written_over(
    tmp_path: Path, log: LeaseLog
) -> None:
    log.note(b"a")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (newest(tmp_path).stat().st_size + 3, limits[1]))
    try:
        with pytest.raises(OSError, match="part of"):
            log.note(b"b")
        with pytest.raises(OSError, match="part of"):
            log.restart(1, [(b"x" * 200, False)] * 50)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert told(tmp_path) == [b"a"]
    log.note(b"c")
    assert told(tmp_path) == [b"a", b"c"]


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        ([], {b"old": 2}),
        ([LeaseRecord(b"a"), LeaseRecord(b"b")], {b"old": 2, b"a": 0, b"b": 0}),
        ([LeaseRecord(b"a"), LeaseRecord(b"a", over=True)], {b"old": 2}),
        (
            [LeaseRecord(b"a"), LeaseRecord(b"a"), LeaseRecord(b"a", over=True)],
            {b"old": 2, b"a": 0},
        ),
        ([LeaseRecord(b"old", alone=True)], {b"old": 3}),
        ([LeaseRecord(b"old", alone=True), LeaseRecord(b"a")], {b"old": 2, b"a": 0}),
        ([LeaseRecord(b"old", alone=True), LeaseRecord(b"old", over=True)], {b"old": 2}),
        ([LeaseRecord(b"new", alone=True)], {b"old": 2, b"new": 1}),
    ],
)
def test_who_is_a_suspect(records: list[LeaseRecord], expected: dict[bytes, int]) -> None:
    assert find_suspects({b"old": 2}, records) == expected
