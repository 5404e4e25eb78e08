"""Crawl with several workers, kill each of them, and count what was lost.

Run as `python demo_shared.py`. Three workers crawl the recorded site together, on a Redis server
that this program starts. They are killed with SIGKILL in turn: two are started again with the same
command, one never comes back, and a fourth is started instead. What was visited is what the site
has served.

Fails with a clear error if a page or an item was lost, or fewer workers were killed than planned.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import redis
from demo import RUN_TIMEOUT, HungError, counted, paths_of
from example_project.server import NoServerError, private_server
from example_project.site import FIRST_PAGE, Site, load_graph
from rich.box import SIMPLE
from rich.console import Console
from rich.live import Live
from rich.table import Table

PROJECT = Path(__file__).resolve().parent
KILL_POINTS = (100, 200, 300)
"""When to kill: pages served in total. The last one that is killed does not come back."""
LEASE_TIMEOUT = 5
"""Seconds until others get what a killed worker had leased, if it does not come back."""
PREFETCH = 10
"""Requests that a worker leases ahead: the site is small, and the fourth is to have some, too."""
LATENCY = 0.05
"""Seconds that the site takes for an answer."""
LOOK_EVERY = 0.2
"""Seconds between two looks at the crawl."""
KEYS = "altsched:{docs:0}:"


class Worker:
    """A worker of the crawl, in its own process, with its own job directory and feed."""

    def __init__(self, number: int, folder: Path, site: Site) -> None:
        self.name = f"worker {number}"
        self.items = folder / f"items-{number}.jsonl"
        self.log = folder / f"worker-{number}.log"
        self.state = "running"
        self._command = [sys.executable, "-m", "scrapy", "crawl", "docs"]
        self._command += ["-a", f"url={site.url}{FIRST_PAGE}", "-s", f"USER_AGENT={self.name}"]
        self._command += ["-s", "ALTSCHED_SHARED=1", "-s", f"REDIS_URL=unix://{folder}/redis.sock"]
        self._command += ["-s", f"ALTSCHED_LEASE_TIMEOUT={LEASE_TIMEOUT}"]
        self._command += ["-s", f"ALTSCHED_SHARED_PREFETCH={PREFETCH}"]
        self._command += ["-s", f"JOBDIR={folder / f'job-{number}'}", "-o", str(self.items)]
        self.start()

    def start(self) -> None:
        """Start it, also once more after it was killed."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, cwd=PROJECT, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        self.state = "running"

    def kill(self) -> None:
        """End it without letting it act; harmless if it has ended."""
        self._process.kill()
        self._process.wait()
        self.state = "killed"

    def look(self) -> None:
        """Note whether it has ended by itself."""
        code = self._process.poll()
        if self.state == "running" and code is not None:
            self.state = "finished" if code == 0 else f"failed, see {self.log}"

    @property
    def is_running(self) -> bool:
        """Whether it works."""
        return self.state == "running"


class Demonstration:
    """One crawl, in a folder of its own."""

    def __init__(self, folder: Path, site: Site, server: redis.Redis, console: Console) -> None:
        self._folder = folder
        self._site = site
        self._server = server
        self._console = console
        self._workers = [Worker(number, folder, site) for number in (1, 2, 3)]
        self._kills = 0

    def run(self) -> None:
        """Let the workers crawl, and kill them; raises HungError if they do not end."""
        deadline = time.monotonic() + RUN_TIMEOUT
        try:
            with Live(console=self._console, transient=True, auto_refresh=False) as live:
                while any(worker.is_running for worker in self._workers):
                    if time.monotonic() > deadline:
                        raise HungError(f"The crawl did not end within {RUN_TIMEOUT:.0f} s.")
                    self._site.wait_for_hits(self._next_kill(), LOOK_EVERY)
                    self._kill_if_due()
                    for worker in self._workers:
                        worker.look()
                    live.update(self.table(), refresh=self._console.is_terminal)
        finally:
            for worker in self._workers:
                if worker.is_running:
                    worker.kill()

    def _next_kill(self) -> int:
        points = KILL_POINTS[self._kills :]
        return points[0] if points else sys.maxsize

    def _kill_if_due(self) -> None:
        if self._site.hits.total() < self._next_kill():
            return
        victim = self._workers[self._kills]
        victim.kill()
        self._kills += 1
        is_last = self._kills == len(KILL_POINTS)
        then = "it does not come back, worker 4 is started" if is_last else "started again"
        self._console.print(f"{victim.name} killed at {self._site.hits.total()} pages: {then}")
        if is_last:
            self._workers.append(Worker(4, self._folder, self._site))
        else:
            victim.start()

    def table(self) -> Table:
        """Return how far each worker is."""
        table = Table(box=SIMPLE, pad_edge=False)
        table.add_column("worker")
        for heading in ("fetched", "in flight", "seen", "pending"):
            table.add_column(heading, justify="right")
        table.add_column("state")
        site = self._site
        for worker in self._workers:
            fetched, in_flight = site.served_to[worker.name], site.in_flight[worker.name]
            table.add_row(worker.name, str(fetched), str(in_flight), "", "", worker.state)
        accepted: Any = self._server.hget(f"{KEYS}meta", "accepted")
        pending: Any = self._server.zcard(f"{KEYS}pending")
        fetched, in_flight = site.hits.total(), site.in_flight.total()
        seen = str(int(accepted or 0))
        table.add_row(
            "together", str(fetched), str(in_flight), seen, str(pending), end_section=True
        )
        return table

    def outcome(self) -> tuple[Table, str | None]:
        """Return what became of the crawl, and what went wrong, or None."""
        site = self._site
        visited = site.reachable & site.hits.keys()
        items = set().union(*(paths_of(worker.items) for worker in self._workers))
        dead: Any = self._server.hlen(f"{KEYS}dead")
        lost, items_lost = len(site.reachable - visited), len(visited - items)
        twice = sum(1 for fetches in site.hits.values() if fetches > 1)
        table = Table(box=SIMPLE, pad_edge=False)
        figures = {
            "pages": len(site.reachable),
            "visited": len(visited),
            "lost": lost,
            "fetched twice": twice,
            "items lost": items_lost,
            "dead": dead,
            "workers killed": self._kills,
        }
        for heading in figures:
            table.add_column(heading, justify="right")
        table.add_row(*map(str, figures.values()))
        if self._kills < len(KILL_POINTS):
            return table, f"Only {counted(self._kills, 'worker')} could be killed."
        failed = [worker for worker in self._workers if worker.state.startswith("failed")]
        if failed:
            return table, f"{failed[0].name.capitalize()} {failed[0].state}."
        if lost or items_lost or dead:
            return table, f"{counted(lost, 'page')} and {counted(items_lost, 'item')} were lost."
        return table, None


def main() -> str | None:
    """Run the demonstration; return what went wrong, or None."""
    console = Console()
    folder = Path(tempfile.mkdtemp(prefix="altsched-demo-"))
    try:
        with private_server(folder) as server, Site(load_graph(), LATENCY) as site:
            demonstration = Demonstration(folder, site, server, console)
            demonstration.run()
            console.print(demonstration.table())
            table, failure = demonstration.outcome()
            console.print(table)
    except (HungError, NoServerError) as error:
        failure = str(error)
    except KeyboardInterrupt:
        shutil.rmtree(folder)
        return signal.strsignal(signal.SIGINT)
    if failure is None:
        shutil.rmtree(folder)
        return None
    return f"{failure} The logs are in {folder}."


if __name__ == "__main__":
    sys.exit(main())
