"""Have a paused crawl hand out requests again."""

from __future__ import annotations

import argparse

from ..steering.actions import Resume
from .answers import print_effect
from .project import Project
from .target import add_target as add_arguments  # noqa: F401  (a subcommand has one)
from .target import open_one_target


def run(arguments: argparse.Namespace, project: Project) -> int:
    """See :mod:`scrapy_altsched.command`."""
    effect = open_one_target(arguments, project).apply(Resume())
    return print_effect(effect, "It is not paused: requests are handed out.")
