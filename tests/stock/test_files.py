"""The files of Scrapy's own scheduler and filter, as they are written, whole and torn."""

from __future__ import annotations

import marshal
import pickle
import random
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from queuelib.queue import FifoDiskQueue, FifoSQLiteQueue, LifoDiskQueue, LifoSQLiteQueue

from scrapy_altsched.errors import JobdirError
from scrapy_altsched.stock import files as stockfiles
from scrapy_altsched.stock.files import SeenFile, StockQueue, find_queues

Serialize = Callable[[Any], bytes]
SERIALIZERS: dict[str, Serialize] = {
    "pickle": lambda fields: pickle.dumps(fields, protocol=4),
    "marshal": marshal.dumps,
}


@pytest.fixture(params=SERIALIZERS)
def serialize(request: pytest.FixtureRequest) -> Serialize:
    return SERIALIZERS[request.param]


def fields(number: int) -> dict[str, Any]:
    """What Scrapy stores of a request."""
    # Bytes that look like ends and beginnings of records are in many a page's meta.
    text = ".0{\x80\x04" * (number % 4)
    return {"url": f"http://a.example/{number}", "meta": {"text": text, "depth": number}}


def records(queue: StockQueue) -> list[bytes]:
    found = list(queue.records())
    assert queue.look().records == len(found)
    return found


def find(directory: Path) -> StockQueue:
    (queue,) = find_queues(directory)
    return queue


def torn_images(path: Path, file: Path) -> list[Path]:
    """Copies of *path* with *file* in it cut at every byte of its last two records."""
    size = file.stat().st_size
    images = []
    for cut in range(size - 200, size):
        image = path.parent / f"cut at {cut}"
        shutil.copytree(path, image)
        with (image / file.relative_to(path)).open("r+b") as copy:
            copy.truncate(cut)
        images.append(image)
    return images


# Last in, first out


def lifo(directory: Path, seed: int, serialize: Serialize) -> tuple[LifoDiskQueue, list[bytes]]:
    """A queue that is in use, and what is in it."""
    rng = random.Random(seed)
    directory.mkdir(exist_ok=True)
    queue, inside = LifoDiskQueue(directory / "0"), []
    for number in range(60):
        if inside and rng.random() < 0.3:
            assert queue.pop() == inside.pop()
        else:
            inside.append(serialize(fields(number)))
            queue.push(inside[-1])
    return queue, inside


def test_a_lifo_queue_that_was_closed_is_read(tmp_path: Path, serialize: Serialize) -> None:
    queue, inside = lifo(tmp_path / "q", 1, serialize)
    queue.close()
    found = find(tmp_path / "q")
    assert (found.kind, found.priority, found.start) == ("LIFO", 0, False)
    assert found.look().agrees
    assert records(found) == inside


def test_a_lifo_queue_that_was_not_closed_is_read(tmp_path: Path, serialize: Serialize) -> None:
    queue, inside = lifo(tmp_path / "q", 2, serialize)
    queue.f.flush()
    found = find(tmp_path / "q")
    # Queuelib itself would find none: the number of records is written when it is closed.
    assert not found.look().agrees
    assert records(found) == inside


def test_of_a_torn_lifo_queue_every_whole_record_is_read_and_nothing_else(
    tmp_path: Path, serialize: Serialize
) -> None:
    queue, inside = lifo(tmp_path / "q", 3, serialize)
    queue.f.flush()
    path = tmp_path / "q" / "0"
    for image in torn_images(tmp_path / "q", path):
        whole, used = 0, 4
        for record in inside:
            used += len(record) + 4
            whole += used <= (image / "0").stat().st_size
        found = find(image)
        assert records(found) == inside[:whole]
        look = found.look()
        assert look.unreadable == (image / "0").stat().st_size - 4 - sum(
            len(record) + 4 for record in inside[:whole]
        )
        # Scrapy starts again, finds nothing, and goes on behind the torn record.
        again = LifoDiskQueue(image / "0")
        again.push(serialize(fields(99)))
        again.f.close()
        assert records(find(image)) == [*inside[:whole], serialize(fields(99))]
        shutil.rmtree(image)


