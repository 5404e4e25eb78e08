"""A death in the middle of a write, by the kernel."""

from __future__ import annotations

import os
import resource
import signal
import sys


class Tear:
    """Has the process die while it writes the n-th file (setting ``TEAR_AT``) of a directory.

    Settings: ``TEAR_BELOW``, the directory; ``TEAR_NAME``, how the names of files that count end;
    ``TEAR_AFTER``, how many bytes are written before.
    """

    @classmethod
    def from_crawler(cls, crawler):
        return cls(crawler.settings)

    def __init__(self, settings):
        self.left = settings.getint("TEAR_AT")
        self.below = settings["TEAR_BELOW"]
        self.ending = settings["TEAR_NAME"] or ""
        self.after = settings.getint("TEAR_AFTER")
        if self.left:
            sys.addaudithook(self.hear)

    def hear(self, event, arguments):
        if event != "open" or not arguments[2] & (os.O_WRONLY | os.O_RDWR):
            return
        path = str(arguments[0])
        if path.startswith(self.below) and path.endswith(self.ending):
            self.left -= 1
            if not self.left:
                # The kernel cuts the write at the limit, and ends the process at the next one.
                signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
                resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
                resource.setrlimit(resource.RLIMIT_FSIZE, (self.after, self.after))
