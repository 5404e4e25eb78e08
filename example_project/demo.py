"""Kill a crawl again and again, resume it, and count what it lost.

Run as `python demo.py`. The same crawl of the same recorded site is done with scrapy_altsched and
with Scrapy's own scheduler: killed with SIGKILL once so many pages have been served, resumed with
the same command, until it ends by itself. What was visited is what the site has served.

Fails with a clear error if scrapy_altsched lost a page or an item or was not killed as planned.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from example_project.site import FIRST_PAGE, Site, load_graph
from rich.box import SIMPLE
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

PROJECT = Path(__file__).resolve().parent
KILL_POINTS = (60, 200, 350)
"""When to kill by default: pages served since the crawl was first started."""
ROOM_AT_THE_END = 0.15
"""The share of the site's pages in which no random kill is drawn: a crawl must still be running."""
RUN_TIMEOUT = 300.0
"""Seconds after which a run counts as hung; a whole crawl takes one minute on a slow core."""


@dataclass(frozen=True)
class Contender:
    """A scheduler, and the arguments of `scrapy crawl` that choose it."""

    title: str
    arguments: tuple[str, ...]


CONTENDERS = {
    "altsched": Contender("scrapy_altsched", ()),
    "stock": Contender("Scrapy's own scheduler", ("-s", "ADDONS={}")),
}


@dataclass(frozen=True)
class Outcome:
    """The result of one crawl; all figures but `kills` and `dead` are pages."""

    contender: Contender
    reachable: int
    lost: int
    fetched_twice: int
    items_lost: int
    kills: int
    ended: str
    dead: int

    @property
    def sentence(self) -> str:
        """The outcome in words."""
        return (
            f"{self.contender.title}: {counted(self.kills, 'kill')} over one crawl of the site: "
            f"{counted(self.lost, 'page')} lost, {counted(self.items_lost, 'item')} lost, "
            f"{counted(self.dead, 'request')} dead."
        )


