"""Asking before something is done that cannot be undone."""

from __future__ import annotations

import argparse
import sys

from .project import misuse


def add_confirmation(parser: argparse.ArgumentParser) -> None:
    """Add the option that :func:`confirm` looks at."""
    parser.add_argument("--yes", action="store_true", help="do it without asking")


def confirm(arguments: argparse.Namespace, question: str) -> bool:
    """Whether it is to be done: as ``--yes`` says, or an answer on a terminal.

    :raises UsageError: there is neither.
    """
    if arguments.yes:
        return True
    if sys.stdin is None or not sys.stdin.isatty():
        raise misuse("there is no terminal to ask on, so nothing was changed; --yes does it")
    try:
        answer = input(f"{question} [y/N] ")
    except (EOFError, KeyboardInterrupt):
        print()
        return False
    return answer.strip().lower() in {"y", "yes"}
