"""When the next batch is sent, and how long to wait for an answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ..clock import Call, Clock
from .batches import Reply
from .stream import EncodedBatch, Stream

#: Seconds between two questions of a worker that has nothing to do, at first and at most.
_POLL_FIRST = 0.01
_POLL_MOST = 0.25


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
        """Send a batch after so many seconds, or earlier."""
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

    def take(self, seconds: float = 0.0) -> Reply | None:
        """An answer that has come, or comes within so many *seconds*; as :meth:`Link.take`."""
        return self._link.take(seconds)

    def close(self) -> None:
        """Send nothing any more, and give up what was not answered."""
        self.is_over = True
        if self._call is not None:
            self._call.cancel()
        self._link.close()
