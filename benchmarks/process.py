"""What this process uses of the machine."""

from __future__ import annotations

import resource
import time
from pathlib import Path

import psutil

_ME = psutil.Process()


def resident() -> int:
    """Bytes of memory that are resident."""
    size: int = _ME.memory_info().rss
    return size


def resident_at_most() -> int:
    """Bytes of memory that were resident at most so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def open_files() -> int:
    """Open file descriptors."""
    return sum(1 for _ in Path("/proc/self/fd").iterdir()) - 1


def bytes_written() -> int:
    """Bytes passed to write calls so far, by all threads (``wchar`` of ``/proc/self/io``)."""
    for line in Path("/proc/self/io").read_text().splitlines():
        name, _, value = line.partition(": ")
        if name == "wchar":
            return int(value)
    raise OSError("/proc/self/io has no wchar")


def bytes_on_disk(directory: Path) -> int:
    """Bytes that the files below *directory* take."""
    total = 0
    for path in directory.rglob("*"):
        try:
            total += path.lstat().st_blocks * 512
        except FileNotFoundError:  # deleted by a compaction meanwhile
            continue
    return total


def other_threads_seconds() -> float:
    """Processor seconds of all threads but this one."""
    # This thread first: its clock goes on meanwhile.
    this = time.thread_time()
    return max(0.0, time.process_time() - this)


def allow_open_files() -> None:
    """Allow as many open files as the system does: Scrapy's disk queues need one per host."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
