"""Show why requests have failed: grouped by reason and download slot, with how to requeue a group.

A crawl may be running.  Nothing is changed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from rich.text import Text

from ..inflection import counted
from ..maintenance.progress import follow
from ..maintenance.requeue import FailedRequest
from ..requests.codec import is_whole
from .answers import parent_of, print_formatted, time_of
from .project import Project, misuse
from .selection import Selection, Stopped
from .target import Target, add_target, open_one_target


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See :mod:`scrapy_altsched.command`."""
    add_target(parser)
    parser.add_argument("--dead", action="store_true", help="dead letters, too")
    what = "groups to show (default: 20; 0: all)"
    parser.add_argument("--limit", type=int, default=20, metavar="N", help=what)
    parser.add_argument("--json", action="store_true", help="answer in JSON")


def run(arguments: argparse.Namespace, project: Project) -> int:
    """See :mod:`scrapy_altsched.command`: 0, whatever the answer is."""
    if arguments.limit < 0:
        raise misuse("--limit must be 0 or more")
    target = open_one_target(arguments, project)
    groups = _group(follow("Reading failed requests", target.failed()), target)
    if arguments.dead:
        groups |= _group(follow("Reading dead letters", target.dead()), target)
    ordered = sorted(groups.items(), key=lambda pair: (-pair[1].count, pair[0].slot or ""))
    shown = ordered[: arguments.limit or None]
    failed, dead = (
        sum(group.count for selection, group in ordered if selection.failed is is_failed)
        for is_failed in (True, False)
    )
    if arguments.json:
        answer: dict[str, Any] = {
            "failed": failed,
            "groups": [_as_dict(*it, target) for it in shown],
        }
        if arguments.dead:
            answer["dead"] = dead
        json.dump(answer, sys.stdout, indent=2)
        print()
        return 0
    numbers = [counted(failed, "failed request")] if failed else []
    numbers += [counted(dead, "dead letter")] if dead else []
    if not numbers:
        print(f"There are no failed requests{' and no dead letters' * arguments.dead}.")
        return 0
    print(f"{' and '.join(numbers)}, in {counted(len(ordered), 'group')}.")
    for selection, group in shown:
        _show(selection, group, target)
    if more := len(ordered) - len(shown):
        print(f"\nAnd {counted(more, 'more group')}; --limit 0 shows all.")
    return 0


@dataclass(slots=True)
class _Group:
    """What is told of requests that have stopped for one reason, in one download slot.

    :ivar text: what has happened to the last of them; *last*: when, in seconds since the epoch;
        ``None``: that is not known, as of dead letters.
    :ivar example: the URL of the first that has one; *found_on*: that of the page that it was found
        on, if it has kept that.
    :ivar is_whole: whether any of them can be crawled again.
    """

    count: int = 0
    text: str = ""
    example: str | None = None
    found_on: str | None = None
    last: float | None = None
    is_whole: bool = False

    def add(self, request: Stopped, target: Target) -> None:
        self.count += 1
        if self.example is None:
            self.example = target.url_of(request.payload)
            self.found_on = parent_of(target.fields_of(request.payload))
        self.is_whole = self.is_whole or is_whole(request.payload)
        if not isinstance(request, FailedRequest):
            self.text = str(request.why)
        elif self.last is None or request.at >= self.last:
            self.text, self.last = request.why.text, request.at

    @property
    def last_at(self) -> datetime | None:
        return None if self.last is None else time_of(self.last)


def _group(requests: Iterable[Stopped], target: Target) -> dict[Selection, _Group]:
    """Requests by what they have in common; none of them is kept."""
    groups: dict[Selection, _Group] = {}
    for request in requests:
        selection = Selection.alike(request, target)
        groups.setdefault(selection, _Group()).add(request, target)
    return groups


def _command(selection: Selection, group: _Group, target: Target) -> str | None:
    """What makes them pending again; ``None``: nothing whole is stored of any."""
    if not group.is_whole:
        return None
    return f"scrapy altsched requeue {target.words}{selection.words} --all"


def _as_dict(selection: Selection, group: _Group, target: Target) -> dict[str, Any]:
    return {
        "state": "failed" if selection.failed else "dead",
        "reason": selection.reason,
        "status": selection.status,
        "exception": selection.exception,
        "slot": selection.slot,
        "count": group.count,
        "text": group.text,
        "last": group.last_at.isoformat() if group.last_at else None,
        "example": group.example,
        "found_on": group.found_on,
        "command": _command(selection, group, target),
    }


def _show(selection: Selection, group: _Group, target: Target) -> None:
    print()
    print_formatted(Text("".join(_title(selection, group)), "bold"))
    print(f"  {group.text}")
    if group.last_at:
        print(f"  last at {group.last_at:%Y-%m-%d %H:%M:%S} UTC")
    if group.example:
        found_on = f", found on {group.found_on}" if group.found_on else ""
        print(f"  for example {group.example}{found_on}")
    command = _command(selection, group, target)
    print(f"  {command or 'Nothing whole is stored of them: they cannot be crawled again.'}")


def _title(selection: Selection, group: _Group) -> Iterator[str]:
    yield f"{group.count:,} {'failed' if selection.failed else 'dead'}: {selection.reason}"
    if selection.status is not None:
        yield f" {selection.status}"
    if selection.exception:
        yield f" {selection.exception}"
    yield f", {selection.slot}" if selection.slot else ", no download slot known"
