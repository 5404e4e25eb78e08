"""How far a long piece of work is: a bar on a terminal, a log line now and then elsewhere."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

logger = logging.getLogger(__name__)

_LOG_EVERY = 10.0  # seconds
#: Steps between two looks at the clock.
_STRIDE = 1_000


@contextmanager
def progress(title: str, total: int) -> Iterator[Callable[[], None]]:
    """Show how far the work is that is done inside.

    :param total: how many steps it has.
    :return: a function to call after each step.
    """
    if sys.stderr is not None and sys.stderr.isatty():
        with _bar(title, total) as show:
            yield _strided(show)
    else:
        yield _strided(_lines(title, total))


def watched() -> Console:
    """Standard error, for a bar of rich; quiet if nobody is there to see it.

    To disable the bar is not enough: rich had even such a bar end with an empty line
    (https://github.com/Textualize/rich/pull/3905).
    """
    from rich.console import Console

    console = Console(stderr=True)
    console.quiet = not console.is_terminal
    return console


def _strided(show: Callable[[int], None]) -> Callable[[], None]:
    done = 0

    def step() -> None:
        nonlocal done
        done += 1
        if not done % _STRIDE:
            show(done)

    return step


@contextmanager
def _bar(title: str, total: int) -> Iterator[Callable[[int], None]]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as bar:
        task = bar.add_task(title, total=total)
        yield lambda done: bar.update(task, completed=done)
        bar.update(task, completed=total)


def _lines(title: str, total: int) -> Callable[[int], None]:
    next_at = time.monotonic() + _LOG_EVERY

    def show(done: int) -> None:
        nonlocal next_at
        if time.monotonic() >= next_at:
            next_at = time.monotonic() + _LOG_EVERY
            logger.info("%s: %d of %d", title, done, total)

    return show
