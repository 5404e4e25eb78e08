"""Forces commits to the disk, in a thread."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from ..background import Background
from ..errors import FrontierFailedError, StoreError

#: Seconds for which the end of a crawl waits for a disk that does nothing.
_WITHIN = 60.0


class Syncer:
    """Forces commits to the disk in a thread: unlike writes, that releases the GIL.

    :param sync: blocks until the disk has everything that was committed before.
    :ivar took: seconds that the last sync took.
    :ivar position: up to where the disk has all changes: see :attr:`.Frontier.position`.
    """

    def __init__(self, sync: Callable[[], None]) -> None:
        self._sync, self._asked, self.took = sync, 0, 0.0
        #: Number of the last commit of which the caller knows that the disk has it.
        self._told = 0
        self._thread: Background[None, float | StoreError] = Background(
            "altsched-sync", "has commits synced", self._work
        )
        #: Number of the commit that is being forced to the disk.
        self._running: int | None = None
        #: Number of each complete commit that the disk may not have yet, and up to where it goes.
        self._unsynced: deque[tuple[int, int]] = deque()
        self.position = 0
        #: Whether the end of the crawl has waited for the disk in vain.
        self._has_given_up = False

    def _work(self, _: None) -> float | StoreError:
        began = time.monotonic()
        try:
            self._sync()
        except StoreError as error:
            return error
        return time.monotonic() - began

    def ask(self, number: int, position: int | None = None) -> None:
        """Have commit *number* forced; *position*: up to where it goes, if it is complete."""
        if position is not None:
            self._unsynced.append((number, position))
        self._asked = number
        if self._running is None:
            self._running = number
            self._thread.give(None)

    def collect(self) -> int | None:
        """The number of a commit that has reached the disk since; StoreError: that has failed."""
        number = self._take()
        if number is not None:
            self._told = number
        return number

    def _take(self, timeout: float = 0.0) -> int | None:
        if self._running is None or (found := self._thread.take(timeout)) is None:
            return None
        number, self._running = self._running, None
        if isinstance(found, StoreError):
            # Nothing is asked of that store again: a second sync would succeed, though the
            # operating system may have forgotten what to write.
            raise found
        self.took = found
        while self._unsynced and self._unsynced[0][0] <= number:
            self.position = self._unsynced.popleft()[1]
        if self._asked > number:
            self.ask(self._asked)
        return number

    @property
    def is_running(self) -> bool:
        return self._running is not None

    def discard(self, timeout: float) -> None:
        """Wait for a running sync, whatever it does; StoreError: it takes longer than *timeout*."""
        self._asked = 0
        try:
            is_over = self._running is None or self._take(timeout) is not None
        except (StoreError, FrontierFailedError):
            return
        if not is_over:
            raise StoreError("The disk has not finished a sync. Check the disk.")

    def finish(self, number: int, *, anew: bool = False) -> bool:
        """Have commit *number* forced to the disk, and wait for that; raises as :meth:`collect`.

        :param anew: whether by a sync that begins now, for what was written since that commit.
        :return: whether the caller did not know before that the disk has that commit.
        """
        while anew and self.is_running:
            self._wait()
        self.ask(number)
        while self._wait() != number:
            pass
        is_news, self._told = number > self._told, number
        return is_news

    def _wait(self) -> int:
        done = self._take(_WITHIN)
        if done is None:
            self._has_given_up = True
            raise StoreError(
                f"The disk has not finished a sync for {_WITHIN:g} s: what was written last may not"
                " survive a power cut. Check the disk."
            )
        return done

    def stop(self) -> None:
        """Let the thread end; a sync that is running is waited for, for a while."""
        self._thread.stop()
        if not self._has_given_up:
            self._thread.join(_WITHIN)
