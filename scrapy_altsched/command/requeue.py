"""List the requests that are dead letters, or make them pending again.

Without URLs, fingerprints or ``--all`` they are listed. To make them pending,
no crawl may be running: it holds the job directory.
"""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from scrapy.exceptions import UsageError

from ..frontier.store.jobdir import find_store
from ..frontier.store.journal import Journal
from ..frontier.store.view import View
from ..inflection import inflect
from ..maintenance.requeue import DeadRequest, dead_requests, requeue
from ..requests.codec import is_whole, url_of
from .job import add_jobdir, identify, locate, make_console

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

    from .project import Project

#: Fewest digits that name a fingerprint.
_FEWEST_DIGITS = 6


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See :mod:`scrapy_altsched.command`."""
    add_jobdir(parser)
    parser.add_argument(
        "request",
        nargs="*",
        default=[],  # or argparse calls it required
        metavar="REQUEST",
        help="URL, or first digits of the fingerprint",
    )
    parser.add_argument("--all", action="store_true", help="all that can be crawled again")


def run(arguments: argparse.Namespace, project: Project) -> int:  # noqa: ARG001  (the interface)
    """See :mod:`scrapy_altsched.command`.

    :raises AltschedError: there is no job, or it cannot be opened.
    """
    identity = identify(arguments.jobdir)
    out = make_console()
    if not arguments.request and not arguments.all:
        with View(find_store(arguments.jobdir)) as view:
            _show(out, list(dead_requests(view)), arguments.jobdir)
        return 0
    if arguments.request and arguments.all:
        raise UsageError("name requests, or --all, not both", print_help=False)
    journal = Journal(arguments.jobdir, identity.owner)
    try:
        dead = list(dead_requests(journal))
        chosen = [request for request in dead if is_whole(request.payload)]
        if not arguments.all:
            chosen = _choose(dead, arguments.request)
        count = requeue(journal, chosen, locate)
    finally:
        journal.close()
    are_pending = inflect(count, "request is", "requests are")
    out.print(f"{count:,} {are_pending} pending again; dead: {len(dead) - count:,}.")
    return 0


def _choose(dead: list[DeadRequest], names: list[str]) -> list[DeadRequest]:
    chosen: dict[bytes, DeadRequest] = {}
    for name in names:
        found = [request for request in dead if _is_called(request, name)]
        if not found:
            message = f"there is no dead letter named {name!r}; without arguments they are listed"
            raise UsageError(message, print_help=False)
        for request in found:
            if not is_whole(request.payload):
                message = f"{name!r} cannot be crawled again: nothing whole is stored of it"
                raise UsageError(message, print_help=False)
            chosen[request.key] = request
    return list(chosen.values())


def _is_called(request: DeadRequest, name: str) -> bool:
    if len(name) >= _FEWEST_DIGITS and request.fingerprint.hex().startswith(name.lower()):
        return True
    return url_of(request.payload) == name


def _show(out: Console, dead: list[DeadRequest], jobdir: Path) -> None:
    if not dead:
        out.print("There are no dead letters.")
        return
    table = Table("fingerprint", box=None, pad_edge=False)
    table.add_column("URL", overflow="fold")
    table.add_column("why it is dead", overflow="fold")
    for request in dead:
        url = url_of(request.payload) or "(lived in memory only, or is damaged)"
        table.add_row(request.fingerprint.hex(), url, request.why)
    out.print(table)
    command = f"scrapy altsched requeue {quote(str(jobdir))}"
    out.print(f"Make them pending again with: {command} --all (or name some: {command} URL ...)")
