"""Kills a process at each step on its disk.

::

    python -m tests.killing SCENARIO IMAGE INTO [PHASE]

The process is a child that does a scenario in a copy of IMAGE.  A seccomp filter has the kernel ask
its parent before each system call that changes a file; at the n-th one below the job directory the
parent answers with SIGKILL.  If that is a write, the parent first writes a part of the data itself,
in further runs: that is a death inside of the call.  What a run leaves behind is in a directory in
INTO, and there is a line of JSON for each: the directory, the phase of the scenario, the call, the
name of the file, and how much of the data was written.

The steps of the main thread are the same in each run; all of them are visited, or all of one PHASE
of the scenario.  Those of RocksDB's
own threads come when they like: they are counted by themselves, and visited as they come.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import shutil
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path

from .tracing import Step, Tracer

#: Files that hold nothing of the job.
_IDLE = ("LOG", "rocksdict-config.json", "IDENTITY", "LOCK")

#: Tells the parent which part of the scenario begins.
Phase = Callable[[str], None]


def supervise(
    scenario: Callable[[Path, Phase], None],
    path: Path,
    last: int,
    part: float,
    *,
    main: bool,
    only: str | None = None,
) -> tuple[str, Step]:
    """Do *scenario* in a child until its *last* step; the phase, and the step that it died at.

    :param part: how much of that step's data is to be written.
    :param main: whether steps of the main thread count, or those of the others.
    :param only: the phase whose steps count; ``None``: all do.
    """
    tracer = Tracer(lambda parent: scenario(path, _phases(parent)))
    phase, died = "start", Step("none", "")
    try:
        for step, answer in tracer.steps(str(path)):
            if select.select([tracer.socket], [], [], 0)[0]:
                phase = tracer.socket.recv(4096).decode().split("\n")[-2]
            counts = (
                (step.thread == tracer.child) == main
                and only in (None, phase)
                and not _is_idle(step.path)
            )
            last -= counts
            if counts and not last:
                died = step
                _write_part(step, part)
                os.kill(tracer.child, signal.SIGKILL)
                break
            answer(0)
    finally:
        status = tracer.close()
    expected = signal.SIGKILL if died.call != "none" else 0
    assert status == expected, f"the child ended with {status} after {step}"
    return phase, died


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


def _is_idle(path: str) -> bool:
    return Path(path).name.startswith(_IDLE)


def main() -> None:
    """Kill a scenario at each step: before it, and inside of it if it is a write."""
    module, _, name = sys.argv[1].partition(":")
    scenario = getattr(importlib.import_module(module), name)
    image, into = Path(sys.argv[2]), Path(sys.argv[3])
    only = sys.argv[4] if len(sys.argv) > 4 else None

    def run(last: int, part: float, *, main: bool) -> Step:
        path = into / f"{last} {part} {main}"
        if image.exists():
            shutil.copytree(image, path)
        phase, step = supervise(scenario, path, last, part, main=main, only=only)
        line = {"path": path.name, "phase": phase, "call": step.call, "part": part}
        print(json.dumps({**line, "file": Path(step.path).name}), flush=True)
        return step

    for main in (True, False):
        last = 0
        while True:
            last += 1
            step = run(last, 0, main=main)
            if step.call == "none":
                break
            if len(step.data) > 1:
                # A record of the log may end anywhere.
                for part in (0.01, 0.5, 1) if step.path.endswith(".log") else (0.5,):
                    run(last, part, main=main)


if __name__ == "__main__":
    main()
