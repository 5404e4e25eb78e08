"""Stop a running crawl, as one Ctrl-C does; of a shared crawl, all workers.

What is being downloaded is finished.  The crawl goes on with its next run.
"""

from __future__ import annotations

import argparse

from ..steering.actions import Stop
from .answers import print_effect
from .project import Project
from .target import add_target as add_arguments  # noqa: F401  (a subcommand has one)
from .target import open_one_target


def run(arguments: argparse.Namespace, project: Project) -> int:
    """See :mod:`scrapy_altsched.command`."""
    effect = open_one_target(arguments, project).apply(Stop())
    if not effect.changed:
        return print_effect(effect, "There is nothing to stop.")
    when = "once what is being downloaded is finished"
    return print_effect(effect, f"It stops {when}. The next run goes on from there.")
