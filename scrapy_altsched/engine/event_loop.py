"""What is called later, or from other threads, on Scrapy's event loop or reactor."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import Any, Generic, TypeVar, cast

from scrapy.utils.reactor import is_asyncio_reactor_installed, is_reactor_installed
from twisted.internet.defer import Deferred

_Item = TypeVar("_Item")
_scrapy_asyncio: Any = None
_uses_asyncio: Callable[[], bool] = is_asyncio_reactor_installed
with suppress(ImportError):  # new in Scrapy 2.14
    _scrapy_asyncio = import_module("scrapy.utils.asyncio")
    _uses_asyncio = _scrapy_asyncio.is_asyncio_available


async def sleep(seconds: float) -> None:
    """Let others go on for some seconds."""
    if _uses_asyncio():
        await asyncio.sleep(seconds)
    else:
        slept: Deferred[None] = Deferred()
        call_later(seconds, lambda: slept.callback(None))
        await slept


def call_later(delay: float, call: Callable[[], object]) -> Any:
    """Schedule *call* on Scrapy's event loop or reactor, if any; ``cancel()`` it at any time."""
    if _scrapy_asyncio is not None:
        try:
            _uses_asyncio()
        except RuntimeError:  # neither is there
            return _Delayed(None)
        return _scrapy_asyncio.call_later(delay, call)
    return _Delayed(_reactor().callLater(delay, call) if is_reactor_installed() else None)


class AfterTurns(Generic[_Item]):
    """Calls *call* with each item once the event loop has had so many *turns* since then."""

    def __init__(self, turns: int, call: Callable[[_Item], object]) -> None:
        self._turns, self._call, self._turn = turns, call, 0
        #: In which turn its call is due, and the item.
        self._waiting: deque[tuple[int, _Item]] = deque()

    def add(self, item: _Item) -> None:
        if not self._waiting:
            call_later(0, self._take_turn)
        self._waiting.append((self._turn + self._turns, item))

    def _take_turn(self) -> None:
        self._turn += 1
        due = []
        while self._waiting and self._waiting[0][0] <= self._turn:
            due.append(self._waiting.popleft()[1])
        # Before anything is called that may raise: nothing else would go on with the rest.
        if self._waiting:
            call_later(0, self._take_turn)
        for item in due:
            self._call(item)


def thread_caller() -> Callable[[Callable[[], object]], None]:
    """A function by which other threads have something called on this one, the crawl's."""
    if is_reactor_installed():
        return lambda call: _reactor().callFromThread(call)
    loop = asyncio.get_running_loop()

    def call_soon(call: Callable[[], object]) -> None:
        with suppress(RuntimeError):  # the loop may have been closed meanwhile
            loop.call_soon_threadsafe(call)

    return call_soon


def _reactor() -> Any:
    from twisted.internet import reactor  # to import it is to install one

    return cast("Any", reactor)


class _Delayed:
    """A call of Twisted's, which may be cancelled only while it is to come; or none."""

    def __init__(self, call: Any) -> None:
        self._call = call

    def cancel(self) -> None:
        if self._call is not None and self._call.active():
            self._call.cancel()
