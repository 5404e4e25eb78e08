"""``scrapy altsched`` at a terminal, as an operator sits there."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import time

from .crawls import PROJECT, PYTHONPATH

#: Seconds for a command to go on.
_PATIENCE = 60.0


class Terminal:
    """A subcommand that runs at a pseudo-terminal of its own, which it is closed with."""

    def __init__(self, *arguments: object) -> None:
        self._master, slave = pty.openpty()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "scrapy", "altsched", *map(str, arguments)],
            cwd=PROJECT,
            env={**os.environ, "PYTHONPATH": PYTHONPATH, "TERM": "xterm", "COLUMNS": "200"},
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)
        self._data = b""

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._master)

    def _read(self) -> bool:
        """Take what is shown next; whether there was something."""
        try:
            data = os.read(self._master, 65_536)
        except OSError:  # the process, which alone had the other side, has ended
            return False
        self._data += data
        return bool(data)

    @property
    def shown(self) -> str:
        """All that it has shown, with what was typed, but for colours and the like."""
        text = self._data.decode(errors="replace")  # a character may be there in part
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text).replace("\r\n", "\n")

    def wait_for(self, text: str) -> None:
        """Wait until it shows *text*."""
        deadline = time.monotonic() + _PATIENCE
        while text not in self.shown:
            ready, _, _ = select.select([self._master], [], [], deadline - time.monotonic())
            assert ready, self.shown
            assert self._read(), self.shown

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def finish(self) -> int:
        """Wait until the command ends; its exit code."""
        while self._read():
            pass
        return self._process.wait(_PATIENCE)


def show(*arguments: object) -> str:
    """What a command shows that needs no answer, and ends well."""
    with Terminal(*arguments) as terminal:
        code = terminal.finish()
        assert code == 0, terminal.shown
        return terminal.shown
