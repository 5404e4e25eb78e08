"""The thread that waits for the server, so that nobody else has to."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any

import redis
from redis.backoff import EqualJitterBackoff

from ...background import Background
from ...errors import FrontierFailedError
from .batches import Reply, parse_reply
from .scripts import read_script
from .stream import EncodedBatch

#: Seconds between two attempts, at first and at most.
_BACKOFF_FIRST = 0.05
_BACKOFF_MOST = 5.0
#: Seconds for which handing over a batch to the thread may take.
_HAND_OVER_WITHIN = 0.001


class Exchange:
    """Has batches answered, one after the other, on a thread of its own.

    A batch that fails is sent again unchanged: by its number the server knows whether it was
    applied.

    :param client: must not send anything again by itself, which it would do without being asked.
    :param wake: called on the thread whenever there is something to :meth:`take`.
    :param fail: called on the thread with the first of failures in a row.
    """

    def __init__(
        self,
        client: redis.Redis,
        wake: Callable[[], object],
        fail: Callable[[redis.RedisError], object],
    ) -> None:
        self._client = client
        self._wake = wake
        self._fail = fail
        self._script = Script(client)
        self._replies: SimpleQueue[Reply | BaseException] = SimpleQueue()
        self._failure: FrontierFailedError | None = None
        self._is_taken = threading.Event()
        self._is_closed = threading.Event()
        self._backoff = EqualJitterBackoff(_BACKOFF_MOST, _BACKOFF_FIRST)
        self._thread = Background("altsched", self._work, self._put, client.close)

    def send(self, batch: EncodedBatch) -> None:
        """Have *batch* answered."""
        self._is_taken.clear()
        self._thread.give(batch)
        # A busy thread is interrupted only every 5 ms (sys.getswitchinterval), in which a fast
        # crawl uses up all that it has leased.
        self._is_taken.wait(_HAND_OVER_WITHIN)

    def take(self, timeout: float = 0.0) -> Reply | None:
        """An answer that has come, or comes within *timeout* seconds.

        :raises FrontierFailedError: the thread has died, and there will be none.
        """
        if self._failure is None:
            try:
                found = self._replies.get(timeout > 0, timeout or None)
            except Empty:
                return None
            if isinstance(found, Reply):
                return found
            self._failure = FrontierFailedError("talks with the server", found)
        raise self._failure

    def close(self) -> None:
        """Give up what was not answered, and let go of the server."""
        self._is_closed.set()
        self._thread.stop()

    def _work(self, batch: EncodedBatch) -> None:
        self._is_taken.set()
        reply = self._ask(batch)
        if reply is not None:
            self._put(reply)

    def _put(self, found: Reply | BaseException) -> None:
        self._replies.put(found)
        self._wake()

    def _ask(self, batch: EncodedBatch) -> Reply | None:
        """The answer to *batch*; ``None``: the exchange was closed before it came."""
        failures = 0
        while not self._is_closed.is_set():
            try:
                return self._script.run(batch)
            except redis.RedisError as error:
                failures += 1
                if failures == 1:
                    self._fail(error)
            self._is_closed.wait(self._backoff.compute(failures))
        return None


class Script:
    """The script on a server."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self._text = read_script()
        self._sha = ""

    def run(self, batch: EncodedBatch) -> Reply:
        """Have *batch* answered, once.

        :raises redis.RedisError: there was no answer; the batch may have been applied.
        """
        arguments: list[Any] = [len(batch.keys), *batch.keys, batch.blob]
        try:
            if not self._sha:
                self._sha = str(self._client.script_load(self._text))
            reply: bytes = self._client.evalsha(self._sha, *arguments)
        except redis.exceptions.NoScriptError:
            # The server was restarted, or another one has taken its place.
            reply = self._client.eval(self._text, *arguments)
        return parse_reply(reply)
