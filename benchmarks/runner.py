"""One run of one workload by one contender, in its own process.

So memory, caches and open files are its own, too.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from .contenders import CONTENDERS, redis_server
from .process import allow_open_files
from .workloads import Outcome, Place

ROOT = Path(__file__).resolve().parent.parent


class FailedError(Exception):
    """A run that failed; the message is the last line that it printed."""


@dataclass(frozen=True)
class Task:
    """What one process does."""

    workload: str
    contender: str
    parameters: dict[str, Any]


def run(task: Task, parent: Path | None, timeout: float) -> Outcome:
    """Run *task* in its own process.

    :param parent: where its directory is made; ``None``: where temporary files go.
    :param timeout: seconds after which it is killed.
    :raises FailedError: it failed, or took too long.
    """
    with tempfile.TemporaryDirectory(prefix="altsched-benchmark-", dir=parent) as name:
        directory = Path(name)
        server = nullcontext(None)
        if CONTENDERS[task.contender].needs_redis:
            server = redis_server(directory)  # type: ignore[assignment]
        with server as redis_url:
            order = json.dumps([asdict(task), name, redis_url])
            try:
                done = subprocess.run(
                    [sys.executable, "-W", "ignore", "-m", "benchmarks.runner", order],
                    cwd=ROOT,
                    capture_output=True,
                    text=True,
                    timeout=timeout,
                    # Hashes of strings, of which digests are made, are the same in all processes.
                    env={**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": str(ROOT)},
                )
            except subprocess.TimeoutExpired:
                raise FailedError(f"it took more than {timeout:.0f} s") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise FailedError(lines[-1])
    return Outcome(**json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    """Do what the first argument says; print the outcome as the last line."""
    fields, directory, redis_url = json.loads(sys.argv[1])
    task = Task(**fields)
    allow_open_files()
    workload = import_module(f".workloads.{task.workload}", __package__)
    place = Place(Path(directory), redis_url)
    outcome = workload.run(CONTENDERS[task.contender], place, **task.parameters)
    print(json.dumps(asdict(outcome)))


if __name__ == "__main__":
    main()
