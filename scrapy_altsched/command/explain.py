"""Show what the rules make of URLs, and which URLs would be treated as the same.

The dry run before a crawl.  Fingerprints decide: those of the project's fingerprinter,
with the rules around it, as in a crawl of the spider.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit

from rich.console import Console
from rich.progress import track
from rich.table import Table
from rich.text import Text
from scrapy import Request
from scrapy.exceptions import UsageError

from ..canonical import Canonical, Rules
from ..errors import InputError
from ..inflection import inflect
from ..maintenance.progress import watched
from ..requests.fingerprint import apply_rules
from ..settings import Config
from .links import read_links

if TYPE_CHECKING:
    from .project import Project

_EXAMPLES = 3  # URLs shown of a group


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See :mod:`scrapy_altsched.command`."""
    parser.add_argument(
        "urls", nargs="*", metavar="URL", help="with several, also whether they are the same"
    )
    parser.add_argument("--spider", metavar="NAME", help="with the settings and rules of a spider")
    parser.add_argument(
        "--links",
        type=Path,
        metavar="FILE",
        help="show which URLs of a file the rules treat as the same: a URL a line, or a page as"
        " [url, [hrefs]] a line if the name ends in .jsonl; also compressed, in .gz",
    )
    parser.add_argument(
        "--limit", type=int, default=20, metavar="N", help="groups to show (default: 20; 0: all)"
    )
    parser.add_argument("--json", action="store_true", help="answer in JSON")


def run(arguments: argparse.Namespace, project: Project) -> int:
    """See :mod:`scrapy_altsched.command`: 0, whatever the answer is."""
    if bool(arguments.urls) == bool(arguments.links):
        raise UsageError("explain needs either URLs or --links FILE.", print_help=False)
    if arguments.limit < 0:
        raise UsageError("--limit must be 0 or more.", print_help=False)
    judge = _Judge(project, arguments.spider)
    if arguments.links:
        merger = _merge(judge, arguments.links)
        if arguments.json:
            _print_json(merger.as_json(arguments.limit))
        else:
            merger.show(arguments.limit)
        return 0
    verdicts = [judge.verdict(url) for url in arguments.urls]
    if arguments.json:
        _print_json(_verdicts_as_json(judge, verdicts))
    else:
        _show_verdicts(judge, verdicts)
    return 0


class _Judge:
    """The rules and the fingerprints of a project, or of one of its spiders."""

    def __init__(self, project: Project, spider: str | None) -> None:
        crawler = project.crawler(spider)
        assert crawler.request_fingerprinter is not None
        self.rules = Config.from_settings(crawler.settings, disk=None).rules_of(crawler.spidercls)
        self.with_rules = apply_rules(crawler.request_fingerprinter, self.rules).fingerprint
        self.without_rules = apply_rules(crawler.request_fingerprinter, Rules()).fingerprint

    def verdict(self, url: str) -> _Verdict:
        """:raises UsageError: Scrapy cannot request the URL."""
        try:
            request = Request(url)
            canonical = self.rules.canonicalize(request.url)
            return _Verdict(url, canonical, self.with_rules(request).hex())
        except ValueError as error:
            raise UsageError(f"{url!r} cannot be crawled: {error}.", print_help=False) from None


@dataclass(frozen=True, slots=True)
class _Verdict:
    url: str
    canonical: Canonical
    fingerprint: str  # hex


# URLs


def _show_verdicts(judge: _Judge, verdicts: list[_Verdict]) -> None:
    console = _console()
    for verdict in verdicts:
        found = verdict.canonical
        console.print(Text(verdict.url, "bold"))
        for step in found.steps:
            console.print(f"  {step.what}, by {judge.rules.label(step.rule)}")
            console.print(f"    → {step.after}")
        for index in sorted(set(found.rules) - {step.rule for step in found.steps}):
            console.print(f"  {judge.rules.label(index)} matches, and changes nothing")
        if not found.rules:
            console.print("  no rule matches")
        if found.headers:
            console.print(f"  headers that count: {', '.join(found.headers)}")
        console.print(f"  canonical form: {found.url}")
        console.print(f"  fingerprint: {verdict.fingerprint}")
        console.print()
    for other in verdicts[1:]:
        _show_comparison(console, verdicts[0], other, len(verdicts) > 2)


