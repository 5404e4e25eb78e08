"""The thread that waits for the server, the only one that does."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

import redis
from redis.backoff import EqualJitterBackoff

from ...background import Background
from ...errors import AltschedError
from ...redis_client import read_script
from ...redis_client.connection import explain
from .batches import Reply, Status, parse_reply
from .pace import VALID
from .sampling import Sampler
from .stream import EncodedBatch

#: Seconds between two attempts, at first and at most.
_BACKOFF_FIRST, _BACKOFF_MOST = 0.05, 5.0
#: Seconds for which handing over a batch to the thread may take.
_HAND_OVER_WITHIN = 0.001


#: The parts of the script that applies a batch, in the order in which they run: each can use what
#: those before it define.
_PARTS = ["entering", "loads", "pace", "limits", "suspects", "joining", "ages", "additions"]
_PARTS += ["endings", "leases", "reply"]


def read_batch_script() -> str:
    """The script that applies a batch."""
    script = read_script(f"{__package__}", *(f"batch/{part}.lua" for part in _PARTS))
    return f"local VALID = {round(VALID * 1000)}\n{script}"


def script_of(client: redis.Redis) -> Callable[[EncodedBatch], Reply]:
    """Has the server apply a batch, and waits for its answer."""
    script = client.register_script(read_batch_script())
    return lambda batch: parse_reply(script(batch.keys, [batch.blob]))


class Exchange:
    """The :class:`~.sending.Link` whose batches are answered on a thread of its own.

    :param wake: called on the thread whenever there is something to :meth:`take`.
    :param fail: called on the thread with the first of failures in a row.
    :param sampler: is called on the thread now and then, between batches, and after the last one.
    :ivar failure: the last of those.
    """

    def __init__(
        self,
        client: redis.Redis,
        wake: Callable[[], object],
        fail: Callable[[AltschedError], object],
        sampler: Sampler | None = None,
    ) -> None:
        self._client, self._fail, self._sampler = client, fail, sampler
        self.failure: AltschedError | None = None
        self._script = script_of(client)
        self._is_taken = threading.Event()
        self._is_closed = threading.Event()
        self._backoff = EqualJitterBackoff(_BACKOFF_MOST, _BACKOFF_FIRST)
        self._thread: Background[Callable[[], Reply | None], Reply] = Background(
            "altsched", "talks with the server", lambda task: task(), wake=wake, end=client.close
        )

    def send(self, batch: EncodedBatch) -> None:
        self._is_taken.clear()
        if self._sampler is not None:
            self._sampler.look()
        self._thread.give(partial(self._ask, batch))
        # A busy thread is interrupted only every 5 ms (sys.getswitchinterval), in which a fast
        # crawl uses up all that it has leased.
        self._is_taken.wait(_HAND_OVER_WITHIN)

    def take(self, timeout: float = 0.0) -> Reply | None:
        return self._thread.take(timeout)

    def close(self) -> None:
        self._is_closed.set()
        self._thread.stop()

    def _ask(self, batch: EncodedBatch) -> Reply | None:
        """The answer to *batch*; ``None``: the exchange was closed before it came."""
        self._is_taken.set()
        failures = 0
        while not self._is_closed.is_set():
            try:
                reply = self._script(batch)
            except redis.RedisError as error:
                failures += 1
                if failures == 1:
                    self.failure = explain(error, self._client, later=True)
                    self._fail(self.failure)
            else:
                self._plan_sample(reply, leaving=batch.leaving)
                return reply
            self._is_closed.wait(self._backoff.compute(failures))
        return None

    def _plan_sample(self, reply: Reply, *, leaving: bool) -> None:
        """Have the crawl's history go on, if it is time: after the crawl has this answer."""
        sampler = self._sampler
        if sampler is None or reply.status is not Status.OK:
            return
        if leaving or reply.finished:
            sampler.note(reply.crawl)  # the process may end before anything else is done
        elif sampler.is_due:
            self._thread.give(partial(sampler.note, reply.crawl))
