"""What tests of the contract share."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..frontiers import KINDS, STORED, DiskKind
from ..stores import INSTALLED


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark as ``long`` what is about a stored frontier whose window is as large as usual.

    A small one goes through all of the same code, and through more.  Tests that name their engine
    choose by themselves.
    """
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    is_stored = any(value in INSTALLED for value in parameters.values())
    if is_stored and "engine" not in parameters:
        item.add_marker("long")


@pytest.fixture(params=STORED)
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> DiskKind:
    """Each kind of frontier that is stored in a job directory."""
    kind = KINDS[request.param](tmp_path)
    assert isinstance(kind, DiskKind)
    return kind
