"""Forget that pages were seen: they are crawled again if they are found, or pushed, again.

By a pattern, those are found that are in the archive of the crawl (ALTSCHED_ARCHIVE).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

from scrapy import Request

from ..errors import InputError
from ..feeds.archive import read_urls
from ..feeds.configured import name_archive
from ..inflection import counted
from ..maintenance.progress import follow
from ..settings import Config
from ..steering.actions import Forget
from .answers import print_effect
from .confirming import add_confirmation, confirm
from .project import (
    Project,
    add_spider_arguments,
    create_spider,
    misuse,
    read_spider_arguments,
)
from .selection import add_pattern, read_pattern
from .target import Target, add_names, add_target, names_of, open_target


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See :mod:`scrapy_altsched.command`."""
    add_target(parser)
    add_names(parser, "URL", "of the pages")
    add_pattern(parser)
    add_confirmation(parser)
    add_spider_arguments(parser)


def run(arguments: argparse.Namespace, project: Project) -> int:
    """See :mod:`scrapy_altsched.command`: 1 if the question was answered with no."""
    urls = names_of(arguments)
    if bool(urls) == (arguments.pattern is not None):
        raise misuse("name URLs to forget, or a --pattern")
    read_spider_arguments(arguments.arguments)
    chosen: Iterable[str] = urls
    for url in urls:
        try:
            Request(url)
        except ValueError as error:
            raise misuse(f"{url!r} cannot be forgotten: {error}") from None
    pattern = None if arguments.pattern is None else read_pattern(arguments.pattern)
    target = open_target(arguments, project)
    if pattern is not None:
        archive = _find_archive(target, project, arguments.arguments)
        count = total = 0
        for url in follow("Reading the archive", read_urls(archive)):
            total += 1
            count += pattern.matches(url)
        of_all = f"of {counted(total, 'request')} in {archive}"
        if not count:
            print(f"No URL {of_all} matches: nothing is forgotten.")
            return 0
        print(f"{count:,} {of_all} {'matches' if count == 1 else 'match'}.")
        if count == total and not arguments.yes:
            raise misuse("the pattern matches all that is in the archive; --yes forgets all of it")
        if not confirm(arguments, "Forget them?"):
            print("Nothing is forgotten.")
            return 1
        chosen = filter(pattern.matches, read_urls(archive))
    effect = target.apply(Forget(chosen), arguments.arguments)
    pages = counted(effect.changed, "page is", "pages are")
    sentence = f"{pages} forgotten; {effect.refused - effect.left:,} had not been seen."
    if effect.left:
        one = "page is still to be crawled, and left as it is."
        many = "pages are still to be crawled, and left as they are."
        sentence += f" {counted(effect.left, one, many)}"
    return print_effect(effect, sentence)


def _find_archive(target: Target, project: Project, given: list[str]) -> Path:
    """The first part of the archive; InputError: there is none.

    :param given: arguments of the spider, after which it may be named.
    """
    spider = create_spider(project, target.owner, given)
    pattern = Config.from_settings(spider.crawler.settings, disk=None).archive
    only = "A crawl keeps no URLs of requests that are done: only in an archive a pattern finds any"
    if pattern is None:
        raise InputError(
            f"{only}, and ALTSCHED_ARCHIVE is not set. Name the URLs instead; or set it, for what"
            " is crawled from then on."
        )
    archive = name_archive(pattern, spider)
    if next(read_urls(archive), None) is None:
        raise InputError(
            f"{only}, and there is none in {archive}. Name the file of this crawl with -s"
            " ALTSCHED_ARCHIVE=..., or name the URLs."
        )
    return archive
