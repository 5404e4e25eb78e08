"""One crawl: a site, a Redis server, workers, and what happens to them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scrapy_altsched.settings import Config

from ..contenders import redis_server
from ..loopback import LOOPBACK
from ..process import allow_open_files
from ..runner import ROOT
from ..site import Arrival, run_site
from .cases import Case, count

#: Whether there is a setting for one pace of all workers.
CAN_PACE = hasattr(Config, "shared_pace")
#: Seconds after which leases of a worker that says nothing expire.
LEASE_TIMEOUT = 5
#: Seconds for which a worker is suspended.
SUSPENSION = 2.0
#: Of a case's time, when a worker is suspended and when one is killed.
_SUSPENDED_AT, _KILLED_AT = 0.1, 0.125
#: Seconds that workers may take to start, or to end when they are told to.
PATIENCE = 60.0
#: Seconds between two looks at the workers.
_STEP = 0.02

_SETTINGS: dict[str, Any] = {
    **LOOPBACK,
    "ADDONS": json.dumps({"scrapy_altsched.Addon": 0}),
    "SCHEDULER": "scrapy_altsched.Scheduler",
    "DUPEFILTER_CLASS": "scrapy_altsched.DupeFilter",
    "ALTSCHED_SHARED": True,
    "ALTSCHED_LEASE_TIMEOUT": LEASE_TIMEOUT,
    "LOG_LEVEL": "INFO",
}


@dataclass
class Crawled:
    """What came of a crawl.

    :ivar arrivals: all requests, in the order in which they arrived.
    :ivar faults: those that happened.
    :ivar problems: sentences about workers.
    """

    arrivals: list[Arrival] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def crawl(case: Case, directory: Path, seconds: float) -> Crawled:
    """Do it.

    :param directory: exists, and is empty; logs go there.
    :param seconds: after which it is stopped, from the moment on at which all workers start.
    :raises RuntimeError: the site, the server or a worker does not start.
    """
    allow_open_files()
    crawled = Crawled()
    with (
        redis_server(directory) as redis_url,
        run_site(case.latency) as site,
        _workers(case, directory, site.port, redis_url) as workers,
    ):
        _watch(workers, _plan_faults(case, workers, seconds, crawled), seconds, crawled)
    crawled.arrivals = sorted(site.arrivals, key=lambda arrival: arrival.time)
    return crawled


class _Worker:
    """A process that crawls.

    :ivar is_killed: whether it was.
    """

    def __init__(self, number: int, case: Case, directory: Path, port: int, url: str) -> None:
        self.name = f"worker-{number}"
        self.is_killed = False
        self.ready = directory / f"{self.name}.ready"
        self.log = directory / f"{self.name}.log"
        settings = {
            **_SETTINGS,
            "REDIS_URL": url,
            "ALTSCHED_SHARED_PREFETCH": case.prefetch,
            "DOWNLOAD_DELAY": case.delay,
            "CONCURRENT_REQUESTS": case.concurrency,
            "CONCURRENT_REQUESTS_PER_DOMAIN": case.cap,
            # Of the worker that sends a request, whichever has found it.
            "USER_AGENT": self.name,
            "LOG_FILE": self.log,
        }
        if CAN_PACE:
            settings["ALTSCHED_SHARED_PACE"] = case.has_pace
        arguments = {
            "port": port,
            "hosts": case.hosts,
            "pages": case.pages,
            "ready": self.ready,
            "start_file": _start_file(directory),
        }
        command = [sys.executable, "-m", "scrapy", "runspider"]
        command.append(str(Path(__file__).with_name("spider.py")))
        for option, values in (("-a", arguments), ("-s", settings)):
            for name, value in values.items():
                command += [option, f"{name}={value}"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        environment.pop("SCRAPY_SETTINGS_MODULE", None)
        with (directory / f"{self.name}.output").open("wb") as output:
            self._process = subprocess.Popen(
                command, cwd=directory, env=environment, stdout=output, stderr=output
            )

    @property
    def exit_code(self) -> int | None:
        return self._process.poll()

    def send(self, number: signal.Signals) -> bool:
        """Send a signal; whether it still runs."""
        if self.exit_code is not None:
            return False
        self._process.send_signal(number)
        self.is_killed |= number == signal.SIGKILL
        return True

    def end(self) -> None:
        """Kill it, if it still runs."""
        self.send(signal.SIGKILL)
        self._process.wait()


def _start_file(directory: Path) -> Path:
    return directory / "start"


@contextmanager
def _workers(case: Case, directory: Path, port: int, url: str) -> Iterator[list[_Worker]]:
    """Workers that have just been told to start; all are ended afterwards."""
    workers: list[_Worker] = []
    try:
        workers.extend(
            _Worker(number, case, directory, port, url) for number in range(case.workers)
        )
        deadline = time.monotonic() + PATIENCE
        while not all(worker.ready.exists() for worker in workers):
            for worker in workers:
                if worker.exit_code is not None:
                    raise RuntimeError(f"A worker does not start:\n{_last_lines(worker)}")
            if time.monotonic() > deadline:
                raise RuntimeError(f"Workers are not ready after {PATIENCE:g} s.")
            time.sleep(_STEP)
        _start_file(directory).touch()
        yield workers
    finally:
        for worker in workers:
            worker.end()


def _last_lines(worker: _Worker) -> str:
    paths = (worker.log, worker.log.with_suffix(".output"))
    text = "".join(path.read_text(errors="replace") for path in paths if path.exists())
    return "\n".join(text.splitlines()[-20:])


#: Seconds after the start, and what happens then.
_Event = tuple[float, Callable[[], object]]


def _plan_faults(
    case: Case, workers: list[_Worker], seconds: float, crawled: Crawled
) -> list[_Event]:
    """Suspend the first worker, and kill the second one, if there is one."""
    if not case.has_faults:
        return []

    def suspend() -> None:
        if workers[0].send(signal.SIGSTOP):
            crawled.faults.append("suspended")

    def kill() -> None:
        if workers[1].send(signal.SIGKILL):
            crawled.faults.append("killed")

    at = seconds * _SUSPENDED_AT
    events: list[_Event] = [(at, suspend)]
    if len(workers) > 1:
        events.append((seconds * _KILLED_AT, kill))
    events.append((at + SUSPENSION, lambda: workers[0].send(signal.SIGCONT)))
    return sorted(events, key=lambda event: event[0])


def _watch(workers: list[_Worker], events: list[_Event], seconds: float, crawled: Crawled) -> None:
    """Wait until all workers have ended by themselves, or the time is up."""
    start = time.monotonic()
    while any(worker.exit_code is None for worker in workers):
        now = time.monotonic() - start
        if now >= seconds:
            running = sum(worker.exit_code is None for worker in workers)
            crawled.problems.append(
                f"{count(running, 'worker')} had not ended after {seconds:g} s."
            )
            return
        while events and events[0][0] <= now:
            events.pop(0)[1]()
        time.sleep(_STEP)
    for worker in workers:
        if worker.exit_code and not worker.is_killed:
            crawled.problems.append(f"{worker.name} ended with exit code {worker.exit_code}.")
