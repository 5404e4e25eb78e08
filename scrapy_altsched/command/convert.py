"""Convert the store of a job to that of another engine, RocksDB or SQLite.

Run it while no crawl of the job runs.  It needs space for a second store, and changes all of the
job or nothing.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from ..frontier.store.engines import ENGINES
from ..maintenance.convert import convert
from .job import Job
from .project import Project


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See :mod:`scrapy_altsched.command`."""
    parser.add_argument("jobdir", metavar="JOBDIR", type=Path, help="directory of the job")
    what = "what the job is to be stored in"
    parser.add_argument("--store", required=True, choices=ENGINES, help=what)


def run(arguments: argparse.Namespace, project: Project) -> int:
    """See :mod:`scrapy_altsched.command`."""
    job = Job(project, arguments.jobdir)
    before = convert(job.jobdir, job.owner, arguments.store)
    title, _ = ENGINES[arguments.store]
    if before == arguments.store:
        print(f"The job is stored in {title} already.")
    else:
        print(f"The job is stored in {title} now; before, in {ENGINES[before][0]}.")
        print("Next: run the crawl again; it continues from there.")
    return 0
