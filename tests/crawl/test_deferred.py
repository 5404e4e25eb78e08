"""Sites that are left alone because they ask for it, or do not answer."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from scrapy import Spider
from scrapy.settings import Settings
from scrapy.utils.test import get_crawler

from scrapy_altsched import Addon, Scheduler
from scrapy_altsched.errors import ConfigError

from ..crawls import BY_SLOT, Crawl, assert_complete
from ..sites import Page, Site

PAGES = [f"/{number}" for number in range(60)]
OURS = "scrapy_altsched.plugins.slots.SlotMiddleware"


class Down:
    """A site that answers 503 from its n-th request on, for so many; the times of all of them."""

    def __init__(self, begin: int, count: int) -> None:
        self._down = range(begin, begin + count)
        self.times: list[float] = []

    def __call__(self, path: str, _: int) -> Page:
        self.times.append(time.monotonic())
        if len(self.times) in self._down:
            return Page(status=503)
        return Page(PAGES if path == "/" else [])


@pytest.mark.parametrize("stored", [True, False])
def test_a_site_that_is_down_in_mid_crawl_costs_no_page(tmp_path: Path, stored: bool) -> None:
    down = Down(20, 12)
    settings = {"RETRY_ENABLED": 1, "ALTSCHED_BREAKER": 5, "ALTSCHED_BREAKER_DELAY": 0.05}
    settings |= {"CONCURRENT_REQUESTS": 4, **BY_SLOT}
    if not stored:
        settings["JOBDIR"] = None
    with Site(down) as site:
        crawl = Crawl(tmp_path, "pages", f"{site.url}/")
        assert crawl.run(**settings) == 0
        if stored:
            assert_complete(crawl, site, {"/", *PAGES})
    assert crawl.stat("altsched/failed") == 0
    assert len(crawl.item_paths()) == len(PAGES) + 1
    # Nothing but what was in flight, and one page each time that the slot is let in.
    assert crawl.stat("altsched/deferred") >= 2
    assert len(down.times) == len(PAGES) + 1 + 12
    assert "The download slot '127.0.0.1' is left alone for" in crawl.log


def test_stock_has_failed_pages_then(tmp_path: Path) -> None:
    # No page is asked for more than three times, so these are too many for none to fail.
    down = Down(2, 2 * len(PAGES) + 1)
    with Site(down) as site:
        crawl = Crawl(tmp_path, "pages", f"{site.url}/")
        crawl.run(RETRY_ENABLED=1)
    assert crawl.stat("altsched/failed") > 0


def test_what_a_site_asks_for_holds_for_all_its_pages_and_after_a_restart(tmp_path: Path) -> None:
    asked: list[float] = []

    def answer(path: str, _: int) -> Page:
        asked.append(time.monotonic())
        if len(asked) == 2:
            return Page(status=429, headers={"Retry-After": "4"})
        return Page(PAGES if path == "/" else [])

    settings = {"RETRY_ENABLED": 1, "ALTSCHED_BREAKER": 5, "CONCURRENT_REQUESTS": 1, **BY_SLOT}
    with Site(answer) as site:
        crawl = Crawl(tmp_path, "pages", f"{site.url}/")
        process = crawl.start(**settings, CLOSESPIDER_TIMEOUT=1)
        process.communicate(timeout=60)
        assert "is not finished" in crawl.log
        at_restart = len(asked)
        assert crawl.run(**settings) == 0
        assert_complete(crawl, site, {"/", *PAGES})
    # One may be on its way already.
    first_after = next(when for when in asked[2:] if when - asked[1] > 1)
    assert at_restart <= 3
    assert first_after - asked[1] >= 3.9


def test_a_time_of_nonsense_is_refused(tmp_path: Path) -> None:
    crawler = get_crawler(Spider, {"JOBDIR": str(tmp_path)})
    crawler.spider = Spider.from_crawler(crawler, "spider")
    scheduler = Scheduler.from_crawler(crawler)
    scheduler.open(crawler.spider)
    for seconds in (-1, float("nan"), float("inf"), "many", None, True):
        with pytest.raises(ConfigError, match="The slot 'a' cannot be deferred for"):
            scheduler.defer_slot("a", seconds)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="The slots cannot be deferred for -1"):
        scheduler.defer_slot(None, -1)
    scheduler.close("finished")
    assert not scheduler.defer_slot("a", 1)


def test_one_queue_for_all_says_that_it_cannot(tmp_path: Path) -> None:
    queue = "scrapy.pqueues.ScrapyPriorityQueue"
    with Site(Down(20, 14)) as site:
        crawl = Crawl(tmp_path, "pages", f"{site.url}/")
        crawl.run(ALTSCHED_BREAKER=2, SCHEDULER_PRIORITY_QUEUE=queue)
    assert "cannot be left alone: with SCHEDULER_PRIORITY_QUEUE" in crawl.log
    assert crawl.stat("altsched/deferred") is None


def test_the_addon_adds_the_middleware_where_it_is_wanted() -> None:
    for value, expected in ((None, False), (0, False), ("0", False), (5, True), ("5", True)):
        settings = Settings()
        if value is not None:
            settings.set("ALTSCHED_BREAKER", value)
        Addon().update_settings(settings)
        assert (OURS in settings["DOWNLOADER_MIDDLEWARES"]) == expected


def test_a_breaker_of_nonsense_is_refused_in_one_sentence(tmp_path: Path) -> None:
    with Site({"/": Page()}) as site:
        crawl = Crawl(tmp_path, "pages", f"{site.url}/")
        crawl.run(ALTSCHED_BREAKER=-1)
        assert not site.hits
    assert "CRITICAL: ALTSCHED_BREAKER = '-1' cannot be used: it must be" in crawl.log


def test_without_a_network_the_crawl_pauses_and_no_page_fails(tmp_path: Path) -> None:
    times: list[float] = []
    links: list[str] = []

    def answer(path: str, _: int) -> Page:
        times.append(time.monotonic())
        # Twisted itself asks once more where a connection was used before.
        if 20 <= len(times) < 40:
            raise ConnectionError  # and the connection is closed
        return Page(links if path == "/" else [])

    with Site(answer) as site:
        # Of two slots.
        there = site.url.replace("127.0.0.1", "localhost")
        links += [f"{url}{path}" for path in PAGES for url in (site.url, there)]
        crawl = Crawl(tmp_path, "pages", f"{site.url}/")
        settings = {"RETRY_ENABLED": 1, "ALTSCHED_BREAKER": 5, "ALTSCHED_BREAKER_DELAY": 0.3}
        assert crawl.run(**settings, CONCURRENT_REQUESTS=4) == 0
    assert crawl.stat("altsched/failed") == 0
    assert len(crawl.item_paths()) == 2 * len(PAGES) + 1
    assert "The crawl pauses, and tries one request every 0 s." in crawl.log
    assert "Sites can be reached again" in crawl.log
    # Nothing but what was in flight, and one request each time.
    assert len(times) == 2 * len(PAGES) + 1 + 20
