"""Where URLs are in a job or in a shared crawl, for the subcommand that explains them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scrapy import Request
from scrapy.exceptions import UsageError

from ..frontier.entry import Place
from ..inflection import counted
from ..requests.identity import PageIdentity, differences
from .answers import parent_of, time_of
from .project import Project
from .selection import requeue_command
from .target import Target, open_one_target


def add_place(parser: argparse.ArgumentParser) -> None:
    """Add URLs, and the arguments that :func:`open_place` looks at, of which they may be one."""
    what = "with several, also whether they are the same; after a JOBDIR, also where they are in it"
    parser.add_argument("urls", nargs="*", metavar="[JOBDIR] URL", help=what)
    what = "also where they are in a shared crawl: its ALTSCHED_SHARED_KEY, or its spider's name"
    parser.add_argument("--shared", metavar="KEY", help=what)


def open_place(arguments: argparse.Namespace, project: Project) -> Target | None:
    """What the URLs are looked up in, if anything; of those, a JOBDIR is taken out."""
    urls = arguments.urls
    arguments.jobdir = None
    if urls and _is_path(urls[0]):
        arguments.jobdir = urls.pop(0)
    if arguments.jobdir is None and arguments.shared is None:
        return None
    return open_one_target(arguments, project)


def _is_path(name: str) -> bool:
    try:
        return Path(name).exists()
    except OSError:  # a URL may be longer than any path
        return False


def spider_of(target: Target | None, project: Project) -> str | None:
    """The spider whose rules the job has; ``None``: it is not in this project."""
    if target is None:
        return None
    try:
        project.spider_class(target.owner)
    except UsageError as error:
        print(f"Without the rules of the spider: {error}", file=sys.stderr)
        return None
    return target.owner


def add_places(urls: list[dict[str, Any]], target: Target, identity: PageIdentity) -> list[str]:
    """Add to each URL where it is now; how the job's fingerprints differ from those made here.

    :param identity: what makes them.
    """
    requests = [Request(url["url"]) for url in urls]
    fingerprints = [identity.of(request, identity.page_of(request)) for request in requests]
    places = target.find(fingerprints)
    for url, fingerprint in zip(urls, fingerprints, strict=True):
        url["places"] = [
            {
                "state": place.state,
                "slot": target.slot_of(place.payload) if place.payload else None,
                "found_on": parent_of(target.fields_of(place.payload)),
                "ahead": place.ahead,
                "at": None if place.at is None else time_of(place.at).isoformat(),
                "why": place.why or None,
                "tries": place.tries,
                "worker": place.worker or None,
                "command": _command(place, fingerprint, target),
            }
            for place in places[fingerprint]
        ]
    return differences(target.fingerprints(), identity.note)


def _command(place: Place, fingerprint: bytes, target: Target) -> str | None:
    if place.state not in ("failed", "dead"):
        return None
    failed = place.state == "failed"
    return requeue_command(target, fingerprint, place.payload, failed=failed)


def describe_place(place: dict[str, Any]) -> str:
    """Where a URL is, as a phrase, from what :func:`add_places` has added."""
    return "".join(_parts(place))


def _parts(place: dict[str, Any]) -> Iterator[str]:
    state, at = place["state"], (place["at"] or "")[:19].replace("T", " ")
    yield state
    if state == "pending":
        ahead = f"behind {counted(place['ahead'], 'request')}" if place["ahead"] else "next"
        yield f" in download slot {place['slot']!r}, {ahead}"
    elif place["worker"]:
        yield f" with worker {place['worker']}"
    if at:
        yield f" {'until' if state == 'delayed' else 'at'} {at} UTC"
    if place["tries"]:
        yield f", after {counted(place['tries'], 'try', 'tries')}"
    if place["why"]:
        yield f": {place['why']}"


def describe_differences(differences: list[str], target: Target) -> str:
    """Say that URLs may be elsewhere than it was told."""
    return (
        f"The fingerprints of {target.words} were made with {' and '.join(differences)}: where URLs"
        " are cannot be told for sure. Name the --spider, and run this in its project with the"
        " settings of the crawl."
    )
