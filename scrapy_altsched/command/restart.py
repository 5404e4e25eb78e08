"""Have a finished shared crawl start again from nothing.

Workers that are started afterwards crawl everything again. What it had seen, and its dead letters,
are deleted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..requests.made_by import are_sha1
from .job import make_console
from .server import add_key, find_crawl

if TYPE_CHECKING:
    import argparse

    from .project import Project


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See :mod:`scrapy_altsched.command`."""
    add_key(parser)


def run(arguments: argparse.Namespace, project: Project) -> int:
    """See :mod:`scrapy_altsched.command`.

    :raises AltschedError: there is no such crawl, or the server cannot be used.
    """
    find_crawl(project, arguments.key).restart(are_sha1)
    make_console().print(
        f"The shared crawl {arguments.key!r} starts again from nothing with the next worker."
    )
    return 0
