"""The clock of the machine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from .contract import Call


class SystemClock:
    """A :class:`~.contract.Clock` that needs asyncio for :meth:`call_at`, and nothing otherwise."""

    monotonic = staticmethod(time.monotonic)
    wall = staticmethod(time.time)

    def call_at(self, when: float, call: Callable[[], object]) -> Call:
        """Schedule *call*: see :meth:`~.contract.Clock.call_at`.

        :raises RuntimeError: no event loop is running.
        """
        return asyncio.get_running_loop().call_later(max(0.0, when - self.monotonic()), call)