def test_a_gap_may_be_longer_than_what_is_read_at_once(
    tmp_path: Path, serialize: Serialize, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stockfiles, "_BLOCK", 64)
    for size in range(1, 300, 7):
        queue, inside = lifo(tmp_path / str(size), size, serialize)
        queue.f.write(b"x" * size)
        queue.push(serialize(fields(99)))
        queue.f.close()
        found = find(tmp_path / str(size))
        assert records(found) == [*inside, serialize(fields(99))]
        assert found.look().unreadable == size


@pytest.mark.parametrize("content", [b"", b"\0\0", b"\0\0\0\0"])
def test_an_empty_lifo_queue_holds_nothing(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "-5s").write_bytes(content)
    found = find(tmp_path)
    assert (found.priority, found.start) == (-5, True)
    assert records(found) == []
    assert found.look() == stockfiles.Look(0, 0, agrees=True)


def test_of_garbage_nothing_is_read(tmp_path: Path) -> None:
    garbage = random.Random(1).randbytes(3_000_000)
    (tmp_path / "0").write_bytes(garbage)
    assert find(tmp_path).look() == stockfiles.Look(0, len(garbage) - 4, agrees=False)


# First in, first out


def fifo(directory: Path, seed: int, serialize: Serialize) -> tuple[FifoDiskQueue, list[bytes]]:
    rng = random.Random(seed)
    queue, inside = FifoDiskQueue(directory / "0s", chunksize=7), []
    for number in range(60):
        if inside and rng.random() < 0.3:
            assert queue.pop() == inside.pop(0)
        else:
            inside.append(serialize(fields(number)))
            queue.push(inside[-1])
    return queue, inside


def test_a_fifo_queue_that_was_closed_is_read(tmp_path: Path, serialize: Serialize) -> None:
    queue, inside = fifo(tmp_path, 1, serialize)
    queue.close()
    found = find(tmp_path)
    assert (found.kind, found.priority, found.start) == ("FIFO", 0, True)
    assert found.look().agrees
    assert records(found) == inside


def test_a_fifo_queue_that_was_not_closed_is_read_with_what_was_taken_last(
    tmp_path: Path, serialize: Serialize
) -> None:
    _, inside = fifo(tmp_path, 2, serialize)
    found = find(tmp_path)
    assert not found.look().agrees
    every = records(found)
    assert every[-len(inside) :] == inside
    # At most what is in the file that was being read.
    assert len(every) - len(inside) < 7


def test_a_fifo_queue_closed_earlier_and_used_since_is_read(
    tmp_path: Path, serialize: Serialize
) -> None:
    queue, inside = fifo(tmp_path, 3, serialize)
    queue.close()
    again = FifoDiskQueue(tmp_path / "0s")
    for number in range(60, 90):
        inside.append(serialize(fields(number)))
        again.push(inside[-1])
    assert not find(tmp_path).look().agrees
    assert records(find(tmp_path)) == inside
    # With the file that info.json names used up.
    while (tmp_path / "0s" / f"q{again.info['tail'][0]:05d}").exists():
        assert again.pop() == inside.pop(0)
        if len(inside) == 20:
            break
    assert records(find(tmp_path))[-len(inside) :] == inside
    assert not find(tmp_path).look().agrees


def test_a_fifo_queue_that_was_only_read_since_it_was_closed_is_as_then(
    tmp_path: Path, serialize: Serialize
) -> None:
    queue, inside = fifo(tmp_path, 4, serialize)
    queue.close()
    again = FifoDiskQueue(tmp_path / "0s")
    again.pop()
    assert records(find(tmp_path)) == inside
    assert find(tmp_path).look().agrees


@pytest.mark.parametrize("info", [b"", b"{", b"[]", b'{"tail": [0, 0]}', b'{"tail": ["a", 0, 0]}'])
def test_a_torn_info_of_a_fifo_queue_is_as_none(tmp_path: Path, info: bytes) -> None:
    _, inside = fifo(tmp_path, 5, SERIALIZERS["pickle"])
    (tmp_path / "0s" / "info.json").write_bytes(info)
    assert records(find(tmp_path))[-len(inside) :] == inside
    assert not find(tmp_path).look().agrees


