"""Frontiers of every kind, in places of their own, and short words for what tests do with them."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from scrapy_altsched.frontier import Entry, Lease, Options, Order, Waiting
from scrapy_altsched.frontier.contract import Locate
from scrapy_altsched.frontier.local.frontier import LocalFrontier
from scrapy_altsched.frontier.local.persistence import Persistence
from scrapy_altsched.frontier.store.engines import Choice
from scrapy_altsched.frontier.store.journal import Journal
from scrapy_altsched.frontier.store.records import Batch, Counters
from scrapy_altsched.frontier.store.states import PENDING, State
from scrapy_altsched.maintenance.audit import audit
from scrapy_altsched.maintenance.opening import open_frontier

from .servers import RedisServer
from .shared import SettledShared
from .stores import INSTALLED

OWNER = "spider"


class MemoryKind:
    """Opens frontiers that live in memory: each is a new one."""

    #: Whether what was committed is there again when the frontier is opened again.
    survives = False
    #: Whether the choice between slots is by this process's downloads.
    knows_downloads = True

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._opened: list[LocalFrontier] = []

    def open(self, options: Options | None = None) -> LocalFrontier:
        frontier = self._open(options or Options())
        self._opened.append(frontier)
        return frontier

    def _open(self, options: Options) -> LocalFrontier:
        return open_frontier(None, OWNER, options)

    def verify(self) -> None:
        """Every frontier that was opened here must agree with itself, then and when resumed."""
        for frontier in self._opened:
            assert frontier.counts().unaccounted == 0
            frontier.close()


class DiskKind(MemoryKind):
    """Opens frontiers with a journal: each goes on where the one before it ended."""

    survives = True
    engine: Choice = "auto"

    def __init__(self, directory: Path, engine: Choice | None = None) -> None:
        super().__init__(directory)
        self.engine = engine or self.engine
        self.path = directory / "job"
        self._images = 0
        self._order = Order()

    def _open(self, options: Options, locate: Locate | None = None) -> LocalFrontier:
        self._order = options.order
        options = replace(options, store=self.engine)
        return open_frontier(self.path, OWNER, options, locate=locate)

    def image(self) -> Path:
        """A copy of the files as they are, which is what the process's death would leave."""
        self._images += 1
        image = self.directory / f"image {self._images}"
        while not self._copy(image):
            shutil.rmtree(image, ignore_errors=True)
        return image

    def _copy(self, image: Path) -> bool:
        """Copy the files; whether RocksDB, which merges files when it likes, left them alone."""
        try:
            before = self._sizes()
            shutil.copytree(self.path, image)
            return self._sizes() == before
        except (shutil.Error, FileNotFoundError):
            return False

    def _sizes(self) -> dict[Path, int]:
        return {path: path.stat().st_size for path in self.path.rglob("*") if path.is_file()}

    def crash(self, frontier: LocalFrontier) -> None:
        """The next frontier that is opened finds the files as they are now."""
        image = self.image()
        frontier.abandon()
        self.path = image

    def verify(self) -> None:
        super().verify()
        if self.path.exists():
            frontier = self._open(Options(order=self._order))
            assert problems_of(frontier) == []
            assert frontier.counts().unaccounted == 0
            frontier.close()


class SmallWindowKind(DiskKind):
    """Like :class:`DiskKind`, with next to nothing of the queue in memory."""

    def _open(self, options: Options, locate: Locate | None = None) -> LocalFrontier:
        return super()._open(replace(options, memory_requests=2), locate)


class SharedKind(MemoryKind):
    """Opens frontiers of workers on a server of the test's own."""

    survives = True
    knows_downloads = False

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._server = RedisServer(directory / "redis").__enter__()

    def _open(self, options: Options) -> Any:
        return SettledShared(options, self._server.client())

    def verify(self) -> None:
        super().verify()
        self._server.__exit__(None, None, None)


