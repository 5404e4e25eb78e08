"""Records what crawls do to their files, and rebuilds these as a power cut may leave them.

::

    python -m tests.power_cuts DIRECTORY RECORDING FAULT ARGUMENTS...

does ``scrapy ARGUMENTS...`` in a child, and appends each call that changes a file below DIRECTORY,
or forces it to the disk, to the file RECORDING.  What the child writes to ``DIRECTORY/announced``
is recorded as a mark: what had been announced by then; or that its main thread has waited for a
sync in another one.  FAULT is empty or the beginning of a kind of file, such as ``WAL``: the first
sync of one after the first mark fails with EIO, once.

:class:`Disk` is what a disk then holds at a chosen moment.  The model, after SQLite's ``test6.c``
and LazyFS (https://www.sqlite.org/testing.html#crash_testing, https://github.com/dsrhaslab/lazyfs):

- A file has what was written before its last sync.  Of what was written since, each sector of 512
  bytes has what any later moment left in it, for each by chance: whole writes are lost, parts of
  writes, and earlier ones rather than later ones.  The file's length is that of any such moment,
  too; what is not there, or was never written, is zeros.
- A name in a directory is on the disk when the directory was synced after it was made; syncing the
  file alone does not save it, as on POSIX and unlike ext4.  Of what was made, renamed and deleted
  since, the beginning is there, as a journaling file system has it: up to one moment, or to another
  in each directory.  RocksDB relies on that: it renames CURRENT before the name of the MANIFEST in
  it is forced to the disk.
- A sync that failed has forgotten what was to be written, though it can still be read, as on ext4
  and XFS ("Can Applications Recover from fsync Failures?", USENIX ATC 2020).
"""

from __future__ import annotations

import errno
import pickle
import random
import re
import socket
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import astuple, dataclass, field
from os import O_APPEND, O_CREAT, O_TRUNC
from pathlib import Path
from typing import Any

from scrapy_altsched.crawl.syncing import Syncer
from scrapy_altsched.frontier.store.sqlite import log

from .tracing import Step, Tracer

SECTOR = 512
#: Moments of which a file's content is kept.
_VERSIONS = 4
ANNOUNCED, FORCED = "announced", b"forced\n"
#: Written for people only, or in shared memory, and made anew by the first who opens the store.
_IGNORED = ("LOG", "store.sqlite-shm")
#: What the tests' crawls do not do, and the model does not know.
_UNKNOWN = ("writev", "pwritev", "truncate", "sync_file_range", "link", "symlink")
_KEEP_SIZE = 1
#: Events that come after all syncs before them.
_KNOWN = ("mark", "forced")

#: Names of files -> their kind.
_KINDS = (
    (r"\d+\.log|store\.sqlite-wal", "WAL"),
    (r"store\.sqlite", "tables"),
    (r"\d+\.sst", "SST"),
    (r"MANIFEST-\d+", "MANIFEST"),
    (r"\d+\.dbtmp|CURRENT", "CURRENT"),
    (r"OPTIONS-.*", "OPTIONS"),
    (r"altsched\.leases\.\d", "leases"),
    (r".*\.partial", "partial"),
    (r".*\.jsonl|.*\.csv", "feed"),
)


def kind_of(path: str) -> str:
    """What a file is, whatever its number."""
    name = Path(path).name
    if Path(path).is_dir():
        return f"directory {name}"
    return next((kind for pattern, kind in _KINDS if re.fullmatch(pattern, name)), name)


# Recording


@dataclass
class Event:
    """Something that a process has done.

    :ivar what: "create", "mkdir", "write", "truncate", "sync", "rename", "unlink", "mark"; a sync
        that failed is a "forget"; "forced": the main thread has waited for one.
    :ivar position: where a write is, or the length that a file is cut to.
    """

    what: str
    path: str
    thread: int = 0
    data: bytes = b""
    position: int = 0
    target: str = ""


def record(directory: Path, fault: str, run: Any, *, is_marked: bool) -> tuple[list[Event], int]:
    """What a child does below a directory until it ends, and how it ended.

    :param is_marked: whether an earlier run has announced something.
    """
    events: list[Event] = []
    below = f"{directory}/"
    sizes: dict[str, int] = {}
    tracer = Tracer(run)
    for step, answer in tracer.steps(below):
        error = 0
        for event in _events(step, sizes):
            if event.what == "mark":
                is_marked = True
                _check_maps(tracer.child, below)
            is_due = event.what == "sync" and fault and is_marked
            if is_due and kind_of(event.path).startswith(fault):
                event.what, error, fault = "forget", errno.EIO, ""
            events.append(event)
        answer(error)
    return events, tracer.close()


