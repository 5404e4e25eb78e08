"""The log of leases: whom it tells of after a death, whatever became of its two files."""

from __future__ import annotations

import random
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from scrapy_altsched.frontier.store import lease_log
from scrapy_altsched.frontier.store.lease_log import ALONE, LEASED, RECEIVED, Evidence, LeaseLog

STORE = "0" * 32


def told(directory: Path, run: int = 1, store: str = STORE) -> set[bytes]:
    """The fingerprints that the next process finds in flight."""
    return LeaseLog(directory, store).read(run).in_flight


@pytest.fixture
def log(tmp_path: Path) -> Iterator[LeaseLog]:
    found = LeaseLog(tmp_path, STORE)
    found.restart(1)
    yield found
    found.close()


def newest(directory: Path) -> Path:
    return max(directory.iterdir(), key=lambda path: path.read_bytes()[8:16])


def test_each_lease_is_told_with_what_was_said_of_it(tmp_path: Path, log: LeaseLog) -> None:
    log.note(b"a", LEASED)
    log.note(b"\xff" * 255, ALONE)
    log.note(b"", LEASED)
    log.note(b"", RECEIVED)
    log.note_over(b"a")
    assert LeaseLog(tmp_path, STORE).read(1) == Evidence(
        {b"a", b"\xff" * 255, b""}, {b""}, b"\xff" * 255
    )
    log.flush()
    assert LeaseLog(tmp_path, STORE).read(1) == Evidence({b"\xff" * 255, b""}, {b""}, b"\xff" * 255)
    log.note_over(b"\xff" * 255)
    log.note(b"b", LEASED)
    assert LeaseLog(tmp_path, STORE).read(1) == Evidence({b"b", b""}, {b""})


def test_of_equal_requests_each_is_told(tmp_path: Path, log: LeaseLog) -> None:
    for what in (LEASED, LEASED, RECEIVED):
        log.note(b"a", what)
    assert LeaseLog(tmp_path, STORE).read(1) == Evidence({b"a"}, {b"a"})
    log.note_over(b"a")
    log.flush()
    assert LeaseLog(tmp_path, STORE).read(1) == Evidence({b"a"})
    log.note_over(b"a")
    log.flush()
    assert LeaseLog(tmp_path, STORE).read(1) == Evidence()


def test_that_one_is_over_and_the_next_is_leased_is_told_at_once(
    tmp_path: Path, log: LeaseLog
) -> None:
    log.note(b"abc", LEASED)
    for number in range(20):
        last, following = told(tmp_path).pop(), b"%3d" % number
        log.note_over(last)
        log.note(following, LEASED)
        assert told(tmp_path) == {following}
    path = newest(tmp_path)
    content = path.read_bytes()
    # Of two in one record, both are told or none.
    path.write_bytes(content[:-1])
    assert told(tmp_path) == {b" 18"}


def test_a_crawl_that_began_to_close_blames_nobody(tmp_path: Path, log: LeaseLog) -> None:
    log.note(b"a", LEASED)
    log.note_closing()
    assert LeaseLog(tmp_path, STORE).read(1) == Evidence({b"a"}, inconclusive=True)
    log.restart(1, [(b"a", False, False)])
    assert LeaseLog(tmp_path, STORE).read(1).inconclusive


def test_that_it_began_to_close_can_be_noted_on_a_full_disk(tmp_path: Path, log: LeaseLog) -> None:
    log.note(b"a", LEASED)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (newest(tmp_path).stat().st_size, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            log.note(b"b", LEASED)
        log.note_closing()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert LeaseLog(tmp_path, STORE).read(1).inconclusive


@pytest.mark.parametrize(
    ("then", "now", "inconclusive"),
    [("one", "one", False), ("one", "other", True), ("", "other", False), ("one", "", False)],
)
def test_another_boot_of_the_machine_blames_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, then: str, now: str, inconclusive: bool
) -> None:
    monkeypatch.setattr(lease_log, "boot_id", lambda: then)
    log = LeaseLog(tmp_path, STORE)
    log.restart(1, [(b"a", False, True)])
    log.close()
    monkeypatch.setattr(lease_log, "boot_id", lambda: now)
    found = LeaseLog(tmp_path, STORE).read(1)
    assert found == Evidence({b"a"}, {b"a"}, inconclusive=inconclusive)


