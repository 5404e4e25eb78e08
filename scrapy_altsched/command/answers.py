"""How subcommands answer: what they say of a job or a crawl, and how it is printed."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..crawl.outcome import Outcome
from ..errors import NotAppliedError
from ..frontier import Counts
from ..maintenance.audit import Problem
from ..requests import FOUND_ON
from ..steering.actions import Effect


@dataclass(slots=True)
class Report:
    """How a job or a crawl stands.

    :ivar kind: "job" or "shared crawl"; *target*: its directory, or its name; *spider*: its name.
    :ivar rows: name and text of what else is told of it; *good*: what is said if nothing is wrong.
    :ivar counts: its requests, if they could be read.
    :ivar outcome: how it ends as it is; of no use if it has problems.
    """

    kind: str
    target: str
    spider: str
    rows: list[tuple[str, str]]
    good: str
    counts: Counts | None = None
    problems: list[Problem] = field(default_factory=list)
    outcome: Outcome = Outcome.UNFINISHED


def describe_state(finished: bool, more: str) -> tuple[str, str]:
    """A row that says whether a crawl is finished, and what *more* there is to say."""
    return "state", f"{'finished' if finished else 'not finished'}, {more}"


def describe_numbers(counts: Counts, **others: int) -> tuple[str, str]:
    """A row that says how many requests were accepted, and how many are in which state."""
    numbers = "".join(f", {count:,} {what}" for what, count in others.items())
    return "requests", f"{counts.accepted:,} accepted: {counts.done:,} done{numbers}"


def parent_of(fields: Mapping[str, Any]) -> str | None:
    """The URL of the page that a request with these fields was found on, if it has kept that."""
    found_on = (fields.get("meta") or {}).get(FOUND_ON)
    return found_on if isinstance(found_on, str) else None


def time_of(seconds: float) -> datetime:
    """The time, in UTC, so many seconds since the epoch."""
    return datetime.fromtimestamp(seconds, timezone.utc)


def print_json(answer: object, *, indent: int | None = None) -> None:
    """Print an answer for programs: on one line, unless it is to be indented.

    It is all ASCII: it can be printed whatever the encoding, and whatever a URL has in it.
    """
    print(json.dumps(answer, indent=indent))


def print_formatted(text: Table | Text, *, folds: bool = False) -> None:
    """Print *text*; but on a terminal, a table's lines are not folded unless it *folds*."""
    width = None if folds or sys.stdout.isatty() else 100_000
    Console(width=width, soft_wrap=True, highlight=False, markup=False, emoji=False).print(text)


def print_rows(rows: Iterable[tuple[str, str]], sentences: Iterable[str]) -> None:
    """Print named texts, and sentences below."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for row in rows:
        table.add_row(*row)
    print_formatted(table)
    for sentence in sentences:
        print(f"- {sentence}")


def print_effect(effect: Effect, sentence: str) -> int:
    """Print what an action has come to: *sentence*, and what else there is to say; the exit code.

    :raises NotAppliedError: it was not.
    """
    if not effect.is_applied:
        raise NotAppliedError(effect.note)
    print(sentence)
    for more in filter(None, (effect.reason, effect.note)):
        print(more)
    return 0
