"""List the requests that are dead letters, or have failed, or make them pending again.

To make those of a job directory pending, no crawl may be running: it holds the directory.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from datetime import datetime, timezone
from itertools import islice
from typing import TypeAlias

from rich.table import Table
from w3lib.url import canonicalize_url

from ..canonical.patterns import Index, compile_patterns
from ..frontier.entry import Reason
from ..inflection import counted
from ..maintenance.requeue import DeadRequest, FailedRequest
from ..requests.codec import is_whole
from .project import Project, misuse
from .target import Target, add_target, open_target, print_formatted

_Request: TypeAlias = DeadRequest | FailedRequest

#: Fewest digits that name a fingerprint.
_FEWEST_DIGITS = 6
#: How many failed requests are listed.
_SHOWN = 1_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See :mod:`scrapy_altsched.command`."""
    add_target(parser)
    what = "URL, or first digits of the fingerprint"
    # Without a default, argparse calls it required.
    parser.add_argument("request", nargs="*", default=[], metavar="REQUEST", help=what)
    parser.add_argument("--all", action="store_true", help="all that can be crawled again")
    what = "those that have failed, instead of dead letters"
    parser.add_argument("--failed", action="store_true", help=what)
    what = "with --failed: only for this reason"
    reasons = [reason.name.lower() for reason in Reason]
    parser.add_argument("--reason", choices=reasons, help=what)
    what = "with --failed: only of this download slot, which is a host for most projects"
    parser.add_argument("--slot", help=what)
    what = "with --failed: only URLs that match it, as in URL rules"
    parser.add_argument("--pattern", help=what)


def run(arguments: argparse.Namespace, project: Project) -> int:
    """See :mod:`scrapy_altsched.command`."""
    names: list[str] = arguments.request
    if arguments.shared is not None and arguments.jobdir is not None:
        names = [arguments.jobdir, *names]
    if names and arguments.all:
        raise misuse("name requests, or --all, not both")
    if not arguments.failed and (arguments.reason or arguments.slot or arguments.pattern):
        raise misuse("--reason, --slot and --pattern are for --failed")
    target = open_target(arguments, project)
    stopped: list[_Request] = [*(target.failed() if arguments.failed else target.dead())]
    requests = list(_filter(stopped, arguments, target))
    if not names and not arguments.all:
        _show(requests, arguments, target)
        return 0
    count = target.requeue(_choose(requests, names, arguments, target))
    are = counted(count, "request is", "requests are")
    what = "failed" if arguments.failed else "dead"
    print(f"{are} pending again; {what}: {len(stopped) - count:,}.")
    return 0


def _filter(
    requests: Iterable[_Request], arguments: argparse.Namespace, target: Target
) -> Iterator[_Request]:
    """Those that the options leave."""
    index = None
    if arguments.pattern is not None:
        try:
            index = Index([compile_patterns((arguments.pattern,), ())])
        except ValueError as error:
            raise misuse(f"--pattern {arguments.pattern!r} cannot be used: {error}") from None
    for request in requests:
        reason = request.why.reason.name if isinstance(request, FailedRequest) else ""
        if arguments.reason not in (None, reason.lower()):
            continue
        if index is not None and not _matches(index, target.url_of(request.payload)):
            continue
        if arguments.slot not in (None, target.slot_of(request.payload)):
            continue
        yield request


def _matches(index: Index, url: str | None) -> bool:
    try:
        return bool(url and index.match(canonicalize_url(url, keep_fragments=True)))
    except ValueError:  # a URL that w3lib cannot parse
        return False


def _choose(
    requests: list[_Request], names: list[str], arguments: argparse.Namespace, target: Target
) -> list[_Request]:
    """Those of these *names*; without names, all that can be crawled again."""
    if not names:
        return [request for request in requests if is_whole(request.payload)]
    chosen: dict[bytes, _Request] = {}
    for name in names:
        is_long = len(name) >= _FEWEST_DIGITS
        found = [
            request
            for request in requests
            if (is_long and request.fingerprint.hex().startswith(name.lower()))
            or target.url_of(request.payload) == name
        ]
        if not found:
            what = "failed request" if arguments.failed else "dead letter"
            raise misuse(f"there is no {what} named {name!r}; without arguments they are listed")
        if not all(is_whole(request.payload) for request in found):
            raise misuse(f"{name!r} cannot be crawled again: nothing whole is stored of it")
        chosen.update((request.key, request) for request in found)
    return list(chosen.values())


def _show(requests: list[_Request], arguments: argparse.Namespace, target: Target) -> None:
    if not requests:
        what = "failed requests" if arguments.failed else "dead letters"
        print(f"There are no {what}.")
        return
    table = Table("fingerprint", box=None, pad_edge=False)
    table.add_column("URL", overflow="fold")
    if arguments.failed:
        table.add_column("failed at (UTC)")
        table.add_column("tries", justify="right")
        table.add_column("reason")
        table.add_column("what happened", overflow="fold")
    else:
        table.add_column("why it is dead", overflow="fold")
    for request in islice(requests, _SHOWN if arguments.failed else None):
        url = target.url_of(request.payload) or "(lived in memory only, or is damaged)"
        table.add_row(request.fingerprint.hex(), url, *_cells(request))
    print_formatted(table)
    if arguments.failed and len(requests) > _SHOWN:
        print(f"And {len(requests) - _SHOWN:,} more.")
    command = f"scrapy altsched requeue {target.words}"
    if arguments.failed:
        command += " --failed"
    print(f"Make them pending again with: {command} --all (or name some: {command} URL ...)")


def _cells(request: _Request) -> Iterator[str]:
    if isinstance(request, DeadRequest):
        yield str(request.why)
        return
    yield datetime.fromtimestamp(request.at, timezone.utc).strftime("%Y-%m-%d %H:%M:%S")
    yield str(request.why.tries)
    yield request.why.reason.name.lower()
    yield request.why.text
