"""Let a download slot be asked again that was to be left alone."""

from __future__ import annotations

import argparse

from ..steering.actions import Undefer
from .answers import print_effect
from .project import Project
from .target import add_slot_name as add_arguments  # noqa: F401  (a subcommand has one)
from .target import open_target, slot_of


def run(arguments: argparse.Namespace, project: Project) -> int:
    """See :mod:`scrapy_altsched.command`."""
    slot = slot_of(arguments)
    effect = open_target(arguments, project).apply(Undefer(slot))
    what = "is asked again" if effect.changed else "was not left alone"
    return print_effect(effect, f"The slot {slot!r} {what}.")
