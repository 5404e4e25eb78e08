"""The exit code of the process.

Scrapy exits with 0 however a crawl ends, and has no hook for it: the code is set at Python's exit.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
from contextlib import suppress
from os import _exit


class ExitCode:
    """The exit code of this process, once it is set."""

    def __init__(self) -> None:
        self._code = self._pid = 0

    def set(self, code: int) -> None:
        """Make the process exit with *code*, if it is a Scrapy crawl command."""
        from .command_line import CommandLine  # every call of Scrapy would wait for that

        command = CommandLine.current()
        if command is not None and command.scrapy_command in ("crawl", "runspider"):
            self._code, self._pid = code, os.getpid()

    def fail(self) -> None:
        """Make it exit with 1, unless a code was set: Scrapy 2.13 does not if no crawl opens."""
        self.set(self._code or 1)

    def exit(self) -> None:
        """End the process if its code is not Scrapy's: later exit handlers do not run."""
        if not self._code or self._pid != os.getpid():
            return
        with suppress(Exception):
            logging.shutdown()
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()
        _exit(self._code)


exit_code = ExitCode()
# Registered early, it runs late: after the project's own handlers.
atexit.register(exit_code.exit)
