"""The memory of URLs seen a moment ago, which must never say more than the store would."""

from __future__ import annotations

from typing import Any

import pytest
from scrapy import Request
from scrapy.utils.request import RequestFingerprinter

from scrapy_altsched import DupeFilter
from scrapy_altsched.canonical import Rules
from scrapy_altsched.requests.identity import PageIdentity, describe

from ..engines import OURS, StandIn

URL = "http://site.test/page?a=1"


class ByHeader(RequestFingerprinter):
    def fingerprint(self, request: Request) -> bytes:
        return super().fingerprint(request) + (request.headers.get("Language") or b"")


class CountsHeaders(DupeFilter):
    def fingerprint(self, request: Request) -> bytes:
        return super().fingerprint(request) + (request.headers.get("Language") or b"")


def test_at_least_the_last_ones_are_known_and_memory_is_bounded() -> None:
    made = RequestFingerprinter()
    identity = PageIdentity(made.fingerprint, describe(made, Rules()))
    urls = [f"data:,{number}" for number in range(100_000)]
    for url in urls:
        identity.remember(url)
    assert len(identity.newest) + len(identity.older) <= 2 * 4_096
    assert all(identity.is_recent(url) for url in urls[-4_096:])
    identity.forget_recent()
    assert not identity.is_recent(urls[-1])


@pytest.mark.parametrize(
    ("first", "second", "is_same"),
    [
        ({}, {}, True),
        ({}, {"url": f"{URL}#part"}, True),
        ({"url": f"{URL}#part"}, {}, True),
        ({}, {"url": "http://site.test/page?a=2"}, False),
        ({}, {"method": "POST"}, False),
        ({}, {"body": b"x"}, False),
        ({}, {"headers": {"Language": "de"}}, True),
        ({}, {"meta": {"altsched_dedupe_key": "own"}}, False),
        ({"meta": {"altsched_dedupe_key": "own"}}, {}, False),
        ({"meta": {"altsched_dedupe_key": "own"}}, {"meta": {"altsched_dedupe_key": "own"}}, True),
        ({"dont_filter": True}, {}, False),
        ({}, {"dont_filter": True}, False),
    ],
)
def test_a_duplicate_is_what_the_fingerprint_says(
    first: dict[str, Any], second: dict[str, Any], is_same: bool
) -> None:
    stand_in = StandIn(OURS)
    assert stand_in.scheduler.enqueue_request(Request(**{"url": URL, **first}))
    assert stand_in.scheduler.enqueue_request(Request(**{"url": URL, **second})) is not is_same


@pytest.mark.parametrize(
    "settings",
    [
        {"REQUEST_FINGERPRINTER_CLASS": ByHeader},
        {"DUPEFILTER_CLASS": CountsHeaders},
        {"ALTSCHED_URL_RULES": [{"count_headers": "Language"}]},
    ],
)
def test_nothing_is_taken_for_known_where_more_than_the_url_counts(
    settings: dict[str, Any],
) -> None:
    stand_in = StandIn({**OURS, **settings})
    languages = ["de", "fr", "de"]
    accepted = [
        stand_in.scheduler.enqueue_request(Request(URL, headers={"Language": language}))
        for language in languages
    ]
    assert accepted == [True, True, False]


def test_a_page_that_is_forgotten_is_accepted_again() -> None:
    stand_in = StandIn(OURS)
    request = Request(URL)
    assert stand_in.scheduler.enqueue_request(request)
    assert not stand_in.scheduler.enqueue_request(request)
    assert stand_in.scheduler.df.forget(request)
    assert stand_in.scheduler.enqueue_request(request)


def test_every_refusal_is_counted_and_logged_by_the_filter() -> None:
    logged: list[str] = []

    class Loud(DupeFilter):
        def log(self, request: Request, spider: Any) -> None:
            logged.append(request.url)
            super().log(request, spider)

    stand_in = StandIn({**OURS, "DUPEFILTER_CLASS": Loud})
    for _ in range(4):
        stand_in.scheduler.enqueue_request(Request(URL))
    assert logged == [URL] * 3
    assert len(stand_in.scheduler) == 1
    assert stand_in.stat("dupefilter/filtered") == 3
