"""What a subcommand is about: the job in a directory, or a shared crawl on a server."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TypeAlias

from .crawl import Crawl
from .job import Job
from .project import Project, misuse

Target: TypeAlias = Job | Crawl


def add_key(parser: argparse.ArgumentParser) -> None:
    """Add the argument that names a shared crawl."""
    what = "its ALTSCHED_SHARED_KEY, or else its spider's name"
    parser.add_argument("key", metavar="KEY", help=what)


def add_target(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that :func:`open_target` looks at."""
    # No path yet: with --shared it is the first of what else is named.
    parser.add_argument("jobdir", nargs="?", metavar="JOBDIR", help="directory of the job")
    what = "a shared crawl instead: its ALTSCHED_SHARED_KEY, or else its spider's name"
    parser.add_argument("--shared", metavar="KEY", help=what)


def add_names(parser: argparse.ArgumentParser, metavar: str, what: str) -> None:
    """Add the arguments that :func:`names_of` gives back: any number of them, also none."""
    # Without a default, argparse calls it required.
    parser.add_argument("names", nargs="*", default=[], metavar=metavar, help=what)


def open_target(arguments: argparse.Namespace, project: Project) -> Target:
    """The job, or the shared crawl, that the arguments name; UsageError: they name none."""
    if arguments.shared is not None:
        return Crawl(project, arguments.shared)
    if arguments.jobdir is None:
        raise misuse("name a JOBDIR, or a crawl with --shared KEY")
    return Job(project, Path(arguments.jobdir), getattr(arguments, "spider", None))


def open_one_target(arguments: argparse.Namespace, project: Project) -> Target:
    """The same, where a JOBDIR beside a shared crawl is not something else's name."""
    if arguments.shared is not None and arguments.jobdir is not None:
        raise misuse("name a JOBDIR, or a crawl with --shared KEY, not both")
    return open_target(arguments, project)


def names_of(arguments: argparse.Namespace) -> list[str]:
    """What is named beside the job, or the crawl."""
    names: list[str] = arguments.names
    if arguments.shared is not None and arguments.jobdir is not None:
        return [arguments.jobdir, *names]
    return names


def add_slot_name(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that :func:`slot_of` and :func:`open_target` look at."""
    add_target(parser)
    add_names(parser, "SLOT", "name of the download slot, as `scrapy altsched status` has it")


def slot_of(arguments: argparse.Namespace) -> str:
    """The download slot that is named; UsageError: none is, or several are."""
    names = names_of(arguments)
    if len(names) != 1:
        raise misuse(f"name one download slot, not {len(names)}")
    return names[0]
