"""A finished job that is run again, and one whose process died after its last commit."""

from __future__ import annotations

from pathlib import Path

from ..crawls import KILLED, Crawl, run_python
from ..sites import Page, Site

SITE = {"/0": Page(["/1", "/2"]), "/1": Page(), "/2": Page()}
SEVERAL = """
import shutil, sys
from pathlib import Path
from scrapy import Spider, signals
from scrapy.crawler import CrawlerProcess
from twisted.internet.defer import inlineCallbacks
from scrapy_altsched.errors import JobdirLockedError
from scrapy_altsched.maintenance.opening import open_frontier

jobdir = sys.argv[1]

class Two(Spider):
    name = "two"
    start_urls = ["data:,x"]

    @classmethod
    def from_crawler(cls, crawler, *args, **kwargs):
        spider = super().from_crawler(crawler, *args, **kwargs)
        crawler.signals.connect(spider.end, signals.spider_closed)
        return spider

    def parse(self, response):
        yield {"url": response.url}

    def end(self):
        try:
            open_frontier(jobdir, self.name)
        except JobdirLockedError:
            print("locked", flush=True)
        if self.last:
            shutil.rmtree(jobdir)

process = CrawlerProcess({"ADDONS": {"scrapy_altsched.Addon": 1}, "JOBDIR": jobdir})

@inlineCallbacks
def crawl():
    for last in (False, False, True):
        yield process.crawl(Two, last=last)
        open_frontier(jobdir, "two").close(finished=True) if not last else None
        print("free", flush=True)

crawl()
process.start()
print("there" if Path(jobdir).exists() else "gone", flush=True)
"""


def test_a_kill_after_the_finish_leaves_the_feed_and_crawls_nothing_again(tmp_path: Path) -> None:
    with Site(SITE) as site:
        crawl = Crawl(tmp_path, "closing", f"{site.url}/0", die=1)
        feed = ("-O", str(crawl.items))
        assert crawl.run(feed) == KILLED
        assert "is finished: 3 requests done" in crawl.log
        assert sorted(crawl.item_paths()) == ["/0", "/1", "/2"]
        crawl.arguments["die"] = 0
        assert crawl.run(feed) == 0
        assert "its process died before it exited" in crawl.log
        assert "is appended to, not overwritten" in crawl.log
        assert "had finished" not in crawl.log
        assert sorted(crawl.item_paths()) == ["/0", "/1", "/2"]
        assert site.hits == {"/0": 1, "/1": 1, "/2": 1}
        # Now it has ended, and begins anew.
        assert crawl.run(feed) == 0
        assert "died before" not in crawl.log
        assert "had finished. This run crawls its start requests again" in crawl.log
        assert crawl.item_paths() == []


def test_a_finished_job_that_is_run_again_says_so(tmp_path: Path) -> None:
    with Site({"/0": Page()}) as site:
        crawl = Crawl(tmp_path, "starts", site.url, count=1)
        for run in range(3):
            assert crawl.run() == 0
            assert ("had finished" in crawl.log) == bool(run)
            assert site.hits == {"/0": run + 1}


def test_the_job_is_held_until_its_crawl_is_over_and_no_longer(tmp_path: Path) -> None:
    run = run_python("-c", SEVERAL, tmp_path / "job")
    assert run.stdout.split() == ["locked", "free"] * 3 + ["gone"], run.stderr
