"""Write a page that shows how a job or a shared crawl stands, and has gone so far, with charts.

``--follow`` writes it again every few seconds.  The crawl is not disturbed; the store of a job is
opened only for what has failed or is dead.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path

from rich.filesize import decimal

from ..errors import InputError, StoreError
from ..frontier.history import Sample
from ..frontier.store.samples import read_samples, sample_of
from ..frontier.store.status import read_status
from ..report.charts import charts_of
from ..report.page import KeyFigure, Page, StopReason, Table, is_page, render
from ..report.runs import SampledRun, marks_of_runs, marks_of_workers, runs_of
from .crawl import Crawl
from .groups import Group, groups_of
from .job import Job
from .project import Project, misuse
from .standing import Answer
from .status import at, describe_state, lasting, looker
from .target import Target, add_target, open_one_target

#: Fewest seconds between two pages, and how many times as long as one took to make.
_EVERY, _SHARE = 5, 20
#: How many groups of requests, runs and workers are listed.
_GROUPS, _RUNS, _WORKERS = 50, 20, 100
_OPEN = ("running", "closing")
_NO_SAMPLES = "No run has kept samples of how the job stood yet: the next one does."
_NO_HISTORY = "No worker has noted yet how the crawl stood: the next one that is started does."
_BY_DIGESTS = "A server knows download slots by digests only: there is no chart of them."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See :mod:`scrapy_altsched.command`."""
    add_target(parser)
    what = "the page (default: report.html); of what is there, only an earlier page is overwritten"
    parser.add_argument("-o", "--output", default="report.html", metavar="FILE", help=what)
    what = f"write it again every {_EVERY} seconds, until the crawl ends or Ctrl-C"
    parser.add_argument("--follow", action="store_true", help=what)


def run(arguments: argparse.Namespace, project: Project) -> int:
    """See :mod:`scrapy_altsched.command`: 0, whatever the state is."""
    path = Path(arguments.output)
    _check_output(path)
    reporter = _Reporter(open_one_target(arguments, project))
    if arguments.follow:
        _follow(reporter, path)
    _write(path, reporter.look())
    print(f"{path} is written, {decimal(path.stat().st_size)}.")
    return 0


def _follow(reporter: _Reporter, path: Path) -> None:
    """Write the page again and again while the crawl is open."""
    wait = _EVERY
    try:
        page = reporter.look(wait)
        if page.state in _OPEN:
            print(f"{path} is written again and again, until the crawl ends or Ctrl-C.", flush=True)
        while page.state in _OPEN:
            _write(path, page)
            time.sleep(wait)
            began = time.monotonic()
            page = reporter.look(wait)
            wait = max(_EVERY, round(_SHARE * (time.monotonic() - began)))
    except KeyboardInterrupt:
        pass


def _check_output(path: Path) -> None:
    """Raise UsageError if the file is none that may be overwritten."""
    try:
        if not path.exists() or is_page(path):
            return
    except OSError as error:
        raise _not_written(path, error) from error
    raise misuse(
        f"{path} is there already, and is no page of this command: name another file with -o, or"
        " delete it"
    )


def _write(path: Path, page: Page) -> None:
    """Write the page: a reader finds the old one or the new one."""
    partial = path.with_name(path.name + ".partial")
    # What was stored of a slot's name may be no text.
    content = render(page).encode(errors="backslashreplace")
    try:
        partial.write_bytes(content)
        partial.replace(path)
    except OSError as error:
        raise _not_written(path, error) from error


def _not_written(path: Path, error: OSError) -> InputError:
    return InputError(
        f"The page {path} cannot be written: {error.strerror or error}. Name another file with -o."
    )


class _Reporter:
    """Makes pages of one target."""

    def __init__(self, target: Target) -> None:
        self._target, self._look = target, looker(target, None)
        #: What was read last of requests that have stopped, and how many had failed or were dead.
        self._groups: list[Group] = []
        self._stopped: tuple[int, int] | None = None

    def look(self, refresh: int | None = None) -> Page:
        """How it stands now, for a page that is loaded again after *refresh* seconds."""
        target, answer = self._target, self._look()
        sentence, is_open = describe_state(answer), answer["state"] in _OPEN
        runs: list[SampledRun] = []
        if isinstance(target, Crawl):
            kind, samples = "Shared crawl", target.crawl.history()
            charts_note = _BY_DIGESTS if samples else _NO_HISTORY
            marks = list(marks_of_workers(samples))
        else:
            kind, samples = "Job directory", _history_of(target)
            charts_note = "" if samples else _NO_SAMPLES
            runs = runs_of(samples, lives=is_open)
            marks = list(marks_of_runs(runs))
        slots = [(slot["slot"], slot["pending"]) for slot in answer.get("slots", ())]
        stops_note = self._read_groups(answer)
        return Page(
            spider=answer["spider"],
            target=f"{kind} {answer['target']}",
            state=answer["state"],
            sentence=f"{sentence[:1].upper()}{sentence[1:]}.",
            written=at(time.time()),
            refresh=refresh if is_open else None,
            figures=list(_figures(answer)),
            charts=charts_of(samples, marks, slots),
            charts_note=charts_note,
            stops=[_stop(group) for group in self._groups[:_GROUPS]],
            stops_note=stops_note,
            tables=list(_tables(answer, runs)),
        )

    def _read_groups(self, answer: Answer) -> str:
        """Read what has stopped, if there is more or less of it; a sentence about that."""
        counts = answer.get("counts", {})
        # Of a job of which no run has told how it stands, only the store knows.
        stopped = counts.get("failed", 1), counts.get("dead", 1)
        if stopped != self._stopped:
            try:
                self._groups = groups_of(self._target, dead=True) if any(stopped) else []
            except StoreError as error:
                return f"They cannot be read. {error}"
            self._stopped = stopped
        if not self._groups:
            return "There are none."
        if (more := len(self._groups) - _GROUPS) > 0:
            return (
                f"The largest groups; {more:,} more are listed by `scrapy altsched failed"
                f" {self._target.words} --dead --limit 0`."
            )
        return (
            "Grouped by reason and download slot, with the command that has a group crawled again."
        )


