"""How far a long piece of work is: a bar on a terminal, a log line now and then elsewhere."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from rich.progress import Progress

logger = logging.getLogger(__name__)

_LOG_EVERY = 10.0  # seconds
#: Steps between two looks at the clock.
_STRIDE = 1_000
_Row = TypeVar("_Row")


@contextmanager
def progress(title: str, total: int) -> Iterator[Callable[[], None]]:
    """Show how far the work is that is done inside.

    :param total: how many steps it has.
    :return: a function to call after each step.
    """
    if not _is_watched():
        yield _strided(_lines(title, total))
        return
    from rich.progress import MofNCompleteColumn, TimeRemainingColumn

    with _bar(MofNCompleteColumn(), TimeRemainingColumn()) as bar:
        task = bar.add_task(title, total=total)
        yield _strided(lambda done: bar.update(task, completed=done))
        bar.update(task, completed=total)


def follow(title: str, rows: Iterable[_Row]) -> Iterator[_Row]:
    """The same *rows*; a terminal shows how many of them were read, and nothing afterwards."""
    if not _is_watched():
        yield from rows
        return
    from rich.progress import TextColumn, TimeElapsedColumn

    count = TextColumn("{task.completed:,}")
    with _bar(count, TimeElapsedColumn(), transient=True) as bar:
        yield from bar.track(rows, description=title)


def _is_watched() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()


def _bar(*columns: Any, transient: bool = False) -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    title = TextColumn("{task.description}")
    console = Console(stderr=True)
    return Progress(title, BarColumn(), *columns, console=console, transient=transient)


def _strided(show: Callable[[int], object]) -> Callable[[], None]:
    done = 0

    def step() -> None:
        nonlocal done
        done += 1
        if not done % _STRIDE:
            show(done)

    return step


def _lines(title: str, total: int) -> Callable[[int], None]:
    next_at = time.monotonic() + _LOG_EVERY

    def show(done: int) -> None:
        nonlocal next_at
        if time.monotonic() >= next_at:
            next_at = time.monotonic() + _LOG_EVERY
            logger.info("%s: %d of %d", title, done, total)

    return show
