"""A TCP proxy on loopback that fails as networks do, on request."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Coroutine
from typing import Any

#: Seconds that a change of the proxy's behaviour may take.
PATIENCE = 20.0


class Proxy:
    """Forwards connections to a server on loopback while it is entered.

    Each verb has taken effect when it returns.  The verbs may be called from any thread.

    :param port: the server's.
    :param tls: for clients that speak TLS with the proxy; the server hears plain text.
    """

    def __init__(self, port: int, *, tls: ssl.SSLContext | None = None) -> None:
        self._target = port
        self._tls = tls
        #: Its own port, also while connections are refused.
        self.port = 0
        #: How many connections were made, and how many replies were dropped.
        self.connections = 0
        self.dropped = 0
        self._delay = 0.0
        self._drops_next = False
        self._has_changed: Callable[[], bool] = lambda: False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Proxy:
        self._thread.start()
        self._do(self._start())
        return self

    def __exit__(self, *_: object) -> None:
        self._do(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE)
        self._loop.close()

    # Verbs

    def cut(self) -> None:
        """Break all connections, both ways; new ones are forwarded."""
        self._do(self._cut())

    def refuse(self) -> None:
        """Break all connections, and refuse new ones."""
        self._do(self._refuse())

    def accept(self) -> None:
        """Forward new connections again after :meth:`refuse`."""
        self._do(self._listen())

    def stall(self, *, requests: bool = True, replies: bool = True) -> None:
        """Forward nothing in one direction or in both, until :meth:`flow`; connections stay."""
        self._do(self._let(requests=not requests, replies=not replies))

    @property
    def stalls_replies(self) -> bool:
        return not self._flowing["replies"].is_set()

    def stall_at_change(self, read: Callable[[], object]) -> None:
        """Forward until *read* returns another value; stall the replies from then on.

        :param read: of something that the server changes when it handles a request: the reply to
            the request that changed it is the first that is stalled.
        """
        self._do(self._watch(read))

    def flow(self) -> None:
        """Forward what was stalled, and all else."""
        self._do(self._let(requests=True, replies=True))

    def delay(self, seconds: float) -> None:
        """Forward each piece of data so much later, in both directions."""
        self._delay = seconds

    def drop_reply(self) -> None:
        """Forward the next request, and break its connection in place of the reply.

        The server has then handled the request.  ``dropped`` says when it has happened.
        """
        self._do(self._arm())

    # In the loop's thread

    def _do(self, step: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(step, self._loop).result(PATIENCE)

    async def _start(self) -> None:
        self._flowing = {"requests": asyncio.Event(), "replies": asyncio.Event()}
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        await self._let(requests=True, replies=True)
        self._reserve()
        await self._listen()

    def _reserve(self) -> None:
        """Have the port without listening there: connections are refused."""
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("127.0.0.1", self.port))
        self.port = self._socket.getsockname()[1]

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, sock=self._socket, ssl=self._tls)

    async def _cut(self) -> None:
        for writer in list(self._writers):
            _reset(writer)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _refuse(self) -> None:
        self._server.close()
        await self._cut()
        self._reserve()

    async def _stop(self) -> None:
        self._server.close()
        await self._cut()
        self._socket.close()

    async def _watch(self, read: Callable[[], object]) -> None:
        # In this thread no reply is forwarded between the first reading and the watch.
        before = read()
        self._has_changed = lambda: read() != before

    async def _let(self, **flowing: bool) -> None:
        self._has_changed = lambda: False
        for direction, flows in flowing.items():
            event = self._flowing[direction]
            event.set() if flows else event.clear()

    async def _arm(self) -> None:
        self._drops_next = True

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        try:
            there = await asyncio.open_connection("127.0.0.1", self._target)
            self._writers.add(there[1])
            await self._forward((reader, writer), there)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            for each in {writer} | ({there[1]} if "there" in locals() else set()):
                _reset(each)
                self._writers.discard(each)
            self._tasks.discard(task)

    async def _forward(self, here: Any, there: Any) -> None:
        """Forward in both directions until one of them ends."""
        dropping = False

        def request() -> bool:
            nonlocal dropping
            dropping, self._drops_next = dropping or self._drops_next, False
            return True

        def reply() -> bool:
            self.dropped += dropping
            return not dropping

        pumps = [
            asyncio.ensure_future(self._pump(here[0], there[1], "requests", request)),
            asyncio.ensure_future(self._pump(there[0], here[1], "replies", reply)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    async def _pump(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        direction: str,
        may_pass: Callable[[], bool],
    ) -> None:
        while data := await reader.read(65_536):
            if self._delay:
                await asyncio.sleep(self._delay)
            if direction == "replies" and self._has_changed():
                self._flowing[direction].clear()
            await self._flowing[direction].wait()
            if not may_pass():
                return
            writer.write(data)
            await writer.drain()


def _reset(writer: asyncio.StreamWriter) -> None:
    """End a connection as a broken one ends: with a reset."""
    end = writer.get_extra_info("socket")
    if end is not None and end.fileno() >= 0:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
