"""Show the next pending requests of a crawl, in the order in which they are to be crawled.

Of a job it is the order while nothing is downloaded, as of the last commit: download slots take
turns, and those with downloads wait.  A crawl may be running.  Nothing is changed.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from typing import Any

from rich.table import Table

from .answers import parent_of, print_formatted, print_json, time_of
from .project import Project, misuse
from .target import Target, add_target, open_one_target


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See :mod:`scrapy_altsched.command`."""
    add_target(parser)
    what = "how many requests to show (default: 20)"
    parser.add_argument("-n", "--number", type=int, default=20, metavar="N", help=what)
    what = "only those of this download slot, which is a host for most projects"
    parser.add_argument("--slot", help=what)
    what = "answer in JSON, a line for each request"
    parser.add_argument("--json", action="store_true", help=what)


def run(arguments: argparse.Namespace, project: Project) -> int:
    """See :mod:`scrapy_altsched.command`: 0, whatever the answer is."""
    if arguments.number < 1:
        raise misuse("--number must be 1 or more")
    target = open_one_target(arguments, project)
    requests = _requests(target, arguments.number, arguments.slot)
    if arguments.json:
        for request in requests:
            print_json(request)
        return 0
    shown = list(requests)
    if shown:
        _show(shown)
    elif arguments.slot is None:
        print("Nothing is pending.")
    else:
        every = f"scrapy altsched peek {target.words}"
        print(f"Nothing is pending in download slot {arguments.slot!r}; of all slots: {every}")
    return 0


def _requests(target: Target, number: int, slot: str | None) -> Iterator[dict[str, Any]]:
    for request in target.peek(number, slot):
        fields = target.fields_of(request.payload)
        depth = (fields.get("meta") or {}).get("depth")
        rest = request.rests_until
        yield {
            "url": fields.get("url"),
            "priority": request.priority,
            "slot": target.slot_of(request.payload),
            "depth": depth if isinstance(depth, int) else None,  # it can be the project's own
            "found_on": parent_of(fields),
            "fingerprint": request.fingerprint.hex(),
            "rests": rest is not None,
            "rests_until": None if rest in (None, math.inf) else time_of(rest).isoformat(),
        }


def _show(requests: list[dict[str, Any]]) -> None:
    table = Table(box=None, pad_edge=False)
    table.add_column("URL", overflow="fold")
    table.add_column("priority", justify="right")
    table.add_column("download slot")
    table.add_column("depth", justify="right")
    has_rests = any(request["rests"] for request in requests)
    if has_rests:
        table.add_column("the slot rests until (UTC)")
    for request in requests:
        cells = [
            request["url"] or f"(cannot be read: {request['fingerprint']})",
            str(request["priority"]),
            request["slot"],
            "" if request["depth"] is None else str(request["depth"]),
        ]
        if has_rests:
            cells.append(_describe_rest(request))
        table.add_row(*cells)
    print_formatted(table)


def _describe_rest(request: dict[str, Any]) -> str:
    if not request["rests"]:
        return ""
    until = request["rests_until"]
    return "a download is over" if until is None else until[:19].replace("T", " ")
