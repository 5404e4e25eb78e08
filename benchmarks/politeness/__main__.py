"""The command: ``python -m benchmarks.politeness``."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ..arguments import positive
from .cases import CAPS, DELAYS, HOSTS, KINDS, Case, choose_cases
from .crawl import CAN_PACE, crawl
from .figures import Result, find_problems, make_figures, make_tables

_FAULTS = {"without": (False,), "with": (True,), "both": (False, True)}


def main() -> str | None:
    """Measure; what is wrong, or ``None``."""
    options = make_parser().parse_args()
    options.faults = _FAULTS[options.faults]
    # Workers, one of which may be suspended, are to end with this process.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("Terminated."))
    console = Console()
    results: list[Result] = []
    try:
        _measure(choose_cases(options, can_pace=CAN_PACE), options, results, console)
    except KeyboardInterrupt:
        console.print("Stopped; the results so far:")
    except RuntimeError as error:
        return str(error)
    for table in make_tables(results):
        console.print(table)
    problems = [problem for result in results for problem in find_problems(result)]
    return "\n".join(problems) or None


def make_parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.politeness",
        description="Measure how polite the workers of a shared crawl are together.",
    )
    parser.add_argument("--only", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument(
        "--workers", nargs="+", type=positive(int), help="default: 1, 3 and 4, or 1 and 4"
    )
    parser.add_argument(
        "--delays", nargs="+", type=positive(float), default=DELAYS, help="default: 0.25 and 1"
    )
    parser.add_argument(
        "--hosts",
        nargs="+",
        type=positive(int),
        default=HOSTS,
        help="of cases about delays; default: 1 and 100",
    )
    parser.add_argument(
        "--faults",
        choices=_FAULTS,
        default="both",
        help="whether workers are suspended and killed in cases about delays; default: both",
    )
    parser.add_argument(
        "--caps", nargs="+", type=positive(int), default=CAPS, help="default: 1, 4 and 8"
    )
    parser.add_argument(
        "--seconds",
        type=positive(float),
        default=20.0,
        help="that a case takes at most, besides the start of its workers; sites are so large that"
        " it should take three fifths of that; default: 20",
    )
    parser.add_argument(
        "--directory", type=Path, help="for logs, which are kept; default: they are deleted"
    )
    return parser


def _measure(
    cases: list[Case], options: argparse.Namespace, results: list[Result], console: Console
) -> None:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=console) as progress:
        bar = progress.add_task("", total=len(cases))
        for case in cases:
            progress.update(bar, description=case.title)
            with tempfile.TemporaryDirectory(prefix="altsched-politeness-") as name:
                directory = Path(name)
                if options.directory is not None:
                    directory = options.directory.resolve() / case.title.replace(", ", "-").replace(
                        " ", "-"
                    )
                    directory.mkdir(parents=True)
                crawled = crawl(case, directory, options.seconds)
            figures = make_figures(case, crawled.arrivals)
            results.append(Result(case, crawled, figures))
            console.print(
                f"{case.title}: {figures.requests:,} requests, {figures.speed:,.1f} a second"
            )
            progress.advance(bar)


if __name__ == "__main__":
    sys.exit(main())
