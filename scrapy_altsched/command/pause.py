"""Pause a crawl: it hands out no more requests, also in later runs, until it is resumed.

What is being downloaded is finished.
"""

from __future__ import annotations

import argparse

from ..steering.actions import Pause
from .answers import print_effect
from .project import Project
from .target import add_target as add_arguments  # noqa: F401  (a subcommand has one)
from .target import open_one_target


def run(arguments: argparse.Namespace, project: Project) -> int:
    """See :mod:`scrapy_altsched.command`."""
    target = open_one_target(arguments, project)
    sentence = (
        "It is paused, also in later runs: no more requests are handed out. Go on with: scrapy"
        f" altsched resume {target.words}"
    )
    return print_effect(target.apply(Pause()), sentence)
