"""What operators and the spider itself ask of a crawl that is open."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path

from scrapy import Request
from scrapy.signals import request_dropped

from ..frontier import Frontier
from ..frontier.clock import Call
from ..requests import EVERY_RUN
from ..resume.state import ResumeState, ResumeStates
from ..steering.actions import Action, Effect, tell_over_budget
from ..steering.spool import Spool
from .committer import Committer
from .deferrals import Deferrals
from .hold import Hold
from .inlet import Inlet, Progress
from .outcome import DeadLetters
from .receiver import Receiver
from .setup import Setup

logger = logging.getLogger(__name__)

#: Seconds between two looks at whether something waits.
_EVERY = 1.0
_DROPPED = (
    "a component of the project drops it when it is scheduled, as Scrapy's does with what is not in"
    " allowed_domains."
)


class Steering:
    """Applies actions to an open crawl; *hold*: whether it is paused."""

    def __init__(
        self, setup: Setup, frontier: Frontier, deferrals: Deferrals, dead_letters: DeadLetters
    ) -> None:
        self._setup, self._clock = setup, setup.clock
        self.hold = Hold(setup)
        self._inlet = Inlet(setup, frontier, self._crawl, deferrals, self.hold, dead_letters)
        self._receiver: Receiver | None = None
        self._next: Call | None = None

    def listen(self, jobdir: str, committer: Committer, states: ResumeStates) -> None:
        """Apply what waits in a job directory, once it was started."""
        spool = Spool(Path(jobdir))
        spool.clear()
        save, together = committer.save_all, committer.together
        self._receiver = receiver = Receiver(
            spool, self._inlet, save, self._stop, together=together
        )
        for part in self.hold, receiver:
            state = ResumeState(capture=part.capture, restore=part.restore, outlives_job=True)
            states.add(state)

    def start(self) -> None:
        """Look for what waits, now and then, from soon on."""
        if self._receiver is not None:
            self.hold.announce()
            self._call_after(0.0)

    def push(self, requests: Iterable[Request]) -> int:
        """Take in requests as if the spider had yielded them; how many were accepted."""
        progress = Progress()
        for request in requests:
            self._inlet.push(request, progress)
        return progress.changed

    def _crawl(self, request: Request) -> str:
        """Have a request scheduled; why it is refused, unless its page was seen before."""
        tally, signals = self._setup.tally, self._setup.crawler.signals
        over, dropped = tally["altsched/over_budget"], list[Request]()

        def note(request: Request) -> None:
            dropped.append(request)

        signals.connect(note, request_dropped)
        try:
            self._setup.engine.crawl(request)
        finally:
            signals.disconnect(note, request_dropped)
        if tally["altsched/over_budget"] > over:
            return tell_over_budget(request.url)
        # Without the signal, the scheduler was not asked, or it has accepted the request.
        is_known = bool(dropped) or EVERY_RUN in request.meta
        return "" if is_known else f"{request.url}: {_DROPPED}"

    def apply(self, action: Action) -> Effect:
        """Apply an action at once, whole; ConfigError: it is none for this crawl."""
        progress = Progress()
        for _ in self._inlet.apply(action, progress):
            pass
        return progress.as_effect()

    def close(self) -> None:
        planned, self._next = self._next, None
        if planned is not None:
            planned.cancel()
        if self._receiver is not None:
            self._receiver.close()

    def _call_after(self, seconds: float) -> None:
        self._next = self._clock.call_at(self._clock.monotonic() + seconds, self._listen)

    def _listen(self) -> None:
        assert self._receiver is not None
        due, is_more = self._next, False
        try:
            is_more = self._receiver.step()
        except Exception:  # without the next call, nothing would be heard any more
            logger.exception("Error in a timed call of scrapy_altsched")
        if self._next is due and due is not None:
            self._call_after(0.0 if is_more else _EVERY)

    def _stop(self) -> None:
        self._setup.engine.close_spider(self._setup.spider, "shutdown")
