"""List the requests that are dead letters, or make them pending again.

Without URLs, fingerprints or ``--all`` they are listed. To make those of a job directory pending,
no crawl may be running: it holds the directory. Workers of a shared crawl may run.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from scrapy.exceptions import UsageError

from ..frontier.shared.record import refuse_worker
from ..frontier.store.jobdir import find_store
from ..frontier.store.journal import Journal
from ..frontier.store.view import View
from ..inflection import inflect
from ..maintenance.requeue import DeadRequest, dead_requests, requeue
from ..requests.codec import is_whole, url_of
from .job import add_job, identify, locate, make_console, require_job
from .server import find_crawl

if TYPE_CHECKING:
    import argparse

    from .project import Project

#: The URL of a stored request, if it can be read.
_UrlOf = Callable[[bytes], "str | None"]

#: Fewest digits that name a fingerprint.
_FEWEST_DIGITS = 6


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See :mod:`scrapy_altsched.command`."""
    add_job(parser)
    parser.add_argument(
        "request",
        nargs="*",
        default=[],  # or argparse calls it required
        metavar="REQUEST",
        help="URL, or first digits of the fingerprint",
    )
    parser.add_argument("--all", action="store_true", help="all that can be crawled again")


def run(arguments: argparse.Namespace, project: Project) -> int:
    """See :mod:`scrapy_altsched.command`.

    :raises AltschedError: there is no job, or it cannot be opened.
    """
    require_job(arguments)
    names: list[str] = arguments.request
    if arguments.shared is not None and arguments.jobdir is not None:
        names = [arguments.jobdir, *names]
    if names and arguments.all:
        raise UsageError("name requests, or --all, not both", print_help=False)
    is_list = not names and not arguments.all
    out = make_console()
    if arguments.shared is not None:
        _run_shared(out, project, arguments.shared, None if is_list else names)
    else:
        _run_local(out, Path(arguments.jobdir), None if is_list else names)
    return 0


def _run_local(out: Console, jobdir: Path, names: list[str] | None) -> None:
    identity = identify(jobdir)
    remedy = "Name the crawl with --shared KEY instead of the JOBDIR."
    if names is None:
        with View(find_store(jobdir)) as view:
            refuse_worker(view, jobdir, remedy)
            _show(out, list(dead_requests(view)), url_of, quote(str(jobdir)))
        return
    journal = Journal(jobdir, identity.owner)
    try:
        refuse_worker(journal, jobdir, remedy)
        dead = list(dead_requests(journal))
        count = requeue(journal, _choose(dead, names, url_of), locate)
    finally:
        journal.close()
    _show_requeued(out, count, len(dead))


def _run_shared(out: Console, project: Project, key: str, names: list[str] | None) -> None:
    crawl = find_crawl(project, key)
    # What it needs is optional.  Pickles from a server are not loaded.
    from ..requests.portable import read_url

    dead = list(dead_requests(crawl))
    if names is None:
        _show(out, dead, read_url, f"--shared {quote(key)}")
        return
    chosen = _choose(dead, names, read_url)
    _show_requeued(out, crawl.requeue([request.key for request in chosen]), len(dead))


def _choose(dead: list[DeadRequest], names: list[str], url_of: _UrlOf) -> list[DeadRequest]:
    """Those that are called by one of *names*; without names, all that can be crawled again."""
    if not names:
        return [request for request in dead if is_whole(request.payload)]
    chosen: dict[bytes, DeadRequest] = {}
    for name in names:
        found = [request for request in dead if _is_called(request, name, url_of)]
        if not found:
            message = f"there is no dead letter named {name!r}; without arguments they are listed"
            raise UsageError(message, print_help=False)
        for request in found:
            if not is_whole(request.payload):
                message = f"{name!r} cannot be crawled again: nothing whole is stored of it"
                raise UsageError(message, print_help=False)
            chosen[request.key] = request
    return list(chosen.values())


def _is_called(request: DeadRequest, name: str, url_of: _UrlOf) -> bool:
    if len(name) >= _FEWEST_DIGITS and request.fingerprint.hex().startswith(name.lower()):
        return True
    return url_of(request.payload) == name


def _show_requeued(out: Console, count: int, dead: int) -> None:
    are_pending = inflect(count, "request is", "requests are")
    out.print(f"{count:,} {are_pending} pending again; dead: {dead - count:,}.")


def _show(out: Console, dead: list[DeadRequest], url_of: _UrlOf, job: str) -> None:
    """List dead letters; *job*: the arguments that name it."""
    if not dead:
        out.print("There are no dead letters.")
        return
    table = Table("fingerprint", box=None, pad_edge=False)
    table.add_column("URL", overflow="fold")
    table.add_column("why it is dead", overflow="fold")
    for request in dead:
        url = url_of(request.payload) or "(lived in memory only, or is damaged)"
        table.add_row(request.fingerprint.hex(), url, str(request.why))
    out.print(table)
    command = f"scrapy altsched requeue {job}"
    out.print(f"Make them pending again with: {command} --all (or name some: {command} URL ...)")
