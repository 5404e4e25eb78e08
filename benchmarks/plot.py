"""Cost against size, for the workloads that grow, as PNG and SVG."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from .contenders import CONTENDERS
from .summary import Results


@dataclass(frozen=True)
class _Panel:
    """One diagram.

    :ivar figure: key in the series, against ``size``.
    :ivar unit: of the vertical axis.
    """

    figure: str
    unit: str
    is_log: bool = False


_PLOTS = {
    "hosts": ("hosts that have requests pending", [_Panel("take", "us a request taken", True)]),
    "grow": (
        "URLs seen, of which a tenth is pending",
        [_Panel("cost", "us a request"), _Panel("resident", "MB resident")],
    ),
}


def draw(directory: Path, results: Results) -> list[Path]:
    """Draw all series; the files that were written."""
    mpl.rcParams["svg.hashsalt"] = "scrapy_altsched"  # the same figures make the same file
    directory.mkdir(parents=True, exist_ok=True)
    written = []
    for workload, (size, panels) in _PLOTS.items():
        series = _series(results, workload)
        if not series:
            continue
        figure = Figure(figsize=(6.4 * len(panels), 4.4), layout="constrained")
        all_axes = figure.subplots(1, len(panels), squeeze=False)[0]
        for axes, panel in zip(all_axes, panels, strict=True):
            for name, rows in series.items():
                is_ours = name.startswith("altsched")
                axes.plot(
                    [row["size"] for row in rows],
                    [row[panel.figure] for row in rows],
                    marker="o" if len(rows) < 10 else None,
                    linewidth=2.4 if is_ours else 1.2,
                    label=CONTENDERS[name].title,
                )
            axes.set_xlabel(size)
            axes.set_ylabel(panel.unit)
            if workload == "hosts":
                axes.set_xscale("log")
            axes.xaxis.set_major_formatter("{x:,.0f}")  # after the scale, which sets its own
            if panel.is_log:
                axes.set_yscale("log")
            else:
                axes.set_ylim(bottom=0)
            axes.grid(visible=True, alpha=0.3)
            axes.legend(fontsize="small")
        for suffix in ("png", "svg"):
            path = directory / f"{workload}.{suffix}"
            figure.savefig(path, dpi=120, metadata={"Date": None} if suffix == "svg" else None)
            written.append(path)
    return written


def _series(results: Results, workload: str) -> dict[str, list[dict[str, float]]]:
    """By contender: the figures at growing sizes; if two cases have a size, the first."""
    found: dict[str, list[dict[str, float]]] = {}
    for summaries in results.get(workload, {}).values():
        for name, summary in summaries.items():
            if not summary.outcomes:
                continue
            rows = summary.outcomes[-1].series
            if len(rows) == 1:
                rows = [{**rows[0], **summary.figures}]
            drawn = found.setdefault(name, [])
            sizes = {row["size"] for row in drawn}
            drawn.extend(row for row in rows if row["size"] not in sizes)
    return {name: sorted(rows, key=lambda row: row["size"]) for name, rows in found.items()}
