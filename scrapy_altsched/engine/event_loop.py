"""What is called later, or from other threads, on Scrapy's event loop or reactor."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import Any, cast

from scrapy.utils.reactor import is_asyncio_reactor_installed, is_reactor_installed
from twisted.internet.defer import Deferred

_scrapy_asyncio: Any = None
with suppress(ImportError):  # its call_later is new in Scrapy 2.14
    _scrapy_asyncio = import_module("scrapy.utils.asyncio")


async def sleep(seconds: float) -> None:
    """Let others go on for some seconds."""
    if _uses_asyncio():
        await asyncio.sleep(seconds)
    else:
        slept: Deferred[None] = Deferred()
        call_later(seconds, lambda: slept.callback(None))
        await slept


def _uses_asyncio() -> bool:
    if _scrapy_asyncio is not None:
        available: bool = _scrapy_asyncio.is_asyncio_available()
        return available
    return is_asyncio_reactor_installed()


class _NeverCalled:
    def cancel(self) -> None:
        pass


def call_later(delay: float, call: Callable[[], object]) -> Any:
    """Schedule *call* on the event loop or reactor that Scrapy runs on, if there is one.

    :param delay: seconds.
    :return: its ``cancel()`` may be called at any time.
    """
    if _scrapy_asyncio is not None:
        try:
            _scrapy_asyncio.is_asyncio_available()
        except RuntimeError:  # neither is there
            return _NeverCalled()
        return _Delayed(_scrapy_asyncio.call_later(delay, call))
    if not is_reactor_installed():
        return _NeverCalled()
    from twisted.internet import reactor

    return _Delayed(cast("Any", reactor).callLater(delay, call))


def thread_caller() -> Callable[[Callable[[], object]], None]:
    """A function by which other threads have something called on this one, the crawl's."""
    if is_reactor_installed():
        from twisted.internet import reactor

        return lambda call: cast("Any", reactor).callFromThread(call)
    loop = asyncio.get_running_loop()

    def call_soon(call: Callable[[], object]) -> None:
        # The loop may have been closed meanwhile: then nobody wants to know any more.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(call)

    return call_soon


class _Delayed:
    """A call of asyncio or Twisted; the latter's may be cancelled only while it is to come."""

    def __init__(self, call: Any) -> None:
        self._call = call

    def cancel(self) -> None:
        if not hasattr(self._call, "active") or self._call.active():
            self._call.cancel()
