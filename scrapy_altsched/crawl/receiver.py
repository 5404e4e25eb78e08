"""Applies what waits in the spool of a job: each action once, whenever the process dies.

A note in the store says which actions were applied, and how far the one has come that is.  It is
written with each commit, and a step of an action is between two commits: what it has changed and
the note are in one batch.  So a commit must be complete before a step and after it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from pathlib import Path

from ..errors import AltschedError, InvalidActionError, SpoolError, StoreError
from ..resume.state import ReadNote
from ..steering.actions import NOTE, Action, Effect, Stop
from ..steering.spool import Received, Spool
from .inlet import Inlet, Progress

logger = logging.getLogger(__name__)


class Receiver:
    """Applies what waits in a *spool*.

    :param commit: stores all changes with the notes; whether nothing is left.
    :param stop: ends the crawl.
    :param takes: whether an action can be applied here; others are left where they are.
    :param together: a context in which nothing is committed.
    """

    def __init__(
        self,
        spool: Spool,
        inlet: Inlet,
        commit: Callable[[], bool],
        stop: Callable[[], object] = bool,
        takes: Callable[[Action], bool] = lambda _: True,
        together: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self._spool, self._inlet, self._commit, self._stop = spool, inlet, commit, stop
        self._takes, self._together = takes, together
        #: Effects by the ids of actions whose files may still be there.
        self._applied: dict[str, Effect] = {}
        #: How far the action has come that an earlier run has begun.
        self._begun: dict[str, Progress] = {}
        self._current: Received | None = None
        self._path = Path()
        self._progress = Progress()
        self._steps: Iterator[None] = iter(())
        self._is_stop = False
        self._has_complained = False

    def capture(self) -> dict[str, bytes]:
        begun = {name: asdict(it) for name, it in self._begun.items()}
        applied = {name: asdict(it) for name, it in self._applied.items()}
        if not begun and not applied:
            return {NOTE: b""}
        return {NOTE: json.dumps({"applied": applied, "begun": begun}).encode()}

    def restore(self, read: ReadNote) -> None:
        known = json.loads(read(NOTE) or b"{}")
        self._applied = {name: Effect(**it) for name, it in known.get("applied", {}).items()}
        self._begun = {name: Progress(**it) for name, it in known.get("begun", {}).items()}

    def step(self) -> bool:
        """Go on with what waits; whether there is more to be done at once."""
        try:
            if self._current is None:
                # What was not saved yet would take the first step of the action longer than others.
                is_more = self._begin_next() and self._commit()
            else:
                is_more = self._go_on()
        except (SpoolError, StoreError) as error:
            # From the line on that was not taken.
            self.close()
            if not self._has_complained:
                self._has_complained = True
                logger.warning("%s", error)
            return False
        self._has_complained = False
        return is_more

    def close(self) -> None:
        """Let go of an action that is not applied wholly: a later run goes on with it."""
        if self._current is not None:
            self._current.close()
            self._current = None

    def _begin_next(self) -> bool:
        """Take up the next action, if one waits."""
        waiting = self._spool.waiting()
        if not waiting:
            self._applied.clear()
            self._begun.clear()
            return False
        for path in waiting:
            try:
                received = self._spool.open(path)
            except InvalidActionError as error:
                logger.warning("%s", error)
                self._spool.refuse(path)
                continue
            if received is None:
                continue
            self._current, self._path = received, path
            if received.id in self._applied or self._begin(received):
                return True
            self.close()
        return False

    def _begin(self, received: Received) -> bool:
        """Prepare the steps of an action, or of what is left of it; whether it is for here."""
        known = self._begun.get(received.id, Progress())
        self._progress = known
        try:
            action = received.action(known.line)
        except InvalidActionError as error:
            self._end(str(error))
            return True
        if not self._takes(action):
            return False
        self._begun[received.id] = known
        self._is_stop = isinstance(action, Stop)
        self._steps = self._inlet.apply(action, known)
        return True

    def _go_on(self) -> bool:
        assert self._current is not None
        if not self._commit():
            return False
        name = self._current.id
        if name not in self._applied:
            if self._current.is_withdrawn():
                self.close()
                return True
            with self._together():
                try:
                    next(self._steps)
                except StopIteration:
                    self._end()
                except InvalidActionError as error:
                    self._end(str(error))
                except (SpoolError, StoreError):
                    raise
                except AltschedError as error:
                    self._end(str(error))
                except Exception as error:  # of the project's own code, most often
                    logger.exception("What an operator has asked for was not applied wholly")
                    self._end(f"{type(error).__name__}: {error}")
            if not self._commit():
                return False
        if (effect := self._applied.get(name)) is not None:
            self._spool.answer(name, self._path, effect)
            self.close()
            if self._is_stop:
                self._is_stop = False
                self._stop()
        return True

    def _end(self, problem: str = "") -> None:
        assert self._current is not None
        self._applied[self._current.id] = self._progress.as_effect(problem)
        self._begun.pop(self._current.id, None)
