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

https://docs.kernel.org/userspace-api/seccomp_filter.html#userspace-notification
"""

from __future__ import annotations

import ctypes
import fcntl
import importlib
import json
import os
import platform
import re
import select
import shutil
import signal
import socket
import struct
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

#: Calls whose first argument is a descriptor, and those whose arguments are paths, by number.
_BY_DESCRIPTOR, _BY_PATH, _SECCOMP = {
    "x86_64": (
        {1: "write", 18: "pwrite64", 20: "writev", 74: "fsync", 75: "fdatasync", 77: "ftruncate"},
        {82: "rename", 83: "mkdir", 84: "rmdir", 86: "link", 87: "unlink", 88: "symlink"},
        317,
    ),
    "aarch64": (
        {64: "write", 66: "writev", 68: "pwrite64", 82: "fsync", 83: "fdatasync", 46: "ftruncate"},
        {},
        277,
    ),
}[platform.machine()]
#: Those with a path after a directory's descriptor.
_BY_PLACE = {
    "x86_64": {257: "openat", 258: "mkdir", 263: "unlink", 264: "rename", 316: "rename"},
    "aarch64": {56: "openat", 34: "mkdir", 35: "unlink", 38: "rename", 276: "rename"},
}[platform.machine()]
_CALLS = {**_BY_DESCRIPTOR, **_BY_PATH, **_BY_PLACE}
_PR_SET_NO_NEW_PRIVS, _SET_MODE_FILTER, _NEW_LISTENER = 38, 1, 8
_LOAD, _IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _ASK = 0x7FFF0000, 0x7FC00000
_RECEIVE, _SEND, _CONTINUE = 0xC0502100, 0xC0182101, 1
_QUESTION = struct.Struct("QIIiIQ6Q")
#: Files that hold nothing of the job.
_IDLE = ("LOG", "rocksdict-config.json", "IDENTITY", "LOCK")

#: Tells the parent which part of the scenario begins.
Phase = Callable[[str], None]


@dataclass
class Step:
    """A call that changes a file of the job.

    :ivar thread: who makes it.
    :ivar data: what a write is to write.
    """

    call: str
    path: str
    thread: int = 0
    data: bytes = b""
    offset: int | None = None


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
    ours, theirs = socket.socketpair()
    child = os.fork()
    if not child:
        _be_child(scenario, path, theirs)
    theirs.close()
    phase, died = "start", Step("none", "")
    _, (listener,), _, _ = socket.recv_fds(ours, 16, 1)
    try:
        for step, answer in _questions(listener, str(path)):
            if select.select([ours], [], [], 0)[0]:
                phase = ours.recv(4096).decode().split("\n")[-2]
            counts = (step.thread == child) == main and only in (None, phase)
            last -= counts
            if counts and not last:
                died = step
                _write_part(step, part)
                os.kill(child, signal.SIGKILL)
                break
            answer()
    finally:
        os.close(listener)
        ours.close()
    _, status = os.waitpid(child, 0)
    expected = signal.SIGKILL if died.call != "none" else 0
    assert status == expected, f"the child ended with {status} after {step}"
    return phase, died


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


def _be_child(scenario: Callable[[Path, Phase], None], path: Path, parent: socket.socket) -> None:
    code = 1
    try:
        listener = _have_parent_asked()
        socket.send_fds(parent, [b"listener"], [listener])
        os.close(listener)
        scenario(path, lambda name: parent.sendall(f"{name}\n".encode()))
        code = 0
    finally:
        os._exit(code)


def _have_parent_asked() -> int:
    steps = [(_LOAD, 0, 0, 0)]
    for left, number in zip(range(len(_CALLS), 0, -1), _CALLS, strict=True):
        steps.append((_IF_EQUAL, left, 0, number))
    steps += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _ASK)]
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    header = struct.pack("HxxxxxxQ", len(steps), ctypes.addressof(program))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    listener: int = libc.syscall(
        _SECCOMP, _SET_MODE_FILTER, _NEW_LISTENER, ctypes.create_string_buffer(header)
    )
    if listener < 0:
        raise OSError(ctypes.get_errno(), "no filter of system calls")
    return listener


def _questions(listener: int, below: str) -> Iterator[tuple[Step, Callable[[], None]]]:
    """Each step below a directory, and how to let it go on."""
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    while True:
        [(_, events)] = poll.poll()
        if not events & select.POLLIN:
            return
        question = bytearray(_QUESTION.size)
        try:
            fcntl.ioctl(listener, _RECEIVE, question)
        except FileNotFoundError:  # the child has ended meanwhile
            continue
        number, thread, _, call, _, _, *arguments = _QUESTION.unpack(question)

        def answer(number: int = number) -> None:
            fcntl.ioctl(listener, _SEND, struct.pack("QqiI", number, 0, 0, _CONTINUE))

        step = _step(thread, call, arguments)
        if step is not None and step.path.startswith(below) and not _is_idle(step.path):
            yield step, answer
        else:
            answer()


def _is_idle(path: str) -> bool:
    return Path(path).name.startswith(_IDLE)


def _step(thread: int, call: int, arguments: list[int]) -> Step | None:
    """What a call is about to do; ``None``: nothing to a file."""
    name = _CALLS[call]
    if call in _BY_DESCRIPTOR:
        try:
            path = str(Path(f"/proc/{thread}/fd/{arguments[0]}").readlink())
        except OSError:
            return None
        if name not in ("write", "pwrite64"):
            return Step(name, path, thread)
        data = _memory(thread, arguments[1], arguments[2])
        return Step(name, path, thread, data, arguments[3] if name == "pwrite64" else None)
    if name == "openat" and not arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
        return None
    text = _memory(thread, arguments[0] if call in _BY_PATH else arguments[1], 4096)
    return Step(name, _follow(thread, os.fsdecode(text.split(b"\0")[0])), thread)


def _follow(thread: int, path: str) -> str:
    """The path, if it goes through a directory that the process holds open."""
    held = re.match(r"/proc/self/fd/\d+", path)
    if held is None:
        return path
    place = Path(held[0].replace("self", str(thread)))
    return f"{place.readlink()}{path[held.end() :]}"


def _memory(thread: int, address: int, size: int) -> bytes:
    with Path(f"/proc/{thread}/mem").open("rb", buffering=0) as memory:
        memory.seek(address)
        return memory.read(size)


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
