"""Which process holds a job directory, as its lock file says, and whether that process lives."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ...disk import lock

LOCK = "altsched.lock"
_PROC = Path("/proc")
#: For what the operating system does not tell.
_UNKNOWN = "-"


@dataclass(frozen=True, slots=True)
class Holder:
    """A process: its *pid* counts in one *place*, and is used again, for one *born* later."""

    pid: int
    host: str = ""
    place: str = _UNKNOWN
    born: str = _UNKNOWN

    @classmethod
    def current(cls) -> Holder:
        return cls(os.getpid(), _host(), _place(), _born(os.getpid()))

    @classmethod
    def parse(cls, text: str) -> Holder | None:
        """The process in a line; ``None``: there is none.  It may be the number alone."""
        with suppress(IndexError, ValueError):
            words = text.split()
            return cls(int(words[0]), *words[1:4])
        return None

    def encode(self) -> bytes:
        return f"{self.pid} {self.host} {self.place} {self.born}\n".encode()

    def lives(self) -> bool | None:
        """Whether it still runs; ``None``: that cannot be told from here."""
        if self.place == _UNKNOWN or self.place != _place():
            return None
        return is_alive(self.pid) and self.born == _born(self.pid)


def is_alive(pid: int) -> bool:
    """Whether there is a process of this number, as far as this one can see."""
    try:
        with suppress(PermissionError):  # another user's
            os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _host() -> str:
    return "".join(socket.gethostname().split()) or "localhost"


def _place() -> str:
    """The machine since it was started, and the space of process numbers (a container has one)."""
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{(_PROC / 'self/ns/pid').readlink()}"
    except OSError:
        return _host()


def _born(pid: int) -> str:
    """When process *pid* began, in ticks since the machine did; unknown once it has ended.

    https://man7.org/linux/man-pages/man5/proc_pid_stat.5.html
    """
    with suppress(OSError, IndexError):
        # The name, in parentheses, may hold anything.
        fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
        if fields[0] not in "ZX":  # a zombie
            return fields[19]
    return _UNKNOWN


def find_holder(jobdir: Path) -> Holder | None:
    """The process that has locked *jobdir* last, and may not run any more; the lock is let be."""
    with suppress(OSError):
        return Holder.parse((jobdir / LOCK).read_text(errors="replace"))
    return None


def is_locked(jobdir: Path) -> bool:
    """Whether a process has *jobdir* now, as far as that can be told; it is locked for a moment."""
    try:
        descriptor = os.open(jobdir / LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return not lock(descriptor)
    finally:
        os.close(descriptor)
