"""Let a download slot be asked again that was to be left alone."""

from __future__ import annotations

import argparse

from ..steering.actions import Undefer
from .answers import print_effect
from .project import Project
from .target import add_slot_name as add_arguments  # noqa: F401  (a subcommand has one)
from .target import open_slot


def run(arguments: argparse.Namespace, project: Project) -> int:
    """See :mod:`scrapy_altsched.command`."""
    target, slot = open_slot(arguments, project)
    return print_effect(target.apply(Undefer(slot)), f"The slot {slot!r} is asked again.")
