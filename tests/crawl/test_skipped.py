"""Start requests that a resumed run skips: many of them, and one that ``start()`` waits for."""

from __future__ import annotations

import signal
from pathlib import Path

from ..crawls import Crawl
from ..servers import RedisServer
from ..sites import Page, Site

COUNT = 10_000


def anything(path: str, _: int) -> Page:
    return Page()


def assert_first_page_came_again(crawl: Crawl, site: Site) -> None:
    assert site.hits == {"/first": 2, "/other": 1, **{f"/{number}": 1 for number in range(4)}}
    assert crawl.stat("altsched/outcome") == "finished"
    assert "start() waits, and nothing else is left to do" in crawl.log
    assert "'altsched_every_run': True" in crawl.log


def test_a_start_that_waits_for_its_own_first_page(tmp_path: Path) -> None:
    with Site(anything) as site:
        crawl = Crawl(tmp_path, "own-page", site.url, count=4)
        crawl.run(CLOSESPIDER_PAGECOUNT=1, CONCURRENT_REQUESTS=1)
        assert "is not finished" in crawl.log
        assert crawl.run() == 0
        assert_first_page_came_again(crawl, site)


def test_a_start_that_waits_for_a_page_that_a_finished_job_had(tmp_path: Path) -> None:
    """It is a duplicate, as with Scrapy's own filter; at least the log says what to do."""
    with Site(anything) as site:
        crawl = Crawl(tmp_path, "own-page", site.url, count=0, unique=1)
        assert crawl.run() == 0
        process = crawl.start()
        crawl.wait_for_log(process, "One of its requests was refused, as accepted before")
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert "'altsched_every_run': True" in crawl.log


def test_a_start_that_waits_for_a_page_that_another_worker_had(
    tmp_path: Path, server: RedisServer
) -> None:
    settings = {"JOBDIR": None, "ALTSCHED_SHARED": True, "REDIS_PORT": server.port}
    with Site(anything) as site:
        crawl = Crawl(tmp_path, "own-page", site.url, count=4)
        crawl.run(CLOSESPIDER_PAGECOUNT=1, CONCURRENT_REQUESTS=1, **settings)
        assert crawl.run(**settings) == 0
        assert_first_page_came_again(crawl, site)


def test_a_resume_that_skips_many_heeds_a_signal_and_goes_on_with_pages(tmp_path: Path) -> None:
    with Site(anything) as site:
        crawl = Crawl(tmp_path, "starts", site.url, count=COUNT)
        crawl.run(CLOSESPIDER_PAGECOUNT=1)
        assert "is not finished" in crawl.log
        before = site.hits.total()
        process = crawl.start()
        # More than are in flight at once: callbacks were called, too.
        site.wait_for(lambda site: site.hits.total() > before + 40)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert "Received SIGTERM" in crawl.log
    assert 0 < crawl.stat("altsched/start/skipped") < COUNT
