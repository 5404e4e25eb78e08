"""Takes what a SIGKILL would leave at each step that a process takes on its disk.

::

    python -m tests.killing SCENARIO ENGINE IMAGE INTO MOST [PHASE]

The process is a child that does a scenario, with stores of ENGINE, in a copy of IMAGE.  A seccomp
filter has the kernel ask its parent before each system call that changes a file.  At one of those
below the job directory the parent copies that before it answers.  A SIGKILL leaves the same: no
thread of the child is inside of such a call then, and none can begin one.  If the call is a write,
further copies have a part of its data: that is a death inside of the call.  There is a line of JSON
for each copy: its directory in INTO, the phase of the scenario, the call, the kind of the file, and
how much of the data is written.

A first run tells the steps, or those of one PHASE of the scenario.  Where one call comes more than
MOST times for a kind of file, that many are tried, from the first to the last: SQLite writes each
page of a large commit by a call of its own, thousands of them.  A step is the n-th of its phase,
call and kind of file, and not the n-th of all: RocksDB deletes old files in the thread that comes
first, and its own threads come when they like.  One that the second run comes to its end without
has no line.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import select
import shutil
import socket
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from .tracing import Step, Tracer

#: Files that hold nothing of the job; the last one is made anew where no process has it open.
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
    scenario: Callable[[Path, Phase], None], path: Path, note: Callable[[Point, Step], None]
) -> None:
    """Do *scenario* in a child to its end; *note* is called before each step, with all at rest."""
    tracer = Tracer(lambda parent: scenario(path, _phases(parent)))
    phase, numbers = "start", Counter[tuple[str, str, str]]()
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
                tracer.settle()
                note(Point(*kind, numbers[kind]), step)
            answer(0)
    finally:
        status = tracer.close()
    assert status == 0, f"the child ended with {status} after {step}"


def _phases(parent: socket.socket) -> Phase:
    return lambda name: parent.sendall(f"{name}\n".encode())


def _write_part(path: Path, step: Step, part: float) -> None:
    size = min(max(1, int(len(step.data) * part)), len(step.data) - 1) if part else 0
    if size <= 0:
        return
    with path.open("r+b", buffering=0) as file:
        if step.offset is None:
            file.seek(0, os.SEEK_END)
        else:
            file.seek(step.offset)
        file.write(step.data[:size])


def _parts(step: Step) -> list[float]:
    if len(step.data) <= 1:
        return [0.0]
    # A record of the log may end anywhere.
    return [0.0, 0.01, 0.5, 1] if step.path.endswith(".log") else [0.0, 0.5]


def main() -> None:
    """Copy what each step finds, and what it would leave that was only a part of it."""
    module, _, name = sys.argv[1].partition(":")
    scenario = partial(getattr(importlib.import_module(module), name), engine=sys.argv[2])
    image, into = Path(sys.argv[3]), Path(sys.argv[4])
    most, phases = int(sys.argv[5]), sys.argv[6:]
    path = into / "whole"

    def run(note: Callable[[Point, Step], None]) -> None:
        if image.exists():
            shutil.copytree(image, path)
        supervise(scenario, path, note)
        shutil.rmtree(path)

    counts = Counter[tuple[str, str, str]]()
    run(lambda point, _: counts.update([(point.phase, point.call, point.file)]))
    copies = 0

    def copy(point: Point, step: Step) -> None:
        nonlocal copies
        if point.phase not in phases and phases:
            return
        if not _is_tried(point.number, counts[point.phase, point.call, point.file], most):
            return
        for part in _parts(step):
            copies += 1
            found = into / f"{copies} {part}"
            if path.exists():
                shutil.copytree(path, found)
            _write_part(found / Path(step.path).relative_to(path), step, part)
            line = {"path": found.name, **vars(point), "part": part}
            print(json.dumps(line), flush=True)

    run(copy)


def _is_tried(number: int, count: int, most: int) -> bool:
    """Whether step *number* of *count* of a kind is among the *most* that are tried."""
    if count <= most:
        return True
    return number in {1 + round(index * (count - 1) / (most - 1)) for index in range(most)}


if __name__ == "__main__":
    main()
