"""Forget pages of a job that were finished long ago, which makes its store smaller.

They are crawled again if they are found again.  Run it while no crawl of the job runs.
"""

from __future__ import annotations

import argparse
import time
from datetime import datetime, timezone
from pathlib import Path

from ..age import Age
from ..maintenance.purge import purge
from .job import Job
from .project import Project, misuse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See :mod:`scrapy_altsched.command`."""
    parser.add_argument("jobdir", metavar="JOBDIR", type=Path, help="directory of the job")
    what = "how long ago at least: 30d, 12h, or seconds"
    parser.add_argument("--older-than", required=True, metavar="AGE", help=what)


def run(arguments: argparse.Namespace, project: Project) -> int:
    """See :mod:`scrapy_altsched.command`."""
    try:
        age = Age.parse_length(arguments.older_than)
    except ValueError:
        raise misuse(
            f"--older-than {arguments.older_than!r} cannot be used: it must be an age, such as 30d"
        ) from None
    before = time.time() - age
    job = Job(project, arguments.jobdir)
    with job.open() as journal:
        purged, seen = purge(journal, before)
    job.tell_standing()
    when = datetime.fromtimestamp(before, timezone.utc).strftime("%Y-%m-%d %H:%M:%S")
    old = f"were finished before {when} (UTC), and are forgotten"
    print(f"{purged:,} of {seen:,} seen pages {old}.")
    return 0