def _show_comparison(console: Console, one: _Verdict, other: _Verdict, with_url: bool) -> None:
    first = f"{other.url}: " if with_url else ""
    if one.fingerprint == other.fingerprint:
        console.print(f"{first}The same as the first: crawled once.")
        return
    console.print(f"{first}Not the same as the first: crawled both.")
    for difference in _differences(one.canonical.url, other.canonical.url):
        console.print(f"  {difference}")


def _differences(one: str, other: str) -> list[str]:
    """How two canonical URLs differ, as sentences."""
    a, b = urlsplit(one), urlsplit(other)
    found = [
        f"The {name} differs: {getattr(a, key) or 'none'} and {getattr(b, key) or 'none'}."
        for name, key in (("scheme", "scheme"), ("host", "netloc"), ("path", "path"))
        if getattr(a, key) != getattr(b, key)
    ]
    fields = [parse_qsl(part.query, keep_blank_values=True) for part in (a, b)]
    values = [dict[str, list[str]](), dict[str, list[str]]()]
    for by_name, pairs in zip(values, fields, strict=True):
        for name, value in pairs:
            by_name.setdefault(name, []).append(value)
    for name in dict.fromkeys([*values[0], *values[1]]):
        first, second = (", ".join(by_name.get(name, [])) for by_name in values)
        if name not in values[1]:
            found.append(f"Only the first has the parameter {name} ({first}).")
        elif name not in values[0]:
            found.append(f"Only the second has the parameter {name} ({second}).")
        elif first != second:
            found.append(f"The parameter {name} differs: {first} and {second}.")
    if a.query != b.query and values[0] == values[1]:
        found.append("The parameters are in another order, which a rule keeps.")
    if a.fragment != b.fragment:
        found.append(f"The fragment differs: {a.fragment or 'none'} and {b.fragment or 'none'}.")
    return found or ["Their canonical forms are the same: it is the fingerprinter that differs."]


def _verdicts_as_json(judge: _Judge, verdicts: list[_Verdict]) -> dict[str, Any]:
    first = verdicts[0]
    return {
        "urls": [
            {
                "url": verdict.url,
                "canonical": verdict.canonical.url,
                "fingerprint": verdict.fingerprint,
                "headers": list(verdict.canonical.headers),
                "rules": [
                    {"index": index, "label": judge.rules.label(index)}
                    for index in verdict.canonical.rules
                ],
                "steps": [
                    {
                        "rule": step.rule,
                        "key": step.what,
                        "before": step.before,
                        "after": step.after,
                    }
                    for step in verdict.canonical.steps
                ],
                "is_first": verdict.fingerprint == first.fingerprint,
                "differences": []
                if verdict.fingerprint == first.fingerprint
                else _differences(first.canonical.url, verdict.canonical.url),
            }
            for verdict in verdicts
        ]
    }


# Files of links


@dataclass(slots=True)
class _Group:
    """URLs that the rules treat as the same."""

    canonical: str
    urls: dict[bytes, str] = field(default_factory=dict)  # a URL for each fingerprint without rules


