"""Delete a shared crawl from its server, with all that it knows.

Workers that are still running close with ``frontier_lost``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..inflection import inflect
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
    accepted = find_crawl(project, arguments.key).drop()
    requests = inflect(accepted, "request")
    make_console().print(
        f"The shared crawl {arguments.key!r} is deleted, with {accepted:,} {requests}."
    )
    return 0
