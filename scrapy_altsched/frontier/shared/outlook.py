"""What a worker that has nothing to do waits for, as far as the server's last answer says."""

from __future__ import annotations

from ...inflection import counted
from ..clock import Clock
from ..contract import Pressure
from .additions import Additions
from .pace import WorkerPace
from .sending import Sender
from .stream import Stream

#: Seconds after which it is asked again at the earliest whether a request is due.
_SOON = 0.01
#: The same of whether a download slot may be asked again.
_REST = 0.025
#: Seconds without an answer after which a server counts as silent.
_SILENCE = 30.0


class Outlook:
    """When there may be something to lease again, and why there is nothing.

    :param renew_every: seconds after which the server must have heard of this worker.
    :ivar holds_pages: whether pages that could be begun wait until less is to be sent.
    """

    def __init__(
        self,
        stream: Stream,
        additions: Additions,
        pace: WorkerPace,
        sender: Sender,
        clock: Clock,
        renew_every: float,
        pressure: Pressure,
    ) -> None:
        self._stream, self._additions, self._pace = stream, additions, pace
        self._sender, self._clock, self._renew_every = sender, clock, renew_every
        self._pressure = pressure
        self._heard_at = clock.monotonic()
        self.holds_pages = False

    def hold_pages(self) -> bool:
        """Whether no more pages are to be begun before more was sent of what others have led to.

        What the server has no memory for does not count: pages that end may make room for it.
        """
        is_behind = self._stream.waiting >= self._pressure.limit
        self.holds_pages = is_behind and not self._sender.is_over
        return self.holds_pages

    def note_answer(self) -> None:
        """The server has answered just now."""
        self._heard_at = self._clock.monotonic()

    def plan_poll(self) -> None:
        """Ask after a while whether there is anything to lease: at the latest when it is due."""
        if self._pace.is_on and self._stream.reply.rests_for >= 0:
            self._sender.plan(max(_REST, self._stream.reply.rests_for / 1000))
        due_at = self._due_at()
        if due_at is None:
            self._sender.plan_poll()
            return
        left = max(_SOON, due_at - self._clock.monotonic())
        if self.only_waits:
            # Nothing else is to come: do not ask all the time.
            self._sender.plan(min(left, self._renew_every))
        else:
            self._sender.plan_poll()
            self._sender.plan(left)

    def _due_at(self) -> float | None:
        """When the first delayed request is due, as the clock's monotonic seconds."""
        reply, here = self._stream.reply, self._additions.here.delayed
        times = [due for due, *_ in here[:1]]
        if reply.delayed:
            times.append(self._heard_at + reply.due_in / 1000)
        return min(times, default=None)

    def next_due(self) -> float | None:
        """See :meth:`..contract.Frontier.next_due`."""
        due_at = self._due_at()
        if due_at is None:
            return None
        return self._clock.wall() + due_at - self._clock.monotonic()

    @property
    def only_waits(self) -> bool:
        """Whether nothing is left to do, by any worker, until delayed requests are due."""
        reply, additions = self._stream.reply, self._additions
        is_known = not (additions.undecided or self._stream.unacknowledged)
        others = reply.pending or reply.leased or reply.feeders or additions.here.left
        others = others or reply.paused
        return reply.delayed > 0 and is_known and not others

    def explain_stall(self, *, is_waiting: bool) -> str:
        """Why nothing goes on, if it may be that nothing will; else nothing.

        :param is_waiting: whether the crawl waits for something to lease.
        """
        stream, reply = self._stream, self._stream.reply
        if stream.is_in_flight and self._clock.monotonic() - self._heard_at > _SILENCE:
            return "the server does not answer"
        if stream.is_full:
            one, many = "change of this worker waits", "changes of this worker wait"
            waiting = counted(stream.unacknowledged, one, many)
            return f"the server's memory is full, and {waiting} for it"
        if is_waiting and reply.pending and not reply.paused:
            # Slots that rest until a known time are as they should be.
            if self._pace.is_on and reply.rests_for >= 0:
                return ""
            requests = counted(reply.pending, "pending request")
            return f"of {requests} the server leases none to this worker"
        if is_waiting and reply.leased:
            left = counted(reply.leased, "request")
            return f"all that is left ({left}) is leased by other workers"
        return ""
