"""A whole crawl on a frontier that answers later, from another thread."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from ..crawls import PYTHONPATH

ROOT = Path(__file__).parents[2]
PROJECT = ROOT / "example_project"


def crawl_example(tmp_path: Path, url: str, name: str, *options: str) -> tuple[list[str], str]:
    """Crawl the example site; the URLs of the items, and the log."""
    items = tmp_path / f"{name}.jsonl"
    command = [sys.executable, "-m", "scrapy", "crawl", "docs", "-a", f"url={url}", *options]
    run = subprocess.run(
        [*command, "-o", str(items)],
        cwd=PROJECT,
        env={**os.environ, "PYTHONPATH": PYTHONPATH},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert run.returncode == 0, run.stderr
    return [json.loads(line)["url"] for line in items.read_text().splitlines()], run.stderr


def test_a_crawl_whose_frontier_answers_later_visits_every_page_once(tmp_path: Path) -> None:
    site = subprocess.Popen(
        [sys.executable, "-m", "example_project.site"],
        cwd=PROJECT,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert site.stdout is not None
        url = site.stdout.readline().strip()
        expected, _ = crawl_example(tmp_path, url, "now")
        scheduler = "SCHEDULER=tests.later_scheduler.LaterScheduler"
        found, log = crawl_example(tmp_path, url, "later", "-s", scheduler)
    finally:
        site.terminate()
        site.communicate(timeout=30)
    assert "later_scheduler.LaterScheduler" in log
    assert sorted(found) == sorted(expected)
    assert len(set(found)) == len(found) > 500
    assert "'finish_reason': 'finished'" in log
