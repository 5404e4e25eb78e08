"""What a subcommand is about: the job in a directory, or a shared crawl on a server."""

from __future__ import annotations

import argparse
import struct
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import partial
from itertools import chain, islice
from pathlib import Path
from shlex import quote
from typing import Any, TypeAlias, cast

from rich.console import Console
from rich.table import Table
from rich.text import Text
from scrapy import Spider
from scrapy.exceptions import UsageError

from ..crawl.deferrals import NOTE as DEFERRED
from ..crawl.outcome import DeadLetters, Outcome, judge
from ..errors import AltschedError, CodecError, JobdirError, StoreDamagedError
from ..frontier import Counts
from ..frontier.content import Content
from ..frontier.entry import Cause, DeadLetter, Reason
from ..frontier.shared.record import crawl_of, refuse_worker
from ..frontier.store import jobdir as jobdirs
from ..frontier.store.database import remedy
from ..frontier.store.engines import ENGINES
from ..frontier.store.jobdir import (
    Identity,
    LastCommit,
    find_holder,
    find_store,
    read_identity,
)
from ..frontier.store.journal import Journal
from ..frontier.store.states import UNQUEUED
from ..frontier.store.view import View
from ..inflection import counted
from ..maintenance.audit import Problem, Remedy, audit
from ..maintenance.exporting import read_job
from ..maintenance.looking import (
    PendingRequest,
    Place,
    StoredRequests,
    delayed_rows,
    find_seen,
    group_places,
    in_flight,
    is_by_slot,
    next_requests,
    pending_request,
)
from ..maintenance.requeue import (
    DeadRequest,
    FailedRequest,
    dead_requests,
    failed_requests,
    requeue,
)
from ..requests.carrying import slot_of as slot_of
from ..requests.codec import decode_fields, decode_request, url_of
from ..requests.identity import NOTE
from ..resume.spider_state import STATE
from ..settings import read_redis
from ..stock.job import QUEUE, SEEN
from .project import Project, misuse

NAME_CRAWL = "Name the crawl with --shared KEY instead of the JOBDIR."


@dataclass(slots=True)
class Report:
    """How a job or a crawl stands.

    :ivar rows: name and text of what is told of it; *good*: what is said if it has no problems.
    :ivar outcome: how it ends as it is; of no use if it has problems.
    """

    rows: list[tuple[str, str]]
    good: str
    problems: list[Problem] = field(default_factory=list)
    outcome: Outcome = Outcome.UNFINISHED


def add_key(parser: argparse.ArgumentParser) -> None:
    """Add the argument that names a shared crawl."""
    what = "its ALTSCHED_SHARED_KEY, or else its spider's name"
    parser.add_argument("key", metavar="KEY", help=what)


