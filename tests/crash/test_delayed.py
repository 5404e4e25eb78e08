"""Crawls of requests that wait, killed with SIGKILL and resumed."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Any

import pytest

from scrapy_altsched.frontier.store.engines import Choice

from ..crawls import Crawl, assert_complete
from ..servers import RedisServer
from ..sites import Page, Site
from ..stores import INSTALLED

COUNT = 10_000


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("engine", INSTALLED)
def test_ten_thousand_delayed_requests_and_three_kills(tmp_path: Path, engine: Choice) -> None:
    crawl = Crawl(tmp_path, "delaying", "", engine=engine, count=COUNT, least=1, most=20)
    kill_three_times(crawl)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(900)
def test_ten_thousand_delayed_requests_on_a_server_and_three_kills(
    tmp_path: Path, server: RedisServer
) -> None:
    crawl = Crawl(tmp_path, "delaying", "", count=COUNT, least=1, most=20)
    # The job directory tells the worker that it is the same one.
    kill_three_times(crawl, ALTSCHED_SHARED=True, REDIS_PORT=server.port)


def kill_three_times(crawl: Crawl, **settings: Any) -> None:
    """All come, none before its time."""
    count, rng = COUNT, random.Random(crawl.engine)
    fast = {"CONCURRENT_REQUESTS": 100, "CONCURRENT_REQUESTS_PER_DOMAIN": 100, "LOG_LEVEL": "INFO"}
    fast.update(settings)
    logs = []
    for share in (0.2, 0.5, 0.8):
        process = crawl.start(**fast)
        wanted = int(count * (share + rng.uniform(-0.05, 0.05)))
        crawl.wait_until(process, lambda wanted=wanted: len(_lines(crawl)) >= wanted, 200)
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


class Strict:
    """A site that answers 429 with ``Retry-After``, then 503 twice, then with the page.

    :ivar early: paths that were asked for before their time, and how long after the last answer.
    """

    def __init__(self, pages: list[str]) -> None:
        self._pages = pages
        self._asked: dict[str, int] = {}
        self._until: dict[str, float] = {}
        self._last: dict[str, float] = {}
        self.early: list[tuple[str, float]] = []

    def __call__(self, path: str, _: int) -> Page:
        if path == "/":
            return Page(self._pages)
        now = time.monotonic()
        if now < self._until.get(path, 0):
            self.early.append((path, self._last[path]))
        self._asked[path] = tries = self._asked.get(path, 0) + 1
        self._last[path] = now
        if tries == 1:
            self._until[path] = now + 2
            return Page(status=429, headers={"Retry-After": "2"})
        # As long as a first retry waits at least: a death may have had the crawl forget others.
        self._until[path] = now + 0.9 * 0.5
        return Page(status=503) if tries <= 3 else Page()


def test_a_site_that_asks_to_be_left_alone_and_two_kills(tmp_path: Path) -> None:
    pages = [f"/{number}" for number in range(40)]
    strict, kills = Strict(pages), list[float]()
    settings = {
        "RETRY_ENABLED": 1,
        "RETRY_TIMES": 6,
        "ALTSCHED_RETRY_DELAY": 0.5,
        "CONCURRENT_REQUESTS_PER_DOMAIN": 16,
    }
    with Site(strict) as site:
        crawl = Crawl(tmp_path, "pages", f"{site.url}/")
        for hits in (60, 100):
            process = crawl.start(**settings)
            site.wait_for(lambda site, hits=hits: site.hits.total() >= hits)
            crawl.kill(process)
            kills.append(time.monotonic())
        assert crawl.run(**settings) == 0
        assert_complete(crawl, site, {"/", *pages})
    assert crawl.stat("altsched/failed") == 0
    # What was answered less than a commit before a kill is forgotten with it.
    assert [
        path for path, last in strict.early if not any(0 <= at - last < 1 for at in kills)
    ] == []
    assert len(strict.early) <= 2 * 16


def _lines(crawl: Crawl) -> list[str]:
    if not crawl.items.exists():
        return []
    text = crawl.items.read_text()
    # A kill may leave a part of a line, which the next run takes away.
    return text[: text.rfind("\n") + 1].splitlines()
