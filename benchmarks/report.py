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
    :ivar headings: of columns; the first one or two are text, the others numbers.
    :ivar texts: how many are text.
    :ivar notes: printed below it.
    """

    title: str
    about: str
    headings: list[str]
    rows: list[list[str]]
    texts: int
    notes: list[str]


def sheets(results: Results) -> list[Sheet]:
    """The table of goals, then one for each workload."""
    found = []
    reached = goals(results)
    if reached:
        headings = ["what", "is", "to be", "reached"]
        found.append(Sheet("Goals", "", headings, _goal_rows(reached), 1, []))
    for workload, cases in results.items():
        module = import_module(f".workloads.{workload}", __package__)
        about = (module.__doc__ or "").strip().splitlines()[0]
        names = [name for name in CONTENDERS if any(name in found for found in cases.values())]
        rows = []
        notes = []
        for case, summaries in cases.items():
            rows += _case_rows(case, summaries, names, module.METRICS)
            notes += [
                f"{case}: {name} {summary.note}."
                for name, summary in summaries.items()
                if summary.note
            ]
        found.append(Sheet(workload, about, ["case", "figure", *names], rows, 2, notes))
    return found


def _goal_rows(found: Iterable[Goal]) -> list[list[str]]:
    rows = []
    for goal in found:
        bound = f"{'>=' if goal.at_least else '<='} {goal.bound:g}"
        rows.append([goal.what, f"{goal.value:.2f}", bound, "yes" if goal.is_reached else "NO"])
    return rows


def _case_rows(
    case: str, summaries: dict[str, Summary], names: Sequence[str], metrics: Sequence[Metric]
) -> list[list[str]]:
    """A row for each figure, a column for each contender; first the ratios to ours."""
    figures = {name: summaries[name].figures if name in summaries else {} for name in names}
    main = next(metric.name for metric in metrics if metric.is_main)
    rows = []
    ours = figures.get(OURS, {}).get(main)
    if ours:
        ratios = [
            f"{found[main] / ours:.2f}" if main in found else "" for found in figures.values()
        ]
        rows.append([case, "times ours", *ratios])
    for metric in metrics:
        cells = [
            f"{found[metric.name]:,.{metric.digits}f}" if metric.name in found else ""
            for found in figures.values()
        ]
        if any(cells):
            rows.append([case, metric.title, *cells])
    return rows


def show(console: Console, results: Results, machine: dict[str, str]) -> None:
    """Print all tables."""
    for sheet in sheets(results):
        title = sheet.title + (f": {sheet.about}" if sheet.about else "")
        table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
        for number, heading in enumerate(sheet.headings):
            is_text = number < sheet.texts
            table.add_column(heading, justify="left" if is_text else "right", no_wrap=not is_text)
        before = None
        for row in sheet.rows:
            if before is not None and row[0] != before and sheet.texts > 1:
                table.add_section()
            table.add_row("" if row[0] == before else row[0], *row[1:])
            before = row[0]
        console.print(table)
        for note in sheet.notes:
            console.print(note, soft_wrap=True)
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
        lines += [*_list_table(sheet), *(f"- {note}" for note in sheet.notes)]
    (directory / "benchmarks.rst").write_text("\n".join(lines) + "\n")


def _list_table(sheet: Sheet) -> list[str]:
    lines = [".. list-table::", "    :header-rows: 1", ""]
    for row in [sheet.headings, *sheet.rows]:
        lines.append(f"    * - {row[0]}")
        lines += [f"      - {cell}".rstrip() for cell in row[1:]]
    return [*lines, ""]
