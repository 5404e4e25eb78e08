"""Kill one crawl hundreds of times at random moments, and see that it loses nothing.

Run as `python soak.py`. The crawl of the recorded site is killed with SIGKILL after so many
different pages have been served, spread at random over the whole crawl, and then a random moment
later; it is resumed with the same command each time, and finally left alone until it ends by
itself. It must have visited every page, with an item of each in the feed, and no request may be
dead. How many pages were fetched twice is printed; with `-s ALTSCHED_COMMIT_INTERVAL=1`, how many
there are if commits come once a second.

Fails with a clear error, and keeps the logs, if anything was lost. The random moments follow from
the seed, which is printed; what the processes make of them does not.
"""

from __future__ import annotations

import argparse
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from demo import (
    ROOM_AT_THE_END,
    RUN_TIMEOUT,
    HungError,
    counted,
    paths_of,
    progress_on,
    run,
)
from example_project.site import FIRST_PAGE, Site, load_graph
from rich.console import Console

KILLS = 200
LATEST = 0.2
"""Seconds from a page at which a crawl is to be killed to the kill, at most."""


class Soak:
    """One crawl that is killed again and again, in a folder of its own."""

    def __init__(self, folder: Path, kills: int, seed: int, settings: Sequence[str]) -> None:
        self.folder = folder
        self.kills = 0
        self._settings = settings
        self._crawled: list[tuple[int, float]] = []
        """Pages of each run that was killed, and the seconds from the first of them on."""
        self.graph = load_graph()
        self._random = random.Random(seed)
        candidates = range(1, int(len(self.graph) * (1 - ROOM_AT_THE_END)))
        self._points = sorted(self._random.sample(candidates, kills))

    def crawl(self, console: Console) -> str | None:
        """Kill and resume the crawl until it ends; return what went wrong, or None.

        Raises HungError if a run takes longer than RUN_TIMEOUT.
        """
        with Site(self.graph) as site, progress_on(console) as progress:
            task = progress.add_task("kills", total=len(self._points))
            for point in self._points:
                if not self._kill(site, point):
                    return f"The crawl ended after {counted(self.kills, 'kill')}, see {self._log}."
                progress.update(task, completed=self.kills)
                if not self.kills % 20 and not console.is_terminal:
                    console.print(f"{self.kills} kills, {len(site.hits)} pages")
            code = run(self._command(site), self._log, site, None, lambda: None)
            return self._verdict(site, code)

    @property
    def _log(self) -> Path:
        return self.folder / f"run-{self.kills + 1}.log"

    def _command(self, site: Site) -> list[str]:
        command = [sys.executable, "-m", "scrapy", "crawl", "docs"]
        command += ["-a", f"url={site.url}{FIRST_PAGE}", "-o", str(self.folder / "items.jsonl")]
        command += ["-s", f"JOBDIR={self.folder / 'job'}"]
        return [*command, *(part for setting in self._settings for part in ("-s", setting))]

    def _kill(self, site: Site, point: int) -> bool:
        """Resume the crawl and kill it; return whether it was still running."""
        began: list[float] = []
        before = site.hits.total()
        code = run(
            self._command(site),
            self._log,
            site,
            kill_at=point,
            report=lambda: began.append(time.monotonic()) if not began else None,
            served=lambda: len(site.hits),
            delay=self._random.uniform(0, LATEST),
        )
        if began:
            self._crawled.append((site.hits.total() - before, time.monotonic() - began[0]))
        if not site.wait_for_disconnect(RUN_TIMEOUT):
            raise HungError(f"The site still answers a crawl that has ended, see {self._log}.")
        self.kills += 1
        return code == -signal.SIGKILL

    def _verdict(self, site: Site, code: int) -> str | None:
        text = self._log.read_text(encoding="utf-8", errors="replace")
        lost = site.reachable - site.hits.keys()
        items_lost = site.reachable - paths_of(self.folder / "items.jsonl")
        dead = sum(map(int, re.findall(r"'altsched/dead': (\d+)", text)))
        served = site.hits.total()
        print(
            f"{counted(self.kills, 'kill')} over one crawl of {len(site.reachable)} pages:"
            f" {counted(len(lost), 'page')} lost, {counted(len(items_lost), 'item')} lost,"
            f" {counted(dead, 'request')} dead; {served} pages served."
        )
        pages = sum(pages for pages, _ in self._crawled)
        seconds = sum(seconds for _, seconds in self._crawled)
        print(
            f"{served - len(site.reachable)} pages fetched twice,"
            f" {(served - len(site.reachable)) / self.kills:.1f} a kill, at"
            f" {pages / seconds:.0f} pages/s."
        )
        if code or "Spider closed (finished)" not in text or "is finished" not in text:
            return f"The crawl did not finish, see {self._log}."
        if lost or items_lost or dead:
            return f"The crawl lost something, see {self.folder}."
        return None


def main() -> str | None:
    """Run the soak; return what went wrong, or None."""
    parser = argparse.ArgumentParser(
        description="Kill one crawl hundreds of times at random moments; nothing may be lost."
    )
    parser.add_argument("--kills", type=int, default=KILLS, metavar="N", help="default: 200")
    parser.add_argument(
        *("-s", "--set"),
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting of the crawl, such as ALTSCHED_COMMIT_INTERVAL=1",
    )
    parser.add_argument("--seed", type=int, help="of the random moments; printed if not given")
    options = parser.parse_args()
    seed = random.randrange(2**32) if options.seed is None else options.seed
    folder = Path(tempfile.mkdtemp(prefix="altsched-soak-"))
    console = Console()
    console.print(f"{options.kills} kills at random moments, --seed {seed}")
    began = time.monotonic()
    try:
        failure = Soak(folder, options.kills, seed, options.set).crawl(console)
    except HungError as error:
        failure = str(error)
    except ValueError:
        parser.error("--kills must be fewer than the site has pages")
    except KeyboardInterrupt:
        shutil.rmtree(folder)
        sys.exit(130)
    console.print(f"It took {time.monotonic() - began:.0f} seconds.")
    if failure is None:
        shutil.rmtree(folder)
    return failure


if __name__ == "__main__":
    sys.exit(main())
