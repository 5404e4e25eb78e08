"""Processes that run ``scrapy``, forked from one that has imported it.

Each is as real as one that a shell starts, and begins where the interpreter would have read its
modules: most of what a short crawl takes.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tests.preloaded"])


def _run(
    arguments: Sequence[str],
    cwd: str,
    environment: Mapping[str, str],
    output: Connection,
    errors: str,
) -> None:
    os.dup2(output.fileno(), 1)
    output.close()
    os.dup2(os.open(errors, os.O_WRONLY | os.O_APPEND), 2)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    sys.argv = ["scrapy", *arguments]
    sys.orig_argv = [sys.executable, "-m", "scrapy", *arguments]
    # As -m and PYTHONPATH have it.
    sys.path[:0] = [cwd, *environment.get("PYTHONPATH", "").split(os.pathsep)]
    try:
        runpy.run_module("scrapy", run_name="__main__", alter_sys=True)
    finally:
        # As the interpreter does at its end; before Python 3.15 multiprocessing does not.
        threading._shutdown()
        atexit._run_exitfuncs()


class Process:
    """A process that runs ``scrapy`` with *arguments*; used as :class:`subprocess.Popen` is.

    :param errors: the file that its standard error goes to.
    :ivar stdout: what it prints.
    """

    def __init__(
        self, arguments: Sequence[str], cwd: Path, environment: Mapping[str, str], errors: Path
    ) -> None:
        self.args = ["scrapy", *arguments]
        errors.touch()
        reading, writing = multiprocessing.Pipe(duplex=False)
        with reading:
            self.stdout = os.fdopen(os.dup(reading.fileno()), encoding="utf-8")
        with writing:
            self._process = _CONTEXT.Process(
                target=_run,
                args=(list(arguments), str(cwd), dict(environment), writing, str(errors)),
            )
            self._process.start()
        atexit.register(self.kill)  # or the end of the tests would wait for it
        self._output: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)

    def _read(self) -> None:
        with self.stdout:
            self._output.append(self.stdout.read())

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if (code := self._process.exitcode) is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        atexit.unregister(self.kill)
        return code

    def communicate(self, timeout: float | None = None) -> tuple[str, None]:
        """Wait until it ends; what it printed since the last line that was read."""
        if not self._reader.ident:
            self._reader.start()
        self._reader.join(timeout)
        if self._reader.is_alive():
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        self.wait(timeout)
        return "".join(self._output), None

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)
