"""How far a long piece of work is: a bar on a terminal, a log line now and then elsewhere."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

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
    done, next_at = 0, time.monotonic() + _LOG_EVERY

    def step() -> None:
        nonlocal done, next_at
        done += 1
        if done % _STRIDE:
            return
        if bar is not None:
            bar.update(task, completed=done)
        elif time.monotonic() >= next_at:
            next_at = time.monotonic() + _LOG_EVERY
            logger.info("%s: %d of %d", title, done, total)

    bar = _open_bar(total)
    if bar is None:
        yield step
        return
    with bar:
        task = bar.add_task(title, total=total)
        yield step
        bar.update(task, completed=total)


def follow(title: str, rows: Iterable[_Row]) -> Iterator[_Row]:
    """The same *rows*; a terminal shows how many of them were read, and nothing afterwards."""
    bar = _open_bar()
    if bar is None:
        yield from rows
        return
    with bar:
        yield from bar.track(rows, description=title)


def _open_bar(total: int | None = None) -> Progress | None:
    if sys.stderr is None or not sys.stderr.isatty():
        return None
    from rich import progress as rich
    from rich.console import Console

    columns = rich.TextColumn("{task.description}"), rich.BarColumn()
    console = Console(stderr=True)
    if total is None:
        count = rich.TextColumn("{task.completed:,}"), rich.TimeElapsedColumn()
        return rich.Progress(*columns, *count, console=console, transient=True)
    count_of_all = rich.MofNCompleteColumn(), rich.TimeRemainingColumn()
    return rich.Progress(*columns, *count_of_all, console=console)
