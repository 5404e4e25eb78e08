"""Takes entries of a queue when the crawl has little left, and acknowledges them when it may."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ..background import Background
from ..errors import AltschedError, FrontierFailedError, SharedError
from ..frontier import Clock
from ..frontier.clock import Call
from .queue import Answer, Question, RedisQueue

if TYPE_CHECKING:
    from ..scheduler import Scheduler
    from .mixin import Feeding

#: Seconds between two questions, at first, at most, and at most while the server fails.
_POLL_FIRST = 0.05
_POLL_MOST = 1.0
_RETRY_MOST = 5.0
#: Seconds for which the end of a crawl waits for the server.
_LEAVE_WITHIN = 20.0
#: Batches that may wait for their acknowledgement: no more are taken then.
_MOST_HELD = 20
#: A taker is heard of as often as this in the time after which its entries go back.
_RENEWALS = 4


class Feeder:
    """Feeds a crawl; on the crawl's thread.

    :param crawl: makes requests of entries, and is told of failures.
    :param wake: has something called on the crawl's thread, from another one.
    :param batch: how many entries are taken at a time, and how many requests may be pending.
    :param timeout: seconds after which entries of a taker that is not heard of go back.
    :ivar active_at: when there was last anything in the queue, or in the hands of another taker.
    :ivar has_failed: whether the server did not answer the last question.
    """

    def __init__(
        self,
        queue: RedisQueue,
        scheduler: Scheduler,
        crawl: Feeding,
        clock: Clock,
        wake: Callable[[Callable[[], object]], object],
        *,
        batch: int,
        timeout: float,
    ) -> None:
        self._queue = queue
        self._scheduler = scheduler
        self._crawl = crawl
        self._clock = clock
        self._batch = batch
        self._renew_every = timeout / _RENEWALS
        #: Id of an entry that was handed over -> the position behind its requests.
        self._held: dict[int, int] = {}
        self._stored: list[int] = []
        self._dead: list[int] = []
        self._next = 1
        self._overdue = b""
        self._asked: Question | None = None
        self._asked_at = 0.0
        self._is_closing = False
        self.has_failed = False
        self.active_at = clock.monotonic()
        self._left: Callable[[], object] | None = None
        self._poll = _POLL_FIRST
        self._call: Call | None = None
        #: When the end of the crawl waits no longer.
        self._limit: Call | None = None
        self._is_over = False
        self._thread: Background[Question, Answer | AltschedError] = Background(
            "altsched-queue",
            "takes entries of the queue",
            self._work,
            wake=lambda: wake(self._take),
            end=queue.close,
        )

    def _work(self, question: Question) -> Answer | AltschedError:
        try:
            return self._queue.ask(question)
        except AltschedError as error:
            return error

    # The crawl's thread

    def start(self) -> None:
        self._plan(0.0)

    def note_closing(self) -> None:
        """The crawl ends: take nothing any more."""
        self._is_closing = True

    def leave(self, then: Callable[[], object]) -> None:
        """Acknowledge what may be, give all else back, and call *then*."""
        self._is_closing = True
        self._left = then
        self._cancel()
        if self._is_over:
            self._end()
            return
        until = self._clock.monotonic() + _LEAVE_WITHIN
        self._limit = self._clock.call_at(until, self._give_up)
        if self._asked is None:
            self._ask()

    def _fail(self, error: FrontierFailedError) -> None:
        self._is_over = self._is_closing = True
        self._cancel()
        self._crawl.fail(error)
        self._end()

    def _give_up(self) -> None:
        self._crawl.note_failure(
            SharedError(
                f"The Redis server did not answer for {_LEAVE_WITHIN:g} s: what was taken goes back"
                " after ALTSCHED_LEASE_TIMEOUT."
            )
        )
        self._end()

    def _end(self) -> None:
        self._is_over = True
        self._cancel()
        if self._limit is not None:
            self._limit.cancel()
        self._thread.stop()
        then, self._left = self._left, None
        if then is not None:
            then()

    def _plan(self, seconds: float) -> None:
        self._cancel()
        self._call = self._clock.call_at(self._clock.monotonic() + seconds, self._look)

    def _cancel(self) -> None:
        if self._call is not None:
            self._call.cancel()
            self._call = None

    def _look(self) -> None:
        """Ask the server if there is anything to ask or to tell."""
        self._call = None
        self._collect()
        is_due = self._clock.monotonic() >= self._asked_at + self._renew_every
        if self._wants() or self._stored or self._dead or (self._held and is_due):
            self._ask()
        else:
            self._plan(_POLL_FIRST)

    def _wants(self) -> int:
        if self._is_closing or len(self._held) > _MOST_HELD * self._batch:
            return 0
        return self._batch if len(self._scheduler) < self._batch else 0

    def _collect(self) -> None:
        for entry, position in list(self._held.items()):
            if not self._scheduler.is_durable(position):
                break
            del self._held[entry]
            self._stored.append(entry)

    def _ask(self) -> None:
        is_leaving = self._left is not None
        self._collect()
        self._asked = Question(
            0 if is_leaving else self._wants(),
            len(self._held),
            self._next,
            tuple(self._stored),
            tuple(self._dead),
            self._overdue,
            is_leaving,
        )
        self._asked_at = self._clock.monotonic()
        self._thread.give(self._asked)

    def _take(self) -> None:
        if self._is_over:
            return
        try:
            answer = self._thread.take()
        except FrontierFailedError as error:
            self._fail(error)
            return
        assert answer is not None
        assert self._asked is not None
        question, self._asked = self._asked, None
        if isinstance(answer, Answer):
            self._take_answer(question, answer)
        else:
            self._take_failure(answer)
        if self._left is None:
            return
        if question.leaving:
            self._end()
        else:
            self._cancel()
            self._ask()

    def _take_failure(self, error: AltschedError) -> None:
        if not self.has_failed:
            self.has_failed = True
            self._crawl.note_failure(error)
        self._poll = min(self._poll * 2, _RETRY_MOST)
        self._plan(self._poll)

    def _take_answer(self, question: Question, answer: Answer) -> None:
        if self.has_failed:
            self.has_failed = False
            self._crawl.note_recovery()
        del self._stored[: len(question.stored)]
        del self._dead[: len(question.dead)]
        self._overdue = answer.overdue
        new: Sequence[tuple[int, bytes]] = answer.entries
        if answer.differs:
            ids = {entry for entry, _ in answer.entries}
            # The others are somebody else's by now.
            for entry in self._held.keys() - ids:
                del self._held[entry]
            new = [pair for pair in answer.entries if pair[0] not in self._held]
        if new:
            self._next = max(self._next, new[-1][0] + 1)
        if self._is_closing:
            # They go back when this taker leaves.
            new = ()
        for entry, text in new:
            self._hand_over(entry, text)
        if new or answer.left or answer.others:
            self.active_at = self._clock.monotonic()
        is_useful = bool(new or answer.overdue)
        self._poll = _POLL_FIRST if is_useful else min(self._poll * 2, _POLL_MOST)
        self._plan(0.0 if is_useful else self._poll)

    def _hand_over(self, entry: int, text: bytes) -> None:
        if not self._crawl.take(text):
            self._dead.append(entry)
            return
        position = self._scheduler.position()
        if position is None:
            # Nothing would keep it in any case.
            self._stored.append(entry)
        else:
            self._held[entry] = position
