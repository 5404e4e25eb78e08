"""What tests have to know of the engines of stores."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import get_args

import pytest

from scrapy_altsched.frontier.store.engines import ENGINES, Choice

#: The engines that can be used here.
INSTALLED: tuple[Choice, ...] = tuple(
    name
    for name in get_args(Choice)
    if name in ENGINES and importlib.util.find_spec(ENGINES[name][1]) is not None
)
#: Has a test run with each of them.
BY_ENGINE = pytest.mark.parametrize("engine", INSTALLED)


def files_of(store: Path) -> dict[str, bytes]:
    """The content of each file in a directory."""
    return {path.name: path.read_bytes() for path in store.iterdir() if path.is_file()}
