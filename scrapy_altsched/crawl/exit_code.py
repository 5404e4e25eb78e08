"""What a process's exit code says about its job.

Scrapy exits with 0 however a crawl ends, and has no hook for it: the code is set at Python's exit.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
from contextlib import suppress
from os import _exit

from ..command_line import CommandLine
from .outcome import Outcome

#: 1 and 2 are Scrapy's own: for failures, and for usage errors.
_FAILED = 1
CODES = {
    Outcome.FINISHED: 0,
    Outcome.DEAD_LETTERS: 3,
    Outcome.BLOCKED: 4,
    Outcome.UNFINISHED: 4,
}
_COMMANDS = ("crawl", "runspider")


class ExitCode:
    """The exit code of this process, once it is set."""

    def __init__(self) -> None:
        self._code = 0
        self._pid = 0

    def set(self, outcome: Outcome) -> None:
        """Make the process exit with the code of *outcome*, if it is a Scrapy crawl command."""
        self._set(CODES[outcome])

    def fail(self) -> None:
        """Make it exit with 1, as Scrapy 2.13 does not do where a crawl could not be opened.

        A code that was set before stays.
        """
        if not self._code:
            self._set(_FAILED)

    def _set(self, code: int) -> None:
        command = CommandLine.current()
        if command is not None and command.scrapy_command in _COMMANDS:
            self._code, self._pid = code, os.getpid()

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
