"""What the charts show, and that Plotly knows all that is in them."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import plotly.graph_objects
import pytest

from scrapy_altsched.frontier.history import Sample, WorkerCounts
from scrapy_altsched.report.charts import Chart, charts_of
from scrapy_altsched.report.runs import SampledRun, marks_of_runs, marks_of_workers, runs_of

from .pages import BEGAN, LONG, SLOTS, sample, samples


def charts(found: list[Sample], *, lives: bool = True) -> dict[str, Chart]:
    made = charts_of(found, marks_of_runs(runs_of(found, lives=lives)), SLOTS)
    return {chart.name: chart for chart in made}


def lines(chart: Chart) -> dict[str, Any]:
    return {trace.get("name", ""): trace for trace in chart.figure["data"]}


def test_all_of_each_figure_is_known_to_the_library() -> None:
    made = charts(samples())
    assert list(made) == ["requests", "speed", "failures", "slots"]
    for chart in made.values():
        # What it does not know, or would not take, is an error.
        plotly.graph_objects.Figure(chart.figure)


def test_runs_end_as_their_last_samples_say() -> None:
    found = samples()
    assert runs_of(found, lives=True) == [
        SampledRun(1, BEGAN, BEGAN + 99, "died"),
        SampledRun(2, BEGAN + 150, BEGAN + 199, "stopped"),
        SampledRun(3, BEGAN + 250, BEGAN + 299, None),
    ]
    assert runs_of(found, lives=False)[-1].end == "died"
    found[-1] = replace(found[-1], state="finished")
    assert runs_of(found, lives=True)[-1].end == "finished"
    assert runs_of([], lives=True) == []


def test_the_lines_have_what_the_samples_say_and_gaps_between_runs() -> None:
    made = lines(charts(samples())["requests"])
    left = made["left"]
    assert left["x"][1] == "2027-01-15 08:00:01.000000"
    assert left["y"][:3] == [0, 29, 58]
    assert left["y"][100] is None
    assert left["y"].count(None) == 2
    # Of samples that an earlier version has taken it is not known how many pages were seen.
    assert "seen" not in made
    found = samples()
    found[1:] = [replace(it, counts=replace(it.counts, seen=5)) for it in found[1:]]
    assert lines(charts(found)["requests"])["seen"]["y"][:3] == [None, 5, 5]
    # Each run counts its own.
    known = [number for number in made["duplicates"]["y"] if number is not None]
    assert (known[99], known[100], known[-1]) == (99, 99, 99 + 49 + 49)


def test_speed_is_that_of_one_run_and_never_negative() -> None:
    speed = lines(charts(samples())["speed"])
    assert speed["accepted"]["y"][:3] == [None, 40 * 60, 40 * 60]
    # Nothing is known of the time between two runs.
    assert speed["accepted"]["y"][100:102] == [None, None]
    requeued = [sample(10, 1), replace(sample(20, 1), counts=sample(5, 1).counts)]
    assert lines(charts(requeued)["speed"])["done or failed"]["y"] == [None, 0]
    # The clock was set back.
    assert lines(charts([sample(10, 1), sample(9, 1)])["speed"])["accepted"]["y"] == [None, None]


def test_what_has_happened_to_runs_is_marked() -> None:
    made = lines(charts(samples(), lives=False)["requests"])
    assert made["start"]["x"][::3] == [
        "2027-01-15 08:00:00.000000",
        "2027-01-15 08:02:30.000000",
        "2027-01-15 08:04:10.000000",
    ]
    assert made["death"]["text"][::3] == ["run 1 died", "run 3 died"]
    assert made["clean end"]["text"][0] == "run 2 stopped"
    unsaved = lines(charts([sample(1, 1, "unsaved")])["requests"])
    assert unsaved["death"]["text"][0] == "run 1 ended without saving its end"


def test_what_has_happened_to_workers_is_marked_where_samples_say_so() -> None:
    crews = [(2, 0, 0), (2, 0, 0), (3, 0, 1), (3, 2, 1)]
    found = [
        replace(sample(second, 1), workers=WorkerCounts(*crew)) for second, crew in enumerate(crews)
    ]
    made = charts_of(found, marks_of_workers(found), [])
    marks = lines(made[0])
    assert marks["start"]["text"][::3] == ["2 workers began", "1 worker began"]
    assert marks["start"]["x"][::3] == [
        "2027-01-15 08:00:00.000000",
        "2027-01-15 08:00:02.000000",
    ]
    assert marks["clean end"]["text"][0] == "2 workers ended"
    assert marks["death"]["x"][0] == "2027-01-15 08:00:02.000000"
    # A server whose history was rolled back takes nothing back here.
    assert [mark.at for mark in marks_of_workers(found[::-1])] == [BEGAN + 3] * 3


@pytest.mark.parametrize("each", [1, 2, 3_000])
def test_many_samples_make_no_large_figure(each: int) -> None:
    found = [sample(second, 1 + second // each) for second in range(3_000)]
    made = lines(charts(found)["requests"])
    times = [time for time in made["done"]["x"] if time]
    assert 100 < len(times) <= 2 * 400
    assert times[0] == "2027-01-15 08:00:00.000000"
    assert times[-1] == "2027-01-15 08:49:59.000000"
    assert all(old <= new for old, new in pairwise(times))


def test_names_of_slots_are_text_and_cut_where_they_are_long() -> None:
    bars, names = charts(samples())["slots"].figure["data"]
    shown = names["text"]
    assert shown[0] == "books.example: 900"
    assert not any("<" in name for name in (*shown, *bars["customdata"]))
    assert LONG in bars["customdata"]
    assert all(len(name) < 100 for name in shown)


def test_where_nothing_is_known_there_is_no_chart() -> None:
    assert charts_of([], [], []) == []
