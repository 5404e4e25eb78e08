"""The command: ``python -m benchmarks``."""

from __future__ import annotations

import argparse
import sys
import tempfile
from importlib import import_module
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from . import machine, plot, report
from .arguments import positive
from .contenders import CONTENDERS, OURS
from .runner import FailedError, Task, run
from .summary import Results, Summary, disagreements
from .workloads import WORKLOADS, Case

#: Seconds after which one run counts as hung.
TIMEOUT = 3_600.0


def main() -> str | None:
    """Measure; what went wrong, or ``None``."""
    options = parser().parse_args()
    console = Console()
    contenders = _present(options.contenders, console)
    plan = _plan(options, contenders)
    where = options.directory or Path(tempfile.gettempdir())
    description = machine.describe(where)
    results: Results = {}
    for workload, case, names, _ in plan:
        of_case = results.setdefault(workload, {}).setdefault(case.title, {})
        of_case.update((name, Summary()) for name in names)
    try:
        _measure(plan, results, options.directory, console)
    except KeyboardInterrupt:
        console.print("Stopped; the results so far:")
    report.show(console, results, description)
    if options.output is not None:
        report.write(options.output, results, description, options.rounds)
        plot.draw(options.output, results)
        console.print(f"Written to {options.output}")
    wrong = disagreements(results)
    for cases in results.values():
        for case_title, summaries in cases.items():
            if OURS in summaries and summaries[OURS].failure:
                wrong.append(f"{case_title}: {OURS} failed: {summaries[OURS].failure}")
    return "\n".join(wrong) or None


def parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    found = argparse.ArgumentParser(
        prog="python -m benchmarks", description="Compare the costs of schedulers."
    )
    found.add_argument("--only", nargs="+", choices=WORKLOADS, default=WORKLOADS)
    found.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=list(CONTENDERS))
    found.add_argument("--rounds", type=positive(int), default=3, help="default: 3")
    found.add_argument(
        "--scale", type=positive(float), default=1.0, help="of all sizes; default: 1"
    )
    found.add_argument(
        "--grow",
        type=positive(int),
        default=10_000_000,
        metavar="URLS",
        help="seen at the end of the workload grow; default: 10,000,000",
    )
    found.add_argument(
        "--directory", type=Path, help="on the disk to be measured; default: for temporary files"
    )
    found.add_argument(
        "--output", type=Path, help="a directory for tables and plots; default: none is written"
    )
    return found


def _present(names: list[str], console: Console) -> list[str]:
    found = []
    for name in names:
        missing = CONTENDERS[name].missing()
        if missing:
            console.print(f"Without {CONTENDERS[name].title}: {missing}.")
        else:
            found.append(name)
    return found


#: Workload, case, contenders' names, rounds.
_Step = tuple[str, Case, list[str], int]


def _plan(options: argparse.Namespace, contenders: list[str]) -> list[_Step]:
    plan: list[_Step] = []
    for workload in WORKLOADS:
        if workload not in options.only:
            continue
        for case in import_module(f".workloads.{workload}", __package__).cases(
            options.scale, options
        ):
            names = [name for name in contenders if name in (case.contenders or contenders)]
            if names:
                plan.append((workload, case, names, min(options.rounds, case.rounds)))
    return plan


def _measure(plan: list[_Step], results: Results, directory: Path | None, console: Console) -> None:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    total = sum(
        min(rounds, CONTENDERS[name].rounds) for _, _, names, rounds in plan for name in names
    )
    with Progress(*columns, TimeElapsedColumn(), console=console) as progress:
        bar = progress.add_task("", total=total)
        for workload, case, names, rounds in plan:
            for number in range(rounds):
                # Each comes first in another round: the first one may find a cooler machine.
                turn = number % len(names)
                for name in names[turn:] + names[:turn]:
                    if number >= CONTENDERS[name].rounds:
                        continue
                    summary = results[workload][case.title][name]
                    progress.update(bar, description=f"{workload}, {case.title}: {name}")
                    try:
                        task = Task(workload, name, case.parameters)
                        summary.outcomes.append(run(task, directory, TIMEOUT))
                    except FailedError as error:
                        summary.failure = str(error)
                    progress.advance(bar)


if __name__ == "__main__":
    sys.exit(main())