def _history_of(job: Job) -> list[Sample]:
    """Its samples, and how it stood last."""
    status = read_status(job.jobdir)
    if status is None or job.store_id not in ("", status.store_id):
        return read_samples(job.jobdir, job.store_id)
    samples = read_samples(job.jobdir, status.store_id)
    last = sample_of(status)
    if not samples or last.at > samples[-1].at:
        samples.append(last)
    return samples


def _figures(answer: Answer) -> Iterator[KeyFigure]:
    counts = answer.get("counts", {})
    for name, number in counts.items():
        if name == "left" or number is None:
            continue
        note = f"{number / counts['accepted']:.1%} of all" if name == "done" and number else ""
        alarms = name in ("failed", "dead") and number > 0
        yield KeyFigure(name.replace("_", " "), f"{number:,}", note, alarms)
    if "duplicates" in answer:
        yield KeyFigure("duplicates", f"{answer['duplicates']:,}", "refused in this run")
    if answer["state"] in _OPEN and answer["found_rate"] is not None:
        yield KeyFigure("accepted a minute", f"{answer['found_rate'] * 60:,.0f}")
        yield KeyFigure("done a minute", f"{answer['ended_rate'] * 60:,.0f}")
        if answer["grows"]:
            yield KeyFigure("time left", "not known", "it finds more than it is done with")
        elif answer["seconds_left"] is not None:
            yield KeyFigure("time left", lasting(answer["seconds_left"]), "at this speed")
    if "committed" in answer:
        ago = lasting(max(0.0, time.time() - answer["committed"]))
        yield KeyFigure("last commit", f"{ago} ago", f"number {answer['commit']:,}")
    if answer.get("bytes") is not None:
        is_shared = answer["kind"] == "shared crawl"
        yield KeyFigure("on the server" if is_shared else "on disk", decimal(answer["bytes"]))
    if "workers" in answer:
        yield KeyFigure("workers", f"{len(answer['workers']):,}")
    if "resting" in answer:
        yield KeyFigure("slots at rest", f"{answer['resting']['slots']:,}", "for their delay")


def _stop(group: Group) -> StopReason:
    last = None if group.last is None else at(group.last)
    return StopReason(group.title, group.text, group.example, last, group.advice)


def _tables(answer: Answer, runs: list[SampledRun]) -> Iterator[Table]:
    if "workers" in answer:
        yield _workers(answer)
    if "held" in answer:
        held = [
            ("all slots" if it["slot"] is None else it["slot"], at(it["until"]))
            for it in answer["held"]
        ]
        note = "" if held else "No download slot is deferred."
        yield Table("Slots held", ("slot", "until"), held, note)
    if "run" in answer and runs:
        rows = [
            (f"{run.number:,}", at(run.began), at(run.last), run.end or answer["state"])
            for run in runs[: -_RUNS - 1 : -1]
        ]
        note = f"The last {_RUNS:,} of {len(runs):,}." if len(runs) > _RUNS else ""
        yield Table("Runs", ("run", "began", "last heard of", "state"), rows, note)


def _workers(answer: Answer) -> Table:
    workers = answer["workers"]
    rows = [
        (
            worker["token"][:8],
            f"{worker['leases']:,}",
            "unknown" if worker["heard"] is None else f"{lasting(worker['heard'])} ago",
            f"in {lasting(worker['expires'])}" if worker["expires"] > 0 else "now",
        )
        for worker in workers[:_WORKERS]
    ]
    note = "" if workers else "No worker has requests in flight."
    if more := len(workers) - len(rows):
        note = f"And {more:,} more."
    return Table("Workers", ("worker", "leased", "last heard of", "leases expire"), rows, note)
