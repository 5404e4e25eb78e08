"""Show how a job or a shared crawl stands, also while it runs, with counts, speed and slots.

The store of a job is not opened, unless ``--slots`` asks for it, and the crawl is not disturbed.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from typing import TypeAlias

from rich.console import Group
from rich.filesize import decimal
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ..crawl.rates import Rates
from ..inflection import counted, inflect
from .answers import print_formatted, print_json
from .crawl import Crawl
from .metrics import openmetrics
from .project import Project, misuse
from .standing import Answer, has_pace, look_at_crawl, look_at_job, printable
from .target import Target, add_target, open_one_target

_Row: TypeAlias = tuple[str, Text | ProgressBar]

#: Seconds between two looks of ``--watch``.
_EVERY = 2.0
#: How many slots ``--slots`` lists without a number, and how many workers are listed.
_SLOTS, _WORKERS = 20, 50


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See :mod:`scrapy_altsched.command`."""
    add_target(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    what = "print metrics for Prometheus and others (needs scrapy-altsched[metrics])"
    parser.add_argument("--openmetrics", action="store_true", help=what)
    what = f"look at what is pending, too, and list the N largest slots (default {_SLOTS})"
    parser.add_argument("--slots", nargs="?", type=int, const=_SLOTS, metavar="N", help=what)
    what = "show it again every two seconds, in a terminal, until Ctrl-C"
    parser.add_argument("--watch", action="store_true", help=what)


def run(arguments: argparse.Namespace, project: Project) -> int:
    """See :mod:`scrapy_altsched.command`."""
    if arguments.slots is not None and arguments.slots < 1:
        raise misuse("--slots takes a number of slots, 1 or more")
    is_for_programs = arguments.json or arguments.openmetrics
    if arguments.watch and (is_for_programs or not sys.stdout.isatty()):
        raise misuse("--watch needs a terminal, and neither --json nor --openmetrics")
    if arguments.openmetrics and (arguments.json or arguments.slots is not None):
        raise misuse("--openmetrics goes with neither --json nor --slots")
    target = open_one_target(arguments, project)
    if arguments.watch:
        _watch(target, arguments.slots)
        return 0
    answer = looker(target, arguments.slots)()
    if arguments.json:
        print_json(answer)
    elif arguments.openmetrics:
        print(openmetrics(answer), end="")
    else:
        for table in _tables(answer, target.words):
            print_formatted(table)
    return 0


def looker(target: Target, slots: int | None) -> Callable[[], Answer]:
    """What looks at the target, each time that it is called."""
    if not isinstance(target, Crawl):
        return lambda: look_at_job(target, slots)
    rates: list[Rates] = []

    def look() -> Answer:
        if not rates:
            rates.append(Rates(target.crawl.look().counts, time.monotonic()))
        return look_at_crawl(target, rates[0], slots)

    return look


def _watch(target: Target, slots: int | None) -> None:
    from rich.live import Live

    look = looker(target, slots)
    try:
        with Live(auto_refresh=False) as live:
            while True:
                answer = look()
                live.update(Group(*_tables(answer, target.words, bar=True)), refresh=True)
                time.sleep(_EVERY)
    except KeyboardInterrupt:
        pass


def _tables(answer: Answer, words: str, *, bar: bool = False) -> Iterator[Table]:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for row in _rows(answer, words, bar=bar):
        table.add_row(*row)
    yield table
    if answer.get("slots"):
        table = Table("slot", box=None, pad_edge=False)
        is_stored = "stored" in answer["slots"][0]
        table.add_column("pending or in flight" if is_stored else "pending", justify="right")
        for slot in answer["slots"]:
            count = slot["stored" if is_stored else "pending"]
            table.add_row(Text(printable(slot["slot"])), f"{count:,}")
        yield table
    if answer.get("workers"):
        table = Table("worker", box=None, pad_edge=False)
        for name in ("leased", "last heard of", "leases expire"):
            table.add_column(name, justify="right")
        for worker in answer["workers"][:_WORKERS]:
            heard, expires = worker["heard"], worker["expires"]
            table.add_row(
                worker["token"][:8],
                f"{worker['leases']:,}",
                "unknown" if heard is None else f"{lasting(heard)} ago",
                f"in {lasting(expires)}" if expires > 0 else "now",
            )
        yield table


def _rows(answer: Answer, words: str, *, bar: bool) -> Iterator[_Row]:
    def row(name: str, text: str) -> _Row:
        return name, Text(printable(text))

    is_shared = answer["kind"] == "shared crawl"
    yield row("crawl" if is_shared else "job", answer["target"])
    yield row("spider", answer["spider"])
    yield row("state", describe_state(answer))
    if answer.get("paused") is not None:
        resume = f"scrapy altsched resume {words}"
        yield row("paused", f"since {at(answer['paused'])}, until `{resume}`")
    if "held_by" in answer:
        yield row("in use", f"by process {answer['held_by']}, which has not told how it stands")
    if "counts" not in answer:
        return
    counts = answer["counts"]
    numbers = [f"{counts['done']:,} done"]
    names = ("pending", "in_flight", "delayed", "failed", "dead")
    numbers += [f"{counts[name]:,} {name.replace('_', ' ')}" for name in names if name in counts]
    yield row("requests", f"{counts['accepted']:,} accepted: {', '.join(numbers)}")
    if bar and "left" in counts:
        over = counts["accepted"] - counts["left"]
        yield "", ProgressBar(total=max(counts["accepted"], 1), completed=over, width=50)
    if counts.get("seen") is not None:
        yield row("seen", counted(counts["seen"], "page"))
    if "duplicates" in answer:
        yield row("duplicates", f"{answer['duplicates']:,} refused in this run")
    if has_pace(answer):
        yield from (row(*it) for it in _describe_pace(answer))
    if "committed" in answer:
        ago = max(0.0, time.time() - answer["committed"])
        yield row("last commit", f"number {answer['commit']:,}, {lasting(ago)} ago")
    if "oldest_pending" in answer:
        yield row("oldest pending", _describe_oldest(answer["oldest_pending"]))
    if answer.get("changed_since"):
        text = "a command has changed the job since: `scrapy altsched check` counts anew"
        yield row("", text)
    if answer.get("bytes") is not None:
        size = decimal(answer["bytes"])
        yield row("on the server", f"about {size}") if is_shared else row("on disk", size)
    if "limits" in answer:
        yield from (row(*it) for it in _describe_limits(answer))
    for held in answer.get("held", ()):
        slot = "all slots" if held["slot"] is None else held["slot"]
        yield row("held", f"{slot} until {at(held['until'])}")


def describe_state(answer: Answer) -> str:
    """In which state it is, since when, and by which process."""
    state = answer["state"]
    if answer["kind"] == "shared crawl":
        workers = counted(len(answer["workers"]), "worker")
        state = "not finished" if state == "stopped" else state
        return f"{state}, {workers}, begun at {at(answer['began'])}"
    if state == "silent":
        return (
            "not known: no run has written it yet. The next one does; `scrapy"
            " altsched check` reads the job itself"
        )
    process = f"process {answer['pid']} on host {answer['host']}, run {answer['run']:,}"
    when = at(answer["run_lasted"])
    if state in ("running", "closing"):
        lasts = lasting(max(0.0, time.time() - answer["began"]))
        text = f"{state} since {at(answer['began'])}, for {lasts}: {process}"
        if state == "closing":
            text = f"closing: {process}, since {at(answer['began'])}"
        if answer["lives"] is None:
            text += "; whether it still runs cannot be told from here"
        return text
    if state == "died":
        return (
            f"died: {process}, ended without saving its end, after {when}. The crawl's command"
            " resumes it"
        )
    if state == "unsaved":
        return f"ended at {when}, which could not be saved: {process}. Its log says why"
    if state == "stopped":
        return f"stopped cleanly at {when}, not finished: {process}"
    if answer["ended"]:
        return f"finished at {when}: {process}"
    if answer["lives"] is False:
        text = f"finished at {when}, but died before it had ended: {process}"
        return f"{text}. The next run completes that"
    return f"finished at {when}, and about to end: {process}"


def _describe_pace(answer: Answer) -> Iterator[tuple[str, str]]:
    found, ended, counts = answer["found_rate"], answer["ended_rate"], answer["counts"]
    yield "speed", f"{found * 60:,.0f} found and {ended * 60:,.0f} done per minute"
    over = counts["accepted"] - counts["left"]
    if over:
        yield (
            "found : over",
            f"{counts['accepted'] / over:,.1f} : 1 so far"
            + (f", {found / ended:,.1f} : 1 in the last minute" if ended else ""),
        )
    if answer["grows"]:
        yield "time left", "not known: the crawl finds more than it is done with"
    elif answer["seconds_left"] is not None:
        yield "time left", f"about {lasting(answer['seconds_left'])}, at this speed"


def _describe_oldest(oldest: Answer | None) -> str:
    if oldest is None:
        return "none, or not looked for among so many"
    words = ("after", "before")
    times = [f"{word} {at(oldest[word])}" for word in words if oldest[word] is not None]
    return f"was accepted {' and '.join(times) or 'at a time that no version has noted'}"


def _describe_limits(answer: Answer) -> Iterator[tuple[str, str]]:
    limits, resting = answer["limits"], answer["resting"]
    cap = f"at most {limits['cap']:,} at once" if limits["cap"] else "any number at once"
    delay = f"{limits['delay']:g} s between two downloads" if limits["delay"] else "no delay"
    text = f"{delay}, {cap}, in a slot"
    if own := limits["own"]:
        text += f"; {counted(own, 'slot')} with limits of {inflect(own, 'its', 'their')} own"
    yield "pace", text
    text = counted(resting["slots"], "slot")
    if resting["next"] is not None:
        text += f", the next one may be asked in {resting['next']:.1f} s"
    yield "at rest", text


def at(when: float) -> str:
    """A time as text, in UTC."""
    return datetime.fromtimestamp(when, timezone.utc).strftime("%Y-%m-%d %H:%M:%S (UTC)")


def lasting(seconds: float) -> str:
    """How long something takes, in one or two units."""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes = int(seconds // 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min"
    return counted(hours // 24, "day")
