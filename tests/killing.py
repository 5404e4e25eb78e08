"""Kills a process at each step on its disk.

::

    python -m tests.killing SCENARIO ENGINE IMAGE INTO MOST [PHASE]

The process is a child that does a scenario, with stores of ENGINE, in a copy of IMAGE.  A seccomp
filter has the kernel ask its parent before each system call that changes a file; at one of those
below the job directory the parent answers with SIGKILL.  If that is a write, the parent first
writes a part of the data itself, in further runs: that is a death inside of the call.  What a run
leaves behind is in a directory in INTO, and there is a line of JSON for each: the directory, the
phase of the scenario, the call, the kind of the file, and how much of the data was written.

A first run that goes to its end tells the steps, or those of one PHASE of the scenario.  Where one
call comes more than MOST times for a kind of file, that many are tried, from the first to the last:
SQLite writes each page of a large commit by a call of its own, thousands of them.  A step is
the n-th of its phase, call and kind of file, and not the n-th of all: RocksDB deletes old files in
the thread that comes first, and its own threads come when they like.  A run that comes to its end
without the step has no line.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import select
import shutil
import signal
import socket
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from .tracing import Step, Tracer

#: Files that hold nothing of the job; the last one is made anew by whoever finds it without a user.
_IDLE = ("LOG", "rocksdict-config.json", "IDENTITY", "LOCK", "store.sqlite-shm")
#: The phase in which the thread that writes back a log of SQLite is, whatever the others are in.
BESIDE = "beside"

#: Tells the parent which part of the scenario begins.
Phase = Callable[[str], None]


@dataclass(frozen=True)
class Point:
    """A step of a scenario: the n-th of its phase, call and kind of file, from 1.

    :ivar file: its name with ``#`` for numbers: 000012.log and MANIFEST-000005 are of a kind.
    """

    phase: str
    call: str
    file: str
    number: int


def supervise(
    scenario: Callable[[Path, Phase], None], path: Path, last: Point | None, part: float = 0
) -> dict[Point, Step]:
    """Do *scenario* in a child until its *last* step, or to its end; the steps, in their order.

    :param part: how much of the last step's data is to be written.
    """
    tracer = Tracer(lambda parent: scenario(path, _phases(parent)))
    phase, steps, numbers = "start", dict[Point, Step](), Counter[tuple[str, str, str]]()
    try:
        for step, answer in tracer.steps(str(path)):
            if select.select([tracer.socket], [], [], 0)[0]:
                phase = tracer.socket.recv(4096).decode().split("\n")[-2]
            if not Path(step.path).name.startswith(_IDLE):
                is_beside = step.thread != tracer.child and "/store.sqlite" in step.path
                kind = (
                    BESIDE if is_beside else phase,
                    step.call,
                    re.sub(r"\d{6}|\d$", "#", Path(step.path).name),
                )
                numbers[kind] += 1
                point = Point(*kind, numbers[kind])
                steps[point] = step
                if point == last:
                    _write_part(step, part)
                    os.kill(tracer.child, signal.SIGKILL)
                    break
            answer(0)
    finally:
        status = tracer.close()
    expected = signal.SIGKILL if last in steps else 0
    assert status == expected, f"the child ended with {status} after {step}"
    return steps


def _phases(parent: socket.socket) -> Phase:
    return lambda name: parent.sendall(f"{name}\n".encode())


def _write_part(step: Step, part: float) -> None:
    size = min(max(1, int(len(step.data) * part)), len(step.data) - 1) if part else 0
    if size <= 0:
        return
    with Path(step.path).open("r+b", buffering=0) as file:
        if step.offset is None:
            file.seek(0, os.SEEK_END)
        else:
            file.seek(step.offset)
        file.write(step.data[:size])


def main() -> None:
    """Kill a scenario at each step: before it, and inside of it if it is a write."""
    module, _, name = sys.argv[1].partition(":")
    scenario = partial(getattr(importlib.import_module(module), name), engine=sys.argv[2])
    image, into = Path(sys.argv[3]), Path(sys.argv[4])

    def run(path: Path, last: Point | None, part: float = 0) -> dict[Point, Step]:
        if image.exists():
            shutil.copytree(image, path)
        return supervise(scenario, path, last, part)

    whole = into / "whole"
    steps = run(whole, None)
    shutil.rmtree(whole)
    most, phases = int(sys.argv[5]), sys.argv[6:]
    counts = Counter((point.phase, point.call, point.file) for point in steps)
    for number, (point, step) in enumerate(steps.items()):
        if point.phase not in phases and phases:
            continue
        if not _is_tried(point.number, counts[point.phase, point.call, point.file], most):
            continue
        parts = [0.0]
        if len(step.data) > 1:
            # A record of the log may end anywhere.
            parts += [0.01, 0.5, 1] if step.path.endswith(".log") else [0.5]
        for part in parts:
            path = into / f"{number} {part}"
            if point in run(path, point, part):
                line = {"path": path.name, **vars(point), "part": part}
                print(json.dumps(line), flush=True)


def _is_tried(number: int, count: int, most: int) -> bool:
    """Whether step *number* of *count* of a kind is among the *most* that are tried."""
    if count <= most:
        return True
    return number in {1 + round(index * (count - 1) / (most - 1)) for index in range(most)}


if __name__ == "__main__":
    main()
