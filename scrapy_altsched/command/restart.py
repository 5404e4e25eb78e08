"""Have a finished shared crawl start again from nothing.

Workers that are started afterwards crawl everything again. What it had seen, and its dead letters,
are deleted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..requests.made_by import are_sha1
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
    find_crawl(project, arguments.key).restart(are_sha1)
    text = f"The shared crawl {arguments.key!r} starts again from nothing with the next worker."
    make_console().print(text)
    return 0
