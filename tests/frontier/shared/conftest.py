"""Places for servers of a test's own."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def own_directory(tmp_path: Path) -> Path:
    """For the files of a test's own server."""
    return tmp_path / "redis"
