"""The server of shared crawls, as subcommands see it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

from ..crawl.outcome import DeadLetters, Outcome, judge
from ..inflection import inflect
from ..maintenance.requeue import dead_requests
from ..settings import read_redis

if TYPE_CHECKING:
    import argparse

    from rich.console import Console

    from ..frontier.shared.operating import SharedCrawl
    from .project import Project


def add_key(parser: argparse.ArgumentParser) -> None:
    """Add the argument that names the crawl."""
    parser.add_argument(
        "key", metavar="KEY", help="its ALTSCHED_SHARED_KEY, or else its spider's name"
    )


def find_crawl(project: Project, key: str) -> SharedCrawl:
    """A crawl on the server that the project's settings name; nothing on it is changed.

    :param key: the crawl's name.
    :raises ConfigError: the settings cannot be used, or a package is missing.
    :raises SharedError: the server cannot be reached.
    """
    values = read_redis(project.settings)
    # What they need is optional.
    from ..frontier.shared.operating import SharedCrawl
    from ..redis_client.connection import connect

    return SharedCrawl(connect(values), key)


def show_crawl(out: Console, crawl: SharedCrawl) -> tuple[bool, Outcome]:
    """Print what is known of a crawl; whether that is consistent, and how it stands.

    :raises SharedError: there is no such crawl, or the server cannot be reached.
    """
    from ..requests.portable import read_url

    state = crawl.look()
    counts = state.counts
    unrestorable = DeadLetters(dead_requests(crawl), read_url).unrestorable if counts.dead else 0
    problems = []
    if counts.unaccounted:
        problems.append(
            f"The counters do not add up: {abs(counts.unaccounted):,} of the requests are in no"
            " state, or in two. Another program may have changed the keys."
        )
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    table.add_row("crawl", crawl.name)
    table.add_row("spider", state.spider)
    workers = f"{state.workers:,} {inflect(state.workers, 'worker')}"
    table.add_row("state", f"{'finished' if state.finished else 'not finished'}, {workers}")
    table.add_row(
        "requests",
        f"{counts.accepted:,} accepted: {counts.done:,} done, {counts.leased:,} in flight,"
        f" {counts.pending:,} pending, {counts.dead:,} dead",
    )
    table.add_row("result", "one thing is wrong" if problems else "the counters add up")
    out.print(table)
    for problem in problems:
        out.print(f"- {problem}")
    if state.large_buckets:
        out.print(
            "Seen URLs take about 88 bytes of the server's memory each, instead of 21, as hashes"
            " are no longer listpacks: look at its hash-max-listpack-entries (512) and"
            " hash-max-listpack-value (64), or there are more than 30 million URLs."
        )
    return not problems, judge(counts, unrestorable, complete=state.finished)
