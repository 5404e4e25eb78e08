"""Pages that a crawl goes on without: kept, counted, told in its last line, and asked for again."""

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

    def end(self) -> None:
        self._down = range(0)

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
        # One that the kill repeated may fail beside a copy of it that does not.
        count = crawl.stat("altsched/failed")
        assert count >= missing if is_killed else count == missing
        missing = count
        assert f" {missing} requests of the job in {crawl.jobdir} have failed" in last_line(crawl)
        assert last_line(crawl).endswith(f"scrapy altsched requeue {crawl.jobdir} --failed")
        checked = altsched("check", crawl.jobdir)
        assert checked.returncode == 0
        assert f"{missing} by status" in checked.stdout
        # They stay so until they are asked for.
        assert crawl.run(**RETRIES) == 0
        assert crawl.stat("altsched/failed") == missing
        listed = altsched("requeue", crawl.jobdir, "--failed").stdout
        assert listed.count("HTTP status 503") == missing
        outage.end()
        again = altsched("requeue", crawl.jobdir, "--failed", "--all")
        assert f"{missing} requests are pending again; failed: 0." in again.stdout
        assert crawl.run(**RETRIES) == 0
    assert len(outage.answered) == len(PAGES) + 1
    assert crawl.stat("altsched/failed") == 0
    assert "--failed" not in crawl.log


@pytest.mark.parametrize("retries", [0, 1])
def test_each_way_of_failing_counts_once(tmp_path: Path, retries: int) -> None:
    pages = {"/": Page(), "/busy": Page(status=503), "/wanted": Page(status=503)}
    pages |= {"/good": Page(), "/followed": Page()}
    middlewares = {"crashsite.spiders.endings.IgnoringMiddleware": 1}
    settings = {"RETRY_ENABLED": retries, "RETRY_TIMES": 1}
    with Site(pages) as site:
        crawl = Crawl(tmp_path, "failing", site.url)
        crawl.run(**settings, DOWNLOADER_MIDDLEWARES=json.dumps(middlewares))
    # An errback deals with a page that was asked for once.
    counts = {name: crawl.stat(f"altsched/failed/{name}") for name in ("download", "status")}
    assert counts == {"download": 3 if retries else 1, "status": 1}
    assert crawl.stat("altsched/failed/callback") == (2 if retries else 3)
    assert crawl.stat("altsched/failed") == (6 if retries else 5)
    assert f"{crawl.stat('altsched/failed')} requests of the job in" in last_line(crawl)
    listed = altsched("requeue", crawl.jobdir, "--failed", "--reason", "callback").stdout
    # No text of a site's steers a terminal.
    assert "ValueError: as the test wants it \ufffd[31m" in listed
    listed = altsched("requeue", crawl.jobdir, "--failed", "--reason", "download").stdout
    assert "Connection refused" in listed or "ConnectionRefusedError" in listed
    assert sorted(json.loads(row)["url"] for row in crawl.items.read_text().splitlines()) == [
        "http://127.0.0.1:1/2",
        f"{site.url}/wanted",
    ]


def test_a_worker_counts_its_own(tmp_path: Path, server: RedisServer) -> None:
    with Site(Outage(20, 90)) as site:
        crawl = Crawl(tmp_path, "pages", f"{site.url}/")
        crawl.run(**RETRIES, JOBDIR=None, ALTSCHED_SHARED=True, REDIS_PORT=server.port)
        missing = crawl.stat("altsched/failed")
        assert missing > 0
        assert "requests of the shared crawl 'pages' have failed" in last_line(crawl)
        # With the server that this worker's options have named.
        place = "--shared", "pages", "-s", f"REDIS_PORT={server.port}"
        command = "requeue", *place, "--failed"
        assert last_line(crawl).endswith(f"scrapy altsched {' '.join(command)}")
        assert altsched(*command).stdout.count("HTTP status 503") == missing
        assert f"{missing:,} failed" in altsched("check", *place).stdout
        again = altsched(*command, "--slot", "127.0.0.1", "--all")
        assert f"{missing} requests are pending again; failed: 0." in again.stdout, again.stderr
        crawl.run(**RETRIES, JOBDIR=None, ALTSCHED_SHARED=True, REDIS_PORT=server.port)
    assert crawl.stat("altsched/failed") == 0


