"""The job in a directory, and its requests, as subcommands see them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, cast
from urllib.parse import urlsplit

from rich.console import Console
from scrapy.exceptions import UsageError

from ..errors import CodecError, JobdirError
from ..frontier.dead_letter import Cause, DeadLetter
from ..frontier.store.jobdir import Identity, read_identity, refuse_newer
from ..requests.codec import decode_fields, decode_request
from .project import Project

if TYPE_CHECKING:
    import argparse

    from scrapy import Spider

#: Width of lines that are not to be folded.
_WIDE = 100_000


def make_console() -> Console:
    """Where a subcommand prints its answer: in a file or a pipe, no line is folded."""
    width = None if sys.stdout.isatty() else _WIDE
    return Console(width=width, highlight=False, markup=False, emoji=False)


def add_jobdir(parser: argparse.ArgumentParser) -> None:
    """Add the argument that names the job."""
    parser.add_argument("jobdir", metavar="JOBDIR", type=Path, help="directory of the job")


def add_job(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that name the job, or a shared crawl instead."""
    # No path yet: with --shared it is the first of what else is named.
    parser.add_argument("jobdir", nargs="?", metavar="JOBDIR", help="directory of the job")
    parser.add_argument(
        "--shared",
        metavar="KEY",
        help="a shared crawl instead: its ALTSCHED_SHARED_KEY, or else its spider's name",
    )


def require_job(arguments: argparse.Namespace) -> None:
    """Check what :func:`add_job` has read.

    :raises UsageError: no job is named.
    """
    if arguments.shared is None and arguments.jobdir is None:
        raise UsageError("name a JOBDIR, or a crawl with --shared KEY", print_help=False)


def identify(jobdir: Path) -> Identity:
    """Whose job is in *jobdir*.

    :raises JobdirError: it holds no job, or one of a newer format, or cannot be read.
    """
    identity = read_identity(jobdir) if jobdir.is_dir() else None
    if identity is not None:
        refuse_newer(jobdir, identity)
        return identity
    if not jobdir.exists():
        problem = "it does not exist"
    elif not jobdir.is_dir():
        problem = "it is a file, not a directory"
    else:
        problem = "it has no file altsched.json"
    parent = jobdir.absolute().parent
    hint = "the directory that the crawl has as its JOBDIR"
    if read_identity(parent) is not None:
        hint = f"its parent, {parent}, which does"
    raise JobdirError(f"{jobdir} holds no job of scrapy_altsched: {problem}. Name {hint}.")


def find_spider(project: Project, name: str) -> type[Spider] | None:
    """The class of the job's spider; ``None``: this project has no such spider."""
    try:
        return project.spider_class(name)
    except UsageError:
        return None


def make_inspector(spider: type[Spider] | None) -> Callable[[bytes], str | None]:
    """A function that says what is wrong with a stored request, if anything is.

    :param spider: the class that has its callbacks; ``None``: these are not checked.
    """

    def inspect(payload: bytes) -> str | None:
        try:
            if spider is None:
                decode_fields(payload)
            else:
                # Its methods are looked up, not called: the class will do.
                decode_request(payload, cast("Spider", spider))
        except CodecError as error:
            return str(DeadLetter(str(error), Cause.UNRESTORABLE))
        return None

    return inspect


def locate(payload: bytes) -> tuple[str, bool]:
    """Download slot of a stored request, as Scrapy names it, and whether it is a start request.

    :raises CodecError: the request cannot be read.
    """
    fields = decode_fields(payload)
    meta = fields.get("meta") or {}
    slot = meta.get("download_slot") or urlsplit(fields["url"]).hostname or ""
    return str(slot), bool(meta.get("is_start_request"))
