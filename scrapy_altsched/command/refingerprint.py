"""Recompute the fingerprints of a job's pending requests, after rules or the class have changed.

Run it while no crawl of the job runs; it changes all of them or, if interrupted, none.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from ..inflection import counted
from ..maintenance.refingerprint import Refingerprinted, refingerprint
from ..requests.codec import decode_request
from .job import Job
from .project import Project, add_spider_arguments, create_spider, identity_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See :mod:`scrapy_altsched.command`."""
    parser.add_argument("jobdir", metavar="JOBDIR", type=Path, help="directory of the job")
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
        outcome = refingerprint(
            journal, lambda payload: identity.of(decode_request(payload, spider)), identity.notes()
        )
    job.tell_standing()
    _show(outcome)
    return 0


def _show(outcome: Refingerprinted) -> None:
    unqueued = [f"{count:,} {state.family}" for state, count in outcome.unqueued.items()]
    *numbers, last = f"{outcome.pending:,} pending", *unqueued
    have = counted(outcome.changed, "request has", "requests have")
    print(f"{have} another fingerprint now, of {', '.join(numbers)} and {last}.")
    for count, is_what in ((outcome.merged, "still to be crawled"), (outcome.crawled, "done")):
        if count:
            were = counted(count, "request was", "requests were")
            print(f"{were} removed: the same page as another that is {is_what}.")
    if outcome.unreadable:
        one = "request cannot be restored, and keeps its fingerprint."
        many = "requests cannot be restored, and keep their fingerprints."
        print(counted(outcome.unreadable, one, many))
    if outcome.done:
        print(
            f"{counted(outcome.done, 'request was', 'requests were')} done before: only the"
            " fingerprints are stored, and stay. A page that has another fingerprint now is crawled"
            " again if it is found again."
        )
