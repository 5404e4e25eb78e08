"""The job in a directory, as subcommands see it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import JobdirError
from ..frontier.jobdir import Identity, read_identity

if TYPE_CHECKING:
    import argparse


def add_jobdir(parser: argparse.ArgumentParser) -> None:
    """Add the argument that names the job."""
    parser.add_argument("jobdir", metavar="JOBDIR", type=Path, help="directory of the job")


def identify(jobdir: Path) -> Identity:
    """Whose job is in *jobdir*.

    :raises JobdirError: there is none, or this cannot be read.
    """
    identity = read_identity(jobdir)
    if identity is None:
        raise JobdirError(
            f"{jobdir} holds no job of scrapy_altsched: it has no file altsched.json. Name the"
            " directory that the crawl has as its JOBDIR."
        )
    return identity
