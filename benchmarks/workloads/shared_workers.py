"""The workload unique by several workers on one Redis server, and while that stands still.

On a machine with few cores it is these that saturate; the processor time of workers and server says
what would on a larger one.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from time import monotonic
from typing import Any

import redis

from ..contenders import CONTENDERS, SHARED, Contender
from ..engine import start_request
from ..loop import LoopCrawl, run_in_loop
from . import Case, Metric, Outcome, Place, microseconds, unique

METRICS = (
    Metric("cost", "us a request, all workers together", is_main=True),
    Metric("workers", "us of processor time in workers"),
    Metric("server", "us of processor time in the server"),
    Metric("busy", "percent of a core, server", digits=0),
    Metric("longest", "ms, longest call in the crawl's thread"),
)
OURS = SHARED[1:]
#: Seconds for which the server stands still.
STANDSTILL = 10.0


def cases(scale: float, _: Any) -> list[Case]:
    """One, two and four workers with 50,000 requests each, times *scale*; a server that stops."""
    requests = max(unique.IN, int(50_000 * scale))
    found = [
        Case(f"{workers} workers", {"workers": workers, "requests": requests}, OURS, rounds=1)
        for workers in (1, 2, 4)
    ]
    stopped = {"workers": 1, "requests": requests, "standstill": STANDSTILL}
    return [*found, Case(f"server stopped for {STANDSTILL:g} s", stopped, OURS, rounds=1)]


def run(
    contender: Contender, place: Place, workers: int, requests: int, standstill: float = 0.0
) -> Outcome:
    """Start the workers together, and wait for them."""
    assert place.redis_url is not None
    server = redis.Redis.from_url(place.redis_url)
    name = next(name for name, found in CONTENDERS.items() if found is contender)
    orders = [
        [name, str(place.directory), place.redis_url, requests, number * requests, standstill]
        for number in range(workers)
    ]
    before = _processor(server)
    running = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", __spec__.name, json.dumps(order)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for order in orders
    ]
    for process in running:  # imports are no part of it
        assert process.stdout is not None
        assert process.stdout.readline().strip() == "ready"
    ends = []
    for process in running:
        assert process.stdin is not None
        print(file=process.stdin, flush=True)
    for process in running:
        output, _ = process.communicate()
        if process.returncode:
            raise RuntimeError(f"a worker has ended with exit code {process.returncode}")
        ends.append(json.loads(output))
    taken = sum(end["taken"] for end in ends)
    if taken != workers * requests + 1:
        raise RuntimeError(f"{taken:,} requests were taken, not {workers * requests + 1:,}")
    seconds = max(end["end"] for end in ends) - min(end["begin"] for end in ends) - standstill
    processor = _processor(server) - before
    figures = {
        "cost": microseconds(seconds, taken),
        "workers": microseconds(sum(end["processor"] for end in ends), taken),
        "server": microseconds(processor, taken),
        "busy": processor / seconds * 100,
        "longest": max(end["longest"] for end in ends) * 1e3,
    }
    return Outcome(figures)


def _processor(server: redis.Redis) -> float:
    found: Any = server.info("cpu")
    return float(found["used_cpu_user"] + found["used_cpu_sys"])


class _Standstill:
    """Stops the server in the middle of the work.

    :param pid: of the server's process.
    """

    def __init__(self, crawl: LoopCrawl, pid: int, requests: int, seconds: float) -> None:
        self._crawl = crawl
        self._pid = pid
        self._after = requests // 2
        self._seconds = seconds
        self._is_over = not seconds

    def look(self) -> None:
        """Stop it, if it is time to."""
        if not self._is_over and self._crawl.taken > self._after:
            self._is_over = True
            os.kill(self._pid, signal.SIGSTOP)
            threading.Timer(self._seconds, os.kill, (self._pid, signal.SIGCONT)).start()


def main() -> None:
    """Be a worker, as the first argument says."""
    name, directory, url, requests, first, standstill = json.loads(sys.argv[1])
    place = Place(Path(directory), url)
    process_info: Any = redis.Redis.from_url(url).info("server")
    print("ready", flush=True)
    sys.stdin.readline()
    begin = monotonic()

    async def work(crawl: LoopCrawl) -> None:
        scrape = unique.bursts(requests, first)
        stop = _Standstill(crawl, process_info["process_id"], requests, standstill)

        def scrape_and_look(page: Any) -> list[Any]:
            stop.look()
            return scrape(page)

        crawl.enqueue([start_request("https://host-0.example/")])
        await crawl.run_to_end(scrape_and_look)

    crawl = run_in_loop(CONTENDERS[name], place, work)
    print(
        json.dumps(
            {
                "begin": begin,
                "end": monotonic(),
                "taken": crawl.taken,
                "processor": crawl.processor,
                "longest": crawl.clock.longest,
            }
        )
    )


if __name__ == "__main__":
    main()
