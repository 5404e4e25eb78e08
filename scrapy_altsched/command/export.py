"""Export a crawl: as lines of JSON, or as a JOBDIR for Scrapy's own scheduler.

A job may be running: what is exported is its last commit.  Nothing is changed.  What was exported
is imported by `scrapy altsched import SPIDER --from FILE`.
"""

from __future__ import annotations

import argparse
import gzip
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import IO

from ..errors import InputError
from ..frontier.content import Content
from ..maintenance.lines import is_export, to_lines
from ..maintenance.progress import follow
from ..stock.writing import write_stock
from .project import Project, add_spider_arguments, create_spider, misuse
from .target import add_target, open_one_target


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See :mod:`scrapy_altsched.command`."""
    add_target(parser)
    what = "write to this file (compressed if its name ends in .gz) instead of standard output"
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help=what)
    what = "write requests that JSON cannot carry as they are stored, which are pickles"
    parser.add_argument("--pickle", action="store_true", help=what)
    what = "make a JOBDIR that Scrapy's own scheduler resumes, in a directory that is not there yet"
    parser.add_argument("--to-stock", type=Path, metavar="DIR", help=what)
    add_spider_arguments(parser)


def run(arguments: argparse.Namespace, project: Project) -> int:
    """See :mod:`scrapy_altsched.command`."""
    target, directory = open_one_target(arguments, project), arguments.to_stock
    if directory is not None and (arguments.output or arguments.pickle):
        raise misuse("--to-stock makes a directory: -o and --pickle do not go with it")
    _check_output(arguments.output)
    with target.content() as content:
        if directory is None:
            _write(content, arguments.output, as_stored=arguments.pickle)
        else:
            _to_stock(content, directory, project, arguments.arguments)
    for remark in content.head.remarks:
        print(remark, file=sys.stderr)
    return 0


def _check_output(path: Path | None) -> None:
    """Raise UsageError if the file is none that may be overwritten."""
    try:
        if path is None or not path.is_file() or is_export(path):
            return
    except OSError as error:
        raise InputError(
            f"{path} cannot be looked at ({error.strerror or error}): name another file with -o."
        ) from error
    raise misuse(
        f"{path} is there already, and is no exported crawl: name another file with -o, or delete"
        " it"
    )


def _write(content: Content, path: Path | None, *, as_stored: bool) -> None:
    parts = follow("Exporting", content.parts, content.total)
    lines = to_lines(content.with_parts(parts), as_stored=as_stored)
    try:
        if path is None:
            sys.stdout.writelines(lines)
            sys.stdout.flush()
            return
        with _whole(path) as file:
            file.writelines(lines)
    except OSError as error:
        if path is None:  # what it still holds would be an error once more, at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise InputError(
            f"{path or 'Standard output'} cannot be written ({error.strerror or error}): name a"
            " file that this user can write, on a disk with space left. What was written is not"
            " whole, and is not imported."
        ) from error
    name = quote(content.head.spider)
    print(
        f"Exported to {path}. Next: scrapy altsched import {name} --from {quote(str(path))} -s"
        " JOBDIR=...",
        file=sys.stderr,
    )


def _to_stock(content: Content, directory: Path, project: Project, arguments: list[str]) -> None:
    spider = create_spider(project, content.head.spider, arguments)
    parts = follow("Exporting", content.parts, content.total)
    for remark in write_stock(content.with_parts(parts), directory, spider):
        print(remark)


@contextmanager
def _whole(path: Path) -> Iterator[IO[str]]:
    """A file that gets its name when all of it is written, and is nowhere before."""
    opened = gzip.open if path.suffix == ".gz" else open
    if path.exists() and not path.is_file():  # a pipe, or a device
        with opened(path, "wt", encoding="ascii") as file:
            yield file
        return
    # What a link leads to is to be replaced, and not the link.
    path = path.resolve()
    partial = path.with_name(f"{path.name}.partial")
    try:
        with opened(partial, "wt", encoding="ascii") as file:
            yield file
        partial.replace(path)
    except BaseException:  # nothing is to be left of it, whatever has ended it
        partial.unlink(missing_ok=True)
        raise
