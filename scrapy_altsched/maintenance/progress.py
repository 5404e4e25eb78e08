"""How far a long piece of work is: a bar on a terminal, a log line now and then elsewhere."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

logger = logging.getLogger(__name__)

_LOG_EVERY = 10.0  # seconds
#: Rows between two looks at the clock.
_STRIDE = 1_000
_Row = TypeVar("_Row")


def follow(title: str, rows: Iterable[_Row], total: int | None = None) -> Iterator[_Row]:
    """The same *rows*, while it is shown how many of them were read.

    :param total: how many there are.  Without it only a terminal shows it, and nothing afterwards.
    """
    if sys.stderr is not None and sys.stderr.isatty():
        from rich import progress as rich
        from rich.console import Console

        columns: tuple[rich.ProgressColumn, ...]
        if total is None:
            columns = rich.TextColumn("{task.completed:,}"), rich.TimeElapsedColumn()
        else:
            columns = rich.MofNCompleteColumn(), rich.TimeRemainingColumn()
        with rich.Progress(
            rich.TextColumn("{task.description}"),
            rich.BarColumn(),
            *columns,
            console=Console(stderr=True),
            transient=total is None,
        ) as bar:
            yield from bar.track(rows, total, description=title)
        return
    if total is None:
        yield from rows
        return
    next_at = time.monotonic() + _LOG_EVERY
    for done, row in enumerate(rows, 1):
        yield row
        if not done % _STRIDE and time.monotonic() >= next_at:
            next_at = time.monotonic() + _LOG_EVERY
            logger.info("%s: %d of %d", title, done, total)
