"""How a job stood over its whole life: what is kept of it, and how much."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from scrapy_altsched.errors import JobdirError
from scrapy_altsched.frontier.contract import Standing
from scrapy_altsched.frontier.entry import Counts
from scrapy_altsched.frontier.store import samples
from scrapy_altsched.frontier.store.samples import (
    _OLDER_BODY,
    NAME,
    SIZE,
    Sample,
    SampleFile,
    read_samples,
)
from scrapy_altsched.frontier.store.status import JobStatus

COUNTS = Counts(accepted=9, pending=3, leased=2, done=1, dead=1, delayed=1, failed=1, seen=8)
STATUS = JobStatus("id", "running", "1 host place born\n", 1, 4, Standing("books", COUNTS))


def at(when: float, run: int = 1, state: str = "running", **values: object) -> JobStatus:
    standing = replace(STATUS.standing, at=when, **values)
    return replace(STATUS, run=run, state=state, standing=standing)


def write(directory: Path, statuses: Iterable[JobStatus]) -> None:
    """As one run does that ends without saying so."""
    file = SampleFile(directory / NAME)
    for status in statuses:
        file.note(status)
    file.close()


def times(directory: Path, store_id: str = "id") -> list[float]:
    return [sample.at for sample in read_samples(directory, store_id)]


def test_what_is_written_is_read_and_later_runs_go_on(tmp_path: Path) -> None:
    assert read_samples(tmp_path, "id") == []
    write(tmp_path, [at(10.5, duplicates=7)])
    assert read_samples(tmp_path, "id") == [Sample(10.5, 1, "running", COUNTS, 7)]
    write(tmp_path, [at(20, 2), at(21, 2, "closing"), at(21.5, 2, "finished")])
    found = [(it.at, it.run, it.state) for it in read_samples(tmp_path, "id")]
    assert found == [
        (10.5, 1, "running"),
        (20, 2, "running"),
        (21, 2, "running"),
        (21.5, 2, "finished"),
    ]


def test_a_file_of_an_earlier_version_is_read_and_gone_on_with(tmp_path: Path) -> None:
    content = b""
    for when in (1, 2, 3):
        body = _OLDER_BODY.pack(when, 1, 1, 0, 9, 3, 2, 1, 1, 1, 1, 7)
        content += body + zlib.crc32(body, zlib.crc32(b"id")).to_bytes(4, "little")
    (tmp_path / NAME).write_bytes(content[:-1])  # the last one is torn
    unknown = replace(COUNTS, seen=None)
    older = [Sample(when, 1, "running", unknown, 7) for when in (1, 2)]
    assert read_samples(tmp_path, "id") == older
    assert read_samples(tmp_path, "another") == []
    write(tmp_path, [at(9, 2)])
    assert read_samples(tmp_path, "id") == [*older, Sample(9, 2, "running", COUNTS)]
    assert (tmp_path / NAME).stat().st_size == 3 * SIZE


def test_there_is_one_a_second_at_most_and_each_end(tmp_path: Path) -> None:
    write(tmp_path, [at(1), at(1.9), at(2), at(2.5), at(2.6, state="stopped")])
    assert times(tmp_path) == [1, 2, 2.6]


def test_a_clock_that_is_set_back_stops_nothing(tmp_path: Path) -> None:
    write(tmp_path, [at(100), at(50), at(50.5), at(51)])
    assert times(tmp_path) == [100, 50, 51]


def test_what_is_torn_or_of_another_store_is_left_out(tmp_path: Path) -> None:
    write(tmp_path, map(at, range(4)))
    path = tmp_path / NAME
    whole = path.read_bytes()
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut])
        assert times(tmp_path) == list(range(cut // SIZE))
    damaged = bytearray(whole)
    damaged[SIZE + 5] ^= 1
    path.write_bytes(damaged)
    assert times(tmp_path) == [0, 2, 3]
    assert times(tmp_path, "another") == []
    # A later run goes on after what is whole, with no gap.
    path.write_bytes(damaged[:-1])
    write(tmp_path, [at(9, 2)])
    assert times(tmp_path) == [0, 2, 9]
    assert path.stat().st_size == 3 * SIZE
    write(tmp_path, [replace(at(1), store_id="another")])
    assert (times(tmp_path), times(tmp_path, "another")) == ([], [1])


@pytest.mark.parametrize("life", [1, 10, 57])
def test_a_long_life_is_seen_from_its_beginning_to_its_end_in_a_small_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, life: int
) -> None:
    monkeypatch.setattr(samples, "MOST", 100)
    seconds = 90 * life
    # Runs of 30 seconds, the third one of which dies.
    for run, began in enumerate(range(0, seconds, 45), 1):
        ends = [at(began + 30, run, "stopped")] * (run != 3)
        write(tmp_path, [*(at(began + second, run) for second in range(30)), *ends])
        assert (tmp_path / NAME).stat().st_size <= 100 * SIZE
    found = read_samples(tmp_path, "id")
    assert len(found) > 30
    assert found[0].at == 0
    assert found[-1].at == seconds - 15
    assert max(new.at - old.at for old, new in pairwise(found)) <= 15 + seconds / 10
    # Of each run of which anything is known, its beginning and its end are.
    for run in {it.run for it in found}:
        own = [it for it in found if it.run == run]
        assert own[0].at == (run - 1) * 45
        assert own[-1].state == ("running" if run == 3 else "stopped")


def test_one_run_of_a_month_has_samples_at_even_distances(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(samples, "MOST", 100)
    month = 30 * 86_400
    write(tmp_path, map(at, range(0, month, 60)))
    found = times(tmp_path)
    assert 45 < len(found) <= 100
    assert found[0] == 0
    distances = [new - old for old, new in pairwise(found)]
    assert max(distances) < 5 * min(distances[:-1])
    # So does a run that goes on.
    write(tmp_path, (at(month + second, 2) for second in range(0, month, 60)))
    distances = [new - old for old, new in pairwise(times(tmp_path))]
    assert max(distances) < 5 * sorted(distances)[4]


def test_a_crawl_that_dies_at_once_again_and_again_has_a_small_file_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(samples, "MOST", 50)
    for run in range(1, 500):
        write(tmp_path, [at(run * 10, run)])
        assert (tmp_path / NAME).stat().st_size <= 50 * SIZE
    runs = [it.run for it in read_samples(tmp_path, "id")]
    assert len(runs) >= 12
    assert (runs[0], runs[-1]) == (1, 499)
    assert max(new - old for old, new in pairwise(runs)) < 100


def test_a_worker_of_a_shared_crawl_keeps_none(tmp_path: Path) -> None:
    write(tmp_path, [at(1, shared="key")])
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_thinned_out_is_so_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(samples, "MOST", 10)
    file = SampleFile(tmp_path / NAME)
    for second in range(10):
        file.note(at(second))
    partial = tmp_path / f"{NAME}.partial"
    partial.mkdir()
    for second in range(10, 60):
        with pytest.raises(OSError, match="Is a directory"):
            file.note(at(second))
    assert times(tmp_path) == list(range(10))
    partial.rmdir()
    file.note(at(60))
    file.note(at(61))
    file.note(at(62))
    file.close()
    assert times(tmp_path) == [0, 2, 4, 6, 8, 9, 60, 62]


def test_each_run_has_a_file_of_its_own(tmp_path: Path) -> None:
    write(tmp_path, [at(1)])
    os.link(tmp_path / NAME, tmp_path / "backup")
    write(tmp_path, [at(2, 2)])
    assert (tmp_path / "backup").stat().st_size == SIZE
    assert {entry.name for entry in tmp_path.iterdir()} == {NAME, "backup"}


def test_what_cannot_be_read_is_told(tmp_path: Path) -> None:
    (tmp_path / NAME).mkdir()
    with pytest.raises(JobdirError, match=r"altsched\.samples cannot be read \(Is a directory\)"):
        read_samples(tmp_path, "id")
    with pytest.raises(OSError, match="Is a directory"):
        write(tmp_path, [at(1)])
