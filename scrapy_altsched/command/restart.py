"""Restart a job or a shared crawl from nothing, or with what it has seen, while it does not run.

Its dead letters and failed requests are deleted, and so is what is pending.
"""

from __future__ import annotations

import argparse
from shlex import quote

from ..frontier.shared.record import NAME_CRAWL
from ..inflection import counted
from ..maintenance.restart import restart
from ..requests.identity import are_sha1
from .confirming import add_confirmation, confirm
from .crawl import Crawl
from .project import Project
from .target import add_target, open_one_target


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See :mod:`scrapy_altsched.command`."""
    add_target(parser)
    what = "keep what was seen: start requests are crawled, and pages that were never found"
    parser.add_argument("--keep-seen", action="store_true", help=what)
    add_confirmation(parser)


def run(arguments: argparse.Namespace, project: Project) -> int:
    """See :mod:`scrapy_altsched.command`: 1 if the question was answered with no."""
    target = open_one_target(arguments, project)
    if left := target.waiting():
        print(f"{counted(left, 'request is', 'requests are')} still to be crawled.")
        if not confirm(arguments, "Drop what is left, and restart?"):
            print("Nothing is changed.")
            return 1
    keeps_seen: bool = arguments.keep_seen
    if isinstance(target, Crawl):
        target.crawl.restart(are_sha1, keeps_seen=keeps_seen)
        what, when = f"The shared crawl {target.key!r}", "with the next worker"
    else:
        restart(target.jobdir, target.owner, NAME_CRAWL, keeps_seen=keeps_seen)
        target.tell_standing()
        what, when = f"The job in {quote(str(target.jobdir))}", "with its next run"
    how = "with what it has seen" if keeps_seen else "from nothing"
    print(f"{what} starts again {how}, {when}.")
    return 0
