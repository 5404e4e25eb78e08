"""Verify that what a job has stored is complete and consistent; repair it.

Without ``--repair`` nothing in the job directory is changed, and a crawl may be running.
With ``--shared KEY`` the crawl on the server is looked at, which is never changed.
"""

from __future__ import annotations

import argparse
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from scrapy.exceptions import UsageError

from ..crawl.given_up import count_given_up
from ..crawl.outcome import CODES, DeadLetters, Outcome, judge
from ..errors import JobdirError, StoreDamagedError
from ..frontier.shared.record import crawl_of
from ..frontier.store.jobdir import (
    FORMAT,
    Identity,
    LastCommit,
    find_store,
    read_identity,
    refuse_newer,
)
from ..frontier.store.records import Counters
from ..frontier.store.states import UNQUEUED
from ..frontier.store.view import View
from ..inflection import inflect
from ..maintenance.audit import Problem, Remedy, audit
from ..maintenance.progress import watched
from ..maintenance.repair import Repair, accept_loss, repair
from ..maintenance.requeue import dead_requests
from ..requests.codec import is_whole, url_of
from .job import add_job, find_spider, identify, locate, make_console, make_inspector, require_job
from .server import find_crawl, show_crawl

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ..maintenance.audit import Follow
    from .project import Project


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See :mod:`scrapy_altsched.command`."""
    add_job(parser)
    parser.add_argument(
        "--repair",
        action="store_true",
        help="if something is wrong, copy what can be read to a new store, and keep the old one",
    )
    parser.add_argument(
        "--accept-loss",
        action="store_true",
        help="give up requests that a repair could not keep, or that could not be restored",
    )
    parser.add_argument(
        "--finished",
        action="store_true",
        help="exit with 3 if a finished job has dead letters, and with 4 if it is not finished",
    )
    parser.add_argument(
        "--spider", help="whose job it is, if the job no longer says so", metavar="NAME"
    )


def run(arguments: argparse.Namespace, project: Project) -> int:
    """See :mod:`scrapy_altsched.command`.

    :raises AltschedError: there is no job, or it cannot be opened or repaired.
    """
    require_job(arguments)
    out = make_console()
    if arguments.shared is not None:
        if arguments.repair or arguments.accept_loss or arguments.spider:
            raise UsageError("--shared takes no option but --finished", print_help=False)
        is_good, outcome = show_crawl(out, find_crawl(project, arguments.shared))
        if not is_good:
            return 1
        return CODES[outcome] if arguments.finished else 0
    jobdir = Path(arguments.jobdir)
    identity = _identify(jobdir, arguments.spider)
    refuse_newer(jobdir, identity)
    problems = _check(out, jobdir, identity, project)
    if arguments.repair and _helps(problems, Remedy.REPAIR, Remedy.RESUME):
        _show_repair(out, repair(jobdir, identity.owner, is_whole, locate))
        identity = _identify(jobdir, arguments.spider)
        if not arguments.accept_loss:
            problems = _check(out, jobdir, identity, project)
    if arguments.accept_loss:
        given_up = accept_loss(jobdir, identity.owner)
        requests = inflect(given_up, "request is", "requests are")
        out.print(f"{given_up:,} {requests} given up. The job can be finished without.")
        problems = _check(out, jobdir, identity, project)
    if problems:
        _advise(out, problems, jobdir, arguments.spider)
    elif arguments.repair or arguments.accept_loss:
        out.print("Next: run the crawl again; it continues from there.")
    if problems:
        return 1
    return _exit_code(jobdir) if arguments.finished else 0


def _exit_code(jobdir: Path) -> int:
    """The exit code for a job without problems."""
    with View(find_store(jobdir)) as view:
        return CODES[judge(view.counts(), 0, complete=view.counters().finished)]


def _identify(jobdir: Path, spider: str | None) -> Identity:
    identity = read_identity(jobdir) if jobdir.is_dir() else None
    if identity is not None:
        if spider is not None and spider != identity.owner:
            message = f"the job in {jobdir} belongs to spider {identity.owner!r}, not {spider!r}."
            raise UsageError(message, print_help=False)
        return identity
    if not (jobdir / "frontier").is_dir():
        return identify(jobdir)
    if spider is None:
        raise JobdirError(
            f"{jobdir} has lost its file altsched.json, which says whose job it is. Name the spider"
            " with --spider NAME."
        )
    return Identity(FORMAT, spider, "")


def _check(out: Console, jobdir: Path, identity: Identity, project: Project) -> list[Problem]:
    spider = find_spider(project, identity.owner)
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    table.add_row("job", str(jobdir))
    table.add_row("spider", identity.owner)
    if spider is None:
        table.add_row("", "not in this project: callbacks are not checked")
    last = LastCommit.read(jobdir)
    problems = []
    try:
        with View(find_store(jobdir)) as view, _progress() as follow:
            if view.damage is not None:
                problems.append(Problem(view.damage.problem, Remedy.RESUME))
            problems += _look_back(view, last, identity)
            _describe(table, view)
            problems += audit(view, make_inspector(spider), follow)
            problems += _look_at_dead(view)
    except StoreDamagedError as error:
        problems = [Problem(error.problem)]
    table.add_row("result", _verdict(problems))
    out.print(table)
    for problem in problems:
        out.print(f"- {problem.sentence}")
    return problems


def _helps(problems: list[Problem], *remedies: Remedy) -> bool:
    return any(problem.remedy in remedies for problem in problems)


def _advise(out: Console, problems: list[Problem], jobdir: Path, spider: str | None) -> None:
    """Print what to do next, with the command."""
    job = quote(str(jobdir))
    command = f"scrapy altsched check {job}"
    if spider is not None:
        command += f" --spider {quote(spider)}"
    if _helps(problems, Remedy.REPAIR):
        out.print(
            f"Next: `{command} --repair` writes all that can be read into a new store, and keeps"
            " the damaged one beside it."
        )
    elif _helps(problems, Remedy.RESUME):
        out.print("Next: run the crawl again; it continues from there. No repair is needed.")
    elif _helps(problems, Remedy.ACCEPT_LOSS):
        out.print(
            f"Next: `{command} --accept-loss` gives up the requests that are missing, so that the"
            " job can be finished. To be sure of every page, start the crawl over in another JOBDIR"
            " instead."
        )
    elif _helps(problems, Remedy.REQUEUE):
        out.print(
            "Next: fix what the reasons name (most often a callback that the spider no longer has),"
            f" then make the dead letters pending again with `scrapy altsched requeue {job} --all`;"
            f" the next run crawls them. Or `{command} --accept-loss` lets the job be finished"
            " without them."
        )
    if _helps(problems, Remedy.RESTORE_CODE):
        out.print(
            "A repair does not help with requests that cannot be restored: they become dead letters"
            " when the crawl reaches them. Add what they name to the spider before that; later,"
            f" `scrapy altsched requeue {job} --all` makes them pending again."
        )


def _describe(table: Table, view: View) -> None:
    try:
        counters, pending = view.counters(), view.counts().pending
    except StoreDamagedError:
        return  # the audit says so
    shared = crawl_of(view)
    if shared is not None:
        table.add_row("worker of", f"the shared crawl {shared}; for that: check --shared KEY")
        return
    state = "finished" if counters.finished else "not finished"
    runs = f"{counters.run:,} {inflect(counters.run, 'run')}"
    table.add_row("state", f"{state}, {runs}, at commit {view.stored_commit():,}")
    table.add_row("requests", _count_requests(counters, pending))
    given_up = count_given_up(view.note).total()
    if given_up:
        table.add_row("given up", f"{given_up:,} {inflect(given_up, 'page')}, which count as done")


def _count_requests(counters: Counters, pending: int) -> str:
    others = "".join(f", {counters.count(state):,} {state.family}" for state in UNQUEUED)
    accepted, done = counters.accepted, counters.done
    return f"{accepted:,} accepted: {done:,} done, {pending:,} pending{others}"


def _look_back(view: View, last: LastCommit | None, identity: Identity) -> list[Problem]:
    """What is wrong if the store is not the job's, or does not hold the job's last commit."""
    try:
        commit = view.stored_commit()
        stored = Identity.parse(view.identity() or b"null")
    except (StoreDamagedError, ValueError):
        return []  # the audit says so
    if identity.store_id and stored.store_id != identity.store_id:
        sentence = (
            "The store is not the one that altsched.json names: a crawl refuses it. Restore the"
            " whole JOBDIR from one copy; without one, a repair makes the job continue with this"
            " store."
        )
        return [Problem(sentence)]
    if last is None or last.store_id != identity.store_id or last.number <= commit:
        return []
    sentence = (
        f"The end of the store's log is lost: it holds commit {commit:,}, and the last one was"
        f" {last.number:,}. A crawl would continue from there and fetch again what came after."
    )
    return [Problem(sentence, Remedy.RESUME)]


def _look_at_dead(view: View) -> list[Problem]:
    """What keeps a job from being finished although nothing is wrong with its store."""
    try:
        counts = view.counts()
        dead_letters = DeadLetters(dead_requests(view), url_of)
    except StoreDamagedError:
        return []  # the audit says so
    if dead_letters.unrestorable:
        sentence = (
            f"Dead letters that could not be restored: {dead_letters.unrestorable:,}, for"
            f" example {dead_letters.examples}. The job is not finished without them."
        )
    elif judge(counts, 0, complete=True) is Outcome.BLOCKED:
        sentence = (
            "Nothing was crawled, and the first requests are dead, for example"
            f" {dead_letters.examples}. The job is not finished without them."
        )
    else:
        return []
    return [Problem(sentence, Remedy.REQUEUE)]


def _verdict(problems: list[Problem]) -> str:
    if not problems:
        return "good"
    return f"{len(problems):,} {inflect(len(problems), 'thing is', 'things are')} wrong"


def _show_repair(out: Console, result: Repair) -> None:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    kept = ", ".join(f"{count:,} {family}" for family, count in result.kept.items())
    table.add_row("kept", kept)
    table.add_row("damaged store", str(result.damaged))
    table.add_row("not kept", result.damage or "nothing known")
    out.print(table)
    for loss in result.losses:
        out.print(f"- {loss}")


@contextmanager
def _progress() -> Iterator[Follow]:
    """Shows on standard error how many rows were read."""
    console = watched()
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:,}"))
    with Progress(
        *columns,
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=console.quiet,
    ) as progress:

        def follow(family: str, rows: Iterable[Any]) -> Iterable[Any]:
            task = progress.add_task(family, total=None)
            return progress.track(rows, task_id=task)

        yield follow