def counted(number: int, noun: str) -> str:
    """Return the number with its noun, in the plural unless it is 1."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


class HungError(Exception):
    """A run neither ended nor reached its kill point in time."""


def run(
    command: Sequence[str],
    log: Path,
    site: Site,
    kill_at: int | None,
    report: Callable[[], None],
    served: Callable[[], int] | None = None,
    delay: float = 0.0,
) -> int:
    """Run the command until it ends, or kill it once the site has served `kill_at` pages in total.

    `served` counts them, by default in total; the kill is `delay` seconds later. Calls `report`
    whenever a page was served. Returns the exit code, -SIGKILL after a kill.
    """
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=PROJECT,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    ended = threading.Event()

    def watch() -> None:
        process.wait()
        ended.set()
        with site.changed:
            site.changed.notify_all()

    threading.Thread(target=watch, name="watch the crawl", daemon=True).start()
    deadline = time.monotonic() + RUN_TIMEOUT
    served = served or site.hits.total
    try:
        with site.changed:
            while not ended.is_set() and (kill_at is None or served() < kill_at):
                if not site.changed.wait(deadline - time.monotonic()):
                    raise HungError(f"A crawl hung for {RUN_TIMEOUT:.0f} seconds, see {log}.")
                report()
        ended.wait(delay)
    finally:
        # Also on Ctrl-C, so that no crawl is left behind; nothing happens if it has ended.
        process.kill()
        ended.wait()
    return process.returncode


def crawl(
    contender: Contender,
    graph: dict[str, list[str]],
    kill_points: Sequence[int],
    folder: Path,
    progress: Progress,
) -> Outcome:
    """Crawl the site in the folder, killed at the points and resumed until it ends by itself.

    Raises HungError if a run takes longer than RUN_TIMEOUT.
    """
    items = folder / "items.jsonl"
    remaining = list(kill_points)
    kills = 0
    with Site(graph) as site:
        command = [sys.executable, "-m", "scrapy", "crawl", "docs"]
        command += ["-a", f"url={site.url}{FIRST_PAGE}"]
        command += ["-s", f"JOBDIR={folder / 'job'}", "-o", str(items), *contender.arguments]
        task = progress.add_task(contender.title, total=len(site.reachable))

        def report() -> None:
            progress.update(task, completed=len(site.hits))

        while True:
            log = folder / f"run-{kills + 1}.log"
            # Requests in flight at a kill are served again, which may be enough to reach the next
            # point: what is to be killed is the resumed crawl, not its start.
            kill_at = max(remaining.pop(0), site.hits.total() + 1) if remaining else None
            code = run(command, log, site, kill_at, report)
            if not site.wait_for_disconnect(RUN_TIMEOUT):
                raise HungError(f"The site still answers a crawl that has ended, see {log}.")
            report()
            if code != -signal.SIGKILL:
                break
            kills += 1
            progress.console.print(
                f"{contender.title}: kill {kills} of {len(kill_points)} after "
                f"{site.hits.total()} pages served, {len(site.hits)} of them different"
            )

        progress.update(task, visible=False)
        visited = site.reachable & site.hits.keys()
        text = log.read_text(encoding="utf-8", errors="replace")
        reasons = re.findall(r"Spider closed \((.+)\)", text)
        dead = re.findall(r"'altsched/dead': (\d+)", text)
        return Outcome(
            contender=contender,
            reachable=len(site.reachable),
            lost=len(site.reachable - visited),
            fetched_twice=sum(1 for fetches in site.hits.values() if fetches > 1),
            items_lost=len(visited - paths_of(items)),
            kills=kills,
            ended=reasons[-1] if reasons else f"exit {code}",
            dead=int(dead[-1]) if dead else 0,
        )


def paths_of(items: Path) -> set[str]:
    """Return the paths of the pages whose items are in the file."""
    paths = set()
    lines = items.read_bytes().splitlines() if items.exists() else []
    for line in lines:
        try:
            paths.add(urlsplit(json.loads(line)["url"]).path)
        except ValueError:
            # A line torn by a kill is no item, and neither is one appended to it.
            continue
    return paths


def table_of(outcomes: Sequence[Outcome]) -> Table:
    """Return the outcomes as a table, one row each."""
    table = Table(box=SIMPLE, collapse_padding=True, pad_edge=False)
    table.add_column("scheduler")
    for heading in ("pages", "visited", "lost", "fetched\ntwice", "items\nlost", "kills"):
        table.add_column(heading, justify="right")
    table.add_column("ended")
    for outcome in outcomes:
        visited = outcome.reachable - outcome.lost
        figures = [outcome.reachable, visited, outcome.lost, outcome.fetched_twice]
        figures += [outcome.items_lost, outcome.kills]
        table.add_row(outcome.contender.title, *map(str, figures), outcome.ended)
    return table


def failure_of(outcome: Outcome, planned: int) -> str | None:
    """Return what is wrong with an outcome that should have lost nothing, or None."""
    if outcome.kills < planned:
        return (
            f"Nothing was shown: the crawl was killed only {outcome.kills} of {planned} times "
            f'before it ended ("{outcome.ended}").'
        )
    if outcome.ended != "finished":
        return f'The crawl did not finish, it ended as "{outcome.ended}".'
    if outcome.lost or outcome.items_lost:
        pages, items = counted(outcome.lost, "page"), counted(outcome.items_lost, "item")
        return f"The crawl lost {pages} and {items}."
    return None


def main() -> str | None:
    """Run the demonstration; return what went wrong, or None."""
    parser = argparse.ArgumentParser(
        description="Kill a crawl again and again, resume it, and count what it lost."
    )
    parser.add_argument("--kills", type=int, metavar="N", help="kill N times, at random points")
    parser.add_argument("--seed", type=int, help="of the random points; printed if not given")
    parser.add_argument("--only", choices=sorted(CONTENDERS), help="try only this scheduler")
    options = parser.parse_args()

    graph = load_graph()
    kill_points = list(KILL_POINTS)
    console = Console()
    if options.kills is not None:
        candidates = range(1, int(len(graph) * (1 - ROOM_AT_THE_END)))
        if not 1 <= options.kills <= len(candidates):
            parser.error(f"--kills must be from 1 to {len(candidates)}")
        seed = random.randrange(2**32) if options.seed is None else options.seed
        kill_points = sorted(random.Random(seed).sample(candidates, options.kills))
        console.print(f"{options.kills} kills at random points, --seed {seed}")
    elif options.seed is not None:
        parser.error("--seed needs --kills")

    folder = Path(tempfile.mkdtemp(prefix="altsched-demo-"))
    outcomes = {}
    failure = None
    try:
        # One after the other: Scrapy's own ends soon after its first kill, so running both at once
        # would gain little.
        with progress_on(console) as progress:
            for key in [options.only] if options.only else CONTENDERS:
                (folder / key).mkdir()
                outcomes[key] = crawl(CONTENDERS[key], graph, kill_points, folder / key, progress)
    except HungError as error:
        failure = str(error)
    except KeyboardInterrupt:
        shutil.rmtree(folder)
        sys.exit(130)

    if outcomes:
        console.print(table_of(list(outcomes.values())))
        for outcome in outcomes.values():
            console.print(outcome.sentence, soft_wrap=True)
    if failure is None and "altsched" in outcomes:
        failure = failure_of(outcomes["altsched"], len(kill_points))
    if failure is None:
        shutil.rmtree(folder)
        return None
    return f"{failure} The logs are in {folder}."


def progress_on(console: Console) -> Progress:
    """Return the progress line, which is hidden where it cannot be redrawn."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("pages"),
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
    )


if __name__ == "__main__":
    sys.exit(main())
