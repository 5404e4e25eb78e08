"""Disks that are small or slow, and files that may not grow."""

from __future__ import annotations

import resource
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from scrapy_altsched.frontier.store.sqlite.database import SqliteDatabase
from scrapy_altsched.frontier.store.store import Store

#: Ways to a mount of one's own: as root, and as anybody where user namespaces are allowed.
_NAMESPACES = (["--mount"], ["--user", "--map-root-user", "--mount"])
_HOLD = 'mount -t tmpfs -o "size=$1" tmpfs "$2" && echo mounted && exec cat'


class NothingMountedError(Exception):
    """This process may not mount anything."""


class SmallDisk:
    """A file system of few megabytes, mounted for those only who enter; gone when it is left.

    :param path: an empty directory, which it is mounted on.
    :param size: e.g. ``16m``.
    """

    reason = "No space left on device"

    def __init__(self, path: Path, size: str) -> None:
        self.path = path
        self._size = size

    def __enter__(self) -> SmallDisk:
        for flags in _NAMESPACES:
            self._holder = subprocess.Popen(
                ["unshare", *flags, "sh", "-c", _HOLD, "sh", self._size, str(self.path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
            assert self._holder.stdout is not None
            if self._holder.stdout.readline() == b"mounted\n":
                own = ["--preserve-credentials", "--user"] if "--user" in flags else []
                # Without a word about the working directory it would be another one.
                holder = str(self._holder.pid)
                self.enter = ["nsenter", "--target", holder, "--mount", *own, "--wd=."]
                return self
            self._holder.wait()
        raise NothingMountedError

    def __exit__(self, *_: object) -> None:
        assert self._holder.stdin is not None
        self._holder.stdin.close()
        self._holder.wait()

    def outside(self, path: Path) -> Path:
        """Where *path*, on the disk, is for those who have not entered."""
        return Path(f"/proc/{self._holder.pid}/root{path}")

    def fill(self, process: subprocess.Popen[str]) -> None:
        """Leave no byte free."""
        with self.outside(self.path / "ballast").open("wb", buffering=0) as ballast:
            for size in (65536, 4096, 1):
                try:
                    while True:
                        ballast.write(b"x" * size)
                except OSError:
                    continue

    def free(self, process: subprocess.Popen[str]) -> None:
        """Undo :meth:`fill`."""
        self.outside(self.path / "ballast").unlink()


class LimitedFiles:
    """What comes nearest to it where nothing can be mounted: a crawl's files cannot grow."""

    reason = "File too large"

    def __init__(self, path: Path) -> None:
        self.path = path
        self.enter: list[str] = []

    def outside(self, path: Path) -> Path:
        """The same."""
        return path

    def fill(self, process: subprocess.Popen[str]) -> None:
        """Let no file grow past the size of the store's log, or of the feed."""
        ends = (".log", "-wal", ".jsonl", ".csv")
        written = [path for end in ends for path in self.path.rglob(f"*{end}")]
        limit(process, max(path.stat().st_size for path in written))

    def free(self, process: subprocess.Popen[str]) -> None:
        """Undo :meth:`fill`."""
        if process.poll() is None:
            limit(process, resource.RLIM_INFINITY)


def limit(process: subprocess.Popen[str], size: int) -> None:
    """Have the operating system refuse a running process what goes past *size* bytes of a file."""
    _, hard = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (size, hard))


Disk = SmallDisk | LimitedFiles


@contextmanager
def small_disk_at(path: Path) -> Iterator[Disk]:
    """A disk that can be filled, mounted on a new directory; or the next best thing."""
    path.mkdir()
    try:
        with SmallDisk(path, "24m") as disk:
            yield disk
    except NothingMountedError:
        yield LimitedFiles(path)


@contextmanager
def stalled(store: Store) -> Iterator[None]:
    """Have the engine refuse to write, as when it is behind; a pending request must be stored."""
    if isinstance(store.database, SqliteDatabase):
        # As its thread does, at the end of a log.
        with store.database._opened_log._lock:
            yield
        return

    def set_triggers(compaction: int, slowdown: int, stop: int) -> None:
        store.database.families["pending"].set_options(
            {
                "level0_file_num_compaction_trigger": str(compaction),
                "level0_slowdown_writes_trigger": str(slowdown),
                "level0_stop_writes_trigger": str(stop),
            }
        )

    store.database.flush()
    set_triggers(1_000, 1, 1)
    try:
        yield
    finally:
        set_triggers(4, 20, 36)
