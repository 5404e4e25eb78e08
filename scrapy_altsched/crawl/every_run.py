"""Requests that every run has to make, before all others: a login, a cookie, a token.

A resumed run skips the start requests that earlier runs made.  If what they left pending needs a
session, which ended with the process, every page of it would only say "please log in".  A request
with the meta key :data:`EVERY_RUN` is neither skipped nor treated as a duplicate, and nothing else
is handed out until it is done; the same holds for its children with the key, such as the form of a
login page, its redirects and its retries.

Such requests live in memory only.  A resumed run waits for as many as ``start()`` yielded before:
Scrapy asks for pending requests first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..engine.start_watch import StartWatch
from .messages import OVERDUE
from .setup import Setup

if TYPE_CHECKING:
    from scrapy import Request

_NOTE = "every_run"


class EveryRun:
    """Such requests of this run; *matters*: whether to call :meth:`next` before the frontier."""

    def __init__(self, setup: Setup, start: StartWatch) -> None:
        self._engine, self._reports = setup.engine, setup.reports
        self._start = start
        #: How many of them ``start()`` yielded in the run before, and in this one.
        self._expected = self._yielded = 0
        self._now, self._patience = setup.clock.monotonic, setup.config.patience
        self._until = self._now() + self._patience
        self._waiting: deque[Request] = deque()
        self._in_flight: set[Request] = set()
        self._is_overdue = self.matters = False

    @property
    def pending(self) -> int:
        return len(self._waiting)

    def restore(self, note: Callable[[str], bytes | None]) -> None:
        self._expected = int(note(_NOTE) or 0)
        self.matters = self._expected > 0

    def capture(self) -> dict[str, bytes]:
        expected = 0 if self._start.exhausted else self._expected
        return {_NOTE: str(max(self._yielded, expected)).encode()}

    def add(self, request: Request, *, from_start: bool) -> None:
        self._yielded += from_start
        if not self.matters:
            self.matters = True
            self._until = self._now() + self._patience
        self._waiting.append(request)

    def next(self) -> Request | None:
        if not self._waiting:
            return None
        request = self._waiting.popleft()
        self._in_flight.add(request)
        return request

    def holds_others(self) -> bool:
        """Whether nothing else may be handed out now; called when none of these is waiting."""
        # The engine has taken what was handed out before it asks again.
        self._in_flight.intersection_update(self._engine.in_progress)
        to_come = 0 if self._start.ended else max(0, self._expected - self._yielded)
        if not self._in_flight and not to_come:
            self.matters = self._is_overdue = False
        elif self._now() >= self._until and not self._is_overdue:
            self._is_overdue = True
            self._reports.log(OVERDUE, in_flight=len(self._in_flight), to_come=to_come)
        return self.matters and not self._is_overdue
