"""Forces commits to the disk, in a thread."""

from __future__ import annotations

import time
from collections.abc import Callable
from queue import Empty, SimpleQueue

from ..background import Background
from ..errors import FrontierFailedError, StoreError

#: Seconds for which the end of a crawl waits for a disk that does nothing.
_WITHIN = 60.0


class Syncer:
    """Forces commits to the disk in a thread: unlike writes, that releases the GIL.

    :param sync: blocks until the disk has everything that was committed before.
    :ivar took: seconds that the last sync took.
    """

    def __init__(self, sync: Callable[[], None]) -> None:
        self._sync = sync
        self._done: SimpleQueue[BaseException | None] = SimpleQueue()
        self._thread: Background[None] = Background("altsched-sync", self._work, self._done.put)
        self._failure: FrontierFailedError | None = None
        #: Number of the commit that is being forced to the disk.
        self._running: int | None = None
        self._asked = 0
        self.took = 0.0
        self._is_stopped = False

    def _work(self, _: None) -> None:
        began = time.monotonic()
        try:
            self._sync()
        except StoreError as error:
            self._done.put(error)
        else:
            self.took = time.monotonic() - began
            self._done.put(None)

    def ask(self, number: int) -> None:
        """Ask for commit *number* and all before it to be forced to the disk."""
        self._asked = number
        if self._running is None:
            self._running = number
            self._thread.give(None)

    def collect(self, timeout: float = 0.0) -> int | None:
        """The number of a commit that has reached the disk since the last call.

        :param timeout: seconds to wait for it.
        :return: ``None``: there is none yet.
        :raises StoreError: forcing it failed.
        :raises FrontierFailedError: the thread has died.
        """
        if self._failure is not None:
            raise self._failure
        if self._running is None:
            return None
        try:
            error = self._done.get(timeout > 0, timeout or None)
        except Empty:
            return None
        number, self._running = self._running, None
        if error is not None and not isinstance(error, StoreError):
            self._failure = FrontierFailedError("has commits synced", error)
            raise self._failure
        if error is not None:
            # Nothing is asked of that store again: a second sync would succeed, though the
            # operating system may have forgotten what to write.
            raise error
        if self._asked > number:
            self.ask(self._asked)
        return number

    @property
    def is_running(self) -> bool:
        """Whether a sync has not been collected."""
        return self._running is not None

    def discard(self, timeout: float) -> None:
        """Wait for a sync that is running; whatever it did, it counts for nothing.

        :raises StoreError: it takes longer.
        :raises FrontierFailedError: the thread has died.
        """
        self._asked = 0
        if self._running is None:
            return
        try:
            done = self.collect(timeout)
        except StoreError:
            return
        if done is None:
            raise StoreError("The disk has not finished a sync. Check the disk.")

    def finish(self, number: int) -> None:
        """Have commit *number* forced to the disk, and wait for that.

        :raises StoreError: forcing it failed, or took longer.
        :raises FrontierFailedError: the thread has died.
        """
        self.ask(number)
        while (done := self.collect(_WITHIN)) != number:
            if done is None:
                self._is_stopped = True
                raise StoreError(
                    f"The disk has not finished a sync for {_WITHIN:g} s: what was written last may"
                    " not survive a power cut. Check the disk."
                )

    def stop(self) -> None:
        """Let the thread end; a sync that is running is waited for, for a while."""
        if not self._is_stopped:
            self._is_stopped = True
            self._thread.stop()
            self._thread.join(_WITHIN)
