"""Have a crawl take in requests, as if its spider had yielded them.

A line of standard input is a URL, or an object in JSON with the fields of a request.  All lines are
checked before the first is sent.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterable, Iterator
from tempfile import TemporaryFile, gettempdir
from typing import IO

from scrapy.exceptions import UsageError

from ..errors import InputError
from ..inflection import counted
from ..maintenance.progress import follow
from ..steering.actions import Effect, Push
from ..steering.request_lines import RequestReader, read_lines
from .answers import print_effect
from .project import Project, add_spider_arguments, misuse, read_spider_arguments
from .target import Target, add_names, add_target, names_of, open_target


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See :mod:`scrapy_altsched.command`."""
    add_target(parser)
    add_names(parser, "URL", "what to crawl; - alone: what is on standard input, a line each")
    what = "leave out what is no request, instead of pushing nothing"
    parser.add_argument("--skip-bad", action="store_true", help=what)
    what = "as in Scrapy; it is for URLs, and not for objects in JSON, as the next two are"
    parser.add_argument("--priority", type=int, default=0, metavar="N", help=what)
    what = "also if they were seen before"
    parser.add_argument("--dont-filter", action="store_true", help=what)
    what = "a method of the spider, instead of parse"
    parser.add_argument("--callback", metavar="NAME", help=what)
    add_spider_arguments(parser)


def run(arguments: argparse.Namespace, project: Project) -> int:
    """See :mod:`scrapy_altsched.command`."""
    urls = names_of(arguments)
    if not urls:
        raise misuse("name URLs to push, or - for those on standard input")
    if "-" in urls and urls != ["-"]:
        raise misuse("- stands alone: push what is on standard input, or URLs that are named")
    read_spider_arguments(arguments.arguments)
    target = open_target(arguments, project)
    reader = _create_reader(arguments, project, target.owner)
    is_input = urls == ["-"]
    lines = _read_input() if is_input else ((repr(url), os.fsencode(url)) for url in urls)
    with TemporaryFile("w+", encoding="utf-8") as checked:
        try:
            left_out = _check(lines, reader, checked, skips_bad=arguments.skip_bad)
        except ValueError as error:
            sentence = f"{error}. Nothing was pushed; --skip-bad leaves out what is no request."
            raise (InputError if is_input else misuse)(sentence) from None
        except OSError as error:
            raise InputError(
                f"Requests are kept in {gettempdir()} until all are checked, and could not be"
                f" ({error.strerror or error}). Set TMPDIR to another directory."
            ) from error
        if left_out:
            print(left_out)
        if not checked.tell():
            print("There was nothing to push.")
            return 0
        checked.seek(0)
        effect = target.apply(Push(map(json.loads, checked)), arguments.arguments)
    return print_effect(effect, _describe(effect, target))


def _create_reader(arguments: argparse.Namespace, project: Project, owner: str) -> RequestReader:
    """What reads requests for a spider's crawl; UsageError: the arguments do not fit it."""
    try:
        spider = project.spider_class(owner)
    except UsageError:  # the crawl may be another project's: it will see
        spider = None
    crawler = project.crawler(None if spider is None else owner)
    handlers = crawler.settings.getwithbase("DOWNLOAD_HANDLERS")
    schemes = {scheme for scheme, handler in handlers.items() if handler is not None}
    names = ("priority", "dont_filter", "callback")
    common = {name: value for name in names if (value := getattr(arguments, name))}
    reader = RequestReader(schemes, spider, common)
    try:
        reader.check_fields(common)
    except ValueError as error:
        raise misuse(f"URLs cannot be pushed so: {error}") from None
    return reader


def _read_input() -> Iterator[tuple[str, bytes]]:
    """Where each line of standard input is, and what it is; those that are empty are left out."""
    if sys.stdin is None:
        raise misuse("there is no standard input")
    for number, line in enumerate(read_lines(sys.stdin.buffer), 1):
        if not line.isspace():
            yield f"Line {number:,} of standard input", line


def _check(
    lines: Iterable[tuple[str, bytes]], reader: RequestReader, file: IO[str], *, skips_bad: bool
) -> str:
    """Write all requests to a file, a line each; what is to be said of lines that were left out.

    :param lines: each with the words for where it is.
    :raises ValueError: one is no request; *skips_bad*: it is left out instead.
    """
    count, first = 0, ""
    for place, line in follow("Reading requests", lines):
        try:
            fields = reader.read(line)
        except ValueError as error:
            problem = f"{place} is no request: {error}"
            if not skips_bad:
                raise ValueError(problem) from None
            count, first = count + 1, first or problem
        else:
            print(json.dumps(fields), file=file)
    return f"{counted(count, 'line was', 'lines were')} left out. {first}." if count else ""


def _describe(effect: Effect, target: Target) -> str:
    if effect.reason:
        others = "seen before, or not to be taken, such as this one:"
        return f"{effect.changed:,} accepted, {effect.refused:,} refused: {others}"
    sentence = f"{effect.changed:,} accepted, {effect.refused:,} seen before."
    if not effect.refused:
        return sentence
    forget = f"scrapy altsched forget {target.words} URL ..."
    return (
        f"{sentence}\nTo have a page crawled again that was seen, push it with --dont-filter, or"
        f" after: {forget}"
    )
