"""The demonstrations of the README."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2] / "example_project"


@pytest.mark.slow
def test_the_demonstration_of_a_shared_crawl_loses_nothing() -> None:
    run = subprocess.run(
        [sys.executable, "demo_shared.py"], cwd=PROJECT, capture_output=True, text=True, timeout=300
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.count(" killed at ") == 3
    *_, headings, _, figures, _ = run.stdout.splitlines()
    table = dict(zip(re.split(r"\s{2,}", headings.strip()), figures.split(), strict=True))
    assert table["visited"] == table["pages"] == "528"
    assert table["lost"] == table["items lost"] == table["dead"] == "0"