def test_a_shared_crawl_that_is_finished_can_begin_with_what_has_failed(
    tmp_path: Path, server: RedisServer
) -> None:
    outage = Outage(20, 90)
    settings = {"JOBDIR": None, "ALTSCHED_SHARED": True, "REDIS_PORT": server.port}
    settings["ALTSCHED_RETRY_FAILED_NEXT_RUN"] = True
    with Site(outage) as site:
        crawl = Crawl(tmp_path, "pages", f"{site.url}/")
        crawl.run(**RETRIES, **settings)
        missing = crawl.stat("altsched/failed")
        assert missing > 0
        crawl.run(**RETRIES, **settings)
    assert crawl.stat("altsched/failed/retried") == missing
    assert crawl.stat("altsched/failed") == 0
    assert len(outage.answered) == len(PAGES) + 1


def test_a_crawl_that_keeps_nothing_counts_too(tmp_path: Path) -> None:
    with Site({"/": Page(status=503)}) as site:
        crawl = Crawl(tmp_path, "pages", f"{site.url}/")
        crawl.run(JOBDIR=None)
    assert crawl.stat("altsched/failed") == 1


def test_a_crawl_without_failures_says_nothing_of_them(tmp_path: Path) -> None:
    with Site({"/": Page(["/missing"])}) as site:
        crawl = Crawl(tmp_path, "pages", f"{site.url}/")
        crawl.run()
    assert crawl.stat("altsched/failed") == 0
    assert "--failed" not in crawl.log


def test_the_next_run_begins_with_what_has_failed_with_all_tries(tmp_path: Path) -> None:
    with Site({"/": Page(["/busy"]), "/busy": Page(status=503)}) as site:
        crawl = Crawl(tmp_path, "pages", f"{site.url}/")
        again = {**RETRIES, "ALTSCHED_RETRY_FAILED_NEXT_RUN": True}
        for run in (1, 2, 3):
            assert crawl.run(**again) == 0
            assert site.hits["/busy"] == 2 * run
            assert crawl.stat("altsched/failed") == 1
            assert crawl.stat("altsched/failed/retried") == (1 if run > 1 else None)
    assert "1 request that had failed is crawled again" in crawl.log


def test_failed_requests_are_chosen_by_reason_slot_and_pattern(tmp_path: Path) -> None:
    pages = {"/": Page(["/a/1", "/a/2", "/b/1"])}
    pages |= {path: Page(status=503) for path in pages["/"].links}
    with Site(pages) as site:
        crawl = Crawl(tmp_path, "pages", f"{site.url}/")
        crawl.run(RETRY_ENABLED=0)

        def requeue(*arguments: str) -> str:
            run = altsched("requeue", crawl.jobdir, "--failed", *arguments)
            return run.stdout + run.stderr

        assert requeue("--pattern", f"{site.url}/a/").count("HTTP status 503") == 2
        assert requeue("--pattern", f"{site.url}/c/") == "There are no failed requests.\n"
        assert requeue("--slot", "127.0.0.1").count("HTTP status 503") == 3
        assert requeue("--slot", "other.example") == "There are no failed requests.\n"
        assert requeue("--reason", "callback") == "There are no failed requests.\n"
        assert "invalid choice: 'nothing'" in requeue("--reason", "nothing")
        assert "--pattern '' cannot be used: " in requeue("--pattern", "")
        assert "there is no failed request named 'nowhere'" in requeue("nowhere")
        assert requeue("--status", "503", "--exception", "").count("HTTP status 503") == 3
        assert requeue("--status", "500") == "There are no failed requests.\n"
        dead = altsched("requeue", crawl.jobdir, "--slot", "127.0.0.1")
        assert dead.stdout == "There are no dead letters.\n"
        done = requeue("--pattern", f"{site.url}/a/", "--reason", "status", "--all")
        assert "2 requests are pending again; failed: 1." in done
        assert "1 request is pending again; failed: 0." in requeue(f"{site.url}/b/1")
    assert altsched("check", crawl.jobdir).returncode == 0
