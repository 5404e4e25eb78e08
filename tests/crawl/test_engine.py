"""What is known of Scrapy's engine, beside what Scrapy itself says."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scrapy import Request
from scrapy.core.downloader import Downloader
from scrapy.core.engine import ExecutionEngine
from scrapy.http.request import Request as PlainRequest
from scrapy.utils.test import get_crawler

from scrapy_altsched.engine.engine import Engine
from scrapy_altsched.engine.request_parts import REQUEST_PARTS, reader_of
from scrapy_altsched.errors import UnsupportedScrapyError

from ..engines import OURS, StandIn

HOSTS = st.text("aZ0.-_:@[]%é", max_size=12)
RESTS = st.text("/?#aB:@.% é", max_size=8)


def own_key(stand_in: StandIn, request: Request) -> Any:
    try:
        return Downloader.get_slot_key(stand_in.engine.downloader, request)  # type: ignore[arg-type]
    except ValueError as error:
        return str(error)


def our_key(stand_in: StandIn, request: Request) -> Any:
    try:
        return stand_in.scheduler._session._engine.slot_key(request)
    except ValueError as error:
        return str(error)


@given(scheme=st.sampled_from(["http", "https", "HTTP", "ftp", "data"]), host=HOSTS, rest=RESTS)
@example("http", "site.test", "")
@example("https", "site.test:8080", "/a")
@example("http", "user@site.test", "/")
@example("http", "[::1]", "/")
@settings(max_examples=500, deadline=None)
def test_a_requests_slot_is_the_one_that_scrapys_downloader_will_use(
    scheme: str, host: str, rest: str
) -> None:
    try:
        request = PlainRequest(f"{scheme}://{host}{rest}")
    except ValueError:
        return
    assert our_key(STAND_IN, request) == own_key(STAND_IN, request)


def test_a_slot_that_the_request_names_is_used() -> None:
    request = Request("http://site.test/", meta={"download_slot": "own"})
    assert our_key(STAND_IN, request) == "own"


def test_a_downloader_with_slots_of_its_own_is_asked() -> None:
    class ByPath(type(STAND_IN.engine.downloader)):  # type: ignore[misc]
        def get_slot_key(self, request: Request) -> str:
            return request.url.rpartition("/")[2]

    stand_in = StandIn(OURS)
    stand_in.engine.downloader = ByPath()
    assert our_key(stand_in, Request("http://site.test/path")) == "path"


STAND_IN = StandIn(OURS)


def test_the_parts_of_a_request_are_what_its_attributes_say() -> None:
    full = {
        "url": "http://site.test/?a=1",
        "method": "POST",
        "headers": {"A": ["1", "2"]},
        "body": b"body",
        "cookies": {"a": "b"},
        "meta": {"depth": 1},
        "encoding": "latin-1",
        "priority": 3,
        "dont_filter": True,
        "flags": ["a"],
        "cb_kwargs": {"c": 1},
        "callback": print,
        "errback": repr,
    }
    assert set(full) == set(REQUEST_PARTS)
    for request in (Request(**full), Request("http://site.test/")):
        for name, part in zip(REQUEST_PARTS, reader_of(*REQUEST_PARTS)(request), strict=True):
            attribute = getattr(request, name)
            assert part == attribute or (part is None and not attribute), name


@pytest.mark.parametrize(
    "missing", ["inprogress", "nextcall", "close_if_idle", "_start", "enqueue_scrape"]
)
def test_a_scrapy_that_lacks_what_is_needed_is_refused(missing: str) -> None:
    class OtherEngine(ExecutionEngine):
        def __init__(self) -> None:
            names = {"inprogress", "nextcall", "close_if_idle", "close"} - {missing}
            self._slot = type("OtherSlot", (), dict.fromkeys(names))()  # type: ignore[assignment]
            if missing != "_start":
                self._start = None
            scraper = {"enqueue_scrape"} - {missing}
            self.scraper = type("OtherScraper", (), dict.fromkeys(scraper))()

    crawler = get_crawler()
    crawler.engine = OtherEngine()
    with pytest.raises(UnsupportedScrapyError, match=missing):
        Engine(crawler)
