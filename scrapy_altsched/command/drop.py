"""Delete a shared crawl from its server, with all that it knows.

Workers that are still running close with ``frontier_lost``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..inflection import inflect
from .target import add_key as add_arguments
from .target import find_crawl, make_console

if TYPE_CHECKING:
    import argparse

    from .project import Project

__all__ = ["add_arguments", "run"]


def run(arguments: argparse.Namespace, project: Project) -> int:
    """See :mod:`scrapy_altsched.command`.

    :raises AltschedError: there is no such crawl, or the server cannot be used.
    """
    accepted = find_crawl(project, arguments.key).drop()
    requests = inflect(accepted, "request")
    text = f"The shared crawl {arguments.key!r} is deleted, with {accepted:,} {requests}."
    make_console().print(text)
    return 0
