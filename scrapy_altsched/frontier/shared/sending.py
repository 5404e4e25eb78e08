"""When the next batch is sent, and when it is said that nothing goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ..clock import Call, Clock
from ..events import MemoryFull, OnEvent, Stalled
from .batches import Reply
from .stream import EncodedBatch, Stream

#: Seconds between two questions of a worker that has nothing to do, and after which what the server
#: had no memory for is sent again: at first and at most.
_POLL_FIRST, _POLL_MOST = 0.01, 0.25
_AGAIN_FIRST, _AGAIN_MOST = 0.1, 5.0
#: Seconds for which a server must have had memory before it is said once more that it has none.
_SAID_EVERY = 60.0
#: Seconds without progress after which it is said, and between two looks.
_STALLED_AFTER, _LOOK_EVERY = 60.0, 10.0


class Link(Protocol):
    """The way to the server."""

    def send(self, batch: EncodedBatch) -> None:
        """Send *batch*, again and again until it is answered; returns at once.

        Then :meth:`.conversation.Conversation.take_replies` is called, on the crawl's thread.
        """

    def take(self, timeout: float = 0.0) -> Reply | None:
        """An answer that has come, or comes within *timeout* seconds.

        :raises FrontierFailedError: there will be none any more.
        """

    def close(self) -> None:
        """Give up what was not answered, and disconnect."""


class Sender:
    """Sends a stream's batches, which *build* makes, one at a time, each as late as it may be.

    A full server is asked again with pauses that grow, and it is reported once that it is full.

    :ivar is_over: whether nothing is to be sent any more.
    """

    def __init__(
        self,
        stream: Stream,
        link: Link,
        clock: Clock,
        build: Callable[[], EncodedBatch],
        on_event: OnEvent,
    ) -> None:
        self._stream, self._link, self._clock = stream, link, clock
        self._build, self._on_event = build, on_event
        self._call: Call | None = None
        self._due = float("inf")
        self._poll = _POLL_FIRST
        self._again_at, self._pause = 0.0, _AGAIN_FIRST
        #: When the server had no memory.
        self._refused_at = float("-inf")
        self.is_over = False

    def plan(self, seconds: float) -> None:
        if self._stream.is_in_flight or self.is_over:
            return
        due = self._clock.monotonic() + seconds
        if due < self._due:
            self._cancel()
            self._due = due
            self._call = self._clock.call_at(due, self.send)

    def plan_poll(self) -> None:
        """Ask after a while, the longer the less has happened."""
        self.plan(self._poll)

    def plan_again(self) -> None:
        """Send what was refused for want of memory after a pause."""
        self.plan(max(0.0, self._again_at - self._clock.monotonic()))

    def send(self) -> None:
        """Send a batch now, unless one has no answer yet."""
        self._cancel()
        if self._stream.is_in_flight or self.is_over:
            return
        if self._stream.is_full and self._clock.monotonic() >= self._again_at:
            self._stream.try_again()
        self._link.send(self._build())

    def note_answer(self, reply: Reply, *, is_taken: bool) -> None:
        """A batch was answered; *is_taken*: additions in it were taken."""
        now = self._clock.monotonic()
        if self._stream.has_asked:
            self._poll = _POLL_FIRST if reply.leases else min(self._poll * 2, _POLL_MOST)
        if reply.full:
            self._again_at = now + self._pause
            self._pause = min(self._pause * 2, _AGAIN_MOST)
            # A server that is nearly full has memory for some in between.
            is_new, self._refused_at = now - self._refused_at > _SAID_EVERY, now
            if is_new:
                self._on_event(MemoryFull(self._stream.unacknowledged))
        elif is_taken:
            self._pause = _AGAIN_FIRST

    def close(self) -> None:
        self.is_over = True
        self._cancel()
        self._link.close()

    def _cancel(self) -> None:
        if self._call is not None:
            self._call.cancel()
        self._call, self._due = None, float("inf")


class Stall:
    """Reports it if nothing has changed for long.

    :param look: what is different after any progress, and why there may be none, as a sentence;
        empty: there is nothing to do now, or it is being done.
    """

    def __init__(
        self, clock: Clock, look: Callable[[], tuple[object, str]], on_event: OnEvent
    ) -> None:
        self._clock, self._look_at, self._on_event = clock, look, on_event
        self._last: object = None
        self._since = clock.monotonic()
        self._is_stalled = False
        self._plan()

    def stop(self) -> None:
        self._call.cancel()

    def _plan(self) -> None:
        self._call = self._clock.call_at(self._clock.monotonic() + _LOOK_EVERY, self._look)

    def _look(self) -> None:
        self._plan()
        now, (progress, why) = self._clock.monotonic(), self._look_at()
        seconds = now - self._since
        if progress != self._last or not why:
            if self._is_stalled:
                self._on_event(Stalled(seconds, ""))
            self._last, self._since, self._is_stalled = progress, now, False
        elif seconds >= _STALLED_AFTER and not self._is_stalled:
            self._is_stalled = True
            self._on_event(Stalled(seconds, why))