def _events(step: Step, sizes: dict[str, int]) -> Iterator[Event]:
    call, path, thread = step.call, step.path, step.thread
    name = Path(path).name
    if name.startswith(_IGNORED):
        return
    assert call not in _UNKNOWN, f"{call} of {path}"
    if name == ANNOUNCED:
        if step.data:
            yield Event("forced" if step.data == FORCED else "mark", path, thread, step.data)
    elif call in ("write", "pwrite64"):
        position = _position(step) if step.offset is None else step.offset
        yield Event("write", path, thread, step.data, position)
    elif call == "openat":
        if step.number & O_CREAT and not Path(path).exists():
            yield Event("create", path, thread)
        elif step.number & O_TRUNC:
            yield Event("truncate", path, thread)
    elif call in ("fsync", "fdatasync"):
        yield Event("sync", path, thread)
    elif call == "ftruncate":
        yield Event("truncate", path, thread, position=step.number)
    elif call == "rename":
        if Path(path).exists():
            yield Event("rename", path, thread, target=step.target)
    elif call == "mkdir":
        if not Path(path).exists():
            yield Event("mkdir", path, thread)
    elif call in ("unlink", "rmdir"):
        if Path(path).exists():
            yield Event("unlink", path, thread)
    else:
        # RocksDB reserves room, which changes neither content nor length.
        assert (call, step.number) == ("fallocate", _KEEP_SIZE), f"{call} of {path}"


def _position(step: Step) -> int:
    lines = Path(f"/proc/{step.thread}/fdinfo/{step.descriptor}").read_text().splitlines()
    found = dict(line.split(":\t") for line in lines if ":\t" in line)
    if int(found["flags"], 8) & O_APPEND:
        return Path(step.path).stat().st_size
    return int(found["pos"])


def _check_maps(process: int, below: str) -> None:
    """Nothing that matters is written through memory, which no tracer would see."""
    for line in Path(f"/proc/{process}/maps").read_text().splitlines():
        is_seen = below not in line or Path(line).name.startswith(_IGNORED)
        assert is_seen or not line.split()[1].startswith("rw-s"), line


def load(recording: Path) -> Iterator[Event]:
    """The events of all runs in a recording, each with a mark "ended" after it."""
    with recording.open("rb") as file:
        while file.peek(1):
            yield from (Event(*values) for values in pickle.load(file))
            yield Event("mark", "", data=b"ended\n")


# Rebuilding


