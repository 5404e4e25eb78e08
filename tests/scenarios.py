"""What :mod:`tests.killing` kills: each is one use of a job directory, from its open to its end.

A page leads to others as :data:`GRAPH` says, some of which wait for a moment.  Whatever is left of
a job, a crawl of it must end with all of them done.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

from scrapy_altsched.frontier import Entry, Lease, Options, Order, Verdict
from scrapy_altsched.frontier.clock import SystemClock
from scrapy_altsched.frontier.entry import Delay, PageFailure, Reason
from scrapy_altsched.frontier.local import uncommitted
from scrapy_altsched.frontier.local.frontier import LocalFrontier
from scrapy_altsched.frontier.store.engines import Choice
from scrapy_altsched.frontier.store.sqlite import log
from scrapy_altsched.maintenance import importing, rewriter
from scrapy_altsched.maintenance.convert import convert
from scrapy_altsched.maintenance.opening import open_frontier, visit
from scrapy_altsched.maintenance.requeue import dead_requests, failed_requests, requeue
from scrapy_altsched.maintenance.restart import restart

from .frontiers import OWNER, lease_from, name_of, page
from .killing import Phase


class BusyClock(SystemClock):
    """The machine's clock, without an event loop: what waits looks at it again and again."""

    def call_at(self, when: float, call: Callable[[], object]) -> Future[None]:
        return Future()


FIFO = Options(order=Order("slots", "fifo"), clock=BusyClock())
OTHER = Options(order=Order("one", "lifo", None), clock=BusyClock())


def fifo(engine: Choice) -> Options:
    """:data:`FIFO` with new stores of an engine."""
    return replace(FIFO, store=engine)


GRAPH = {
    "root": ["a", "b", "c", "d", "e"],
    "a": ["a1", "a2", "b"],
    "b": ["b1", "root"],
    "c": ["a1", "c1"],
    "a1": ["deep1", "deep2"],
    "b1": ["deep2", "deep3"],
    "deep3": ["deepest"],
}
#: Beginnings of the names of pages that are delayed, by a millisecond.
LATE = ("c", "deep")
#: The same of pages that fail.
FAILING = ("a2", "deep2")
ALL = {"root"} | {child for children in GRAPH.values() for child in children}


def have_small_batches() -> None:
    """Have batches in several parts even in a job of few pages; for processes of their own."""
    for module, constant in (
        (uncommitted, "BATCH"),
        (rewriter, "CHUNK"),
    ):
        assert hasattr(module, constant)
        setattr(module, constant, 3)
    # The log of SQLite is written back every few commits, and the next one waits for that.
    assert hasattr(log, "LONG")
    assert hasattr(log, "TOO_LONG")
    log.LONG = log.TOO_LONG = 64 * 1024


def start(frontier: LocalFrontier) -> Verdict:
    """As ``start()`` does, each time that a job is opened."""
    return frontier.add(page("root", "r", from_start=True))


def found(name: str) -> Entry:
    """The entry of a page that another one has led to."""
    entry = page(name, slot=name[0])
    if name.startswith(LATE):
        entry.delay = Delay(0.001)
    return entry


def next_lease(frontier: LocalFrontier) -> Lease | None:
    """The next lease, once there is one; ``None``: nothing is left."""
    while (lease := lease_from(frontier)) is None and frontier.delayed:
        pass
    return lease


def crawl(frontier: LocalFrontier, phase: Phase, pages: int) -> None:
    """Crawl, one after the other under way beside another one, and commit now and then."""
    for number in range(pages):
        phase("lease")
        leases = [lease for _ in range(2) if (lease := next_lease(frontier)) is not None]
        if not leases:
            return
        for child in GRAPH.get(name_of(leases[-1]), ()):
            frontier.add(found(child))
        if name_of(leases[-1]).startswith(FAILING):
            leases[-1].failure = PageFailure(Reason.STATUS, "HTTP status 503", 503, 3)
        frontier.finish(leases[-1])
        for lease in leases[:-1]:
            frontier.release(lease)
        if number % 2:
            commit_all(frontier, phase, state=str(number).encode())


def commit_all(frontier: LocalFrontier, phase: Phase, **notes: bytes) -> None:
    phase("commit")
    while not frontier.commit(notes, wait=True):
        pass


