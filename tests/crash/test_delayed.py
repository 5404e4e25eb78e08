"""Crawls of requests that wait, killed with SIGKILL and resumed."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from scrapy_altsched.frontier.store.engines import Choice

from ..crawls import Crawl
from ..stores import INSTALLED


@pytest.mark.parametrize("engine", INSTALLED)
def test_ten_thousand_delayed_requests_and_three_kills(tmp_path: Path, engine: Choice) -> None:
    count, rng = 10_000, random.Random(engine)
    crawl = Crawl(tmp_path, "delaying", "", engine=engine, count=count, least=1, most=20)
    fast = {"CONCURRENT_REQUESTS": 100, "CONCURRENT_REQUESTS_PER_DOMAIN": 100, "LOG_LEVEL": "INFO"}
    logs = []
    for share in (0.2, 0.5, 0.8):
        process = crawl.start(**fast)
        wanted = int(count * (share + rng.uniform(-0.05, 0.05)))
        crawl.wait_until(process, lambda wanted=wanted: len(_lines(crawl)) >= wanted)
        crawl.kill(process)
        logs.append(crawl.log)
    assert crawl.run(**fast) == 0
    logs.append(crawl.log)
    found = {json.loads(line)["url"] for line in _lines(crawl)}
    assert found == {f"data:,{number}" for number in range(count)}
    for log in logs:
        assert "is too early" not in log
        assert "would wait again" not in log
    assert crawl.stat("altsched/delayed") == crawl.stat("altsched/dead") == 0
    assert "is finished" in crawl.log


def _lines(crawl: Crawl) -> list[str]:
    if not crawl.items.exists():
        return []
    text = crawl.items.read_text()
    # A kill may leave a part of a line, which the next run takes away.
    return text[: text.rfind("\n") + 1].splitlines()
