"""Recompute the fingerprints of a job's pending requests, after rules or the class have changed.

Run it while no crawl of the job runs; it changes all of them or, if interrupted, none.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import Progress

from ..frontier.shared.record import refuse_worker
from ..frontier.store.journal import Journal
from ..inflection import inflect
from ..maintenance.progress import watched
from ..maintenance.refingerprint import Refingerprinted, refingerprint
from ..requests.codec import decode_request
from ..requests.made_by import NOTE
from .job import add_jobdir, identify
from .spider import add_spider_arguments, create_spider, identity_of

if TYPE_CHECKING:
    from .project import Project


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See :mod:`scrapy_altsched.command`."""
    add_jobdir(parser)
    add_spider_arguments(parser)


def run(arguments: argparse.Namespace, project: Project) -> int:
    """See :mod:`scrapy_altsched.command`.

    :raises AltschedError: there is no job, a crawl holds it, or it cannot be read or written.
    """
    owner = identify(arguments.jobdir).owner
    spider = create_spider(project, owner, arguments.arguments)
    identity, note = identity_of(spider)
    journal = Journal(arguments.jobdir, owner)
    try:
        refuse_worker(
            journal,
            arguments.jobdir,
            "Fingerprints cannot be recomputed there: begin a new crawl, with another"
            " ALTSCHED_SHARED_KEY.",
        )
        total = sum(count for _, count, _ in journal.slots())
        console = watched()
        with Progress(console=console, transient=True, disable=console.quiet) as progress:
            task = progress.add_task("Making fingerprints", total=2 * total)
            outcome = refingerprint(
                journal,
                lambda payload: identity.of(decode_request(payload, spider)),
                {NOTE: note},
                lambda: progress.advance(task),
            )
    finally:
        journal.close()
    _show(outcome)
    return 0


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
