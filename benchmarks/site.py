"""A site with many hosts that notes each request, in a process of its own."""

from __future__ import annotations

import asyncio
import multiprocessing
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

from .process import allow_open_files

#: Seconds that the process may take to start, or to pass on what it has noted.
PATIENCE = 30.0
_END = b"\r\n\r\n"
_BODY = b"<html><body>A page.</body></html>"
_ANSWER = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\nContent-Length: %d\r\n\r\n%b"
    % (len(_BODY), _BODY)
)


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request.

    :ivar host: that it was for.
    :ivar path: that it was for.
    :ivar time: when its headers had been read, in nanoseconds of a monotonic clock.
    :ivar open: how many requests were open at that host then, with this one.
    :ivar worker: the name that the worker gave as its user agent.
    """

    host: str
    path: str
    time: int
    open: int
    worker: str


@dataclass
class Site:
    """The site, as the process that started it knows it.

    :ivar port: on loopback.
    :ivar arrivals: what it has noted; empty until it has ended.
    """

    port: int
    arrivals: list[Arrival] = field(default_factory=list)


@dataclass(frozen=True)
class Outage:
    """Seconds for which the site answers nothing, from its n-th request on."""

    after: int
    seconds: float


@contextmanager
def run_site(latency: float, outage: Outage | None = None) -> Iterator[Site]:
    """Run the site in a process of its own.

    :param latency: seconds from a request's arrival to its answer.
    :param outage: when it closes each connection instead.
    :raises RuntimeError: it does not start, or does not pass on what it has noted.
    """
    context = multiprocessing.get_context("spawn")
    ours, its = context.Pipe()
    process = context.Process(target=_serve, args=(its, latency, outage), daemon=True)
    process.start()
    its.close()
    try:
        site = Site(_receive(ours))
        yield site
        ours.send(None)
        site.arrivals = _receive(ours)
        process.join(PATIENCE)
    finally:
        process.kill()
        process.join()
        ours.close()


def _receive(connection: Connection) -> Any:
    try:
        if connection.poll(PATIENCE):
            return connection.recv()
    except EOFError:
        pass
    raise RuntimeError("The site does not answer.")


def _serve(connection: Connection, latency: float, outage: Outage | None) -> None:
    # A Ctrl-C is for the process that started this one, and then ends it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    allow_open_files()
    asyncio.run(_Recorder(latency, outage).run(connection))


class _Recorder:
    """Answers and notes requests, in the site's process."""

    def __init__(self, latency: float, outage: Outage | None) -> None:
        self._latency = latency
        self._outage = outage
        self._arrivals: list[Arrival] = []
        self._open: Counter[str] = Counter()

    async def run(self, connection: Connection) -> None:
        """Serve until the other process sends something, or is gone; tell it what arrived."""
        ended = asyncio.Event()
        asyncio.get_running_loop().add_reader(connection.fileno(), ended.set)
        server = await asyncio.start_server(self._answer_all, "127.0.0.1", 0, backlog=1024)
        connection.send(server.sockets[0].getsockname()[1])
        await ended.wait()
        server.close()
        try:
            connection.recv()
            connection.send(self._arrivals)
        except (EOFError, OSError):  # whoever started it was killed
            pass

    async def _answer_all(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(_END)
                host = self._note(head, time.monotonic_ns())
                if self._is_down():
                    self._open[host] -= 1
                    return
                await asyncio.sleep(self._latency)
                # Before the client can know that it may send the next one.
                self._open[host] -= 1
                writer.write(_ANSWER)
        except (asyncio.IncompleteReadError, OSError):  # the client has closed it, or was killed
            pass
        finally:
            writer.close()

    def _is_down(self) -> bool:
        outage, arrivals = self._outage, self._arrivals
        if outage is None or len(arrivals) < outage.after:
            return False
        since = arrivals[-1].time - arrivals[outage.after - 1].time
        return since < outage.seconds * 1e9

    def _note(self, head: bytes, now: int) -> str:
        first, *lines = head.decode("latin-1").removesuffix(_END.decode()).split("\r\n")
        headers = {
            name.lower(): value for name, _, value in (line.partition(": ") for line in lines)
        }
        host = headers["host"].partition(":")[0]
        self._open[host] += 1
        path, worker = first.split(" ")[1], headers.get("user-agent", "")
        self._arrivals.append(Arrival(host, path, now, self._open[host], worker))
        return host
