"""Verify that what a job has stored is complete and consistent; repair it.

Without a repair, nothing in the job directory is changed, and a crawl may be running.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from shlex import quote
from typing import Any

from ..crawl.outcome import CODES
from ..inflection import counted
from ..maintenance.audit import Problem, Remedy
from ..maintenance.repair import Repair, accept_loss, repair
from ..requests.codec import is_whole, locate
from .answers import Report, print_json, print_rows
from .job import Job
from .project import Project, misuse
from .standing import counts_of
from .target import add_target, open_target

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
    parser.add_argument("--json", action="store_true", help="answer in JSON")


def run(arguments: argparse.Namespace, project: Project) -> int:
    """See :mod:`scrapy_altsched.command`."""
    changes = arguments.repair or arguments.accept_loss
    if arguments.shared is not None and (changes or arguments.spider):
        raise misuse("--shared takes no option but --finished and --json")
    target = open_target(arguments, project)
    teller = _Teller(is_for_programs=arguments.json)
    report = teller.tell(target.examine())
    has_changed = arguments.accept_loss
    if isinstance(target, Job):
        if arguments.repair and _helps(report, Remedy.REPAIR, Remedy.RESUME):
            has_changed = True
            teller.tell_repair(repair(target.jobdir, target.owner, is_whole, locate), report)
            target = Job(project, target.jobdir, arguments.spider)
            if not arguments.accept_loss:
                report = teller.tell(target.examine())
        if arguments.accept_loss:
            teller.tell_given_up(accept_loss(target.jobdir, target.owner))
            report = teller.tell(target.examine())
    if report.problems:
        code, advice = 1, _advise(report, target.words, arguments.spider)
    else:
        code, advice = CODES[report.outcome] if arguments.finished else 0, []
        if changes and isinstance(target, Job):
            target.tell_standing()
            again = "Next: run the crawl again; it continues from there."
            advice.append(again if has_changed else "No repair is needed.")
    teller.end(advice)
    return code


def _advise(report: Report, words: str, spider: str | None) -> list[str]:
    """What to do next about the problems of a report, in sentences with commands."""
    check = f"scrapy altsched check {words}"
    if spider:
        check += f" --spider {quote(spider)}"
    advice = [text for remedy, text in _NEXT.items() if _helps(report, remedy)][:1]
    if _helps(report, Remedy.RESTORE_CODE):
        advice.append(_BY_CODE_ONLY)
    requeue = f"scrapy altsched requeue {words} --all"
    return [text.format(check=check, requeue=requeue) for text in advice]


def _helps(report: Report, *remedies: Remedy) -> bool:
    return any(problem.remedy in remedies for problem in report.problems)


class _Teller:
    """Tells what was found and done: each step at once, or all in the end, as JSON."""

    def __init__(self, *, is_for_programs: bool) -> None:
        self._is_for_programs = is_for_programs
        self._answer: dict[str, Any] = {"repair": None, "given_up": None}

    def tell(self, report: Report) -> Report:
        """Tell how it stands; *report* is given back."""
        wrong = len(report.problems)
        result = counted(wrong, "thing is wrong", "things are wrong") if wrong else report.good
        self._answer |= {
            "kind": report.kind,
            "target": report.target,
            "spider": report.spider,
            "result": result,
            "problems": _describe(report.problems),
            "outcome": None if wrong else report.outcome.value,
            "counts": report.counts and counts_of(report.counts),
            "rows": dict(report.rows),
        }
        if not self._is_for_programs:
            what = "crawl" if report.kind == "shared crawl" else report.kind
            named = (what, report.target), ("spider", report.spider)
            sentences = [problem.sentence for problem in report.problems]
            print_rows([*named, *report.rows, ("result", result)], sentences)
        return report

    def tell_repair(self, result: Repair, before: Report) -> None:
        """Tell what a repair has kept of a job of which there was this report *before*."""
        self._answer["repair"] = {
            "problems": _describe(before.problems),
            "kept": dict(result.kept),
            "damaged": str(result.damaged),
            "not_kept": result.damage or None,
            "losses": result.losses,
        }
        if not self._is_for_programs:
            rows = [
                ("kept", ", ".join(f"{count:,} {family}" for family, count in result.kept.items())),
                ("damaged store", str(result.damaged)),
                ("not kept", result.damage or "nothing known"),
            ]
            print_rows(rows, result.losses)

    def tell_given_up(self, count: int) -> None:
        """Tell how many requests were given up."""
        self._answer["given_up"] = count
        if not self._is_for_programs:
            requests = counted(count, "request is", "requests are")
            print(f"{requests} given up. The job can be finished without.")

    def end(self, advice: list[str]) -> None:
        """Tell what to do next."""
        if self._is_for_programs:
            print_json({**self._answer, "advice": advice}, indent=2)
        else:
            print(*advice, sep="\n", end="\n" if advice else "")


def _describe(problems: Iterable[Problem]) -> list[dict[str, str | None]]:
    return [
        {
            "sentence": problem.sentence,
            "remedy": problem.remedy and problem.remedy.name.lower().replace("_", "-"),
        }
        for problem in problems
    ]
