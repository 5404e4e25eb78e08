"""List the requests that are dead letters, or make them pending again.

To make those of a job directory pending, no crawl may be running: it holds the directory.
"""

from __future__ import annotations

import argparse

from rich.table import Table

from ..inflection import counted
from ..maintenance.requeue import DeadRequest
from ..requests.codec import is_whole
from .project import Project, misuse
from .target import Target, add_target, open_target, print_formatted

#: Fewest digits that name a fingerprint.
_FEWEST_DIGITS = 6


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See :mod:`scrapy_altsched.command`."""
    add_target(parser)
    what = "URL, or first digits of the fingerprint"
    # Without a default, argparse calls it required.
    parser.add_argument("request", nargs="*", default=[], metavar="REQUEST", help=what)
    parser.add_argument("--all", action="store_true", help="all that can be crawled again")


def run(arguments: argparse.Namespace, project: Project) -> int:
    """See :mod:`scrapy_altsched.command`."""
    names: list[str] = arguments.request
    if arguments.shared is not None and arguments.jobdir is not None:
        names = [arguments.jobdir, *names]
    if names and arguments.all:
        raise misuse("name requests, or --all, not both")
    target = open_target(arguments, project)
    dead = target.dead()
    if not names and not arguments.all:
        _show(dead, target)
        return 0
    count = target.requeue(_choose(dead, names, target))
    are = counted(count, "request is", "requests are")
    print(f"{are} pending again; dead: {len(dead) - count:,}.")
    return 0


def _choose(dead: list[DeadRequest], names: list[str], target: Target) -> list[DeadRequest]:
    """Those of these *names*; without names, all that can be crawled again."""
    if not names:
        return [request for request in dead if is_whole(request.payload)]
    chosen: dict[bytes, DeadRequest] = {}
    for name in names:
        is_long = len(name) >= _FEWEST_DIGITS
        found = [
            request
            for request in dead
            if (is_long and request.fingerprint.hex().startswith(name.lower()))
            or target.url_of(request.payload) == name
        ]
        if not found:
            raise misuse(
                f"there is no dead letter named {name!r}; without arguments they are listed"
            )
        if not all(is_whole(request.payload) for request in found):
            raise misuse(f"{name!r} cannot be crawled again: nothing whole is stored of it")
        chosen.update((request.key, request) for request in found)
    return list(chosen.values())


def _show(dead: list[DeadRequest], target: Target) -> None:
    if not dead:
        print("There are no dead letters.")
        return
    table = Table("fingerprint", box=None, pad_edge=False)
    table.add_column("URL", overflow="fold")
    table.add_column("why it is dead", overflow="fold")
    for request in dead:
        url = target.url_of(request.payload) or "(lived in memory only, or is damaged)"
        table.add_row(request.fingerprint.hex(), url, str(request.why))
    print_formatted(table)
    command = f"scrapy altsched requeue {target.words}"
    print(f"Make them pending again with: {command} --all (or name some: {command} URL ...)")
