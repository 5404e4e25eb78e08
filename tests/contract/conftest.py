"""What tests of the contract share."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..frontiers import KINDS, STORED, DiskKind


@pytest.fixture(params=STORED)
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> DiskKind:
    """Each kind of frontier that is stored in a job directory."""
    kind = KINDS[request.param](tmp_path)
    assert isinstance(kind, DiskKind)
    return kind
