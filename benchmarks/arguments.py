"""Arguments of the commands."""

from __future__ import annotations

from collections.abc import Callable


def positive(kind: type[int] | type[float]) -> Callable[[str], float]:
    """A parser of numbers above 0, for :mod:`argparse`."""

    def number(text: str) -> float:
        value = kind(text)
        if not value > 0:
            raise ValueError
        return value

    number.__name__ = f"positive {kind.__name__}"
    return number
