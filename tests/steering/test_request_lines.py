"""What is taken for a request, and what is said of all else."""

from __future__ import annotations

import io
import json
import re
from typing import Any

import pytest
from scrapy import Request
from scrapy.utils.request import request_from_dict

from scrapy_altsched.frontier.shared import additions
from scrapy_altsched.steering.request_lines import MOST_BYTES, RequestReader, read_lines

from ..project.crashsite.spiders.pages import PagesSpider

READER = RequestReader({"http", "https", "data"}, PagesSpider)
WHOLE: dict[str, Any] = {
    "url": "http://a.example/1",
    "method": "post",
    "headers": {"Accept": "text/html", "X-Two": ["a", "b"]},
    "body": "x=é",
    "cookies": {"a": "b"},
    "meta": {"depth": 3, "download_slot": "slow", "list": [1, None, 2.5]},
    "priority": -7,
    "dont_filter": True,
    "callback": "parse",
    "errback": "state_count",
    "cb_kwargs": {"number": 1},
    "flags": ["new"],
    "encoding": "latin-1",
}


def test_an_object_has_all_that_a_request_has() -> None:
    fields = READER.read(json.dumps(WHOLE).encode() + b"\r\n")
    assert fields == WHOLE
    assert fields.keys() == set(Request.attributes)
    request = request_from_dict(dict(fields), spider=PagesSpider())
    assert request.body == "x=é".encode("latin-1")
    assert request.headers.getlist("X-Two") == [b"a", b"b"]


def test_fields_that_are_null_are_as_if_they_were_not_there() -> None:
    assert READER.read(b'{"url": "data:,x", "callback": null, "meta": null}') == {"url": "data:,x"}


def test_what_all_urls_are_to_have_is_not_for_objects() -> None:
    reader = RequestReader({"http"}, None, {"priority": 5, "callback": "anything"})
    url = "http://a.example/ü"
    assert reader.read(f" {url} \n".encode()) == {"priority": 5, "callback": "anything", "url": url}
    assert reader.read(json.dumps({"url": url}).encode()) == {"url": url}


def test_a_method_of_a_spider_that_is_not_known_is_believed() -> None:
    fields = {"url": "http://a.example/", "callback": "parse_any"}
    assert RequestReader({"http"}).read(json.dumps(fields).encode()) == fields


def of(**fields: Any) -> str:
    return json.dumps({"url": "http://a.example/", **fields})


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("a.example/1", "'a.example/1' is no URL: it does not begin with a scheme, as https:// is"),
        ('["http://a.example/"]', "is no URL: it does not begin with a scheme"),
        ("http://", "'http://' is no URL: it has no host"),
        ("http://a b/", "'http://a b/' is no URL: it has no host"),
        ("http://[a/", "Invalid IPv6 URL"),
        ("http://a.example:99999/", "Port out of range 0-65535"),
        ("gopher://a.example/", "nothing downloads gopher: URLs in this project, but data, http"),
        ('{"url": "http://a/"', "it begins as JSON does, and is none: Expecting ',' delimiter at"),
        ("{}", "it has no field 'url'"),
        ('{"url": null}', "it has no field 'url'"),
        (of(uri="x"), "a request has no field 'uri'; its fields are url, method, headers, body"),
        (of(_class="builtins.eval"), "a request has no field '_class'"),
        (of(url=1), "its field 'url' must be a string, not 1"),
        (of(method=1), "its field 'method' must be a string, not 1"),
        (of(headers={"a": 1}), "its field 'headers' must be an object of strings, or of lists of"),
        (of(headers=[["a", "b"]]), "its field 'headers' must be an object of strings"),
        (of(body={}), "its field 'body' must be a string, not {}"),
        (
            of(cookies=[{"name": "a"}]),
            "its field 'cookies' must be an object of strings, or a list",
        ),
        (of(meta=[1]), "its field 'meta' must be an object, not [1]"),
        (of(priority=1.5), "its field 'priority' must be a whole number of 64 bits, not 1.5"),
        (of(priority=True), "its field 'priority' must be a whole number of 64 bits, not True"),
        (of(priority=2**63), "its field 'priority' must be a whole number of 64 bits"),
        (of(priority=float("nan")), "NaN is no JSON"),
        (of(dont_filter=1), "its field 'dont_filter' must be true or false, not 1"),
        (of(callback="parse_x"), "the spider 'pages' has no method 'parse_x'"),
        (of(errback="name"), "the spider 'pages' has no method 'name'"),
        (of(cb_kwargs="x"), "its field 'cb_kwargs' must be an object, not 'x'"),
        (of(flags=[1]), "its field 'flags' must be a list of strings, not [1]"),
        (of(encoding="none"), "unknown encoding: none"),
        (of(body="\ud800"), "surrogates not allowed"),
        ('{"a":' * 100_000, "its values are nested too deeply"),
    ],
)
def test_what_is_said_of_a_line_that_is_no_request(line: str, problem: str) -> None:
    with pytest.raises(ValueError, match=re.escape(problem)):
        READER.read(line.encode())


@pytest.mark.parametrize("line", ["x" * 1_000_000, of(priority="x" * 1_000_000)])
def test_what_is_said_is_short(line: str) -> None:
    with pytest.raises(ValueError, match=r"\.\.\.") as caught:
        READER.read(line.encode())
    assert len(str(caught.value)) < 500


def test_bytes_that_are_no_text() -> None:
    with pytest.raises(ValueError, match="it is not UTF-8"):
        READER.read(b"http://a.example/\xff")


def test_a_line_that_is_too_long_is_one_line_and_not_kept() -> None:
    long = b"http://a.example/" + b"x" * (5 * MOST_BYTES // 2)
    lines = list(read_lines(io.BytesIO(b"\n".join([b"http://a.example/1", long, b"last"]))))
    assert [lines[0], lines[2]] == [b"http://a.example/1\n", b"last"]
    assert len(lines[1]) == MOST_BYTES + 1
    with pytest.raises(ValueError, match="it is longer than 16,777,216 bytes"):
        READER.read(lines[1])


def test_a_line_may_be_as_long_as_a_request_on_a_server() -> None:
    assert MOST_BYTES >= additions.MOST_BYTES
