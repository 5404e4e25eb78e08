"""Verify that what a job has stored is complete and consistent; repair it.

Without a repair, nothing in the job directory is changed, and a crawl may be running.
"""

from __future__ import annotations

import argparse
from shlex import quote

from ..crawl.outcome import CODES
from ..inflection import counted
from ..maintenance.audit import Remedy
from ..maintenance.repair import accept_loss, repair
from ..requests.codec import is_whole, locate
from .answers import Report, print_rows
from .job import Job
from .project import Project, misuse
from .target import Target, add_target, open_target

#: What to do next about a problem; the first of these that helps against any is printed.
_NEXT = {
    Remedy.REPAIR: (
        "Next: `{check} --repair` writes all that can be read into a new store, and keeps the"
        " damaged one next to it."
    ),
    Remedy.RESUME: "Next: run the crawl again; it continues from there. No repair is needed.",
    Remedy.ACCEPT_LOSS: (
        "Next: `{check} --accept-loss` gives up the requests that are missing, and the job can be"
        " finished. To be sure of every page, start the crawl over in another JOBDIR instead."
    ),
    Remedy.REQUEUE: (
        "Next: fix what the reasons name (most often a callback that the spider no longer has),"
        " then make the dead letters pending again with `{requeue}`; the next run crawls them. Or"
        " `{check} --accept-loss` lets the job be finished without them."
    ),
}
_BY_CODE_ONLY = (
    "A repair does not help with requests that cannot be restored: they become dead letters when"
    " the crawl reaches them. Add what they name to the spider before that; later, `{requeue}`"
    " makes them pending again."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See :mod:`scrapy_altsched.command`."""
    add_target(parser)
    what = "if something is wrong, copy what can be read to a new store, and keep the old one"
    parser.add_argument("--repair", action="store_true", help=what)
    what = "give up requests that a repair could not keep, or that could not be restored"
    parser.add_argument("--accept-loss", action="store_true", help=what)
    what = "exit with 3 if a finished job has dead letters, and with 4 if it is not finished"
    parser.add_argument("--finished", action="store_true", help=what)
    what = "whose job it is, if the job no longer says so"
    parser.add_argument("--spider", metavar="NAME", help=what)


def run(arguments: argparse.Namespace, project: Project) -> int:
    """See :mod:`scrapy_altsched.command`."""
    changes = arguments.repair or arguments.accept_loss
    if arguments.shared is not None and (changes or arguments.spider):
        raise misuse("--shared takes no option but --finished")
    target = open_target(arguments, project)
    report = _check(target)
    if isinstance(target, Job):
        if arguments.repair and _helps(report, Remedy.REPAIR, Remedy.RESUME):
            result = repair(target.jobdir, target.owner, is_whole, locate)
            rows = [
                ("kept", ", ".join(f"{count:,} {family}" for family, count in result.kept.items())),
                ("damaged store", str(result.damaged)),
                ("not kept", result.damage or "nothing known"),
            ]
            print_rows(rows, result.losses)
            target = Job(project, target.jobdir, arguments.spider)
            if not arguments.accept_loss:
                report = _check(target)
        if arguments.accept_loss:
            given_up = accept_loss(target.jobdir, target.owner)
            requests = counted(given_up, "request is", "requests are")
            print(f"{requests} given up. The job can be finished without.")
            report = _check(target)
    if report.problems:
        words = target.words
        check = f"scrapy altsched check {words}"
        if arguments.spider:
            check += f" --spider {quote(arguments.spider)}"
        advice = [text for remedy, text in _NEXT.items() if _helps(report, remedy)][:1]
        if _helps(report, Remedy.RESTORE_CODE):
            advice.append(_BY_CODE_ONLY)
        for text in advice:
            print(text.format(check=check, requeue=f"scrapy altsched requeue {words} --all"))
        return 1
    if changes and isinstance(target, Job):
        target.tell_standing()
        print("Next: run the crawl again; it continues from there.")
    return CODES[report.outcome] if arguments.finished else 0


def _check(target: Target) -> Report:
    report = target.examine()
    wrong = len(report.problems)
    result = counted(wrong, "thing is wrong", "things are wrong") if wrong else report.good
    sentences = [problem.sentence for problem in report.problems]
    print_rows([*report.rows, ("result", result)], sentences)
    return report


def _helps(report: Report, *remedies: Remedy) -> bool:
    return any(problem.remedy in remedies for problem in report.problems)
