"""Faults of the disk, made by the kernel: an extension that has system calls fail.

A seccomp filter (https://docs.kernel.org/userspace-api/seccomp_filter.html) is for good, for the
whole process, and needs no privilege.  It can tell calls by their numbers and arguments, and so
files by the numbers of their descriptors.  Those that may fail are made to have high numbers: a
store that is opened again gets low ones, which work.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from contextlib import suppress
from pathlib import Path

from scrapy import signals

_NUMBERS = {
    "x86_64": {"write": 1, "pwrite64": 18, "pread64": 17, "openat": 257, "open": 2, "seccomp": 317},
    "aarch64": {"write": 64, "pwrite64": 68, "pread64": 67, "openat": 56, "seccomp": 277},
}[platform.machine()]
_PR_SET_NO_NEW_PRIVS = 38
_SET_MODE_FILTER, _TSYNC = 1, 1
_LOAD, _AND, _IF_EQUAL, _RETURN = 0x20, 0x54, 0x15, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000


def refuse(*rules):
    """Have calls fail from now on.

    :param rules: (name of the call, number of an argument, mask, value, errno) for calls whose
        argument under the mask is the value; with a negative value, is not 0.
    """
    steps = []
    for name, argument, mask, value, error in rules:
        if name not in _NUMBERS:
            continue
        hit, miss = (0, 1) if value >= 0 else (1, 0)
        steps += [
            (_LOAD, 0, 0, 0),
            (_IF_EQUAL, 0, 4, _NUMBERS[name]),
            (_LOAD, 0, 0, 16 + 8 * argument),
            (_AND, 0, 0, mask),
            (_IF_EQUAL, hit, miss, max(value, 0)),
            (_RETURN, 0, 0, _ERRNO | error),
        ]
    steps.append((_RETURN, 0, 0, _ALLOW))
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    header = struct.pack("HxxxxxxQ", len(steps), ctypes.addressof(program))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.syscall(
        _NUMBERS["seccomp"], _SET_MODE_FILTER, _TSYNC, ctypes.create_string_buffer(header)
    ):
        raise OSError(ctypes.get_errno(), "no filter of system calls")


def descriptors(ending):
    """The descriptors of this process's files in a store whose names end so."""
    for link in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            path = str(link.readlink())
            if "/frontier/" in path and path.endswith(ending):
                yield int(link.name)


class Faults:
    """At the n-th item (setting ``FAULT_AT``), or at the start, a fault begins (``FAULT``)."""

    @classmethod
    def from_crawler(cls, crawler):
        return cls(crawler)

    def __init__(self, crawler):
        self.left = crawler.settings.getint("FAULT_AT")
        if self.left < 0:
            getattr(self, crawler.settings["FAULT"])()
        elif self.left:
            self.begin = getattr(self, crawler.settings["FAULT"])
            self.low = [os.open("/dev/null", os.O_RDONLY) for _ in range(200)]
            crawler.signals.connect(self.count, signals.item_scraped)

    def count(self):
        self.left -= 1
        if not self.left:
            self.begin()
            for descriptor in self.low:
                os.close(descriptor)
            print("fault", flush=True)

    def log_fails(self, error=errno.EIO):
        """The store's log cannot be written any more; a new one can."""
        refuse(
            *(
                (call, 0, 0xFFFFFFFF, number, error)
                for call, ending in (("write", ".log"), ("pwrite64", "-wal"))
                for number in descriptors(ending)
            )
        )

    def tables_fail(self):
        """Tables that are open cannot be read any more; opened again, they can."""
        refuse(*(("pread64", 0, 0xFFFFFFFF, n, errno.EIO) for n in descriptors(".sst")))

    def no_tables(self):
        """No table can be read, however it is opened."""
        refuse(("pread64", 0, 0, 0, errno.EIO))

    def read_only(self):
        """No file can be opened for writing, and the store's log not be written."""
        self.log_fails(errno.EROFS)
        self.no_new_files(errno.EROFS)

    def log_is_full(self):
        """No space is left for the store's log, for good."""
        self.log_fails(errno.ENOSPC)
        self.no_new_files()

    def no_new_files(self, error=errno.ENOSPC):
        """No file can be opened for writing."""
        writing = os.O_WRONLY | os.O_RDWR
        refuse(("openat", 2, writing, -1, error), ("open", 1, writing, -1, error))
