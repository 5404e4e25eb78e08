"""What tests of changes to a whole job share."""

from __future__ import annotations

from importlib import import_module

import pytest


@pytest.fixture
def small_chunks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many requests are written at a time as the module's ``CHUNK`` says."""
    rewriter = import_module("scrapy_altsched.maintenance.rewriter")
    monkeypatch.setattr(rewriter, "CHUNK", request.module.CHUNK)