@dataclass(slots=True)
class _Merger:
    """The links of a file, and which of them the rules merge.

    :ivar links: how many there are in the file.
    :ivar urls: how many different ones.
    :ivar refused: those that Scrapy cannot request; the first of them, with the reason.
    :ivar groups: by fingerprint with the rules.
    :ivar kept_apart: fingerprints without rules -> those with them.
    """

    rules: int
    links: int = 0
    urls: int = 0
    refused: int = 0
    first_refused: str = ""
    groups: dict[bytes, _Group] = field(default_factory=dict)
    kept_apart: dict[bytes, set[bytes]] = field(default_factory=dict)

    def merged(self) -> list[_Group]:
        """Groups of several, the largest first."""
        several = [group for group in self.groups.values() if len(group.urls) > 1]
        return sorted(several, key=lambda group: (-len(group.urls), group.canonical))

    def apart(self) -> int:
        return sum(len(found) > 1 for found in self.kept_apart.values())

    def counts(self) -> dict[str, int]:
        return {
            "rules": self.rules,
            "links": self.links,
            "urls": self.urls,
            "refused": self.refused,
            "requests_without_rules": len(self.kept_apart),
            "requests_with_rules": len(self.groups),
            "kept_apart": self.apart(),
        }

    def as_json(self, limit: int) -> dict[str, Any]:
        groups = self.merged()
        return {
            **self.counts(),
            "groups": [
                {"canonical": group.canonical, "urls": list(group.urls.values())}
                for group in groups[: limit or None]
            ],
        }

    def show(self, limit: int) -> None:
        console = _console()
        groups = self.merged()
        shown = groups[: limit or None]
        if shown:
            table = Table("URLs", "treated as the same", "such as")
            table.columns[0].justify = "right"
            for column in table.columns[1:]:
                column.overflow = "fold"
            for group in shown:
                urls = list(group.urls.values())
                examples = "\n".join(urls[:_EXAMPLES])
                table.add_row(str(len(urls)), Text(group.canonical), Text(examples))
            console.print(table)
        if len(shown) < len(groups):
            more = len(groups) - len(shown)
            console.print(f"And {more} more {inflect(more, 'group')}; --limit 0 shows all.")
        before, after = len(self.kept_apart), len(self.groups)
        console.print(
            f"{self.links} {inflect(self.links, 'link')},"
            f" {self.urls} different {inflect(self.urls, 'URL')}."
        )
        requests = inflect(before, "request")
        console.print(f"Without the rules {before} {requests}, with them {after}.")
        if self.apart():
            pages = inflect(self.apart(), "page")
            console.print(f"{self.apart()} {pages} that Scrapy crawls once, the rules keep apart.")
        if not self.rules:
            console.print("There are no rules: set ALTSCHED_URL_RULES, or name a --spider.")
        if self.refused:
            noun = inflect(self.refused, "URL")
            console.print(
                f"{self.refused} {noun} cannot be crawled, for example {self.first_refused}."
            )


def _merge(judge: _Judge, path: Path) -> _Merger:
    merger = _Merger(len(judge.rules))
    seen: set[str] = set()
    for link in _with_progress(read_links(path)):
        merger.links += 1
        if link in seen:
            continue
        seen.add(link)
        merger.urls += 1
        try:
            request = Request(link)
            if urlsplit(request.url).scheme not in {"http", "https", "ftp", "s3"}:
                raise ValueError("nothing is downloaded from there")
            without = judge.without_rules(request)
            canonical = judge.rules.canonicalize(request.url)
            with_rules = judge.with_rules(request)
        except ValueError as error:
            merger.refused += 1
            merger.first_refused = merger.first_refused or f"{link!r} ({error})"
            continue
        group = merger.groups.setdefault(with_rules, _Group(canonical.url))
        group.urls.setdefault(without, link)
        merger.kept_apart.setdefault(without, set()).add(with_rules)
    if not merger.groups:
        because = f", for example {merger.first_refused}" if merger.refused else ""
        raise InputError(f"{path} has no URL that can be crawled{because}.")
    return merger


def _with_progress(links: Iterable[str]) -> Iterator[str]:
    """Show on standard error, if it is a terminal, how many links were read."""
    console = watched()
    description = "Reading links"
    yield from track(links, description, console=console, transient=True, disable=console.quiet)


def _console() -> Console:
    """Standard output; URLs are neither broken nor coloured there."""
    return Console(soft_wrap=True, highlight=False, markup=False, emoji=False)


def _print_json(answer: dict[str, Any]) -> None:
    json.dump(answer, sys.stdout, indent=2, ensure_ascii=False)
    print()
