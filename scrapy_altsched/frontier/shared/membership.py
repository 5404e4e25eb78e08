"""Whether a worker takes part in a crawl, from its first batch to its last."""

from __future__ import annotations

import enum

from ...errors import FrontierFailedError
from ..events import AlreadyFinished, FrontierFailed, FrontierLost, OnEvent
from .batches import Status


class Phase(enum.Enum):
    """How far a worker is with a crawl."""

    #: Its first batch has no answer yet, or suspects are being evaluated.
    JOINING = enum.auto()
    #: It leases, and its leases are renewed.
    TAKING_PART = enum.auto()
    #: Its last batch, which gives back what it has leased, is sent.
    LEAVING = enum.auto()
    #: Nothing can be said any more: the crawl had finished before this worker came, is gone, or
    #: cannot be talked of; or the worker has left.
    CLOSED = enum.auto()


_NEXT = {
    Phase.JOINING: {Phase.TAKING_PART, Phase.CLOSED},
    Phase.TAKING_PART: {Phase.LEAVING, Phase.CLOSED},
    Phase.LEAVING: {Phase.CLOSED},
    Phase.CLOSED: {Phase.CLOSED},
}


class Membership:
    """A worker's part in a crawl.

    :ivar status: with which the server has refused a batch for good, if it has.
    :ivar failure: why there is no answer any more, if the thread that waits for them has died.
    """

    def __init__(self, on_event: OnEvent) -> None:
        self._on_event = on_event
        self.phase = Phase.JOINING
        self.status = Status.OK
        self.failure: FrontierFailedError | None = None

    def enter(self, phase: Phase) -> None:
        """Go on to *phase*."""
        assert phase in _NEXT[self.phase], (self.phase, phase)
        self.phase = phase

    def end(self, status: Status) -> None:
        """The server has refused a batch for good, with this status."""
        was_joining = self.phase is Phase.JOINING
        self.status = status
        self.enter(Phase.CLOSED)
        if status is Status.FINISHED:
            self._on_event(AlreadyFinished())
        elif not was_joining:
            self._on_event(FrontierLost())

    def fail(self, error: FrontierFailedError) -> None:
        """There will be no answer any more."""
        if self.failure is None:
            was_joining = self.phase is Phase.JOINING
            self.failure = error
            self.enter(Phase.CLOSED)
            if not was_joining:
                self._on_event(FrontierFailed(error))

    def check(self) -> None:
        """Raise the failure, if there was one."""
        if self.failure is not None:
            raise self.failure