def first_run(path: Path, phase: Phase, engine: Choice) -> None:
    """A new job is made, crawled in part, and closed."""
    have_small_batches()
    phase("create")
    frontier = open_frontier(path, OWNER, fifo(engine))
    start(frontier)
    commit_all(frontier, phase)
    crawl(frontier, phase, 5)
    phase("close")
    frontier.close()


def later_run(path: Path, phase: Phase, engine: Choice) -> None:
    """A job that died is opened, crawled to its end, and closed as finished."""
    have_small_batches()
    phase("open")
    frontier = open_frontier(path, OWNER, FIFO)
    start(frontier)
    crawl(frontier, phase, 100)
    commit_all(frontier, phase)
    phase("close")
    frontier.close(finished=True)


def other_order(path: Path, phase: Phase, engine: Choice) -> None:
    """A job is opened in another order."""
    have_small_batches()
    phase("reorder")
    frontier = open_frontier(path, OWNER, OTHER)
    phase("close")
    frontier.close()


def second_chance(path: Path, phase: Phase, engine: Choice) -> None:
    """All dead letters and failed requests of a job are requeued."""
    have_small_batches()
    phase("requeue")
    frontier = visit(path, OWNER, FIFO)
    failed = failed_requests(frontier.run.journal.failed())
    stopped = [*dead_requests(frontier.dead()), *failed]
    requeue(frontier, stopped, lambda _: ("elsewhere", False))
    phase("close")
    frontier.close()


def change_engine(path: Path, phase: Phase, engine: Choice) -> None:
    """The store of a job is written again with another engine."""
    have_small_batches()
    phase("convert")
    convert(path, OWNER, engine)


def begin_again(path: Path, phase: Phase, engine: Choice) -> None:
    """A job is restarted with what it has seen."""
    have_small_batches()
    phase("restart")
    restart(path, OWNER, "", keeps_seen=True)


def import_job(path: Path, phase: Phase, engine: Choice) -> None:
    """A directory with requests of another scheduler is opened."""
    have_small_batches()
    phase("import")
    frontier = open_frontier(path, OWNER, fifo(engine), source=Foreign())
    phase("close")
    frontier.close()


def commit_of_many(path: Path, phase: Phase, *, done: int, added: int) -> None:
    """One commit with many pages done and many requests added, and a note of what is done."""
    phase("prepare")
    frontier = open_frontier(path, OWNER, FIFO)
    leases = [next_lease(frontier) for _ in range(done)]
    for number in range(added):
        frontier.add(page(f"added {number}", str(number % 7)))
    for lease in leases:
        assert lease is not None
        frontier.finish(lease)
    assert frontier.pressure.changes == done + added
    phase("commit")
    while not frontier.commit({"done": str(done).encode()}, wait=True):
        # Whoever commits goes on with the crawl between two batches.
        frontier.add(page(f"added later {frontier.run.commit_number}"))
    phase("close")
    frontier.close()


def commit_of_some(path: Path, phase: Phase, engine: Choice) -> None:
    have_small_batches()
    commit_of_many(path, phase, done=5, added=20)


def commit_of_thousands(path: Path, phase: Phase, engine: Choice) -> None:
    commit_of_many(path, phase, done=5_000, added=20_000)


class Foreign:
    """Another scheduler's store: two pages done, the others that they lead to pending."""

    notes: Any = {"from": b"elsewhere"}

    def __init__(self) -> None:
        self.imported: importing.Imported | None = None
        self.ended = self.is_trusted = True

    def parts(self) -> dict[str, str]:
        return {"queue": "one and only"}

    def examine(self, parts: Any, runs: Any, *, has_job: bool) -> int:
        return 0 if has_job else 5

    def requests(self) -> Any:
        for name in ("b", "c", "d", "e", "a1", "a2"):
            yield page(name, slot=name[0]), None

    def fingerprints(self) -> Any:
        yield from (name.encode() for name in ("root", "a", "b", "c", "d", "e", "a1", "a2"))


def finish(path: Path, options: Options, **more: Any) -> LocalFrontier:
    """Open what is left of a job and crawl it to its end."""
    frontier = open_frontier(path, OWNER, options, **more)
    start(frontier)
    crawl(frontier, lambda _: None, 1_000)
    commit_all(frontier, lambda _: None)
    return frontier
