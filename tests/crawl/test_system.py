"""An operating system without ``fcntl`` and without forks, as Windows is."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..crawls import run_python
from ..sites import Page, Site

CRAWL = """
import os, sys
import scrapy
import twisted.internet.asyncioreactor
from scrapy.crawler import CrawlerProcess

sys.modules["fcntl"] = None  # importing it fails
del os.register_at_fork

class OneSpider(scrapy.Spider):
    name = "one"

    async def start(self):
        yield scrapy.Request(sys.argv[1])

    def parse(self, response):
        yield from response.follow_all(css="a")

settings = dict(pair.split("=") for pair in sys.argv[2:])
settings["ADDONS"] = {"scrapy_altsched.Addon": 500}
import scrapy_altsched
scrapy_altsched.Scheduler, scrapy_altsched.DupeFilter
process = CrawlerProcess(settings)
process.crawl(OneSpider)
process.start()
"""


def crawl(directory: Path, url: str, *settings: str) -> str:
    return run_python("-c", CRAWL, url, *settings, cwd=directory).stderr


def test_without_a_jobdir_a_crawl_works(tmp_path: Path) -> None:
    with Site({"/0": Page(["/1"]), "/1": Page(["/0"])}) as site:
        log = crawl(tmp_path, f"{site.url}/0")
        assert site.hits == {"/0": 1, "/1": 1}
    assert "Spider closed (finished)" in log
    assert "Traceback" not in log


@pytest.mark.parametrize(
    "scheduler", ["scrapy_altsched.Scheduler", "scrapy.core.scheduler.Scheduler"]
)
def test_a_jobdir_is_refused_in_one_sentence(tmp_path: Path, scheduler: str) -> None:
    with Site({"/0": Page()}) as site:
        log = crawl(tmp_path, f"{site.url}/0", "JOBDIR=job", f"SCHEDULER={scheduler}")
        assert site.hits == {}
    assert f"JOBDIR {tmp_path / 'job'} cannot be used: this operating system lacks fcntl" in log
    assert "Unset JOBDIR to crawl without saving" in log
    assert list((tmp_path / "job").glob("altsched*")) == []
    assert not (tmp_path / "job" / "frontier").exists()
