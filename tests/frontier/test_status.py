"""What is noted beside the store for those who look in, and which slots have the most pending."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from scrapy_altsched.disk import Overwritten
from scrapy_altsched.errors import JobdirError
from scrapy_altsched.frontier.contract import Standing
from scrapy_altsched.frontier.entry import Counts
from scrapy_altsched.frontier.queue.busiest import Busiest
from scrapy_altsched.frontier.store import status
from scrapy_altsched.frontier.store.status import NAME, SIZE, JobStatus, read_status

from ..clocks import ManualClock
from ..disks import Disk, SmallDisk

STANDING = Standing(
    spider="books",
    counts=Counts(accepted=9, pending=3, leased=2, done=1, dead=1, delayed=1, failed=1, seen=8),
    began=1.5,
    at=2.5,
    duplicates=7,
    found_rate=2.0,
    ended_rate=0.5,
    held=[(None, 10.5), ("a.example", 9.5)],
    busiest=[("a.example", 2), ("b.example", 1)],
)
STATUS = JobStatus("id", "running", "1 host place born\n", 3, 4, STANDING)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    assert read_status(tmp_path) is None
    (tmp_path / NAME).write_bytes(STATUS.encode())
    assert read_status(tmp_path) == STATUS


def test_an_earlier_version_did_not_say_how_many_pages_are_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = [name for name in status._NUMBERS if name != "seen"]
    with monkeypatch.context() as patched:
        patched.setattr(status, "_NUMBERS", numbers)
        (tmp_path / NAME).write_bytes(STATUS.encode())
    found = read_status(tmp_path)
    assert found is not None
    assert found.standing.counts == replace(STANDING.counts, seen=None)


@pytest.mark.parametrize("name", ["x" * 5_000, "\N{SNOWMAN}" * 200, "\udcff" * 200, '"' * 200])
def test_the_size_is_the_same_whatever_slots_are_called(name: str) -> None:
    many = [(f"{number}{name}", 5) for number in range(20)]
    standing = replace(STANDING, held=[(slot, 1.0) for slot, _ in many], busiest=many)
    block = replace(STATUS, standing=standing).encode()
    assert len(block) == SIZE == len(STATUS.encode())
    found = JobStatus.parse(block).standing
    assert found.counts == STANDING.counts
    assert found.busiest
    assert all(slot.startswith(str(at)) for at, (slot, _) in enumerate(found.busiest))


def test_a_mix_of_two_is_neither(tmp_path: Path) -> None:
    counts = Counts(accepted=10, pending=3, leased=2, done=2, dead=1, delayed=1, failed=1)
    later = replace(STATUS, commit=5, standing=replace(STANDING, counts=counts, duplicates=12_345))
    old, new = STATUS.encode(), later.encode()
    found = []
    for cut in range(SIZE + 1):
        try:
            found.append(JobStatus.parse(new[:cut] + old[cut:]))
        except ValueError:
            found.append(None)
    # Where both have the same bytes, it makes no difference where the cut is.
    assert found[0] == STATUS
    assert found[-1] == later
    assert set(map(str, found)) == {str(STATUS), str(later), "None"}
    changed = [at for at in range(SIZE) if old[at] != new[at]]
    assert found[changed[0] + 1 : changed[-1] + 1] == [None] * (changed[-1] - changed[0])


def test_a_reader_beside_a_writer_gets_one_or_the_other(tmp_path: Path) -> None:
    file = Overwritten(tmp_path / NAME)
    long = replace(STATUS, standing=replace(STANDING, spider="b" * 5_000))
    ends = threading.Event()

    def write() -> None:
        while not ends.is_set():
            file.write(STATUS.encode())
            file.write(long.encode())

    file.write(long.encode())
    writer = threading.Thread(target=write)
    writer.start()
    try:
        found = [read_status(tmp_path) for _ in range(1_000)]
    finally:
        ends.set()
        writer.join()
        file.close()
    assert {status.standing.spider for status in found if status} <= {"books", "b" * 5_000}
    assert None not in found


@pytest.mark.parametrize("content", [b"", b"\0" * SIZE, b"x" * SIZE, b"00000000        0\n"])
def test_what_is_damaged_is_told(tmp_path: Path, content: bytes) -> None:
    (tmp_path / NAME).write_bytes(content)
    with pytest.raises(
        JobdirError, match=r"altsched\.status cannot be read \(.+scrapy altsched check"
    ):
        read_status(tmp_path)


def test_what_cannot_be_read_and_what_is_newer_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / NAME).mkdir()
    with pytest.raises(JobdirError, match="Is a directory"):
        read_status(tmp_path)
    (tmp_path / NAME).rmdir()
    with monkeypatch.context() as patched:
        patched.setattr("scrapy_altsched.frontier.store.status.FORMAT", 2)
        (tmp_path / NAME).write_bytes(STATUS.encode())
    with pytest.raises(JobdirError, match="written by a newer scrapy_altsched"):
        read_status(tmp_path)


def test_each_run_has_a_file_of_its_own_and_overwrites_that(tmp_path: Path) -> None:
    path = tmp_path / NAME
    first = Overwritten(path)
    first.write(b"one")
    os.link(path, tmp_path / "backup")
    first.write(b"two")
    assert (tmp_path / "backup").read_bytes() == b"two"
    first.close()
    second = Overwritten(path)
    second.write(b"six")
    second.close()
    assert (tmp_path / "backup").read_bytes() == b"two"
    assert path.read_bytes() == b"six"
    assert {entry.name for entry in tmp_path.iterdir()} == {NAME, "backup"}


def test_on_a_full_disk_it_is_still_overwritten(small_disk: Disk) -> None:
    if not isinstance(small_disk, SmallDisk):
        pytest.skip("this process may not mount anything")
    directory = small_disk.outside(small_disk.path)
    file = Overwritten(directory / NAME)
    file.write(STATUS.encode())
    later = replace(STATUS, commit=5)
    small_disk.fill(small_disk._holder)
    with pytest.raises(OSError, match="No space left"):
        Overwritten(directory / "another").write(STATUS.encode())
    file.write(later.encode())
    assert read_status(directory) == later
    file.close()


# The busiest slots


@dataclass
class OneSlot:
    name: str
    count: int


def test_the_busiest_slots_are_found_by_a_thousand_at_a_time() -> None:
    clock = ManualClock()
    slots = [OneSlot(f"slot{number}", number % 2_477) for number in range(2_500)]
    busiest = Busiest(lambda: slots, clock.monotonic)
    expected = [(f"slot{number}", number) for number in range(2_476, 2_456, -1)]
    assert [busiest.find() for _ in range(3)] == [[], [], expected]
    # What changes is found by the next round, which begins some seconds later.
    slots[7].count = 10_000
    clock.advance(4)
    assert busiest.find() == expected
    clock.advance(2)
    assert [busiest.find() for _ in range(3)] == [
        expected,
        expected,
        [("slot7", 10_000), *expected[:-1]],
    ]
    slots.append(OneSlot("last", 20_000))
    assert busiest.find()[0] == ("slot7", 10_000)
    assert busiest.find(all_at_once=True)[:2] == [("last", 20_000), ("slot7", 10_000)]


def test_slots_of_which_nothing_is_pending_are_not_among_them() -> None:
    slots = [OneSlot("a", 0), OneSlot("b", 1)]
    busiest = Busiest(lambda: slots, ManualClock().monotonic)
    assert busiest.find() == [("b", 1)]
    slots.clear()
    assert busiest.find(all_at_once=True) == []
