"""Recompute the fingerprints of a job's pending requests, after rules or the class have changed.

Run it while no crawl of the job runs; it changes all of them or, if interrupted, none.
"""

from __future__ import annotations

import argparse

from ..inflection import counted
from ..maintenance.progress import progress
from ..maintenance.refingerprint import Refingerprinted, refingerprint
from ..requests.codec import decode_request
from .project import Project, add_spider_arguments, create_spider, identity_of
from .target import Job, add_jobdir, make_console


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See :mod:`scrapy_altsched.command`."""
    add_jobdir(parser)
    add_spider_arguments(parser)


def run(arguments: argparse.Namespace, project: Project) -> int:
    """See :mod:`scrapy_altsched.command`."""
    job = Job(project, arguments.jobdir)
    spider = create_spider(project, job.owner, arguments.arguments)
    identity = identity_of(spider)
    remedy = (
        "Fingerprints cannot be recomputed there: begin a new crawl, with another"
        " ALTSCHED_SHARED_KEY."
    )
    with job.open(remedy) as journal:
        total = sum(count for _, count, _ in journal.slots())
        with progress("Making fingerprints", 2 * total) as step:
            outcome = refingerprint(
                journal,
                lambda payload: identity.of(decode_request(payload, spider)),
                identity.notes(),
                step,
            )
    _show(outcome)
    return 0


def _show(outcome: Refingerprinted) -> None:
    def show(count: int, one: str, many: str) -> None:
        if count:
            out.print(counted(count, one, many))

    out = make_console()
    unqueued = [f"{count:,} {state.family}" for state, count in outcome.unqueued.items()]
    *numbers, last = f"{outcome.pending:,} pending", *unqueued
    have = counted(outcome.changed, "request has", "requests have")
    out.print(f"{have} another fingerprint now, of {', '.join(numbers)} and {last}.")
    for count, others in ((outcome.merged, "pending"), (outcome.crawled, "done")):
        removed = f"removed: the same page as another that is {others}."
        show(count, f"pending request was {removed}", f"pending requests were {removed}")
    show(
        outcome.unreadable,
        "request cannot be restored, and keeps its fingerprint.",
        "requests cannot be restored, and keep their fingerprints.",
    )
    done = (
        "done before: only the fingerprints are stored, and stay. A page that has another"
        " fingerprint now is crawled again if it is found again."
    )
    show(outcome.done, f"request was {done}", f"requests were {done}")
