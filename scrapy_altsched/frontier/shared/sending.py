"""When the next batch is sent, and how long to wait for an answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ..clock import Call, Clock
from ..events import MemoryFull, OnEvent
from .batches import Reply
from .stream import EncodedBatch, Stream

#: Seconds between two questions of a worker that has nothing to do, at first and at most.
_POLL_FIRST = 0.01
_POLL_MOST = 0.25
#: Seconds after which what the server had no memory for is sent again, at first and at most.
_AGAIN_FIRST = 0.1
_AGAIN_MOST = 5.0
#: Seconds for which a server must have had memory before it is said once more that it has none.
_SAID_EVERY = 60.0


class Link(Protocol):
    """The way to the server."""

    def send(self, batch: EncodedBatch) -> None:
        """Send *batch*, again and again until it is answered; returns at once.

        Then :meth:`SharedFrontier.take_replies` is called, on the crawl's thread.
        """

    def take(self, timeout: float = 0.0) -> Reply | None:
        """An answer that has come, or comes within *timeout* seconds.

        :raises FrontierFailedError: there will be none any more.
        """

    def close(self) -> None:
        """Give up what was not answered."""


class Sender:
    """Sends a stream's batches, one at a time, each as late as it may be.

    :param build: makes the next batch.
    :ivar is_over: whether nothing is to be sent any more.
    """

    def __init__(
        self, stream: Stream, link: Link, clock: Clock, build: Callable[[], EncodedBatch]
    ) -> None:
        self._stream = stream
        self._link = link
        self._clock = clock
        self._build = build
        self._call: Call | None = None
        self._due = float("inf")
        self._poll = _POLL_FIRST
        self.is_over = False

    def plan(self, seconds: float) -> None:
        if self._stream.is_in_flight or self.is_over:
            return
        due = self._clock.monotonic() + seconds
        if due < self._due:
            if self._call is not None:
                self._call.cancel()
            self._due = due
            self._call = self._clock.call_at(due, self.send)

    def plan_poll(self) -> None:
        """Ask after a while, the longer the less has happened."""
        self.plan(self._poll)

    def note_answer(self, *, is_useful: bool) -> None:
        """An answer has come, with something to do or without."""
        self._poll = _POLL_FIRST if is_useful else min(self._poll * 2, _POLL_MOST)

    def send(self) -> None:
        """Send a batch now, unless one has no answer yet."""
        if self._call is not None:
            self._call.cancel()
        self._call, self._due = None, float("inf")
        if not self._stream.is_in_flight and not self.is_over:
            self._link.send(self._build())

    def close(self) -> None:
        self.is_over = True
        if self._call is not None:
            self._call.cancel()
        self._link.close()


class ServerMemory:
    """Has a full server asked again with pauses that grow, and says once that it is full.

    :param stream: holds what was refused.
    """

    def __init__(self, clock: Clock, stream: Stream, on_event: OnEvent) -> None:
        self._clock = clock
        self._stream = stream
        self._on_event = on_event
        self._again_at, self._pause = 0.0, _AGAIN_FIRST
        self._is_said = False
        #: Since when it has had memory.
        self._roomy_since = 0.0

    @property
    def pause_left(self) -> float:
        return max(0.0, self._again_at - self._clock.monotonic())

    def try_again(self) -> None:
        """Let what was refused be sent, if the pause is over."""
        if self._stream.is_full and not self.pause_left:
            self._stream.try_again()

    def note_answer(self, *, is_refused: bool, is_taken: bool) -> None:
        """A batch was answered, and additions in it were refused, or taken, or none was there."""
        now = self._clock.monotonic()
        if is_refused:
            self._again_at = now + self._pause
            self._pause = min(self._pause * 2, _AGAIN_MOST)
            self._roomy_since = now
            if not self._is_said:
                self._is_said = True
                self._on_event(MemoryFull(self._stream.unacknowledged))
        elif is_taken:
            self._pause = _AGAIN_FIRST
        if self._is_said and not self._stream.is_full and now - self._roomy_since > _SAID_EVERY:
            # A server that is nearly full has memory for some in between.
            self._is_said = False
