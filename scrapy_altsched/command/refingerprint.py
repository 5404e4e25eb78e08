"""Recompute the fingerprints of a job's pending requests, after rules or the class have changed.

Run it while no crawl of the job runs; it changes all of them or, if interrupted, none.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import Progress
from scrapy.exceptions import UsageError
from scrapy.utils.misc import load_object

from ..canonical import Rules
from ..dupefilter import DupeFilter
from ..engine import fingerprinter_of
from ..frontier.store.journal import Journal
from ..inflection import inflect
from ..maintenance.progress import watched
from ..maintenance.refingerprint import Refingerprinted, refingerprint
from ..requests.codec import decode_request
from ..requests.fingerprint import NOTE, describe, shorten
from ..settings import Config
from .job import add_jobdir, identify

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.crawler import Crawler

    from .project import Project


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See :mod:`scrapy_altsched.command`."""
    add_jobdir(parser)
    parser.add_argument(
        "-a",
        dest="arguments",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="an argument of the spider, as for a crawl (may be repeated)",
    )


def run(arguments: argparse.Namespace, project: Project) -> int:
    """See :mod:`scrapy_altsched.command`.

    :raises AltschedError: there is no job, a crawl holds it, or it cannot be read or written.
    """
    owner = identify(arguments.jobdir).owner
    crawler = project.crawler(owner)
    given = _read(arguments.arguments)
    try:
        crawler.spider = spider = crawler.spidercls.from_crawler(crawler, **given)
    except Exception as error:  # whatever the spider's code raises
        message = f"the spider {owner!r} cannot be created ({type(error).__name__}: {error})"
        raise UsageError(f"{message}; -a gives it arguments", print_help=False) from error
    rules = Config.from_settings(crawler.settings, disk=None).rules_of(spider)
    make, note = _fingerprints_of(crawler, rules)
    journal = Journal(arguments.jobdir, owner)
    try:
        total = sum(count for _, count, _ in journal.slots())
        console = watched()
        with Progress(console=console, transient=True, disable=console.quiet) as progress:
            task = progress.add_task("Making fingerprints", total=2 * total)
            outcome = refingerprint(
                journal,
                lambda payload: make(decode_request(payload, spider)),
                {NOTE: note},
                lambda: progress.advance(task),
            )
    finally:
        journal.close()
    _show(outcome)
    return 0


def _read(pairs: list[str]) -> dict[str, str]:
    found = {}
    for pair in pairs:
        name, sign, value = pair.partition("=")
        if not sign or not name:
            raise UsageError(f"-a takes NAME=VALUE, not {pair!r}", print_help=False)
        found[name] = value
    return found


def _fingerprints_of(crawler: Crawler, rules: Rules) -> tuple[Callable[[Request], bytes], bytes]:
    """The function that makes a crawl's fingerprints, and the note about it."""
    filter_class = load_object(crawler.settings["DUPEFILTER_CLASS"])
    if getattr(filter_class, "request_seen", None) is DupeFilter.request_seen:
        dupefilter = filter_class.from_crawler(crawler)
        dupefilter.use_rules(rules)
        return dupefilter.fingerprint, dupefilter.fingerprint_note
    # Another package's filter has a seen set of its own: these only name requests in the store.
    fingerprinter = fingerprinter_of(crawler)
    return (
        lambda request: shorten(fingerprinter.fingerprint(request)),
        describe(fingerprinter, Rules()),
    )


def _show(outcome: Refingerprinted) -> None:
    console = Console(highlight=False, markup=False, soft_wrap=True)
    unqueued = [f"{count:,} {state.family}" for state, count in outcome.unqueued.items()]
    *numbers, last = f"{outcome.pending:,} pending", *unqueued
    console.print(
        f"{outcome.changed:,} {inflect(outcome.changed, 'request has', 'requests have')} another"
        f" fingerprint now, of {', '.join(numbers)} and {last}."
    )
    for count, others in ((outcome.merged, "pending"), (outcome.crawled, "done")):
        if count:
            removed = inflect(count, "pending request was", "pending requests were")
            console.print(
                f"{count:,} {removed} removed: the same page as another that is {others}."
            )
    if outcome.unreadable:
        stay = inflect(
            outcome.unreadable,
            "request cannot be restored, and keeps its fingerprint",
            "requests cannot be restored, and keep their fingerprints",
        )
        console.print(f"{outcome.unreadable:,} {stay}.")
    if outcome.done:
        done = inflect(outcome.done, "request was", "requests were")
        console.print(
            f"{outcome.done:,} {done} done before: only the fingerprints are stored, and stay. A"
            " page that has another fingerprint now is crawled again if it is found again."
        )
