"""Show what the rules make of URLs, which of them are the same, and where they are in a job.

Fingerprints decide: those of the project's fingerprinter, with the rules around it.  Where they are
is looked up in what is stored, also while a crawl runs; nothing is changed.
"""

from __future__ import annotations

import argparse
import gzip
import json
import zlib
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urljoin, urlsplit

from rich.table import Table
from rich.text import Text
from scrapy import Request

from ..canonical import Rules
from ..errors import InputError
from ..inflection import counted
from ..maintenance.progress import follow
from ..requests.fingerprint import apply_rules
from ..settings import Config
from .answers import print_formatted, print_json
from .places import (
    add_place,
    add_places,
    describe_differences,
    describe_place,
    open_place,
    spider_of,
)
from .project import Project, identity_for, misuse

#: Where an age comes from if not from a rule.
_SETTING = "ALTSCHED_RECRAWL_AFTER"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See :mod:`scrapy_altsched.command`."""
    add_place(parser)
    parser.add_argument("--spider", metavar="NAME", help="with the settings and rules of a spider")
    what = (
        "show which URLs of a file the rules treat as the same: a URL a line, or a page as [url,"
        " [hrefs]] a line if the name ends in .jsonl; also compressed, in .gz"
    )
    parser.add_argument("--links", type=Path, metavar="FILE", help=what)
    what = "groups to show (default: 20; 0: all)"
    parser.add_argument("--limit", type=int, default=20, metavar="N", help=what)
    parser.add_argument("--json", action="store_true", help="answer in JSON")


def run(arguments: argparse.Namespace, project: Project) -> int:
    """See :mod:`scrapy_altsched.command`: 0, whatever the answer is."""
    if arguments.limit < 0:
        raise misuse("--limit must be 0 or more.")
    target = open_place(arguments, project)
    if bool(arguments.urls) == bool(arguments.links):
        raise misuse("explain needs either URLs or --links FILE.")
    if arguments.links and target is not None:
        raise misuse("a JOBDIR and --shared are for URLs, not for --links")
    judge = _Judge(project, arguments.spider or spider_of(target, project))
    limit = arguments.limit or None
    if arguments.urls:
        answer: dict[str, Any] = {"urls": judge.explain(arguments.urls)}
        if target is not None:
            identity = identity_for(judge.crawler, judge.crawler.spidercls)
            answer["fingerprints_differ"] = add_places(answer["urls"], target, identity)
    else:
        answer, refused = _merge(judge, arguments.links)
    if arguments.json:
        if arguments.links:
            answer["groups"] = answer["groups"][:limit]
        print_json(answer, indent=2)
    elif arguments.urls:
        _show_urls(answer["urls"])
        if target is not None and answer["fingerprints_differ"]:
            print(describe_differences(answer["fingerprints_differ"], target))
    else:
        _show_links(answer, refused, limit)
    return 0


class _Judge:
    """The rules and the fingerprints of a project, or of one of its spiders."""

    def __init__(self, project: Project, spider: str | None) -> None:
        self.crawler = crawler = project.crawler(spider)
        assert crawler.request_fingerprinter is not None
        config = Config.from_settings(crawler.settings, disk=None)
        self.rules, self._recrawl_after = config.rules_of(crawler.spidercls), config.recrawl_after
        self.with_rules = apply_rules(crawler.request_fingerprinter, self.rules).fingerprint
        self.without_rules = apply_rules(crawler.request_fingerprinter, Rules()).fingerprint

    def explain(self, urls: list[str]) -> list[dict[str, Any]]:
        """What becomes of each URL, and how it differs from the first; UsageError: it is none."""
        answer: list[dict[str, Any]] = []
        for url in urls:
            try:
                request = Request(url)
                form = self.rules.canonicalize(request.url)
                digest = self.with_rules(request).hex()
            except ValueError as error:
                other = "" if "://" in url else ", and there is no such directory"
                raise misuse(f"{url!r} cannot be crawled: {error}{other}.") from None
            first = answer[0] if answer else {"canonical": form.url, "fingerprint": digest}
            is_first = digest == first["fingerprint"]
            age, source = self.rules.explain_age(request.url) or (self._recrawl_after, _SETTING)
            answer.append(
                {
                    "url": url,
                    "canonical": form.url,
                    "fingerprint": digest,
                    "headers": list(form.headers),
                    "recrawl_after": None if age is None else str(age),
                    "recrawl_after_from": None if age is None else source,
                    "rules": [{"index": it, "label": self.rules.label(it)} for it in form.rules],
                    "steps": [
                        {"rule": it.rule, "key": it.what, "before": it.before, "after": it.after}
                        for it in form.steps
                    ],
                    "is_first": is_first,
                    "differences": [] if is_first else _differences(first["canonical"], form.url),
                }
            )
        return answer


def _differences(one: str, other: str) -> list[str]:
    a, b = urlsplit(one), urlsplit(other)
    found = [
        f"The {name} differs: {first or 'none'} and {second or 'none'}."
        for name, first, second in zip(("scheme", "host", "path"), a, b, strict=False)
        if first != second
    ]
    values = [parse_qs(part.query, keep_blank_values=True) for part in (a, b)]
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


def _show_urls(found: list[dict[str, Any]]) -> None:
    for url in found:
        labels = {rule["index"]: rule["label"] for rule in url["rules"]}
        print_formatted(Text(url["url"], "bold"))
        for step in url["steps"]:
            print(f"  {step['key']}, by {labels[step['rule']]}")
            print(f"    → {step['after']}")
        for index in sorted(labels.keys() - {step["rule"] for step in url["steps"]}):
            print(f"  {labels[index]} matches, and changes nothing")
        if not labels and url["recrawl_after_from"] in (None, _SETTING):
            print("  no rule matches")
        if url["recrawl_after"]:
            after, source = url["recrawl_after"], url["recrawl_after_from"]
            print(f"  crawled again if it is old enough: {after}, by {source}")
        if url["headers"]:
            print(f"  headers that count: {', '.join(url['headers'])}")
        print(f"  canonical form: {url['canonical']}")
        print(f"  fingerprint: {url['fingerprint']}")
        for place in url.get("places", ()):
            print(f"  {describe_place(place)}")
            if place["found_on"]:
                print(f"    found on {place['found_on']}")
            if place["command"]:
                print(f"    to crawl it again: {place['command']}")
        print()
    for url in found[1:]:
        which = f"{url['url']}: " if len(found) > 2 else ""
        if url["is_first"]:
            print(f"{which}The same as the first: crawled once.")
        else:
            print(f"{which}Not the same as the first: crawled both.")
            for difference in url["differences"]:
                print(f"  {difference}")


def _merge(judge: _Judge, path: Path) -> tuple[dict[str, Any], str]:
    """Which links of a file the rules merge, the largest group first; and one that is refused.

    :raises InputError: it cannot be read, or has no URL that Scrapy can request.
    """
    links = refused = 0
    first_refused = ""
    seen: set[str] = set()
    # By fingerprint with the rules: canonical form, and a URL for each fingerprint without them.
    groups: dict[bytes, tuple[str, dict[bytes, str]]] = {}
    for link in follow("Reading links", read_links(path)):
        links += 1
        if link in seen:
            continue
        seen.add(link)
        try:
            request = Request(link)
            if urlsplit(request.url).scheme not in {"http", "https", "ftp", "s3"}:
                raise ValueError("nothing is downloaded from there")
            without, with_rules = judge.without_rules(request), judge.with_rules(request)
            canonical = judge.rules.canonicalize(request.url)
        except ValueError as error:
            refused += 1
            first_refused = first_refused or f"for example {link!r} ({error})"
            continue
        groups.setdefault(with_rules, (canonical.url, {}))[1].setdefault(without, link)
    if not groups:
        because = f", {first_refused}" if refused else ""
        raise InputError(f"{path} has no URL that can be crawled{because}.")
    groups_of = Counter(chain.from_iterable(urls for _, urls in groups.values()))
    merged = [(canonical, list(urls.values())) for canonical, urls in groups.values()]
    merged.sort(key=lambda group: (-len(group[1]), group[0]))
    answer = {
        "rules": len(judge.rules),
        "links": links,
        "urls": len(seen),
        "refused": refused,
        "requests_without_rules": len(groups_of),
        "requests_with_rules": len(groups),
        "kept_apart": sum(number > 1 for number in groups_of.values()),
        "groups": [
            {"canonical": canonical, "urls": urls} for canonical, urls in merged if len(urls) > 1
        ],
    }
    return answer, first_refused


def _show_links(answer: dict[str, Any], first_refused: str, limit: int | None) -> None:
    shown = answer["groups"][:limit]
    if shown:
        table = Table("URLs", "treated as the same", "such as")
        table.columns[0].justify = "right"
        for column in table.columns[1:]:
            column.overflow = "fold"
        for group in shown:
            urls = group["urls"]
            table.add_row(f"{len(urls):,}", Text(group["canonical"]), Text("\n".join(urls[:3])))
        print_formatted(table, folds=True)
    if more := len(answer["groups"]) - len(shown):
        print(f"And {counted(more, 'more group')}; --limit 0 shows all.")
    print(f"{counted(answer['links'], 'link')}, {counted(answer['urls'], 'different URL')}.")
    before = counted(answer["requests_without_rules"], "request")
    print(f"Without the rules {before}, with them {answer['requests_with_rules']:,}.")
    if kept_apart := answer["kept_apart"]:
        print(f"{counted(kept_apart, 'page')} that Scrapy crawls once, the rules keep apart.")
    if not answer["rules"]:
        print("There are no rules: set ALTSCHED_URL_RULES, or name a --spider.")
    if answer["refused"]:
        print(f"{counted(answer['refused'], 'URL')} cannot be crawled, {first_refused}.")


def read_links(path: Path) -> Iterator[str]:
    """Every link in a file, as an absolute URL where the file says what it is relative to.

    Of the pages in a ``.jsonl``, also their own URLs.

    :raises InputError: the file cannot be read, or a line is not what it should be.
    """
    is_compressed = path.suffix == ".gz"
    has_pages = path.name.removesuffix(".gz").endswith(".jsonl")
    number = 0
    try:
        with gzip.open(path) if is_compressed else path.open("rb") as file:
            for number, line in enumerate(file, 1):
                text = line.decode("utf-8-sig" if number == 1 else "utf-8").strip()
                if text:
                    yield from _links_of_page(text) if has_pages else (text,)
    except gzip.BadGzipFile:
        problem = " is not a gzip file, though its name ends in .gz"
    except (EOFError, zlib.error):
        problem = " is damaged or truncated"
    except OSError as error:
        problem = f" cannot be read: {error.strerror}"
    except UnicodeDecodeError:
        problem = f", line {number}: this is not UTF-8"
    except ValueError as error:
        problem = f", line {number}: {error}"
    else:
        return
    raise InputError(f"{path}{problem}.")


def _links_of_page(text: str) -> Iterator[str]:
    try:
        page = json.loads(text)
    except (ValueError, RecursionError):
        page = None
    match page:
        case [str(url), list(hrefs)] if all(isinstance(href, str) for href in hrefs):
            yield url
            for href in hrefs:
                try:
                    yield urljoin(url, href)
                except ValueError:
                    yield href  # as it is: the caller says that it is not a URL
        case _:
            raise ValueError("this is not a page, as in [url, [hrefs]]")
