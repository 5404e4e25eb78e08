"""List the requests that are dead letters, or have failed, or make them pending again.

A crawl may be running: it takes them in.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import islice
from typing import Any

from rich.table import Table

from ..inflection import counted
from ..maintenance.requeue import DeadRequest, FailedRequest
from ..requests.codec import is_whole
from ..steering.actions import Effect, Requeue
from .answers import parent_of, print_effect, print_formatted, print_json, time_of
from .project import Project, misuse
from .selection import Selection, Stopped, add_selection, requeue_command
from .target import Target, add_names, add_target, names_of, open_target

#: Fewest digits that name a fingerprint.
_FEWEST_DIGITS = 6
#: How many failed requests are listed.
_SHOWN = 1_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See :mod:`scrapy_altsched.command`."""
    add_target(parser)
    add_names(parser, "REQUEST", "URL, or first digits of the fingerprint")
    parser.add_argument("--all", action="store_true", help="all that can be crawled again")
    add_selection(parser)
    what = "list them in JSON, a line for each request"
    parser.add_argument("--json", action="store_true", help=what)


def run(arguments: argparse.Namespace, project: Project) -> int:
    """See :mod:`scrapy_altsched.command`."""
    names = names_of(arguments)
    if names and arguments.all:
        raise misuse("name requests, or --all, not both")
    if arguments.json and (names or arguments.all):
        raise misuse("--json is for the list, without requests that are named, and without --all")
    selection = Selection.of(arguments)
    target = open_target(arguments, project)
    stopped: list[Stopped] = [*(target.failed() if selection.failed else target.dead())]
    requests = list(selection.filter(stopped, target))
    if not names and not arguments.all:
        if arguments.json:
            for request in requests:
                print_json(_describe(request, target))
        else:
            _show(requests, selection, target)
        return 0
    chosen = _choose(requests, names, selection, target)
    effect = Effect()
    if chosen:
        keys = [request.key.hex() for request in chosen]
        effect = target.apply(Requeue(chosen[0].state.family, keys))
    are = counted(effect.changed, "request is", "requests are")
    what = "failed" if selection.failed else "dead"
    left = len(stopped) - effect.changed
    return print_effect(effect, f"{are} pending again; {what}: {left:,}.")


def _choose(
    requests: list[Stopped], names: list[str], selection: Selection, target: Target
) -> list[Stopped]:
    """Those of these *names*; without names, all that can be crawled again."""
    if not names:
        return [request for request in requests if is_whole(request.payload)]
    chosen: dict[bytes, Stopped] = {}
    for name in names:
        is_long = len(name) >= _FEWEST_DIGITS
        found = [
            request
            for request in requests
            if (is_long and request.fingerprint.hex().startswith(name.lower()))
            or target.url_of(request.payload) == name
        ]
        if not found:
            what = "failed request" if selection.failed else "dead letter"
            raise misuse(f"there is no {what} named {name!r}; without arguments they are listed")
        if not all(is_whole(request.payload) for request in found):
            raise misuse(f"{name!r} cannot be crawled again: nothing whole is stored of it")
        chosen.update((request.key, request) for request in found)
    return list(chosen.values())


def _describe(request: Stopped, target: Target) -> dict[str, Any]:
    fingerprint, payload = request.fingerprint, request.payload
    alike = Selection.alike(request, target)
    answer: dict[str, Any] = {
        "url": target.url_of(payload),
        "fingerprint": fingerprint.hex(),
        **alike.as_dict(),
        "text": str(request.why),
        "at": None,
        "tries": None,
        "found_on": parent_of(target.fields_of(payload)),
        "command": requeue_command(target, fingerprint, payload, failed=alike.failed),
    }
    if isinstance(request, FailedRequest):
        why = request.why
        answer |= {
            "text": why.text,
            "at": time_of(request.at).isoformat(),
            "tries": why.tries,
        }
    return answer


def _show(requests: list[Stopped], selection: Selection, target: Target) -> None:
    if not requests:
        what = "failed requests" if selection.failed else "dead letters"
        print(f"There are no {what}.")
        return
    table = Table("fingerprint", box=None, pad_edge=False)
    table.add_column("URL", overflow="fold")
    if selection.failed:
        table.add_column("failed at (UTC)")
        table.add_column("tries", justify="right")
        table.add_column("reason")
        table.add_column("what happened", overflow="fold")
    else:
        table.add_column("why it is dead", overflow="fold")
    for request in islice(requests, _SHOWN if selection.failed else None):
        url = target.url_of(request.payload) or "(lived in memory only, or is damaged)"
        table.add_row(request.fingerprint.hex(), url, *_cells(request))
    print_formatted(table)
    if selection.failed and len(requests) > _SHOWN:
        print(f"And {len(requests) - _SHOWN:,} more.")
    command = f"scrapy altsched requeue {target.words}{selection.words}"
    print(f"Make them pending again with: {command} --all (or name some: {command} URL ...)")


def _cells(request: Stopped) -> Iterator[str]:
    if isinstance(request, DeadRequest):
        yield str(request.why)
        return
    yield time_of(request.at).strftime("%Y-%m-%d %H:%M:%S")
    yield str(request.why.tries)
    yield request.why.reason.name.lower()
    yield request.why.text
