"""What ``Spider.start()`` yields, on its way to the engine."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable
from typing import Any

from .event_loop import sleep

#: Seconds until it is looked again whether a start request may come.
_HELD_FOR = 0.1


class StartWatch:
    """An iterator over what ``Spider.start()`` yields, and how it ends.

    :param on_end: called when nothing more will come.
    :param is_held: whether the next one has to wait, for want of memory.
    :param turns: after how many, or when *needs_turn* is set, all else gets a turn.
    :ivar is_waiting: whether ``start()`` was asked for the next one and has not yielded it.
    :ivar last: what it yielded last; the scheduler sets it to ``None`` when it gets that.
    :ivar exhausted: whether ``start()`` ran to its end, without an exception.
    :ivar ended: whether nothing more will come, for whatever reason.
    """

    def __init__(
        self,
        source: AsyncIterator[Any] | None,
        on_end: Callable[[], object],
        is_held: Callable[[], bool],
        turns: float = math.inf,
    ) -> None:
        self._source, self._on_end, self._is_held = source, on_end, is_held
        self._turns, self._since_turn = turns, 0
        self.needs_turn = self.is_waiting = False
        self.last: object = None
        self.exhausted = self.ended = source is None

    def __aiter__(self) -> StartWatch:
        return self

    async def __anext__(self) -> Any:
        assert self._source is not None
        self._since_turn += 1
        if self.needs_turn or self._since_turn >= self._turns:
            self.needs_turn, self._since_turn = False, 0
            await sleep(0)
        while self._is_held():
            await sleep(_HELD_FOR)
        self.is_waiting = True
        try:
            self.last = await self._source.__anext__()
        except BaseException as error:  # a task that is cancelled has ended, too
            self.exhausted = isinstance(error, StopAsyncIteration)
            self.end()
            raise
        finally:
            self.is_waiting = False
        return self.last

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    def end(self) -> None:
        if not self.ended:
            self.ended = True
            self._on_end()
