"""Delete a shared crawl from its server, with all that it knows.

Workers that are still running close with ``frontier_lost``.
"""

from __future__ import annotations

import argparse

from ..inflection import inflect
from .project import Project
from .target import add_key as add_arguments  # noqa: F401
from .target import find_crawl, make_console


def run(arguments: argparse.Namespace, project: Project) -> int:
    """See :mod:`scrapy_altsched.command`."""
    accepted = find_crawl(project, arguments.key).drop()
    requests = inflect(accepted, "request")
    text = f"The shared crawl {arguments.key!r} is deleted, with {accepted:,} {requests}."
    make_console().print(text)
    return 0
