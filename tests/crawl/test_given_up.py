"""Pages that a crawl goes on without: they are counted, and the last line says how many."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ..crawls import Crawl, altsched
from ..servers import RedisServer
from ..sites import Page, Site

RETRIES = {"RETRY_ENABLED": 1, "RETRY_TIMES": 1}
PAGES = [f"/{number}" for number in range(60)]


class Outage:
    """A site that is down between its n-th request and another one, but for its first page."""

    def __init__(self, begin: int, end: int) -> None:
        self._down = range(begin, end)
        self._asked = 0
        #: Those that had a page when they were asked for last.
        self.answered: set[str] = set()

    def __call__(self, path: str, _: int) -> Page:
        self._asked += 1
        if self._asked in self._down and path != "/":
            self.answered.discard(path)
            return Page(status=503)
        self.answered.add(path)
        return Page(PAGES if path == "/" else [])


def last_line(crawl: Crawl) -> str:
    return [line for line in crawl.log.splitlines() if " [scrapy_altsched" in line][-1]


@pytest.mark.parametrize("is_killed", [False, True])
def test_an_outage_in_mid_crawl(tmp_path: Path, is_killed: bool) -> None:
    outage = Outage(20, 200 if is_killed else 90)
    with Site(outage) as site:
        crawl = Crawl(tmp_path, "pages", f"{site.url}/")
        if is_killed:
            process = crawl.start(**RETRIES)
            site.wait_for(lambda site: site.hits.total() > 50)
            crawl.kill(process)
        assert crawl.run(**RETRIES) == 0
    missing = len(PAGES) + 1 - len(outage.answered)
    assert missing > 0
    assert "is finished: " in crawl.log
    assert "WARNING" in last_line(crawl)
    # One that the kill repeated is given up twice.
    count = crawl.stat("altsched/given_up")
    assert count >= missing if is_killed else count == missing
    assert f" {count} pages were given up by this job, and not crawled again:" in last_line(crawl)
    assert f" {count} had an HTTP status of RETRY_HTTP_CODES" in last_line(crawl)
    assert f"{count} pages" in altsched("check", crawl.jobdir).stdout
    # The next run of a finished job is another crawl.
    with Site({"/": Page()}) as site:
        crawl.arguments["url"] = f"{site.url}/"
        crawl.run()
    assert crawl.stat("altsched/given_up") is None
    assert "given up" not in crawl.log


def test_each_way_of_failing_counts_once(tmp_path: Path) -> None:
    pages = {"/": Page(), "/busy": Page(status=503), "/wanted": Page(status=503)}
    pages |= {"/good": Page(), "/followed": Page()}
    middlewares = {"crashsite.spiders.endings.IgnoringMiddleware": 1}
    with Site(pages) as site:
        crawl = Crawl(tmp_path, "failing", site.url)
        crawl.run(**RETRIES, DOWNLOADER_MIDDLEWARES=json.dumps(middlewares))
    counts = {name: crawl.stat(f"altsched/given_up/{name}") for name in ("download", "status")}
    assert counts == {"download": 3, "status": 1}
    assert crawl.stat("altsched/given_up/callback") == 2
    assert crawl.stat("altsched/given_up") == 6
    assert "3 could not be downloaded, 1 had an HTTP status" in last_line(crawl)
    assert sorted(json.loads(row)["url"] for row in crawl.items.read_text().splitlines()) == [
        "http://127.0.0.1:1/2",
        f"{site.url}/wanted",
    ]


def test_a_worker_counts_its_own(tmp_path: Path, server: RedisServer) -> None:
    with Site(Outage(20, 90)) as site:
        crawl = Crawl(tmp_path, "pages", f"{site.url}/")
        crawl.run(**RETRIES, JOBDIR=None, ALTSCHED_SHARED=True, REDIS_PORT=server.port)
    assert crawl.stat("altsched/given_up") > 0
    assert "given up by this worker" in last_line(crawl)
    assert "another ALTSCHED_SHARED_KEY" in last_line(crawl)


def test_a_crawl_that_keeps_nothing_counts_too(tmp_path: Path) -> None:
    with Site({"/": Page(status=503)}) as site:
        crawl = Crawl(tmp_path, "pages", f"{site.url}/")
        crawl.run(JOBDIR=None)
    assert crawl.stat("altsched/given_up") == 1


def test_a_crawl_without_failures_says_nothing_of_them(tmp_path: Path) -> None:
    with Site({"/": Page(["/missing"])}) as site:
        crawl = Crawl(tmp_path, "pages", f"{site.url}/")
        crawl.run()
    assert "given_up" not in crawl.log
    assert "given up" not in crawl.log