def test_of_a_torn_fifo_queue_every_whole_record_is_read_and_nothing_else(
    tmp_path: Path, serialize: Serialize
) -> None:
    inside = [serialize(fields(number)) for number in range(20)]
    queue = FifoDiskQueue(tmp_path / "q" / "0")
    for record in inside:
        queue.push(record)
    for image in torn_images(tmp_path / "q", tmp_path / "q" / "0" / "q00000"):
        size = (image / "0" / "q00000").stat().st_size
        whole, used = 0, 0
        for record in inside:
            used += len(record) + 4
            whole += used <= size
        assert records(find(image)) == inside[:whole]
        look = find(image).look()
        assert look.unreadable == size - sum(len(record) + 4 for record in inside[:whole])
        again = FifoDiskQueue(image / "0")
        again.push(serialize(fields(99)))
        assert records(find(image)) == [*inside[:whole], serialize(fields(99))]
        shutil.rmtree(image)


def test_an_emptied_fifo_queue_holds_nothing(tmp_path: Path) -> None:
    FifoDiskQueue(tmp_path / "0")
    assert records(find(tmp_path)) == []
    assert find(tmp_path).look().agrees


# SQLite


@pytest.mark.parametrize("kind", [FifoSQLiteQueue, LifoSQLiteQueue])
def test_an_sqlite_queue_is_read_whether_it_was_closed_or_not(
    tmp_path: Path, kind: Any, serialize: Serialize
) -> None:
    queue, inside = kind(tmp_path / "3"), [serialize(fields(number)) for number in range(9)]
    for record in inside:
        queue.push(record)
    found = find(tmp_path)
    assert (found.kind, found.priority) == ("SQLite", 3)
    assert records(found) == inside
    queue.close()
    assert records(find(tmp_path)) == inside
    assert found.look().agrees


def test_an_sqlite_write_that_was_cut_short_is_undone(tmp_path: Path) -> None:
    queue = FifoSQLiteQueue(tmp_path / "0")
    queue.push(b"whole")
    writer = sqlite3.connect(tmp_path / "0")
    writer.execute("PRAGMA cache_size = 1")
    writer.executemany("INSERT INTO queue (item) VALUES (?)", [(b"torn" * 1000,)] * 100)
    assert (tmp_path / "0-journal").exists()
    image = tmp_path / "image"
    image.mkdir()
    for name in ("0", "0-journal"):
        shutil.copy(tmp_path / name, image / name)
    assert records(find(image)) == [b"whole"]


def test_an_sqlite_queue_without_its_table_holds_nothing(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "0") as database:
        database.execute("CREATE TABLE another (id)")
    assert records(find(tmp_path)) == []


def test_of_a_damaged_sqlite_queue_what_can_be_read_is(tmp_path: Path) -> None:
    queue = FifoSQLiteQueue(tmp_path / "0")
    with queue._db as database:
        rows = [(SERIALIZERS["pickle"](fields(number)),) for number in range(200)]
        database.executemany("INSERT INTO queue (item) VALUES (?)", rows)
    queue.close()
    size = (tmp_path / "0").stat().st_size
    for damaged in (4096, size - 4096):
        with (tmp_path / "0").open("r+b") as file:
            file.seek(damaged)
            whole = file.read(4096)
            file.seek(damaged)
            file.write(b"\xff" * 4096)
        look = find(tmp_path).look()
        assert look.unreadable
        assert not look.agrees
        found = list(find(tmp_path).records())
        assert look.records == len(found) < 200
        assert found == [row for (row,) in rows[: len(found)]]
        assert (len(found) > 0) == (damaged != 4096)
        with (tmp_path / "0").open("r+b") as file:
            file.seek(damaged)
            file.write(whole)


def test_an_sqlite_queue_that_somebody_writes_to_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    FifoSQLiteQueue(tmp_path / "0").push(b"x")
    with sqlite3.connect(tmp_path / "0") as writer:
        writer.execute("BEGIN EXCLUSIVE")
        connect = sqlite3.connect
        monkeypatch.setattr(sqlite3, "connect", lambda *a, **k: connect(*a, timeout=0, **k))
        with pytest.raises(JobdirError, match="locked"):
            find(tmp_path).look()


# The directory


