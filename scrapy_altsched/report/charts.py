"""The charts of the page, as figures of Plotly.

A figure is a plain dict: https://plotly.com/javascript/reference/.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from html import escape
from itertools import groupby
from operator import attrgetter
from typing import Any, TypeAlias

from ..frontier.history import Sample, thin
from .runs import Mark

Figure: TypeAlias = dict[str, Any]

#: Most points of a line.
_POINTS = 400
#: With so few points of a line each one is drawn.
_FEW = 60
#: Longer names of slots are cut in the middle.
_NAME_LENGTH = 32
#: Half of the height of a bar; 1 is from one to the next.
_HALF_BAR = 0.2
#: They can be told apart on white, on black, and by those who see red and green alike.
_BLUE, _GREEN, _ORANGE = "#3b82f6", "#12a594", "#e08a1e"
_RED, _VIOLET, _GRAY = "#e5484d", "#a15cd6", "#8b8d98"
_GRID = "rgba(139, 141, 152, 0.25)"

#: Name, color, dash of the lines that mark what has happened to runs, or workers.
_MARKS = {
    "start": ("start", _GRAY, "dot"),
    "end": ("clean end", _GRAY, "dash"),
    "death": ("death", _RED, "solid"),
}


@dataclass(frozen=True, slots=True)
class Chart:
    """One chart; *note*: what it shows, in a sentence."""

    name: str
    title: str
    note: str
    figure: Figure


def charts_of(
    samples: Sequence[Sample], marks: Iterable[Mark], slots: Sequence[tuple[str, int]]
) -> list[Chart]:
    """All that there is something to show in.

    :param marks: what has happened to runs, or workers, meanwhile.
    :param slots: those with the most pending requests, the first one first, and how many.
    """
    charts = []
    if samples:
        lines = list(_marks(marks))
        while len(samples) > _POINTS:
            samples = thin(samples, attrgetter("run"))
        charts += [
            Chart(
                "requests",
                "Requests",
                "All that were accepted; how many pages are seen; what is done of the requests, and"
                " what is left: pending, in flight or delayed. Duplicates were refused, in all"
                " runs.",
                _over_time(samples, _requests(samples), lines),
            ),
            Chart(
                "speed",
                "Requests a minute",
                "How many were accepted in a minute, and of how many that was the end: they are"
                " done, failed or dead.",
                _over_time(samples, _speed(samples), lines),
            ),
            Chart(
                "failures",
                "Failed and dead",
                "Requests that the crawl went on without.",
                _over_time(samples, _failures(samples), lines),
            ),
        ]
    if slots:
        note = "Download slots with the most pending requests, as of the last commit."
        charts.append(Chart("slots", "Top slots", note, _bars(slots)))
    return charts


def _requests(samples: Sequence[Sample]) -> Iterator[Figure]:
    seen = [it.counts.seen for it in samples]
    if any(number is not None for number in seen):
        # Below the next one, which is the same in most crawls.
        yield _line("seen", _GRAY, samples, seen)
    yield _line("accepted", _BLUE, samples, [it.counts.accepted for it in samples])
    yield _line("done", _GREEN, samples, [it.counts.done for it in samples])
    yield _line("left", _ORANGE, samples, [it.counts.left for it in samples])
    yield _line("duplicates", _VIOLET, samples, list(_duplicates(samples)))


def _duplicates(samples: Sequence[Sample]) -> Iterator[int]:
    """How many there were so far: each run counts its own."""
    earlier = 0
    for _, group in groupby(samples, attrgetter("run")):
        own = [earlier + it.duplicates for it in group]
        earlier = own[-1]
        yield from own


def _speed(samples: Sequence[Sample]) -> Iterator[Figure]:
    yield _line("accepted", _BLUE, samples, _rates(samples, [it.counts.accepted for it in samples]))
    over = [it.counts.done + it.counts.failed + it.counts.dead for it in samples]
    yield _line("done or failed", _GREEN, samples, _rates(samples, over))


def _rates(samples: Sequence[Sample], numbers: Sequence[int]) -> list[float | None]:
    """How much a number has grown in a minute, since the sample before."""
    rates: list[float | None] = [None]
    for at in range(1, len(samples)):
        old, new = samples[at - 1], samples[at]
        seconds = new.at - old.at
        grown = max(0, numbers[at] - numbers[at - 1])  # what was dead may be pending again
        is_known = old.run == new.run and seconds > 0
        rates.append(round(grown * 60 / seconds, 2) if is_known else None)
    return rates


def _failures(samples: Sequence[Sample]) -> Iterator[Figure]:
    yield _line("failed", _ORANGE, samples, [it.counts.failed for it in samples])
    yield _line("dead", _VIOLET, samples, [it.counts.dead for it in samples])


def _line(
    name: str, color: str, samples: Sequence[Sample], numbers: Sequence[float | None]
) -> Figure:
    """One number over time, with a gap between two runs."""
    times: list[str | None] = []
    shown: list[float | None] = []
    for at, (sample, number) in enumerate(zip(samples, numbers, strict=True)):
        if at and samples[at - 1].run != sample.run:
            times.append(times[-1])
            shown.append(None)
        times.append(_time(sample.at))
        shown.append(number)
    return {
        "type": "scatter",
        "mode": "lines+markers" if len(samples) <= _FEW else "lines",
        "name": name,
        "x": times,
        "y": shown,
        "line": {"color": color, "width": 2},
        "marker": {"size": 4},
        "hovertemplate": "%{y:,}",
    }


def _marks(marks: Iterable[Mark]) -> Iterator[Figure]:
    """Vertical lines, one trace for each kind."""
    by_kind: dict[str, list[Mark]] = {kind: [] for kind in _MARKS}
    for mark in marks:
        by_kind[mark.kind].append(mark)
    for kind, found in by_kind.items():
        if not found:
            continue
        name, color, dash = _MARKS[kind]
        yield {
            "type": "scatter",
            "mode": "lines",
            "name": name,
            # A line from the bottom to the top, and none to the next one.
            "x": [time for it in found for time in (_time(it.at), _time(it.at), None)],
            "y": [height for _ in found for height in (0, 1, None)],
            "text": [text for it in found for text in (it.words, it.words, "")],
            "yaxis": "y2",
            "line": {"color": color, "width": 1.5, "dash": dash},
            "hovertemplate": "%{text}<extra></extra>",
        }


def _over_time(
    samples: Sequence[Sample], lines: Iterator[Figure], marks: Sequence[Figure]
) -> Figure:
    began, ended = samples[0].at, samples[-1].at
    # A mark at an end would be cut in half.
    margin = max(1.0, (ended - began) / 50)
    layout = _layout() | {
        "height": 320,
        "hovermode": "x",
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
        "yaxis2": {"overlaying": "y", "range": [0, 1], "visible": False, "fixedrange": True},
    }
    shown = [_time(began - margin), _time(ended + margin)]
    layout["xaxis"] |= {"type": "date", "nticks": 5, "tickangle": 0, "range": shown}
    layout["yaxis"] |= {"rangemode": "tozero", "separatethousands": True, "nticks": 6}
    return {"data": [*lines, *marks], "layout": layout}


def _bars(slots: Sequence[tuple[str, int]]) -> Figure:
    """A bar for each slot, with its name above: beside it, a long one would leave no room."""
    places = list(range(len(slots)))
    layout = _layout() | {"height": 50 + 40 * len(slots), "showlegend": False}
    layout["margin"] |= {"l": 8, "b": 24}
    layout["xaxis"] |= {"rangemode": "tozero", "separatethousands": True, "nticks": 5}
    layout["yaxis"] |= {"range": [len(slots) - 0.5, -0.9], "visible": False, "fixedrange": True}
    bars = {
        "type": "bar",
        "orientation": "h",
        "x": [count for _, count in slots],
        "y": places,
        "width": 2 * _HALF_BAR,
        "customdata": [escape(name, quote=False) for name, _ in slots],
        "marker": {"color": _BLUE},
        "hovertemplate": "%{customdata}: %{x:,}<extra></extra>",
    }
    names = {
        "type": "scatter",
        "mode": "text",
        "x": [0] * len(slots),
        "y": [place - _HALF_BAR for place in places],
        "text": [f"{escape(_cut(name), quote=False)}: {count:,}" for name, count in slots],
        "textposition": "top right",
        "hoverinfo": "skip",
    }
    return {"data": [bars, names], "layout": layout}


def _layout() -> Figure:
    """What all charts have in common: the page's colors show through, and it sets those of text."""
    axis = {"gridcolor": _GRID, "linecolor": _GRID, "zerolinecolor": _GRID}
    return {
        "autosize": True,
        "margin": {"l": 44, "r": 12, "t": 8, "b": 40},
        "paper_bgcolor": "rgba(0, 0, 0, 0)",
        "plot_bgcolor": "rgba(0, 0, 0, 0)",
        "font": {"family": "system-ui, sans-serif", "size": 12},
        "xaxis": dict(axis),
        "yaxis": dict(axis),
    }


def _time(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, timezone.utc):%Y-%m-%d %H:%M:%S.%f}"


def _cut(name: str) -> str:
    if len(name) <= _NAME_LENGTH:
        return name
    half = _NAME_LENGTH // 2
    return f"{name[: half - 1]}\N{HORIZONTAL ELLIPSIS}{name[-half:]}"
