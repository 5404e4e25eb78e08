"""The job in a directory, for subcommands."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from itertools import chain, islice
from pathlib import Path
from shlex import quote
from typing import Any, cast

from scrapy import Spider
from scrapy.exceptions import UsageError

from ..crawl.deferrals import NOTE as DEFERRED
from ..crawl.hold import NOTE as PAUSED
from ..crawl.outcome import DeadLetters, Outcome, judge
from ..errors import (
    AltschedError,
    CodecError,
    JobdirError,
    StoreDamagedError,
)
from ..frontier.content import Content, Part
from ..frontier.entry import Cause, DeadLetter, Place, Reason
from ..frontier.shared.record import NAME_CRAWL, crawl_of, refuse_worker
from ..frontier.store import jobdir as jobdirs
from ..frontier.store.database import remedy
from ..frontier.store.engines import ENGINES
from ..frontier.store.jobdir import (
    Identity,
    LastCommit,
    find_store,
    read_identity,
)
from ..frontier.store.journal import Journal
from ..frontier.store.states import UNQUEUED, decode_value
from ..frontier.store.view import View
from ..inflection import counted
from ..maintenance.audit import Problem, Remedy, audit
from ..maintenance.exporting import read_job
from ..maintenance.looking import (
    PendingRequest,
    StoredRequests,
    delayed_rows,
    find_oldest,
    find_seen,
    group_places,
    in_flight,
    is_by_slot,
    next_requests,
)
from ..maintenance.progress import follow
from ..maintenance.requeue import (
    DeadRequest,
    FailedRequest,
    dead_requests,
    failed_requests,
)
from ..requests.codec import decode_fields, decode_request, locate, url_of
from ..requests.identity import NOTE
from ..resume.spider_state import STATE
from ..steering.actions import Action, Discard, Effect
from ..stock.job import QUEUE, SEEN
from .answers import Report, describe_numbers, describe_state
from .job_steering import JobSteering, is_running
from .project import Project, misuse

#: Notes that go with a job wherever it is moved, besides those of its store.
MOVED_NOTES = (NOTE, STATE, DEFERRED, PAUSED)


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
        with jobdirs.using(jobdir):
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
                f" spider: scrapy altsched check {self.words} --spider NAME --repair"
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

    def apply(self, action: Action, given: Sequence[str] = ()) -> Effect:
        """Have an action applied, and wait for that: see :class:`.job_steering.JobSteering`."""
        return JobSteering(self.jobdir, self.owner, self._project, given).apply(action)

    def tell_standing(self) -> None:
        """Write down for `status` how it stands after a command has changed it between its runs."""
        JobSteering(self.jobdir, self.owner, self._project).tell_standing()

    def count(self, action: Discard) -> tuple[int, int]:
        """How many requests it would drop now, and of how many; a crawl may be running."""
        with self._view() as view:
            busy = self._in_flight(view)
            rows = chain((row for _, row in view.pending()), (row for _, row in delayed_rows(view)))
            found = total = 0
            for row in follow("Looking at requests", rows):
                entry = decode_value(row)
                # Some of these are not stored yet, so that a subtraction would count wrongly.
                if entry.fingerprint not in busy:
                    found += action.matches(self.fields_of(entry.payload or b""))
                    total += 1
            return found, total

    def waiting(self) -> int:
        """How many requests are stored as pending or delayed, those in flight among them."""
        with self._view() as view:
            counts = view.counts()
            return counts.pending + counts.delayed

    @contextmanager
    def content(self) -> Iterator[Content]:
        """All of it, as of the last commit; a crawl may be running."""
        with self._opened() as view:
            with self._reading():
                content = read_job(view, self.owner, *MOVED_NOTES)
            if is_running(self.jobdir):
                content.head.remarks.append(
                    f"A crawl is running in {self.jobdir}: this is how it was at its last commit."
                )
            # Other errors in what is done with it are none of the store.
            yield content.with_parts(self._read(content.parts))

    def _read(self, parts: Iterator[Part]) -> Iterator[Part]:
        with self._reading():
            yield from parts

    def examine(self) -> Report:
        """Look at all of it; nothing is changed, and a crawl may be running."""
        report = Report("job", str(self.jobdir), self.owner, [], "good")
        decode: Callable[[bytes], object] = decode_fields
        try:
            # Its methods are looked up, not called: the class will do.
            spider = cast("Spider", self._project.spider_class(self.owner))
            decode = partial(decode_request, spider=spider)
        except UsageError as error:
            report.rows.append(("callbacks", f"not checked: {error}"))
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

    def find_oldest(self, view: View) -> int | None:
        """The sequence number of the pending request that was accepted first."""
        return find_oldest(view, self._in_flight(view))

    def fingerprints(self) -> bytes | None:
        """The note about what made the fingerprints, if there is one."""
        with self._view() as view:
            return view.note(NOTE)

    def _in_flight(self, view: View) -> set[bytes]:
        return in_flight(self.jobdir, self._identity.store_id, view.counters().run)

    @contextmanager
    def _view(self) -> Iterator[View]:
        """What is stored now, to be read only; StoreDamagedError: a row of it cannot be read."""
        with self._opened() as view, self._reading():
            yield view

    @contextmanager
    def _opened(self) -> Iterator[View]:
        with View(find_store(self.jobdir)) as view:
            refuse_worker(view, self.jobdir, NAME_CRAWL)
            yield view

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except AltschedError:  # some of ours are ValueErrors, too
            raise
        except (IndexError, ValueError, struct.error) as error:
            store = find_store(self.jobdir)
            raise StoreDamagedError(
                f"The store {store} is damaged: {error}.", remedy(store)
            ) from error


def _describe(view: View, report: Report) -> None:
    """Add what the store of a job says of it, and what keeps it from being finished."""
    counters, counts = view.counters(), view.counts()
    report.counts = counts
    report.rows.append(("store", ENGINES[view.engine][0]))
    if shared := crawl_of(view):
        text = f"the shared crawl {shared}; for that: check --shared KEY"
        report.rows.append(("worker of", text))
    else:
        unqueued = {state.family: counters.count(state) for state in UNQUEUED}
        runs = f"{counted(counters.run, 'run')}, at commit {view.stored_commit():,}"
        report.rows.append(describe_state(view.is_finished(), runs))
        report.rows.append(describe_numbers(counts, pending=counts.pending, **unqueued))
        if counts.failed:
            report.rows.append(("failed", _reasons(failed_requests(view.failed()))))
    letters = DeadLetters(dead_requests(view.dead()), url_of)
    report.outcome = judge(counts, letters.unrestorable, complete=view.is_finished())
    if letters.unrestorable:
        problem = f"Dead letters that could not be restored: {letters.unrestorable:,}, for example"
    elif judge(counts, 0, complete=True) is Outcome.BLOCKED:
        problem = "Nothing was crawled, and the first requests are dead, for example"
    else:
        return
    sentence = f"{problem} {letters.examples}. The job is not finished without them."
    report.problems.append(Problem(sentence, Remedy.REQUEUE))


def _reasons(requests: Iterable[FailedRequest]) -> str:
    """How many have failed for which reason; at the most, those that a job keeps."""
    found = Counter(request.why.reason for request in requests)
    return ", ".join(f"{found[it]:,} by {it.name.lower()}" for it in Reason if found[it])