def add_target(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that :func:`open_target` looks at."""
    # No path yet: with --shared it is the first of what else is named.
    parser.add_argument("jobdir", nargs="?", metavar="JOBDIR", help="directory of the job")
    what = "a shared crawl instead: its ALTSCHED_SHARED_KEY, or else its spider's name"
    parser.add_argument("--shared", metavar="KEY", help=what)


def open_target(arguments: argparse.Namespace, project: Project) -> Target:
    """The job, or the shared crawl, that the arguments name; UsageError: they name none."""
    if arguments.shared is not None:
        return Crawl(project, arguments.shared)
    if arguments.jobdir is None:
        raise misuse("name a JOBDIR, or a crawl with --shared KEY")
    return Job(project, Path(arguments.jobdir), getattr(arguments, "spider", None))


def open_one_target(arguments: argparse.Namespace, project: Project) -> Target:
    """The same, where a JOBDIR beside a shared crawl is not something else's name."""
    if arguments.shared is not None and arguments.jobdir is not None:
        raise misuse("name a JOBDIR, or a crawl with --shared KEY, not both")
    return open_target(arguments, project)


class Job:
    """The job in a directory.  Each method raises AltschedError if it cannot be used.

    :param spider: whose job it is, if it does not say so itself.
    :ivar words: the arguments that name it, quoted for a shell.
    :ivar url_of: the URL of a stored request, if it can be read.
    :ivar owner: the spider's name; *store_id*: of its store; empty: that is not known.
    :raises JobdirError: there is none, or one of a newer format, or it cannot be read.
    """

    url_of = staticmethod(url_of)

    def __init__(self, project: Project, jobdir: Path, spider: str | None = None) -> None:
        self.jobdir = jobdir
        self.words = quote(str(jobdir))
        self._project = project
        self._identity = self._identify(spider)
        self.owner, self.store_id = self._identity.owner, self._identity.store_id
        if spider not in (None, self.owner):
            raise misuse(f"the job in {jobdir} belongs to spider {self.owner!r}, not {spider!r}.")
        jobdirs.refuse_newer(jobdir, self._identity)

    def _identify(self, spider: str | None) -> Identity:
        jobdir = self.jobdir
        problem = "it is a file, not a directory" if jobdir.exists() else "it does not exist"
        if jobdir.is_dir():
            if identity := read_identity(jobdir):
                return identity
            problem = "it has no file altsched.json"
            if any((jobdir / name).exists() for name in (QUEUE, SEEN)):
                raise JobdirError(
                    f"{jobdir} holds a crawl of Scrapy's own scheduler, and no job of"
                    " scrapy_altsched yet: it is imported by the next run of its spider that has"
                    f" JOBDIR = {str(jobdir)!r} and SCHEDULER = 'scrapy_altsched.Scheduler'."
                )
        if (jobdir / "frontier").is_dir():
            if spider is not None:
                return Identity(jobdirs.FORMAT, spider, "")
            raise JobdirError(
                f"{jobdir} has lost its file altsched.json, which says whose job it is. Name the"
                f" spider: scrapy altsched check {self.words} --spider NAME"
            )
        hint, parent = "the directory that the crawl has as its JOBDIR", jobdir.absolute().parent
        if read_identity(parent):
            hint = f"its parent, {parent}, which does"
        raise JobdirError(f"{jobdir} holds no job of scrapy_altsched: {problem}. Name {hint}.")

    @contextmanager
    def open(self, remedy: str = NAME_CRAWL) -> Iterator[Journal]:
        """Hold and open it, as a crawl does; *remedy*: if a worker's, what to do instead."""
        with closing(Journal(self.jobdir, self.owner)) as journal:
            refuse_worker(journal, self.jobdir, remedy)
            yield journal

    def dead(self) -> list[DeadRequest]:
        """All dead letters; a crawl may be running."""
        with self._view() as view:
            return list(dead_requests(view.dead()))

    def failed(self) -> Iterator[FailedRequest]:
        """All failed requests, the oldest first, one at a time; a crawl may be running."""
        with self._view() as view:
            yield from failed_requests(view.failed())

    def slot_of(self, payload: bytes) -> str:
        """The download slot of a stored request; empty: it cannot be read."""
        try:
            return locate(payload)[0]
        except CodecError:
            return ""

    def requeue(self, chosen: Collection[DeadRequest | FailedRequest]) -> int:
        """Make requests pending again; how many of them were dead, or had failed, still."""
        keys = {request.key for request in chosen}
        with self.open() as journal:
            # There may be a hundred thousand of one kind, and none of the other is wanted.
            kinds = {type(request) for request in chosen}
            stored: Iterator[DeadRequest | FailedRequest] = chain(
                dead_requests(journal.dead()) if DeadRequest in kinds else (),
                failed_requests(journal.failed()) if FailedRequest in kinds else (),
            )
            return requeue(journal, (it for it in stored if it.key in keys), locate)

    def examine(self) -> Report:
        """Look at all of it; nothing is changed, and a crawl may be running."""
        report = Report([("job", str(self.jobdir)), ("spider", self.owner)], "good")
        decode: Callable[[bytes], object] = decode_fields
        try:
            # Its methods are looked up, not called: the class will do.
            spider = cast("Spider", self._project.spider_class(self.owner))
            decode = partial(decode_request, spider=spider)
        except UsageError:
            report.rows.append(("", "not in this project: callbacks are not checked"))
        last = LastCommit.read(self.jobdir)

        def inspect(payload: bytes) -> str | None:
            try:
                decode(payload)
            except CodecError as error:
                return str(DeadLetter(str(error), Cause.UNRESTORABLE))
            return None

        try:
            with View(find_store(self.jobdir)) as view:
                if view.damage is not None:
                    report.problems.append(Problem(view.damage.problem, Remedy.RESUME))
                # Of what is damaged, the audit says so.
                with suppress(StoreDamagedError, ValueError):
                    report.problems += self._look_back(view, last)
                report.problems += audit(view, inspect)
                with suppress(StoreDamagedError, IndexError, ValueError):
                    _describe(view, report)
        except StoreDamagedError as error:
            report.problems = [Problem(error.problem)]
        return report

    def _look_back(self, view: View, last: LastCommit | None) -> Iterator[Problem]:
        """What is wrong if the store is not the job's, or does not hold the job's last commit."""
        commit, known = view.stored_commit(), self._identity.store_id
        if known and Identity.parse(view.identity() or b"null").store_id != known:
            yield Problem(
                "The store is not the one that altsched.json names: a crawl refuses it. Restore the"
                " whole JOBDIR from one copy; without one, a repair makes the job continue with"
                " this store."
            )
        elif last is not None and last.store_id == known and last.number > commit:
            yield Problem(
                f"The end of the store's log is lost: it holds commit {commit:,}, and the last one"
                f" was {last.number:,}. A crawl would continue from there and fetch again what came"
                " after.",
                Remedy.RESUME,
            )

    def peek(self, limit: int, slot: str | None) -> Iterator[PendingRequest]:
        """At most so many pending requests, the next one first; a crawl may be running.

        :param slot: only those of this download slot.
        """
        with self._view() as view:
            of_queue, of_slot = (slot, None) if is_by_slot(view) else (None, slot)
            rows = next_requests(view, of_queue, self._in_flight(view))
            if of_slot is not None:
                rows = (it for it in rows if self.slot_of(it.payload) == of_slot)
            yield from islice(rows, limit)

    def fields_of(self, payload: bytes) -> dict[str, Any]:
        """What a stored request says; empty: it cannot be read."""
        try:
            return decode_fields(payload)
        except CodecError:
            return {}

    def find(self, wanted: Collection[bytes]) -> dict[bytes, list[Place]]:
        """Where requests with these fingerprints are, as of the last commit; one place at least."""
        with self._view() as view:
            stored = StoredRequests(
                view.counts(),
                view.pending(),
                delayed_rows(view),
                failed_requests(view.failed()),
                dead_requests(view.dead()),
                in_flight=self._in_flight(view),
            )
            found = group_places(stored.find(wanted))
            return {it: found.get(it) or [find_seen(view, it)] for it in wanted}

    def fingerprints(self) -> bytes | None:
        """The note about what made the fingerprints, if there is one."""
        with self._view() as view:
            return view.note(NOTE)

    @contextmanager
    def content(self) -> Iterator[Content]:
        """All of it, as of the last commit; a crawl may be running."""
        with self._view() as view:
            content = read_job(view, self.owner, NOTE, STATE, DEFERRED)
            holder = find_holder(self.jobdir)
            if holder is not None and holder.lives():
                content.head.remarks.append(
                    f"A crawl is running in {self.jobdir}: this is how it was at its last commit."
                )
            yield content

    def _in_flight(self, view: View) -> set[bytes]:
        return in_flight(self.jobdir, self._identity.store_id, view.counters().run)

    @contextmanager
    def _view(self) -> Iterator[View]:
        """What is stored now, to be read only; StoreDamagedError: a row of it cannot be read."""
        store = find_store(self.jobdir)
        with View(store) as view:
            refuse_worker(view, self.jobdir, NAME_CRAWL)
            try:
                yield view
            except AltschedError:  # some of ours are ValueErrors, too
                raise
            except (IndexError, ValueError, struct.error) as error:
                raise StoreDamagedError(
                    f"The store {store} is damaged: {error}.", remedy(store)
                ) from error


def _describe(view: View, report: Report) -> None:
    """Add what the store of a job says of it, and what keeps it from being finished."""
    counters, counts = view.counters(), view.counts()
    report.rows.append(("store", ENGINES[view.engine][0]))
    if shared := crawl_of(view):
        text = f"the shared crawl {shared}; for that: check --shared KEY"
        report.rows.append(("worker of", text))
    else:
        unqueued = {state.family: counters.count(state) for state in UNQUEUED}
        runs = f"{counted(counters.run, 'run')}, at commit {view.stored_commit():,}"
        report.rows.append(_state(counters.finished, runs))
        report.rows.append(_numbers(counts, pending=counts.pending, **unqueued))
        if counts.failed:
            report.rows.append(("failed", _reasons(failed_requests(view.failed()))))
    letters = DeadLetters(dead_requests(view.dead()), url_of)
    report.outcome = judge(counts, letters.unrestorable, complete=counters.finished)
    if letters.unrestorable:
        problem = f"Dead letters that could not be restored: {letters.unrestorable:,}, for example"
    elif judge(counts, 0, complete=True) is Outcome.BLOCKED:
        problem = "Nothing was crawled, and the first requests are dead, for example"
    else:
        return
    sentence = f"{problem} {letters.examples}. The job is not finished without them."
    report.problems.append(Problem(sentence, Remedy.REQUEUE))


class Crawl:
    """A shared crawl on the server that the project's settings name, with the methods of a job.

    :ivar crawl: what can be done with it there.
    :raises ConfigError: the settings cannot be used, or a package is missing.
    """

    def __init__(self, project: Project, key: str) -> None:
        values = read_redis(project.settings)
        # What they need is optional.  Pickles from a server are not loaded.
        from ..frontier.shared.content import CrawlReader
        from ..redis_client.connection import connect
        from ..requests.portable import read_fields, read_url

        self.words = f"--shared {quote(key)}"
        self.crawl = CrawlReader(connect(values), key)
        self.url_of = read_url
        self._read = read_fields

    def dead(self) -> list[DeadRequest]:
        return list(dead_requests(self.crawl.dead()))

    def failed(self) -> Iterator[FailedRequest]:
        return failed_requests(self.crawl.failed())

    def requeue(self, chosen: Collection[DeadRequest | FailedRequest]) -> int:
        dead = [request.key for request in chosen if isinstance(request, DeadRequest)]
        failed = [
            (request.key, request.why, request.value)
            for request in chosen
            if isinstance(request, FailedRequest)
        ]
        return self.crawl.requeue(dead) + self.crawl.requeue_failed(failed)

    def slot_of(self, payload: bytes) -> str:
        fields = self._read(payload)
        return slot_of(fields["url"], fields.get("meta") or {}) if "url" in fields else ""

    def examine(self) -> Report:
        state = self.crawl.look()
        counts, leased = state.counts, {"in flight": state.counts.leased}
        report = Report(
            [
                ("crawl", self.crawl.name),
                ("spider", state.spider),
                _state(state.finished, counted(state.workers, "worker")),
                _numbers(
                    counts,
                    **leased,
                    pending=counts.pending,
                    delayed=counts.delayed,
                    dead=counts.dead,
                    failed=counts.failed,
                ),
            ],
            "the counters add up",
        )
        if counts.unaccounted:
            sentence = (
                f"The counters do not add up: {abs(counts.unaccounted):,} of the requests are in no"
                " state, or in two. Another program may have changed the keys."
            )
            report.problems.append(Problem(sentence, None))
        if state.large_buckets:
            text = (
                "seen URLs take about 88 bytes each on the server, instead of 21, as hashes are no"
                " longer listpacks: look at its hash-max-listpack-entries (512) and"
                " hash-max-listpack-value (64), or there are more than 30 million URLs"
            )
            report.rows.append(("memory", text))
        unrestorable = DeadLetters(self.dead() if counts.dead else (), self.url_of).unrestorable
        report.outcome = judge(counts, unrestorable, complete=state.finished)
        return report

    def peek(self, limit: int, slot: str | None) -> Iterator[PendingRequest]:
        order = self.crawl.order()
        rows = self.crawl.next_rows(limit, slot if order.policy == "slots" else None)
        requests = (pending_request(order, *row) for row in rows)
        if slot is not None and order.policy == "one":
            requests = (it for it in requests if self.slot_of(it.payload) == slot)
        return islice(requests, limit)

    def fields_of(self, payload: bytes) -> dict[str, Any]:
        return self._read(payload)

    def find(self, wanted: Collection[bytes]) -> dict[bytes, list[Place]]:
        crawl = self.crawl
        stored = StoredRequests(
            crawl.look().counts,
            crawl.pending(),
            crawl.delayed(),
            failed_requests(crawl.failed()),
            dead_requests(crawl.dead()),
            leased=crawl.leased(),
        )
        found = group_places(stored.find(wanted))
        return {
            it: found.get(it) or [Place("done" if crawl.has_seen(it) else "never seen")]
            for it in wanted
        }

    @contextmanager
    def content(self) -> Iterator[Content]:
        yield self.crawl.content(NOTE)

    def fingerprints(self) -> bytes | None:
        return self.crawl.about()["fingerprints"].encode()

    @property
    def owner(self) -> str:
        return self.crawl.about()["spider"]


Target: TypeAlias = Job | Crawl


def _reasons(requests: Iterable[FailedRequest]) -> str:
    """How many have failed for which reason; at the most, those that a job keeps."""
    found = Counter(request.why.reason for request in requests)
    return ", ".join(f"{found[it]:,} by {it.name.lower()}" for it in Reason if found[it])


def _state(finished: bool, more: str) -> tuple[str, str]:
    return "state", f"{'finished' if finished else 'not finished'}, {more}"


def _numbers(counts: Counts, **others: int) -> tuple[str, str]:
    numbers = "".join(f", {count:,} {what}" for what, count in others.items())
    return "requests", f"{counts.accepted:,} accepted: {counts.done:,} done{numbers}"


def locate(payload: bytes) -> tuple[str, bool]:
    """Download slot of a stored request, and whether it is a start request, or CodecError."""
    fields = decode_fields(payload)
    meta = fields.get("meta") or {}
    return slot_of(fields["url"], meta), bool(meta.get("is_start_request"))


def time_of(seconds: float) -> datetime:
    """The time, in UTC, so many seconds since the epoch."""
    return datetime.fromtimestamp(seconds, timezone.utc)


def print_formatted(text: Table | Text, *, folds: bool = False) -> None:
    """Print *text*; but on a terminal, a table's lines are not folded unless it *folds*."""
    width = None if folds or sys.stdout.isatty() else 100_000
    Console(width=width, soft_wrap=True, highlight=False, markup=False, emoji=False).print(text)


def print_rows(rows: Iterable[tuple[str, str]], sentences: Iterable[str]) -> None:
    """Print named texts, and sentences below."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for row in rows:
        table.add_row(*row)
    print_formatted(table)
    for sentence in sentences:
        print(f"- {sentence}")
