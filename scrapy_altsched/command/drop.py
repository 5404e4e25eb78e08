"""Delete a shared crawl from its server, with all that it knows.

Workers that are still running close with ``frontier_lost``.
"""

from __future__ import annotations

import argparse

from ..inflection import counted
from .crawl import Crawl
from .project import Project
from .target import add_key as add_arguments  # noqa: F401  (a subcommand has one)


def run(arguments: argparse.Namespace, project: Project) -> int:
    """See :mod:`scrapy_altsched.command`."""
    requests = counted(Crawl(project, arguments.key).crawl.drop(), "request")
    print(f"The shared crawl {arguments.key!r} is deleted, with {requests}.")
    return 0
