"""Retries that wait."""

from __future__ import annotations

import time
import warnings
from email.utils import formatdate
from typing import Any

import pytest
from scrapy import Request, Spider, version_info
from scrapy.core.downloader.middleware import DownloaderMiddlewareManager
from scrapy.exceptions import ScrapyDeprecationWarning
from scrapy.http import Response
from scrapy.settings import BaseSettings
from scrapy.utils.test import get_crawler

from scrapy_altsched import Addon
from scrapy_altsched.plugins.retry import RetryMiddleware

OURS = "scrapy_altsched.plugins.retry.RetryMiddleware"
SCRAPYS = "scrapy.downloadermiddlewares.retry.RetryMiddleware"
WAIT = {"ALTSCHED_RETRY_DELAY": 10, "ALTSCHED_RETRY_DELAY_MAX": 500}


@pytest.fixture
def middleware() -> RetryMiddleware:
    crawler = get_crawler(Spider, {**WAIT, "RETRY_TIMES": 20})
    crawler.spider = Spider.from_crawler(crawler, "spider")
    return RetryMiddleware.from_crawler(crawler)


def spider_of(middleware: RetryMiddleware) -> list[Any]:
    """What Scrapy passes for the spider: nothing since 2.14."""
    return [] if version_info >= (2, 14) else [middleware.crawler.spider]


def answered(middleware: RetryMiddleware, status: int = 503, after: str | None = None) -> Any:
    request = Request("http://site.test/", meta={"other": 1})
    headers = {} if after is None else {"Retry-After": after}
    response = Response(request.url, status, headers)
    return middleware.process_response(request, response, *spider_of(middleware))


def ignored(middleware: RetryMiddleware) -> Any:
    assert middleware.crawler.stats is not None
    return middleware.crawler.stats.get_value("altsched/retry_after/ignored")


def test_each_retry_waits_twice_as_long_up_to_the_longest(middleware: RetryMiddleware) -> None:
    request = Request("http://site.test/")
    for expected in (10, 20, 40, 80, 160, 320, 500, 500, 500):
        response = Response(request.url, 503)
        retry = middleware.process_response(request, response, *spider_of(middleware))
        assert isinstance(retry, Request)
        wait = retry.meta["altsched_delay"]
        assert 0.9 * expected - 0.01 <= wait <= min(1.1 * expected, 500)
        assert retry.dont_filter
        request = retry


def test_a_download_that_failed_waits_too(middleware: RetryMiddleware) -> None:
    request = Request("http://site.test/")
    retry = middleware.process_exception(request, OSError(), *spider_of(middleware))
    assert isinstance(retry, Request)
    assert 9 <= retry.meta["altsched_delay"] <= 11


def test_what_is_no_retry_is_left_alone(middleware: RetryMiddleware) -> None:
    for response in (answered(middleware, 200), answered(middleware, 404, "5")):
        assert isinstance(response, Response)
    request = Request("http://site.test/")
    assert middleware.process_exception(request, KeyError(), *spider_of(middleware)) is None
    assert ignored(middleware) is None


@pytest.mark.parametrize("after", ["120", " 120 ", "date"])
def test_retry_after_is_honoured(middleware: RetryMiddleware, after: str) -> None:
    value = formatdate(time.time() + 121, usegmt=True) if after == "date" else after
    for status in (429, 503):
        assert 119 <= answered(middleware, status, value).meta["altsched_delay"] <= 133
    assert ignored(middleware) is None


def test_a_date_that_has_passed_asks_for_no_wait(middleware: RetryMiddleware) -> None:
    assert answered(middleware, 503, formatdate(1e9, usegmt=True)).meta["altsched_delay"] == 0


@pytest.mark.parametrize("value", ["soon", "", "-5", "1.5", "nan", "Mon, 99 Foo 2030"])
def test_nonsense_is_told_once_and_ignored(
    middleware: RetryMiddleware, value: str, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        assert 9 <= answered(middleware, 503, value).meta["altsched_delay"] <= 11
    assert ignored(middleware) == 3
    (record,) = [it for it in caplog.records if it.name == "scrapy_altsched.plugins.retry_after"]
    assert repr(value) in record.getMessage()
    assert "http://site.test/" in record.getMessage()


@pytest.mark.parametrize(
    "value", ["315360000", "9" * 5_000, "Wed, 01 Jan 2120 00:00:00 GMT"], ids=["s", "long", "date"]
)
def test_ten_years_are_bounded_and_told(middleware: RetryMiddleware, value: str) -> None:
    assert answered(middleware, 503, value).meta["altsched_delay"] == 500
    assert ignored(middleware) == 1


# What the addon does


def components(**given: Any) -> BaseSettings:
    crawler = get_crawler(Spider, {"ADDONS": {Addon: 1}, **given})
    found: BaseSettings = crawler.settings.getwithbase("DOWNLOADER_MIDDLEWARES")
    return found


def test_the_addon_puts_it_in_the_place_of_scrapys() -> None:
    found = components(**WAIT)
    assert (found[OURS], found[SCRAPYS]) == (550, None)
    found = components(**WAIT, DOWNLOADER_MIDDLEWARES={SCRAPYS: 77})
    assert (found[OURS], found[SCRAPYS]) == (77, None)


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"ALTSCHED_RETRY_DELAY": 0},
        {"ALTSCHED_RETRY_DELAY": "0"},
        {**WAIT, "DOWNLOADER_MIDDLEWARES": {SCRAPYS: None, "tests.Own": 5}},
    ],
)
def test_the_addon_leaves_it_where_it_is_not_wanted(given: dict[str, Any]) -> None:
    found = components(**given)
    assert OURS not in found
    assert found[SCRAPYS] == (None if "DOWNLOADER_MIDDLEWARES" in given else 550)


def test_one_that_the_project_names_itself_stays_where_it_is() -> None:
    assert components(**WAIT, DOWNLOADER_MIDDLEWARES={OURS: 3, SCRAPYS: None})[OURS] == 3


def test_scrapy_has_nothing_to_warn_of() -> None:
    crawler = get_crawler(Spider, {"ADDONS": {Addon: 1}, **WAIT})
    crawler.spider = Spider.from_crawler(crawler, "spider")
    with warnings.catch_warnings():
        warnings.simplefilter("error", ScrapyDeprecationWarning)
        manager = DownloaderMiddlewareManager.from_crawler(crawler)
        [ours] = [it for it in manager.middlewares if isinstance(it, RetryMiddleware)]
        response = Response("http://site.test/", 503)
        assert ours.process_response(Request(response.url), response, *spider_of(ours)) != response