@dataclass
class _File:
    """Content of a file: what a process reads, and what is on the disk."""

    cache: bytearray = field(default_factory=bytearray)
    disk: bytearray = field(default_factory=bytearray)
    #: Sectors that were written since the last sync.
    dirty: set[int] = field(default_factory=set)
    #: Contents at moments since the last sync.
    versions: list[bytes] = field(default_factory=list)
    #: Moments since then, and what chooses a few of them.
    moments: int = 0
    rng: random.Random = field(default_factory=lambda: random.Random(1))

    def _keep(self) -> None:
        self.moments += 1
        place = self.rng.randrange(self.moments)
        if place < _VERSIONS:
            self.versions[place : place + 1] = [bytes(self.cache)]

    def write(self, position: int, data: bytes) -> None:
        self._keep()
        end = position + len(data)
        self.cache.extend(bytes(max(0, end - len(self.cache))))
        self.cache[position:end] = data
        self.dirty.update(range(position // SECTOR, -(-end // SECTOR)))

    def truncate(self, size: int) -> None:
        self._keep()
        shorter, longer = sorted((size, len(self.cache)))
        self.dirty.update(range(shorter // SECTOR, -(-longer // SECTOR)))
        del self.cache[size:]
        self.cache.extend(bytes(size - len(self.cache)))

    def sync(self) -> None:
        _copy(self.dirty, self.cache, self.disk)
        del self.disk[len(self.cache) :]
        self.disk.extend(bytes(len(self.cache) - len(self.disk)))
        self.forget()

    def forget(self) -> None:
        self.dirty.clear()
        self.versions.clear()
        self.moments = 0

    def survive(self, rng: random.Random, chance: float) -> bytes:
        """What a power cut leaves of it."""
        found = bytearray(self.disk)
        versions = [*self.versions, bytes(self.cache)]
        for sector in self.dirty:
            if rng.random() < chance:
                _copy({sector}, rng.choice(versions), found)
        size = len(rng.choice([self.disk, *versions]))
        del found[size:]
        found.extend(bytes(size - len(found)))
        return bytes(found)


def _copy(sectors: set[int], source: bytes | bytearray, to: bytearray) -> None:
    for sector in sorted(sectors):
        start = sector * SECTOR
        data = source[start : start + SECTOR]
        to.extend(bytes(max(0, start + len(data) - len(to))))
        to[start : start + len(data)] = data


@dataclass
class _Directory:
    """Names in a directory: those that a process sees, and what was done to them, in order."""

    names: dict[str, _File | _Directory] = field(default_factory=dict)
    #: What a sync that failed has forgotten: the next change writes it again, as it is in the same
    #: block of the directory.
    forgotten: list[dict[str, _File | _Directory | None]] = field(default_factory=list)
    #: Names on the disk.
    disk: dict[str, _File | _Directory] = field(default_factory=dict)
    #: When, and the names that are set, or taken away, since the last sync.
    changes: list[tuple[int, dict[str, _File | _Directory | None]]] = field(default_factory=list)

    def change(self, when: int, **names: _File | _Directory | None) -> None:
        self.changes.append((when, names))
        _apply(names, self.names)

    def sync(self) -> None:
        if self.changes:
            for names in (*self.forgotten, *(names for _, names in self.changes)):
                _apply(names, self.disk)
            self.forgotten.clear()
        self.changes.clear()

    def forget(self) -> None:
        self.forgotten += [names for _, names in self.changes]
        self.changes.clear()

    def survive(self, rng: random.Random, last: int | None) -> dict[str, _File | _Directory]:
        """Names that a power cut leaves.

        :param last: the moment up to which all are; ``None``: chance decides.
        """
        found = dict(self.disk)
        if last is None:
            last = rng.choice([when for when, _ in self.changes] or [0]) - rng.randrange(2)
        for when, names in self.changes:
            if when <= last:
                _apply(names, found)
        return found


def _apply(changes: dict[str, Any], names: dict[str, Any]) -> None:
    for name, node in changes.items():
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node


def _begins_log(event: Event) -> bool:
    """Whether SQLite begins its log anew: it knows, through memory, what was synced by others."""
    header = event.what == "write" and (event.position, len(event.data)) == (0, 32)
    return header and event.path.endswith("store.sqlite-wal")


class Disk:
    """What a process has written up to a moment, and what a disk may hold of it then.

    :param directory: what was recorded; its own name is on the disk.
    """

    def __init__(self, directory: Path, events: list[Event]) -> None:
        self._directory = directory
        self._root = _Directory()
        self._when = 0
        for number, event in enumerate(events):
            # The power may fail while the last call is at work, and while other threads are.
            is_over = event.what != "sync" or any(
                later.what in _KNOWN or later.thread == event.thread or _begins_log(later)
                for later in events[number + 1 :]
            )
            self._when = number
            if is_over:
                self._do(event)

    def _find(self, path: str) -> tuple[_Directory, str]:
        *folders, name = Path(path).relative_to(self._directory).parts
        node = self._root
        for folder in folders:
            inner = node.names[folder]
            assert isinstance(inner, _Directory)
            node = inner
        return node, name

    def _do(self, event: Event) -> None:
        what = event.what
        if what in _KNOWN:
            return
        if Path(event.path) == self._directory:
            getattr(self._root, what)()
            return
        folder, name = self._find(event.path)
        if what in ("create", "mkdir"):
            node = _File() if what == "create" else _Directory()
            folder.change(self._when, **{name: node})
        elif what == "unlink":
            folder.change(self._when, **{name: None})
        elif what == "rename":
            target, new_name = self._find(event.target)
            assert target is folder, "only within a directory"
            folder.change(self._when, **{new_name: folder.names[name], name: None})
        else:
            node = folder.names[name]
            if what == "write":
                assert isinstance(node, _File)
                node.write(event.position, event.data)
            elif what == "truncate":
                assert isinstance(node, _File)
                node.truncate(event.position)
            else:
                getattr(node, what)()

    def write(self, rng: random.Random) -> None:
        """Replace all that is in the directory by what a power cut leaves there."""
        chance = rng.choice([0.0, 0.1, 0.5, 0.9, 1.0])
        last = rng.choice([None, rng.randrange(self._when + 1), self._when])
        self._write(self._root, self._directory, rng, chance, last)

    def _write(
        self, node: _Directory, path: Path, rng: random.Random, chance: float, last: int | None
    ) -> None:
        for name, inner in node.survive(rng, last).items():
            if isinstance(inner, _File):
                (path / name).write_bytes(inner.survive(rng, chance))
            else:
                (path / name).mkdir()
                self._write(inner, path / name, rng, chance, last)


def main() -> None:
    """Record one run of ``scrapy``."""
    directory, recording, fault, *arguments = sys.argv[1:]

    def run(_: socket.socket) -> None:
        from scrapy.cmdline import execute

        wait_for_sync = Syncer.finish

        def finish(syncer: Syncer, number: int, *, anew: bool = False) -> bool:
            is_news = wait_for_sync(syncer, number, anew=anew)
            with Path(directory, ANNOUNCED).open("ab", buffering=0) as file:
                file.write(FORCED)
            return is_news

        # It is the one place where the main thread waits, and no call of a thread tells of that.
        Syncer.finish = finish  # type: ignore[method-assign]
        # Tables are written, and logs begun, while even a short crawl runs.
        assert hasattr(log, "LONG")
        log.LONG = 64 * 1024
        with suppress(ImportError):
            from scrapy_altsched.frontier.store.rocksdb import options

            assert hasattr(options, "_MIB")
            options._MIB = 4096
        try:
            execute(["scrapy", *arguments])
        except SystemExit as end:
            if end.code:
                raise

    is_resumed = Path(recording).exists()
    events, status = record(Path(directory), fault, run, is_marked=is_resumed)
    # A fault may have the crawl refused.
    assert fault or not status, f"the crawl ended with {status}"
    with Path(recording).open("ab") as file:
        pickle.dump([astuple(event) for event in events], file)


if __name__ == "__main__":
    main()