def test_this_machine_tells_its_boots_apart(tmp_path: Path, log: LeaseLog) -> None:
    assert log._boot
    log.note(b"a", LEASED)
    assert not LeaseLog(tmp_path, STORE).read(1).inconclusive


def test_a_log_that_began_anew_tells_what_was_held_then_and_came_since(
    tmp_path: Path, log: LeaseLog
) -> None:
    for generation in range(5):
        for number in range(10 - generation):  # what is longer lies beyond what is shorter
            log.note(b"over %d" % number, LEASED)
        log.note_over(b"over, which does not matter any more")
        log.restart(
            1, [(b"held", False, False), (b"in hand", False, True), (b"alone", True, False)]
        )
        held = {b"held", b"in hand", b"alone"}
        assert LeaseLog(tmp_path, STORE).read(1) == Evidence(held, {b"in hand"}, b"alone")
        log.note(b"new", LEASED)
        assert told(tmp_path) == {*held, b"new"}


def test_a_directory_that_takes_the_place_of_the_first_gets_no_records(tmp_path: Path) -> None:
    place, moved = tmp_path / "job", tmp_path / "moved"
    place.mkdir()
    log = LeaseLog(place, STORE)
    log.restart(1)
    place.rename(moved)
    place.mkdir()
    for number in range(2):
        log.restart(1)
        log.note(b"%d" % number, LEASED)
    log.close()
    assert list(place.iterdir()) == []
    assert told(moved) == {b"1"}


def test_a_log_of_an_earlier_run_or_of_another_store_tells_nothing(
    tmp_path: Path, log: LeaseLog
) -> None:
    log.restart(7, [(b"a", False, False)])
    assert told(tmp_path, run=7) == {b"a"}
    assert told(tmp_path, run=6) == {b"a"}  # the store was set back
    assert told(tmp_path, run=8) == set()
    assert told(tmp_path, store="1" * 32) == set()
    assert told(tmp_path / "nowhere") == set()


def test_a_process_that_goes_on_begins_after_what_it_read(tmp_path: Path, log: LeaseLog) -> None:
    log.note(b"a", LEASED)
    for run in range(2, 7):
        following = LeaseLog(tmp_path, STORE)
        assert following.read(run - 1).in_flight == {b"a"}
        following.restart(run, [(b"a", False, False)])
        following.close()


def test_a_death_while_it_begins_anew_leaves_the_old_log_or_the_new_one(
    tmp_path: Path, log: LeaseLog
) -> None:
    log.restart(1, [(b"a", False, False)])
    log.restart(1, [(b"a", False, False), (b"b", True, False)])
    log.note(b"c", LEASED)
    old = {path: path.read_bytes() for path in tmp_path.iterdir()}
    log.restart(1, [(b"c", False, False), (b"d", False, True)])
    path = newest(tmp_path)
    content = path.read_bytes()
    outcomes = set()
    for length in range(len(content)):
        path.write_bytes(content[:length] + old[path][length:])
        outcomes.add(frozenset(told(tmp_path)))
    path.write_bytes(content)
    assert outcomes == {frozenset((b"a", b"b", b"c"))}
    assert told(tmp_path) == {b"c", b"d"}


def test_a_record_that_was_cut_or_damaged_ends_the_log(tmp_path: Path, log: LeaseLog) -> None:
    names = [b"page %d" % number for number in range(20)]
    for name in names:
        log.note(name, LEASED)
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
            assert found == set(names[: len(found)])
            # That it began to close is one byte, which has no checksum.
            assert len(found) < len(names) or LeaseLog(tmp_path, STORE).read(1).inconclusive


def test_what_could_not_be_written_is_an_error_and_is_written_over(
    tmp_path: Path, log: LeaseLog
) -> None:
    log.note(b"a", LEASED)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (newest(tmp_path).stat().st_size + 3, limits[1]))
    try:
        with pytest.raises(OSError, match="part of"):
            log.note(b"b", LEASED)
        with pytest.raises(OSError, match="part of"):
            log.restart(1, [(b"x" * 200, False, False)] * 50)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert told(tmp_path) == {b"a"}
    log.note(b"c", LEASED)
    assert told(tmp_path) == {b"a", b"c"}
