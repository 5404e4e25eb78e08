"""A thread that works for the crawl, and whose death does not go unnoticed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

from .errors import FrontierFailedError

Task = TypeVar("Task")
Answer = TypeVar("Answer")


class Background(Generic[Task, Answer]):
    """A thread that is handed tasks, does one after the other, and answers each.

    What *work* raises ends the thread, and is raised again where answers are taken: *work* has to
    handle the errors that it expects.  The process ends without waiting for the thread.

    :param what: what the thread does, as in "The thread that *what* has died".
    :param work: called on the thread with each task; returns the answer; ``None``: there is none.
    :param wake: called on the thread whenever there is something to :meth:`take`.
    :param end: called on the thread before it ends, in any case.
    """

    def __init__(
        self,
        name: str,
        what: str,
        work: Callable[[Task], Answer | None],
        *,
        wake: Callable[[], object] = bool,
        end: Callable[[], object] = bool,
    ) -> None:
        self._what, self._work, self._wake, self._end = what, work, wake, end
        self._tasks: SimpleQueue[tuple[Task] | None] = SimpleQueue()
        self._answers: SimpleQueue[tuple[Answer] | BaseException] = SimpleQueue()
        self._failure: FrontierFailedError | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def give(self, task: Task) -> None:
        self._tasks.put((task,))

    def take(self, timeout: float = 0.0) -> Answer | None:
        """The next answer that has come, or comes within *timeout* seconds.

        :raises FrontierFailedError: the thread has died, and there will be none.
        """
        if self._failure is None:
            try:
                found = self._answers.get(timeout > 0, timeout or None)
            except Empty:
                return None
            if isinstance(found, tuple):
                return found[0]
            self._failure = FrontierFailedError(self._what, found)
        raise self._failure

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
                    answer = self._work(*given)
                    if answer is not None:
                        self._answers.put((answer,))
                        self._wake()
            finally:
                self._end()
        # Whatever it is, its owner has to know: a crawl would wait for ever.
        except BaseException as error:
            self._answers.put(error)
            self._wake()
