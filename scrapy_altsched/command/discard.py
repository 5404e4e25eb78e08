"""Drop pending and delayed requests of a crawl, as those of a spider trap; their pages stay seen.

Those go that meet each of the conditions that are named.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import islice

from ..inflection import counted
from ..steering.actions import Discard
from .answers import print_effect
from .confirming import add_confirmation, confirm
from .project import Project, misuse
from .selection import add_pattern, add_slot, read_pattern
from .target import Target, add_target, open_one_target

#: How many are shown before the question, and of how many that are next these are.
_EXAMPLES, _LOOKED_AT = 3, 1_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See :mod:`scrapy_altsched.command`."""
    add_target(parser)
    add_slot(parser)
    add_pattern(parser)
    what = "only those that are more than so many links away from a start request"
    parser.add_argument("--depth-over", type=int, metavar="N", help=what)
    add_confirmation(parser)


def run(arguments: argparse.Namespace, project: Project) -> int:
    """See :mod:`scrapy_altsched.command`: 1 if the question was answered with no."""
    discard = _read(arguments)
    target = open_one_target(arguments, project)
    count, total = target.count(discard)
    of_all = f"{total:,} pending and delayed requests"
    if not count:
        print(f"None of {of_all} is meant: nothing is discarded.")
        return 0
    print(f"These are all {of_all}." if count >= total else f"{count:,} of {of_all} are meant.")
    for url in _find_examples(target, discard):
        print(f"  for example {url}")
    if not confirm(arguments, "Discard them?"):
        print("Nothing is discarded.")
        return 1
    effect = target.apply(discard)
    requests = counted(effect.changed, "request is", "requests are")
    return print_effect(effect, f"{requests} discarded.")


def _read(arguments: argparse.Namespace) -> Discard:
    """What is to be discarded; UsageError: that makes no sense."""
    discard = Discard(arguments.slot, arguments.pattern, arguments.depth_over)
    if discard == Discard():
        raise misuse("name what to discard, by --slot, --pattern or --depth-over")
    if discard.pattern is not None:
        read_pattern(discard.pattern)
    if discard.depth_over is not None and discard.depth_over < 0:
        raise misuse("--depth-over must be 0 or more")
    return discard


def _find_examples(target: Target, discard: Discard) -> Iterator[str]:
    """URLs of some that go, if they are among the next ones."""
    requests = target.peek(_LOOKED_AT, discard.slot)
    fields = (target.fields_of(it.payload) for it in requests)
    urls = (str(it["url"]) for it in fields if discard.matches(it))
    return islice(urls, _EXAMPLES)
