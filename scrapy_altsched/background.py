"""A thread that works for the crawl, and whose death does not go unnoticed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Generic, TypeVar

Task = TypeVar("Task")


class Background(Generic[Task]):
    """A thread that does one task after the other.

    What *work* raises ends the thread: it has to handle the errors that it expects itself.  The
    process does not wait for the thread when it ends.

    :param name: the thread's.
    :param work: called on the thread with each task.
    :param fail: called on the thread with what *work* has raised, once.
    :param end: called on the thread before it ends, in any case.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[Task], object],
        fail: Callable[[BaseException], object],
        end: Callable[[], object] = bool,
    ) -> None:
        self._work = work
        self._fail = fail
        self._end = end
        self._tasks: SimpleQueue[tuple[Task] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def give(self, task: Task) -> None:
        """Have a task done after those that were given before."""
        self._tasks.put((task,))

    def stop(self) -> None:
        """Let the thread end when all tasks are done; returns at once."""
        self._tasks.put(None)

    def join(self, timeout: float) -> bool:
        """Wait for the thread to end, for at most *timeout* seconds; whether it has."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            try:
                while (given := self._tasks.get()) is not None:
                    self._work(*given)
            finally:
                self._end()
        # Whatever it is, its owner has to know: a crawl would wait for ever.
        except BaseException as error:
            self._fail(error)
