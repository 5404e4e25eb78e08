"""Verify that what a job has stored is whole and agrees with itself; repair it.

Without ``--repair`` nothing in the job directory is changed, and a crawl may be running.
"""

from __future__ import annotations

import argparse
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from scrapy.exceptions import UsageError

from ..codec import is_whole
from ..errors import JobdirError, JobdirMismatchError, StoreDamagedError
from ..frontier.audit import audit
from ..frontier.jobdir import FORMAT, Identity, LastCommit, read_identity
from ..frontier.repair import Repair, accept_loss, repair
from ..frontier.view import View
from ..progress import watched
from .job import add_jobdir, answers, find_spider, identify, inspector, locate

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ..frontier.audit import Follow
    from .project import Project


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See :mod:`scrapy_altsched.command`."""
    add_jobdir(parser)
    parser.add_argument(
        "--repair",
        action="store_true",
        help="if something is wrong, keep what can be read in a new store, the old one beside it",
    )
    parser.add_argument(
        "--accept-loss",
        action="store_true",
        help="give up the requests that a repair could not keep, so that the job can be finished",
    )
    parser.add_argument(
        "--spider", help="whose job it is, if the job does not say so any more", metavar="NAME"
    )


def run(arguments: argparse.Namespace, project: Project) -> int:
    """See :mod:`scrapy_altsched.command`.

    :raises AltschedError: there is no job, or it cannot be opened or repaired.
    """
    jobdir: Path = arguments.jobdir
    out = answers()
    identity = _identify(jobdir, arguments.spider)
    if identity.format > FORMAT:
        raise JobdirMismatchError(
            f"{jobdir} was written by a newer scrapy_altsched (format {identity.format}; this one"
            f" reads up to {FORMAT}). Upgrade scrapy_altsched to check this job."
        )
    problems = _check(out, jobdir, identity, project)
    if arguments.repair and problems:
        _show_repair(out, repair(jobdir, identity.owner, is_whole, locate))
        if not arguments.accept_loss:
            problems = _check(out, jobdir, identity, project)
    if arguments.accept_loss:
        given_up = accept_loss(jobdir, identity.owner)
        out.print(f"{given_up:,} requests are given up. The job can be finished without them.")
        problems = _check(out, jobdir, identity, project)
    return 1 if problems else 0


def _identify(jobdir: Path, spider: str | None) -> Identity:
    identity = read_identity(jobdir)
    if identity is not None:
        if spider is not None and spider != identity.owner:
            message = f"the job in {jobdir} belongs to spider {identity.owner!r}, not {spider!r}."
            raise UsageError(message, print_help=False)
        return identity
    if not (jobdir / "frontier").is_dir():
        return identify(jobdir)
    if spider is None:
        raise JobdirError(
            f"{jobdir} has lost its file altsched.json, which says whose job it is. Say so with"
            " --spider NAME."
        )
    return Identity(FORMAT, spider, "")


def _check(out: Console, jobdir: Path, identity: Identity, project: Project) -> list[str]:
    spider = find_spider(project, identity.owner)
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    table.add_row("job", str(jobdir))
    table.add_row("spider", identity.owner)
    if spider is None:
        table.add_row("", "not in this project: callbacks are not looked for")
    last = LastCommit.read(jobdir)
    try:
        with View(jobdir / "frontier") as view, _progress() as follow:
            problems = [str(view.damage)] if view.damage is not None else []
            problems += _setback(view, last, identity)
            _describe(table, view)
            problems += audit(view, inspector(spider), follow)
    except StoreDamagedError as error:
        problems = [str(error)]
    table.add_row("result", _verdict(problems))
    out.print(table)
    for problem in problems:
        out.print(f"- {problem}")
    return problems


def _describe(table: Table, view: View) -> None:
    try:
        counters = view.counters()
        pending = sum(count for _, count, _ in view.slots())
    except StoreDamagedError:
        return  # the audit says so
    state = "finished" if counters.finished else "not finished"
    table.add_row("state", f"{state}, {counters.run:,} runs, at commit {view.stored_commit():,}")
    table.add_row(
        "requests",
        f"{counters.accepted:,} accepted: {counters.done:,} done, {pending:,} pending,"
        f" {counters.dead:,} dead",
    )


def _setback(view: View, last: LastCommit | None, identity: Identity) -> list[str]:
    """What is wrong if the store does not hold the last commit that was noted beside it."""
    try:
        commit = view.stored_commit()
    except StoreDamagedError:
        return []
    if last is None or last.store_id != identity.store_id or last.number <= commit:
        return []
    sentence = (
        f"The end of the store's log is lost: it holds commit {commit:,}, and the last one was"
        f" {last.number:,}. A crawl would go on from there and fetch again what came after."
    )
    return [sentence]


def _verdict(problems: list[str]) -> str:
    return f"{len(problems):,} things are wrong" if problems else "good"


def _show_repair(out: Console, result: Repair) -> None:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    kept = ", ".join(f"{count:,} {family}" for family, count in result.kept.items())
    table.add_row("kept", kept)
    table.add_row("damaged store", str(result.aside))
    table.add_row("not kept", result.damage or "nothing that is known of")
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
