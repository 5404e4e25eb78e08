"""Tables of what was measured: on the terminal, as reStructuredText, and all of it as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from .contenders import CONTENDERS, OURS
from .goals import Goal, goals
from .summary import Results, Summary
from .workloads import Metric


@dataclass(frozen=True)
class Sheet:
    """A table, wherever it is shown.

    :ivar title: of the table.
    :ivar about: what was done.
    :ivar headings: of columns; the first two are text, the others numbers.
    """

    title: str
    about: str
    headings: list[str]
    rows: list[list[str]]


def sheets(results: Results) -> list[Sheet]:
    """The table of what was to be shown, then one a workload."""
    found = []
    reached = goals(results)
    if reached:
        found.append(Sheet("Goals", "", ["what", "reached", "to be", "is"], _goal_rows(reached)))
    for workload, cases in results.items():
        module = import_module(f".workloads.{workload}", __package__)
        about = (module.__doc__ or "").strip().splitlines()[0]
        metrics: Sequence[Metric] = module.METRICS
        headings = ["case", "scheduler", "times ours", *(metric.title for metric in metrics)]
        rows = []
        for case, summaries in cases.items():
            rows += _case_rows(case, summaries, metrics)
        found.append(Sheet(workload, about, headings, rows))
    return found


def _goal_rows(found: Iterable[Goal]) -> list[list[str]]:
    rows = []
    for goal in found:
        sign = ">=" if goal.at_least else "<="
        answer = "yes" if goal.is_reached else "NO"
        rows.append([goal.what, answer, f"{sign} {goal.bound:g}", f"{goal.value:.2f}"])
    return rows


def _case_rows(
    case: str, summaries: dict[str, Summary], metrics: Sequence[Metric]
) -> list[list[str]]:
    main = next(metric.name for metric in metrics if metric.is_main)
    ours = summaries[OURS].figures.get(main) if OURS in summaries else None
    rows = []
    for name, summary in summaries.items():
        figures = summary.figures
        ratio = f"{figures[main] / ours:.2f}" if ours and main in figures else ""
        cells = [
            f"{figures[metric.name]:,.{metric.digits}f}" if metric.name in figures else ""
            for metric in metrics
        ]
        title = CONTENDERS[name].title + (f" ({summary.note})" if summary.note else "")
        rows.append([case, title, ratio, *cells])
    return rows


def show(console: Console, results: Results, machine: dict[str, str]) -> None:
    """Print all tables."""
    for sheet in sheets(results):
        title = sheet.title + (f": {sheet.about}" if sheet.about else "")
        table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
        for number, heading in enumerate(sheet.headings):
            table.add_column(heading, justify="left" if number < 2 else "right")
        before = None
        for row in sheet.rows:
            if before not in (None, row[0]) and sheet.title != "Goals":
                table.add_section()
            table.add_row(*([""] if row[0] == before else [row[0]]), *row[1:])
            before = row[0]
        console.print(table)
    console.print(", ".join(f"{name} {value}" for name, value in machine.items()), soft_wrap=True)


def write(directory: Path, results: Results, machine: dict[str, str], rounds: int) -> None:
    """Write ``benchmarks.json`` and ``benchmarks.rst``."""
    directory.mkdir(parents=True, exist_ok=True)
    whole = {
        "machine": machine,
        "rounds": rounds,
        "results": {
            workload: {
                case: {name: asdict(summary) for name, summary in summaries.items()}
                for case, summaries in cases.items()
            }
            for workload, cases in results.items()
        },
    }
    (directory / "benchmarks.json").write_text(json.dumps(whole, indent=1) + "\n")
    lines = ["==========", "Benchmarks", "==========", ""]
    lines += [f"Medians of {rounds} rounds in which the schedulers took turns. Less is better.", ""]
    lines += [f":{name}: {value}" for name, value in machine.items()] + [""]
    for sheet in sheets(results):
        lines += ["", sheet.title, "=" * len(sheet.title), ""]
        if sheet.about:
            lines += [sheet.about, ""]
        lines += _list_table(sheet)
    (directory / "benchmarks.rst").write_text("\n".join(lines) + "\n")


def _list_table(sheet: Sheet) -> list[str]:
    lines = [".. list-table::", "    :header-rows: 1", ""]
    for row in [sheet.headings, *sheet.rows]:
        lines.append(f"    * - {row[0]}")
        lines += [f"      - {cell}".rstrip() for cell in row[1:]]
    return [*lines, ""]
