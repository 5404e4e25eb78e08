"""The page that a request was found on, kept with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from scrapy import Request, Spider
from scrapy.http import Response
from scrapy.settings import Settings
from scrapy.utils.test import get_crawler

from scrapy_altsched import Addon
from scrapy_altsched.plugins.parents import ParentMiddleware

from ..crawls import Crawl, altsched
from ..sites import Page, Site
from ..stores import BY_ENGINE

OURS = "scrapy_altsched.plugins.parents.ParentMiddleware"
ON = {"ALTSCHED_KEEP_PARENT": True}
PAGE = "http://site.test/page"


def answer(path: str, times: int) -> Page:
    match path:
        case "/0":
            return Page(["/moved", "/busy", "/down", "/1"])
        case "/moved":
            return Page(status=302, location="/found")
        case "/busy":
            return Page(status=200 if times else 503)
        case "/down":
            return Page(status=503)
        case "/1":
            return Page(["/2", "/busy"])
    return Page()


@BY_ENGINE
def test_it_survives_retries_redirects_and_a_resume(tmp_path: Path, engine: Any) -> None:
    settings = {
        **ON,
        "RETRY_ENABLED": True,
        "RETRY_TIMES": 1,
        "CONCURRENT_REQUESTS": 1,
        "ALTSCHED_ARCHIVE": tmp_path / "done.jsonl",
    }
    with Site(answer) as site:
        crawl = Crawl(tmp_path, "pages", f"{site.url}/0", engine=engine)
        assert crawl.run(**settings, CLOSESPIDER_PAGECOUNT=1) == 0
        peeked = altsched("peek", crawl.jobdir, "--json").stdout.splitlines()
        assert peeked
        assert {json.loads(line)["found_on"] for line in peeked} == {f"{site.url}/0"}
        assert crawl.run(**settings) == 0
        found = {
            line["url"].removeprefix(site.url): line.get("found_on", "").removeprefix(site.url)
            for line in map(json.loads, (tmp_path / "done.jsonl").read_text().splitlines())
        }
        assert found == {
            "/0": "",
            **dict.fromkeys(("/moved", "/found", "/busy", "/down", "/1"), "/0"),
            "/2": "/1",
        }
        explained = altsched("explain", crawl.jobdir, f"{site.url}/down").stdout
        assert f"    found on {site.url}/0\n" in explained
        failed = altsched("failed", crawl.jobdir)
        assert f"  for example {site.url}/down, found on {site.url}/0\n" in failed.stdout
        (group,) = json.loads(altsched("failed", crawl.jobdir, "--json").stdout)["groups"]
        assert group["found_on"] == f"{site.url}/0"


def test_without_the_setting_nothing_is_kept(tmp_path: Path) -> None:
    with Site(answer) as site:
        crawl = Crawl(tmp_path, "pages", f"{site.url}/0")
        assert crawl.run(ALTSCHED_ARCHIVE=tmp_path / "done.jsonl") == 0
    assert "found_on" not in (tmp_path / "done.jsonl").read_text()


@pytest.fixture
def middleware() -> ParentMiddleware:
    return ParentMiddleware.from_crawler(get_crawler(Spider, ON))


def found_on(middleware: ParentMiddleware, request: Request, url: str = PAGE, **meta: Any) -> Any:
    """What the middleware makes of a request that the callback of a page yields."""
    page = Response(url, request=Request(PAGE, meta=meta))
    return middleware.get_processed_request(request, page).meta.get("altsched_found_on")


def test_it_is_the_page_and_not_what_led_to_it(middleware: ParentMiddleware) -> None:
    inherited = {"altsched_found_on": "http://site.test/before"}
    child = Request("http://site.test/child", meta=inherited)
    assert found_on(middleware, child, **inherited) == PAGE
    redirected = Request("http://site.test/child")
    assert found_on(middleware, redirected, "http://site.test/new") == "http://site.test/new"


def test_a_page_that_asks_for_itself_once_more_keeps_its_own(middleware: ParentMiddleware) -> None:
    again = Request(PAGE, dont_filter=True)
    assert found_on(middleware, again, altsched_found_on="http://site.test/before") == (
        "http://site.test/before"
    )
    assert found_on(middleware, Request(PAGE, meta={"altsched_found_on": "?"})) is None


def test_start_requests_have_none(middleware: ParentMiddleware) -> None:
    request = middleware.get_processed_request(Request(PAGE), None)
    assert request.meta == {}


def test_a_page_without_an_end_to_its_url_is_cut(middleware: ParentMiddleware) -> None:
    url = "data:text/html," + "x" * 1_000_000
    assert found_on(middleware, Request("http://site.test/child"), url) == url[:2_000]


@pytest.mark.parametrize(
    ("value", "expected"),
    [(None, 0), (False, 0), (0, 0), ("0", 0), ("False", 0), (True, 1), ("True", 1), ("1", 1)],
)
def test_the_addon_adds_the_middleware_where_it_is_wanted(value: Any, expected: int) -> None:
    settings = Settings({} if value is None else {"ALTSCHED_KEEP_PARENT": value})
    Addon().update_settings(settings)
    assert list(settings["SPIDER_MIDDLEWARES"]).count(OURS) == expected
    Addon().update_settings(settings)
    assert list(settings["SPIDER_MIDDLEWARES"]).count(OURS) == expected


def test_a_value_of_nonsense_is_refused_in_one_sentence(tmp_path: Path) -> None:
    with Site(answer) as site:
        crawl = Crawl(tmp_path, "pages", f"{site.url}/0")
        assert crawl.run(ALTSCHED_KEEP_PARENT="maybe") == 1
        assert not site.hits
    assert "CRITICAL: ALTSCHED_KEEP_PARENT = 'maybe' cannot be used: it must be" in crawl.log