def test_queues_are_found_by_their_names_in_slots_and_outside(tmp_path: Path) -> None:
    hash_ = "d41d8cd98f00b204e9800998ecf8427e"
    for name in ("0", "-2s", f"a.example-{hash_}/7", f"10-{hash_}/0s"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    for name in ("active.json", "0-journal", ".DS_Store", f"a.example-{hash_}/7~", "+1", "1x"):
        (tmp_path / name).write_bytes(b"")
    found = {(queue.slot_hash, queue.priority, queue.start) for queue in find_queues(tmp_path)}
    assert found == {("", 0, False), ("", -2, True), (hash_, 7, False), (hash_, 0, True)}


def test_a_file_that_cannot_be_read_is_an_error_that_names_it(tmp_path: Path) -> None:
    # By means that work for root, too.
    (tmp_path / "0").symlink_to("0")
    with pytest.raises(JobdirError, match="Make it readable") as caught:
        list(find_queues(tmp_path))
    assert str(tmp_path) in str(caught.value)
    (tmp_path / "seen").symlink_to("seen")
    with pytest.raises(JobdirError, match="seen"):
        list(SeenFile(tmp_path / "seen"))


# What was seen

PRINTS = [random.Random(number).randbytes(20) for number in range(40)]


def hex_lines(prints: list[bytes], end: str = "\n") -> bytes:
    return "".join(fingerprint.hex() + end for fingerprint in prints).encode()


def binary(prints: list[bytes]) -> bytes:
    return b"".join(len(one).to_bytes(2, "big") + one for one in prints)


@pytest.fixture(params=[1 << 20, 50])
def block(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stockfiles, "_BLOCK", request.param)


@pytest.mark.usefixtures("block")
@pytest.mark.parametrize(
    ("content", "formats"),
    [
        (hex_lines(PRINTS), {"hex"}),
        (hex_lines(PRINTS, "\r\n"), {"hex"}),
        (binary(PRINTS), {"binary"}),
        (hex_lines(PRINTS[:9]) + binary(PRINTS[9:]), {"hex", "binary"}),
        (binary(PRINTS[:9]) + hex_lines(PRINTS[9:]), {"hex", "binary"}),
    ],
    ids=["hex", "windows", "binary", "hex then binary", "binary then hex"],
)
def test_fingerprints_are_read_in_each_format(
    tmp_path: Path, content: bytes, formats: set[str]
) -> None:
    (tmp_path / "seen").write_bytes(content)
    seen = SeenFile(tmp_path / "seen")
    assert list(seen) == PRINTS
    assert (seen.formats, seen.unreadable) == (formats, 0)
    assert list(seen) == PRINTS


@pytest.mark.usefixtures("block")
@pytest.mark.parametrize("write", [hex_lines, binary])
def test_of_a_torn_file_every_whole_fingerprint_is_read(
    tmp_path: Path, write: Callable[[list[bytes]], bytes]
) -> None:
    content = write(PRINTS[:5])
    each = len(content) // 5
    for cut in range(len(content)):
        (tmp_path / "seen").write_bytes(content[:cut])
        seen = SeenFile(tmp_path / "seen")
        assert list(seen) == PRINTS[: cut // each]
        assert seen.unreadable == cut % each


@pytest.mark.usefixtures("block")
def test_fingerprints_of_any_length_are_read(tmp_path: Path) -> None:
    prints = [b"\0" * length for length in (1, 255, 3000)]
    for write in (hex_lines, binary):
        (tmp_path / "seen").write_bytes(write(prints))
        seen = SeenFile(tmp_path / "seen")
        if stockfiles._BLOCK > 3000 or write is binary:
            assert list(seen) == prints


def test_lines_that_are_no_fingerprints_are_counted(tmp_path: Path) -> None:
    lines = b"not hex\n" + hex_lines(PRINTS[:2]) + b"abc\n\n"
    (tmp_path / "seen").write_bytes(lines)
    seen = SeenFile(tmp_path / "seen")
    assert list(seen)[:2] == PRINTS[:2]
    assert seen.unreadable >= len(b"not hex\nabc\n")


def test_garbage_is_read_to_its_end(tmp_path: Path) -> None:
    for start in (b"", b"z"):
        (tmp_path / "seen").write_bytes(start + random.Random(5).randbytes(3_000_000))
        seen = SeenFile(tmp_path / "seen")
        for _ in seen:
            pass
        assert seen.unreadable
    (tmp_path / "seen").write_bytes(b"z" * 3_000_000)
    assert list(SeenFile(tmp_path / "seen")) == []
