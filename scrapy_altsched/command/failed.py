"""Show why requests have failed: grouped by reason and download slot, with how to requeue a group.

A crawl may be running.  Nothing is changed.
"""

from __future__ import annotations

import argparse
from typing import Any

from rich.text import Text

from ..inflection import counted
from .answers import print_formatted, print_json
from .groups import Group, groups_of
from .project import Project, misuse
from .target import add_target, open_one_target


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
    groups = groups_of(target, dead=arguments.dead)
    shown = groups[: arguments.limit or None]
    failed, dead = (
        sum(group.count for group in groups if group.selection.failed is is_failed)
        for is_failed in (True, False)
    )
    if arguments.json:
        answer: dict[str, Any] = {
            "failed": failed,
            "groups": [group.as_dict() for group in shown],
        }
        if arguments.dead:
            answer["dead"] = dead
        print_json(answer, indent=2)
        return 0
    numbers = [counted(failed, "failed request")] if failed else []
    numbers += [counted(dead, "dead letter")] if dead else []
    if not numbers:
        print(f"There are no failed requests{' and no dead letters' * arguments.dead}.")
        return 0
    print(f"{' and '.join(numbers)}, in {counted(len(groups), 'group')}.")
    for group in shown:
        _show(group)
    if more := len(groups) - len(shown):
        print(f"\nAnd {counted(more, 'more group')}; --limit 0 shows all.")
    return 0


def _show(group: Group) -> None:
    print()
    print_formatted(Text(group.title, "bold"))
    print(f"  {group.text}")
    if group.last_at:
        print(f"  last at {group.last_at:%Y-%m-%d %H:%M:%S} UTC")
    if group.example:
        found_on = f", found on {group.found_on}" if group.found_on else ""
        print(f"  for example {group.example}{found_on}")
    print(f"  {group.advice}")
