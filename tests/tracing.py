"""Has the kernel ask before each system call of a child that changes a file.

A seccomp filter sends the child's questions to its parent, which answers each: the call goes on,
or fails with an error that the parent chose, or the parent has ended the child.

https://docs.kernel.org/userspace-api/seccomp_filter.html#userspace-notification
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import platform
import re
import select
import socket
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

#: Calls whose first argument is a descriptor, and those whose arguments are paths, by number.
_BY_DESCRIPTOR, _BY_PATH, _SECCOMP = {
    "x86_64": (
        {
            1: "write",
            18: "pwrite64",
            20: "writev",
            74: "fsync",
            75: "fdatasync",
            77: "ftruncate",
            277: "sync_file_range",
            285: "fallocate",
            296: "pwritev",
        },
        {
            82: "rename",
            83: "mkdir",
            84: "rmdir",
            86: "link",
            87: "unlink",
            88: "symlink",
            76: "truncate",
        },
        317,
    ),
    "aarch64": (
        {
            64: "write",
            66: "writev",
            68: "pwrite64",
            82: "fsync",
            83: "fdatasync",
            46: "ftruncate",
            84: "sync_file_range",
            47: "fallocate",
            70: "pwritev",
        },
        {45: "truncate"},
        277,
    ),
}[platform.machine()]
#: Those with a path after a directory's descriptor.
_BY_PLACE = {
    "x86_64": {
        257: "openat",
        258: "mkdir",
        263: "unlink",
        264: "rename",
        265: "link",
        316: "rename",
    },
    "aarch64": {56: "openat", 34: "mkdir", 35: "unlink", 38: "rename", 37: "link", 276: "rename"},
}[platform.machine()]
_CALLS = {**_BY_DESCRIPTOR, **_BY_PATH, **_BY_PLACE}
_PR_SET_NO_NEW_PRIVS, _SET_MODE_FILTER, _NEW_LISTENER = 38, 1, 8
_LOAD, _IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _ASK = 0x7FFF0000, 0x7FC00000
_RECEIVE, _SEND, _CONTINUE = 0xC0502100, 0xC0182101, 1
_QUESTION = struct.Struct("QIIiIQ6Q")


@dataclass
class Step:
    """A call that changes a file, or forces it to the disk.

    :ivar thread: who makes it.
    :ivar descriptor: of the file, if the call names it so.
    :ivar data: what a write is to write.
    :ivar offset: where it is to write that, if the call says so.
    :ivar target: the second path of a renaming or linking.
    :ivar number: flags of an ``openat``, length of a ``truncate``.
    """

    call: str
    path: str
    thread: int = 0
    descriptor: int = -1
    data: bytes = b""
    offset: int | None = None
    target: str = ""
    number: int = 0


class Tracer:
    """A child, and what it asks before it changes files below a directory.

    :param run: what the child does; its answers come from the parent.
    """

    def __init__(self, run: Callable[[socket.socket], None]) -> None:
        self.socket, theirs = socket.socketpair()
        self.child = os.fork()
        if not self.child:
            _be_child(run, theirs)
        theirs.close()
        _, (self._listener,), _, _ = socket.recv_fds(self.socket, 16, 1)

    def close(self) -> int:
        """Stop answering, and wait for the child to end; its status."""
        os.close(self._listener)
        self.socket.close()
        return os.waitpid(self.child, 0)[1]

    def settle(self) -> None:
        """Wait until no thread of the child is inside of a call that was answered before."""
        while any(map(_runs, Path(f"/proc/{self.child}/task").iterdir())):
            pass

    def steps(self, below: str) -> Iterator[tuple[Step, Callable[[int], None]]]:
        """Each step below a directory, and how to let it go on: with an error, or 0."""
        poll = select.poll()
        poll.register(self._listener, select.POLLIN)
        while True:
            [(_, events)] = poll.poll()
            if not events & select.POLLIN:
                return
            question = bytearray(_QUESTION.size)
            try:
                fcntl.ioctl(self._listener, _RECEIVE, question)
            except FileNotFoundError:  # the child has ended meanwhile
                continue
            number, thread, _, call, _, _, *arguments = _QUESTION.unpack(question)

            def answer(error: int = 0, number: int = number) -> None:
                flags = 0 if error else _CONTINUE
                fcntl.ioctl(self._listener, _SEND, struct.pack("QqiI", number, 0, -error, flags))

            step = _step(thread, call, arguments)
            if step is not None and f"{step.path}/".startswith(below):
                yield step, answer
            else:
                answer()


def _be_child(run: Callable[[socket.socket], None], parent: socket.socket) -> None:
    code = 1
    try:
        listener = _have_parent_asked()
        socket.send_fds(parent, [b"listener"], [listener])
        os.close(listener)
        run(parent)
        code = 0
    finally:
        os._exit(code)


def _runs(thread: Path) -> bool:
    try:
        state = (thread / "stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
        return False
    return state not in ("S", "Z", "X")


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


def _step(thread: int, call: int, arguments: list[int]) -> Step | None:
    """What a call is about to do; ``None``: nothing to a file."""
    name = _CALLS[call]
    if call in _BY_DESCRIPTOR:
        descriptor = arguments[0]
        try:
            path = str(Path(f"/proc/{thread}/fd/{descriptor}").readlink())
        except OSError:
            return None
        if name not in ("write", "pwrite64"):
            return Step(name, path, thread, descriptor, number=arguments[1])
        data = _memory(thread, arguments[1], arguments[2])
        offset = arguments[3] if name == "pwrite64" else None
        return Step(name, path, thread, descriptor, data, offset)
    if name == "openat" and not arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
        return None
    first = 0 if call in _BY_PATH else 1
    step = Step(name, _path(thread, arguments[first]), thread, number=arguments[first + 1])
    if name in ("rename", "link"):
        step.target = _path(thread, arguments[2 * first + 1])
    return step


def _path(thread: int, address: int) -> str:
    """A path that is an argument; without the descriptor of a directory that it goes through."""
    path = os.fsdecode(_memory(thread, address, 4096).split(b"\0")[0])
    held = re.match(r"/proc/self/fd/\d+", path)
    if held is None:
        return path
    place = Path(held[0].replace("self", str(thread)))
    return f"{place.readlink()}{path[held.end() :]}"


def _memory(thread: int, address: int, size: int) -> bytes:
    with Path(f"/proc/{thread}/mem").open("rb", buffering=0) as memory:
        memory.seek(address)
        return memory.read(size)