def _of_engine(kind: type[DiskKind], engine: Choice) -> type[DiskKind]:
    return type(f"{engine} {kind.__name__}", (kind,), {"engine": engine})


#: Whatever is added here has to pass the whole contract.
KINDS: Mapping[str, type[MemoryKind]] = {
    "memory": MemoryKind,
    **{engine: _of_engine(DiskKind, engine) for engine in INSTALLED},
    **{f"{engine}, small window": _of_engine(SmallWindowKind, engine) for engine in INSTALLED},
    "shared": SharedKind,
}
#: Kinds of one process; of these, those that are stored.
LOCAL = [name for name, kind in KINDS.items() if kind.knows_downloads]
STORED = [name for name in LOCAL if KINDS[name].survives]


def page(
    name: str,
    slot: str = "",
    priority: int = 0,
    *,
    start: bool = False,
    unique: bool = True,
    from_start: bool = False,
    stored: bool = True,
) -> Entry:
    """The entry of the page called *name*; *stored*: not one that lives in memory only."""
    payload = f"payload of {name}".encode() if stored else None
    request = None if stored else f"request of {name}"
    fingerprint = name.encode()
    return Entry(fingerprint, slot, priority, start, payload, request, unique, from_start)


def stored(
    counters: Counters,
    *rows: tuple[bytes, bytes],
    state: State = PENDING,
    removed: Iterable[bytes] = (),
) -> Batch:
    """A batch with rows of requests in a state, and with pending requests that are no more."""
    batch = Batch(counters)
    batch.stored[state] += rows
    batch.removed[PENDING] += removed
    return batch


def journal_of(frontier: LocalFrontier) -> Journal:
    """Where *frontier* is kept."""
    assert isinstance(frontier._kept, Persistence)
    return frontier._kept.journal


def commit(frontier: LocalFrontier) -> None:
    """Write all that has changed."""
    while not frontier.commit():
        pass


def problems_of(frontier: LocalFrontier) -> list[str]:
    """What is wrong with all that *frontier* has stored, once it has stored everything."""
    if not isinstance(getattr(frontier, "_kept", None), Persistence):
        return []
    commit(frontier)
    return [problem.sentence for problem in audit(journal_of(frontier))]


def name_of(lease: Lease) -> str:
    return lease.entry.fingerprint.decode()


class Downloads:
    """A gate: the number of downloads in each slot."""

    def __init__(self, numbers: Mapping[str, int]) -> None:
        self._numbers = numbers

    def active(self, slot: str, /) -> int:
        return self._numbers.get(slot, 0)

    def waiting(self, slot: str, /) -> int:
        return 0

    def delay(self, slot: str, /) -> float:
        return 0.0


def lease_from(frontier: LocalFrontier, busy: Mapping[str, int] | None = None) -> Lease | None:
    """The next lease; ``None``: there is nothing to lease now.

    :param busy: slot -> number of downloads in flight there.
    """
    lease = frontier.lease(Downloads(busy or {}))
    return None if isinstance(lease, Waiting) else lease


def suspicions_of(frontier: LocalFrontier) -> tuple[int, int]:
    """How many requests are leased one after the other, and how many alone, as of now."""
    suspects = frontier._suspects
    job = suspects.count_in(frontier.job)
    return job.suspects, job.blamed


def take(frontier: LocalFrontier) -> Lease:
    """Lease the next request; there must be one."""
    lease = lease_from(frontier)
    assert lease is not None
    return lease


def take_all(frontier: LocalFrontier) -> Iterator[Lease]:
    """Lease until there is nothing to lease."""
    while (lease := lease_from(frontier)) is not None:
        yield lease


def names(leases: Iterator[Lease]) -> list[str]:
    return [name_of(lease) for lease in leases]


def work_off(frontier: LocalFrontier) -> list[str]:
    """Lease and finish one request after the other until none is left; their names, in order."""
    done: list[str] = []
    while (lease := lease_from(frontier)) is not None:
        done.append(name_of(lease))
        frontier.finish(lease)
    return done
