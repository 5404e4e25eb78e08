"""Leave a download slot, which is a host for most projects, alone for a time."""

from __future__ import annotations

import argparse
import re
import time
from datetime import datetime, timezone
from shlex import quote

from ..age import Age
from ..crawl.deferrals import LONGEST
from ..errors import ConfigError
from ..steering.actions import Defer
from .answers import print_effect, time_of
from .project import Project, misuse
from .target import add_slot_name, open_target, slot_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See :mod:`scrapy_altsched.command`."""
    add_slot_name(parser)
    times = parser.add_mutually_exclusive_group(required=True)
    times.add_argument("--for", dest="length", metavar="TIME", help="10m, 12h, or seconds")
    what = "2026-12-01T08:00, in UTC unless an offset such as +01:00 follows"
    times.add_argument("--until", metavar="TIME", help=what)


def run(arguments: argparse.Namespace, project: Project) -> int:
    """See :mod:`scrapy_altsched.command`."""
    slot = slot_of(arguments)
    until = _read_until(arguments.until) if arguments.until else _read_length(arguments.length)
    if until > time.time() + LONGEST:
        raise misuse(f"a slot can be left alone for {LONGEST / 86_400:.0f} days at the most")
    target = open_target(arguments, project)
    effect = target.apply(Defer(slot, until))
    if effect.is_applied and not effect.changed:
        raise ConfigError(
            "This crawl has one queue for all requests (SCHEDULER_PRIORITY_QUEUE), and cannot leave"
            f" a slot alone. All of it waits with: scrapy altsched pause {target.words}"
        )
    when = time_of(until).strftime("%Y-%m-%d %H:%M:%S")
    undo = f"scrapy altsched undefer {target.words} {quote(slot)}"
    sentence = f"The slot {slot!r} is left alone at least until {when} (UTC). Earlier with: {undo}"
    return print_effect(effect, sentence)


def _read_length(text: str) -> float:
    """When a time from now is over, in seconds since the epoch; UsageError: it is none."""
    try:
        return time.time() + Age.parse_length(text)
    except ValueError:
        raise misuse(f"--for {text!r} cannot be used: it must be a time, such as 10m") from None


def _read_until(text: str) -> float:
    """A moment to come, in seconds since the epoch; UsageError: it is none."""
    try:
        # Before Python 3.11 it has to be written as an offset.
        when = datetime.fromisoformat(re.sub("[zZ]$", "+00:00", text))
        if when.tzinfo is None:
            when = when.replace(tzinfo=timezone.utc)
        when = when.astimezone(timezone.utc)
    except (ValueError, OverflowError):
        raise misuse(
            f"--until {text!r} cannot be used: it must be a time, such as 2026-12-01T08:00"
        ) from None
    if when.timestamp() <= time.time():
        raise misuse(f"--until {text!r} is over: it was {when:%Y-%m-%d %H:%M:%S} (UTC)")
    return when.timestamp()
