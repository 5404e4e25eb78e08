"""Restart a finished shared crawl from nothing.

What it had seen, and its dead letters, are deleted.
"""

from __future__ import annotations

import argparse

from ..requests.identity import are_sha1
from .crawl import Crawl
from .project import Project
from .target import add_key as add_arguments  # noqa: F401  (a subcommand has one)


def run(arguments: argparse.Namespace, project: Project) -> int:
    """See :mod:`scrapy_altsched.command`."""
    Crawl(project, arguments.key).crawl.restart(are_sha1)
    print(f"The shared crawl {arguments.key!r} starts again from nothing with the next worker.")
    return 0
