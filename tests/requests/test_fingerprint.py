"""Our fingerprints beside Scrapy's.

``ALTSCHED_COMPARISONS`` says how many comparisons each of the two large tests makes at least; by
default it is small enough for every run of the suite.  A million::

    ALTSCHED_COMPARISONS=1000000 python -m pytest -n 0 -s \
        tests/requests/test_fingerprint.py -k beside_scrapy
"""

from __future__ import annotations

import dataclasses
import gzip
import json
import logging
import os
import random
import string
from collections.abc import Callable, Iterator
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scrapy import FormRequest, Request, Spider
from scrapy.http import JsonRequest
from scrapy.utils.request import RequestFingerprinter as ScrapyFingerprinter
from scrapy.utils.request import fingerprint as scrapy_fingerprint
from scrapy.utils.test import get_crawler

from scrapy_altsched import DupeFilter, RequestFingerprinter, ScrapyRedisFingerprinter
from scrapy_altsched.canonical import Rules
from scrapy_altsched.errors import ConfigError
from scrapy_altsched.requests import fingerprint as module
from scrapy_altsched.requests.fingerprint import apply_rules, fingerprint_page
from scrapy_altsched.requests.identity import describe, differences, page_of
from scrapy_altsched.settings import Config

from ..engines import OURS, StandIn

COMPARISONS = int(os.environ.get("ALTSCHED_COMPARISONS", "10000"))
AS_LONG_AS_IT_TAKES = pytest.mark.timeout(300 + COMPARISONS // 100)
LINKS = Path(__file__).parents[2] / "example_project" / "data" / "python-docs-links.jsonl.gz"


class RawRequest(Request):
    """A request whose URL nobody has made safe; Scrapy's own requests do."""

    def __init__(self, url: str, **arguments: Any) -> None:
        super().__init__("http://example.com", **arguments)
        self.raw = url

    @property
    def url(self) -> str:
        return self.raw


@cache
def recorded_urls() -> list[str]:
    """Every different link of a documentation site, in an order of no meaning."""
    found: set[str] = set()
    with gzip.open(LINKS, "rt", encoding="utf-8") as file:
        for line in file:
            found.update(json.loads(line)[1])
    urls = sorted(found)
    random.Random(1).shuffle(urls)
    return urls


fingerprint = RequestFingerprinter().fingerprint


def outcome(make: Callable[[Request], bytes], request: Request) -> Any:
    try:
        return make(request)
    except Exception as error:  # whatever w3lib raises for it
        return type(error)


def by_page(request: Request) -> bytes:
    """As the scheduler does."""
    page = page_of(request)
    made = fingerprint_page(page) if page is not None else None
    return made or scrapy_fingerprint(request)


UNMATCHED = [{"include": "unmatched.example", "ignore_params": "*"}]
CHANGES_NOTHING = [{"ignore_params": "no such parameter", "count_headers": "no-such-header"}]
#: All of these have to agree with Scrapy.
MAKERS: list[Callable[[Request], bytes]] = [
    fingerprint,
    by_page,
    RequestFingerprinter(Rules.load(UNMATCHED)).fingerprint,
    RequestFingerprinter(Rules.load(CHANGES_NOTHING)).fingerprint,
]
#: Arguments of the request.
VARIANTS: list[dict[str, Any]] = [
    {},
    {"method": "HEAD"},
    {"method": "POST", "body": b"a=1\xff"},
    {"body": "ä"},
    {"headers": {"A": "1"}},
    {"meta": {"verbatim_url": True}},
    {"meta": {"verbatim_url": False, "altsched_skip_rules": True}},
    {"meta": {"depth": 1}, "encoding": "latin-1"},
]


def compare(url: str, variants: list[dict[str, Any]] | None = None) -> int:
    """Compare both fingerprints of requests for *url*; how many comparisons were made."""
    made = 0
    for arguments in variants or VARIANTS[:1]:
        for request_class in (Request, RawRequest):
            try:
                theirs = outcome(scrapy_fingerprint, request_class(url, **arguments))
            except (ValueError, LookupError):  # no such request can be scheduled
                continue
            for make in MAKERS:
                ours = outcome(make, request_class(url, **arguments))
                assert ours == theirs, (make, request_class, url, arguments)
                made += 1
    return made


# The same bytes

PLAIN = string.ascii_letters + string.digits + "-._~"
#: What URLs hold that is neither plain nor rare, and what means something in them.
DELIMITERS = "/?#[]@!$&'()*+,;=:|%\\ \"<>^`{}"
RARE = "\t\n\r\x00\x1f\x7f\x80\xe9\u07c0\u0131n\u0131"
RARE += "\u017f\u212aa\uff0e\u3002/\uff1f\u0283\u200b\u202e\ud800\U0001f600\xa0"
ESCAPES = ["%20", "%2F", "%2f", "%2e", "%2E%2E", "%41", "%7e", "%25", "%3B", "%3f", "%26", "%3D"]
ESCAPES += ["%C3%A9", "%c3%a9", "%E9", "%FF", "%00", "%", "%4", "%zz", "%%20", "%u00e9", "%2B"]

texts = st.text(PLAIN, max_size=6)
pieces = st.one_of(
    texts,
    texts,
    st.text(PLAIN + DELIMITERS, max_size=4),
    st.text(PLAIN + DELIMITERS + RARE, max_size=4),
    st.sampled_from(ESCAPES),
    st.sampled_from([".", "..", "./", "/../", "//", ";", ";jsessionid=1", "+", "&", "=", ""]),
    st.text(max_size=3),
)
hosts = st.one_of(
    st.sampled_from(["example.com", "a.b-c.example", "localhost", "127.0.0.1", "x_y.example"]),
    st.sampled_from(["EXAMPLE.com", "münchen.example", "xn--mnchen-3ya.example", "日本.example"]),
    st.sampled_from(["", ".", "a..b", ".a", "a.", "-", "[::1]", "[::0:1]", "[v1.a]", "[", "]"]),
    st.sampled_from(
        ["a" * 64 + ".example", "\ufb01.example", "a\u3002b", "0x7f.1", "%65xample.com", "a%2eb"]
    ),
    st.text(PLAIN, min_size=1, max_size=8),
    pieces,
)
ports = st.one_of(
    st.just(""),
    st.integers(0, 70_000).map(":{}".format),
    st.sampled_from(
        [":", ":80", ":443", ":080", ":0", ":65535", ":65536", ":x", ":-1", ":٨", ": 8"]
    ),
)
userinfos = st.sampled_from(
    ["", "", "", "", "u@", "u:p@", "U:P@", ":@", "@", "u%40:p@", "é:é@", "a@b@"]
)
schemes = st.sampled_from(
    ["http"] * 6
    + ["https"] * 4
    + ["HTTP", "hTTps", "ftp", "file", "s3", "data", "ws", "about", "javascript", "", "h t", "1"]
)
paths = st.one_of(
    st.lists(texts, max_size=4).map(lambda parts: "".join(f"/{part}" for part in parts)),
    st.lists(pieces, max_size=5).map(lambda parts: "/" + "".join(parts)),
    st.lists(pieces, max_size=3).map("".join),
)
fields = st.one_of(
    st.tuples(st.sampled_from(["a", "a+", "ab", "b", "B", ""]), pieces).map("=".join),
    st.tuples(pieces, pieces).map("=".join),
    st.tuples(texts, texts).map("=".join),
    pieces,
)
queries = st.one_of(
    st.just(""), st.lists(fields, max_size=4).map(lambda found: "?" + "&".join(found))
)
fragments = st.one_of(st.just(""), st.just("#"), pieces.map("#{}".format))
urls = st.one_of(
    st.tuples(schemes, userinfos, hosts, ports, paths, queries, fragments).map(
        lambda parts: "{}://{}{}{}{}{}{}".format(*parts)
    ),
    st.tuples(schemes, st.lists(pieces, max_size=4).map("".join)).map(":".join),
    st.text(max_size=20).map("http://{}".format),
)


@AS_LONG_AS_IT_TAKES
def test_generated_urls_beside_scrapy() -> None:
    made = 0

    # Few URLs an example would leave most of the time to Hypothesis.
    @given(st.lists(urls, min_size=20, max_size=20))
    @settings(
        max_examples=max(10, COMPARISONS // 300),
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    def check(found: list[str]) -> None:
        nonlocal made
        made += sum(compare(url, VARIANTS) for url in found)

    while made < COMPARISONS:
        check()
    print(f"\n{made} comparisons of generated requests")


MUTATIONS: list[Callable[[random.Random, str], str]] = []


def mutation(function: Callable[[random.Random, str], str]) -> Callable[[random.Random, str], str]:
    MUTATIONS.append(function)
    return function


@mutation
def insert(rng: random.Random, url: str) -> str:
    at = rng.randrange(len(url) + 1)
    return url[:at] + rng.choice([*DELIMITERS, *RARE, *ESCAPES, *PLAIN]) + url[at:]


@mutation
def replace(rng: random.Random, url: str) -> str:
    at = rng.randrange(len(url))
    return url[:at] + rng.choice([*DELIMITERS, *RARE, *ESCAPES, *PLAIN]) + url[at + 1 :]


@mutation
def delete(rng: random.Random, url: str) -> str:
    at = rng.randrange(len(url))
    return url[:at] + url[at + rng.randrange(1, 4) :]


@mutation
def swap_case(rng: random.Random, url: str) -> str:
    start, end = sorted(rng.randrange(len(url) + 1) for _ in range(2))
    return url[:start] + url[start:end].swapcase() + url[end:]


@mutation
def double_part(rng: random.Random, url: str) -> str:
    start, end = sorted(rng.randrange(len(url) + 1) for _ in range(2))
    return url[:end] + url[start:]


@mutation
def add_fields(rng: random.Random, url: str) -> str:
    page, mark, fragment = url.partition("#")
    names = ["id", "a", "A", "a1", "a+", "a-", "utm_source", "é", "", "x[]", "q"]
    values = ["", "1", "1+2", "a/b", "a:b", "a,b@c", "%20", "x y", "=", "~", "é"]
    made = [f"{rng.choice(names)}={rng.choice(values)}" for _ in range(rng.randrange(1, 5))]
    return f"{page}{'&' if '?' in page else '?'}{'&'.join(made)}{mark}{fragment}"


@mutation
def shuffle_fields(rng: random.Random, url: str) -> str:
    page, mark, query = url.partition("?")
    found = query.split("&")
    rng.shuffle(found)
    return page + mark + "&".join(found)


@mutation
def add_port(rng: random.Random, url: str) -> str:
    scheme, _, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    port = rng.choice(["80", "443", "0", "08", "", "65536", str(rng.randrange(66_000))])
    return f"{scheme}://{host}:{port}{slash}{path}"


@mutation
def add_segment(rng: random.Random, url: str) -> str:
    at = [index for index, character in enumerate(url) if character == "/"] or [0]
    where = rng.choice(at)
    segment = rng.choice([".", "..", "", ".well-known", "a.b", "...", ";a=b", "%2e"])
    return f"{url[:where]}/{segment}{url[where:]}"


def mutants(seed: int) -> Iterator[str]:
    """Recorded URLs, each with up to three mutations, without end."""
    rng = random.Random(seed)
    while True:
        url = rng.choice(recorded_urls())
        for _ in range(rng.randrange(4)):
            url = rng.choice(MUTATIONS)(rng, url) or "http://"
        yield url


@AS_LONG_AS_IT_TAKES
def test_recorded_urls_with_mutations_beside_scrapy() -> None:
    seed = 20_000
    made = 0
    rng = random.Random(seed)
    for url in mutants(seed):
        # Most as they are, since the arguments are compared with the generated ones too.
        made += compare(url, [VARIANTS[0], rng.choice(VARIANTS)])
        if made >= COMPARISONS:
            break
    print(f"\n{made} comparisons of recorded URLs with mutations (seed {seed})")


def test_recorded_urls_have_scrapys_fingerprints() -> None:
    made = sum(compare(url) for url in recorded_urls()[:COMPARISONS])
    assert made > min(COMPARISONS, len(recorded_urls()))


PLACES = ["{}", "a{}b", "a{}{}", "/{}", "%{}0", "%2{}"]
AROUND = [
    "http://{}/p?k=v#f",
    "http://a{}b.example/",
    "http://example.com:8{}/",
    "http://example.com/{}",
    "http://example.com/p/{}?k=v",
    "http://example.com/p?{}",
    "http://example.com/p?{}=v",
    "http://example.com/p?k={}",
    "http://example.com/p?k={}&a=b",
    "http://example.com/p?b=1&k{}=v&k=w&a=b",
    "http://example.com/p#{}",
    "http{}://example.com/p",
]


@pytest.mark.long
@pytest.mark.parametrize("around", AROUND)
def test_each_character_at_each_place_beside_scrapy(around: str) -> None:
    for character, place in product([*map(chr, range(0x100)), *RARE], PLACES):
        compare(around.format(place.replace("{}", character)))


@pytest.mark.long
@pytest.mark.parametrize("around", ["{}", "{}a", "a/{}/b", "{}%28", "%28{}", "%{}", ".{}", "/{}."])
def test_each_escape_of_a_path_beside_scrapy(around: str) -> None:
    for code, form in product(range(0x100), ["%{:02X}", "%{:02x}", "%25{:02X}"]):
        compare("http://example.com/" + around.format(form.format(code)))


def test_fields_are_in_scrapys_order() -> None:
    # Characters that come before "=" and after it, among those that the fast path takes.
    names = ["", "+", "a", *(f"a{character}" for character in "+,-./0:@A_a~"), "A"]
    for first, second in product(names, repeat=2):
        for one, other in product(["", "+", "1", "a", "~"], repeat=2):
            compare(f"http://example.com/?{first}={one}&{second}={other}")


@pytest.mark.parametrize(
    "request_",
    [
        FormRequest("http://example.com/", formdata={"a": "ä"}),
        FormRequest("http://example.com/?x=1", method="GET", formdata={"b": "1", "a": "2"}),
        JsonRequest("http://example.com/", data={"a": [1]}),
        Request("http://example.com/", method="propfind"),
        Request("http://example.com/", method="MÜLL"),
        Request("http://example.com/", method='G"ET'),
        Request("data:text/plain,a b"),
        Request("about:blank"),
        Request("file:///tmp/a b"),
        Request("s3://bucket/key?b&a"),
    ],
    ids=repr,
)
def test_other_requests_have_scrapys_fingerprint(request_: Request) -> None:
    assert fingerprint(request_.copy()) == scrapy_fingerprint(request_)


def test_the_answer_is_for_the_request_as_it_is_now() -> None:
    request = Request("http://example.com/")
    before = fingerprint(request)
    request.method = "PUT"
    assert fingerprint(request) != before
    assert fingerprint(request) == scrapy_fingerprint(request.copy())


# The fast path


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The URLs that Scrapy's own function was asked for."""
    found: list[str] = []

    def ask(request: Request) -> bytes:
        found.append(request.url)
        return scrapy_fingerprint(request)

    monkeypatch.setattr(module, "scrapy_fingerprint", ask)
    return found


def test_scrapys_own_function_is_asked_for_few_of_the_recorded_urls(asked: list[str]) -> None:
    urls = recorded_urls()
    for url in urls:
        fingerprint(Request(url))
    assert 0 < len(asked) < len(urls) / 100


@pytest.mark.parametrize(
    "url",
    [
        "http://example.com",
        "https://example.com/",
        "http://example.com:8080/a/b.html",
        "http://127.0.0.1:45123/index.html#top",
        "http://example.com/?",
        "http://example.com/a#",
        "http://example.com/a?b=c",
        "http://example.com/a?b=&a=1+2&a=1&c=d/e:f,g@h#top",
        "http://example.com/caf%C3%A9/a%20b?c=d#%zz",
        "http://example.com/%7Eann/a_%28b%29%3E%2C%C3%A9?c=d",
        "http://example.com/a'b(c)*d!e$f&g+h,i;".rstrip(";"),
        "http://example.com//a//b~c@d=e",
    ],
)
def test_ordinary_urls_take_the_fast_path(asked: list[str], url: str) -> None:
    request = Request(url)
    assert fingerprint(request) == scrapy_fingerprint(request)
    assert asked == []


@pytest.mark.parametrize(
    "url",
    [
        "http://example.com/a/../b",
        "http://example.com/.hidden",
        "http://example.com:080/",
        "http://example.com:65536/",
        "http://example.com/a;b",
        "http://example.com/a;",
        "http://example.com/%2E%2E/a",
        "http://example.com/%7ea",
        "http://example.com/a%2528",
        "http://example.com/%c3%a9",
        "http://example.com/?a",
        "http://example.com/?a=b=c",
        "http://example.com/?a=%20",
        "http://example.com/?a=b&&c=d",
        "http://example.com?a=b",
        "HTTP://example.com/",
        "http://EXAMPLE.com/",
        "http://user@example.com/",
        "http://[::1]/",
        "ftp://example.com/",
    ],
)
def test_what_needs_w3lib_is_left_to_scrapy(asked: list[str], url: str) -> None:
    request = RawRequest(url)
    assert outcome(fingerprint, request) == outcome(scrapy_fingerprint, request)
    assert asked == [url]


# Rules

SESSIONS = [{"name": "sessions", "include": "example.com", "ignore_params": "sid"}]
PLAIN_URL = "http://example.com/page?a=1"
RULED_URL = "http://example.com/page?sid=7&a=1"


class Stats(dict[str, int]):
    """A stats collector, as far as a fingerprinter needs one."""

    def inc_value(self, key: str) -> None:
        self[key] = self.get(key, 0) + 1


class Observer:
    """Another package's fingerprinter, which notes what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[Request] = []

    def fingerprint(self, request: Request) -> bytes:
        self.asked.append(request)
        return b"observed " + request.url.encode() + request.body


def ruled(*rules: dict[str, Any], stats: Any = None) -> RequestFingerprinter:
    return RequestFingerprinter(Rules.load(rules or SESSIONS), stats=stats)


def test_urls_that_a_rule_makes_one_have_the_fingerprint_that_scrapy_gives_the_one() -> None:
    request = Request(RULED_URL)
    assert ruled().fingerprint(request) == scrapy_fingerprint(Request(PLAIN_URL))
    assert request.url == RULED_URL
    elsewhere = Request("http://example.org/page?sid=7")
    assert ruled().fingerprint(elsewhere) == scrapy_fingerprint(elsewhere)


@pytest.mark.parametrize("method", ["HEAD", "POST"])
def test_rules_hold_for_every_method_and_body(method: str) -> None:
    request = Request(RULED_URL, method=method, body=b"x")
    plain = Request(PLAIN_URL, method=method, body=b"x")
    assert ruled().fingerprint(request) == scrapy_fingerprint(plain)


def test_a_body_of_which_a_rule_ignores_a_part_is_that_without_it() -> None:
    rule = {"include": "example.com", "ignore_body_fields": "t"}
    made = [
        ruled(rule).fingerprint(JsonRequest("http://example.com/api", data=data))
        for data in ({"a": 1, "t": 2}, {"a": 1}, {"a": 2})
    ]
    assert made[0] == made[1] != made[2]


def test_headers_that_count_are_as_scrapys_include_headers() -> None:
    rule = {"include": "example.com", "count_headers": ["Accept-Language", "X-No"]}
    request = Request(PLAIN_URL, headers={"Accept-Language": ["de", "en"]})
    theirs = scrapy_fingerprint(request, include_headers=["Accept-Language", "X-No"])
    assert ruled(rule).fingerprint(request) == theirs
    assert ruled(rule).fingerprint(Request(PLAIN_URL)) == scrapy_fingerprint(Request(PLAIN_URL))


def test_a_fragment_that_a_rule_keeps_is_as_with_scrapys_keep_fragments() -> None:
    rule = {"include": "example.com", "keep_fragment": True}
    request = Request("http://example.com/app#/a")
    assert ruled(rule).fingerprint(request) == scrapy_fingerprint(request, keep_fragments=True)


def test_meta_can_have_the_rules_skipped() -> None:
    request = Request(RULED_URL, meta={"altsched_skip_rules": True})
    assert ruled().fingerprint(request) == scrapy_fingerprint(request)
    request = Request(RULED_URL, meta={"altsched_skip_rules": False})
    assert ruled().fingerprint(request) == scrapy_fingerprint(Request(PLAIN_URL))


def test_the_rules_are_skipped_for_a_url_that_counts_as_it_stands() -> None:
    request = Request(RULED_URL, meta={"verbatim_url": True})
    assert ruled().fingerprint(request) == scrapy_fingerprint(request)


@pytest.mark.parametrize(
    "make",
    [RequestFingerprinter(), ruled(), apply_rules(Observer(), Rules())],
    ids=["without rules", "with rules", "around another"],
)
def test_requests_with_equal_dedupe_keys_are_the_same_whatever_else_they_are(make: Any) -> None:
    def of(url: str, key: Any, **arguments: Any) -> bytes:
        request = Request(url, meta={"altsched_dedupe_key": key}, **arguments)
        result: bytes = make.fingerprint(request)
        return result

    one = of(PLAIN_URL, "product 1")
    assert len(one) == 20
    assert one == of("http://example.org/", "product 1", method="POST", body=b"x")
    assert one == of(PLAIN_URL, b"product 1")
    assert one != of(PLAIN_URL, "product 2")
    assert one != make.fingerprint(Request(PLAIN_URL))
    assert of(PLAIN_URL, None) == make.fingerprint(Request(PLAIN_URL))
    assert len(of(PLAIN_URL, "\udc80é")) == 20


@pytest.mark.parametrize("key", [1, "", b"", ["a"], 0.5, Request], ids=repr)
def test_a_dedupe_key_that_cannot_be_meant_is_warned_of_once_and_counted(
    key: Any, caplog: pytest.LogCaptureFixture
) -> None:
    stats = Stats()
    make = ruled(stats=stats)
    for _ in range(2):
        request = Request(RULED_URL, meta={"altsched_dedupe_key": key})
        assert make.fingerprint(request) == scrapy_fingerprint(Request(PLAIN_URL))
    assert stats["altsched/dedupe_key/unusable"] == 2
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert RULED_URL in record.getMessage()
    assert f"altsched_dedupe_key = {key!r}" in record.getMessage()


def test_what_each_rule_changed_is_counted() -> None:
    stats = Stats()
    rules = [*SESSIONS, {"include": "example.com", "ignore_www": True}]
    make = ruled(*rules, stats=stats)
    for url in (RULED_URL, PLAIN_URL, "http://www.example.com/?sid=1", "http://example.org/"):
        make.fingerprint(Request(url))
    assert stats == {
        "altsched/url_rules/sessions": 2,
        "altsched/url_rules/ALTSCHED_URL_RULES[1]": 1,
    }


# Around other fingerprinters


def test_another_fingerprinter_is_asked_for_a_canonical_copy() -> None:
    observer = Observer()
    make = apply_rules(observer, Rules.load(SESSIONS))
    request = Request(RULED_URL, meta={"depth": 1}, priority=3)
    assert make.fingerprint(request) == b"observed " + PLAIN_URL.encode()
    (asked,) = observer.asked
    assert (asked.meta, asked.priority) == ({"depth": 1}, 3)
    assert request.url == RULED_URL


@pytest.mark.parametrize("url", [PLAIN_URL, "http://example.org/?sid=1", "data:,a"])
def test_another_fingerprinter_is_asked_for_the_request_itself_if_nothing_changes(url: str) -> None:
    observer = Observer()
    request = Request(url)
    apply_rules(observer, Rules.load(SESSIONS)).fingerprint(request)
    assert len(observer.asked) == 1
    assert observer.asked[0] is request


def test_another_fingerprinter_gets_the_body_that_counts() -> None:
    rule = {"include": "example.com", "ignore_body": True}
    make = apply_rules(Observer(), Rules.load([rule]))
    request = JsonRequest(PLAIN_URL, data={"a": 1})
    assert make.fingerprint(request) == b"observed " + PLAIN_URL.encode()
    assert request.body == b'{"a": 1}'


def test_headers_that_count_count_with_another_fingerprinter_too() -> None:
    make = apply_rules(Observer(), Rules.load([{"include": "example.com", "count_headers": "X"}]))
    made = {make.fingerprint(Request(PLAIN_URL, headers={"X": value})) for value in "aab"}
    assert len(made) == 2
    assert make.fingerprint(Request(PLAIN_URL)) == b"observed " + PLAIN_URL.encode()


def test_a_child_of_ours_is_asked_as_it_is() -> None:
    class Child(RequestFingerprinter):
        pass

    child = Child()
    assert apply_rules(child, Rules.load(SESSIONS)) is child


# In a crawl


def test_a_foreign_component_keeps_scrapys_fingerprints_under_the_filters_rules() -> None:
    crawl = StandIn({**OURS, "ALTSCHED_URL_RULES": SESSIONS})
    request = Request(RULED_URL)
    # What the HTTP cache and the media pipelines ask.
    assert type(crawl.crawler.request_fingerprinter) is ScrapyFingerprinter
    assert crawl.crawler.request_fingerprinter.fingerprint(request) == scrapy_fingerprint(request)
    assert crawl.scheduler.df.fingerprint(request) == scrapy_fingerprint(Request(PLAIN_URL))
    crawl.scheduler.close("finished")


def test_as_the_fingerprinter_class_the_rules_hold_everywhere() -> None:
    settings = {"REQUEST_FINGERPRINTER_CLASS": "scrapy_altsched.RequestFingerprinter"}
    crawl = StandIn({**OURS, **settings, "ALTSCHED_URL_RULES": SESSIONS})
    made = crawl.crawler.request_fingerprinter
    assert type(made) is RequestFingerprinter
    for _ in range(2):
        assert made.fingerprint(Request(RULED_URL)) == scrapy_fingerprint(Request(PLAIN_URL))
    assert crawl.scheduler.enqueue_request(Request(RULED_URL))
    assert not crawl.scheduler.enqueue_request(Request(PLAIN_URL))
    # Those that the filter was asked for, not those that others were.
    assert crawl.stat("altsched/url_rules/sessions") == 1
    crawl.scheduler.close("finished")


@pytest.mark.parametrize("on_disk", [False, True])
def test_the_request_that_is_sent_is_the_original_one(tmp_path: Path, on_disk: bool) -> None:
    jobdir = str(tmp_path) if on_disk else None
    crawl = StandIn({**OURS, "ALTSCHED_URL_RULES": SESSIONS, "JOBDIR": jobdir})
    assert crawl.scheduler.enqueue_request(Request(RULED_URL))
    assert not crawl.scheduler.enqueue_request(Request(RULED_URL.replace("7", "8")))
    assert not crawl.scheduler.enqueue_request(Request(PLAIN_URL))
    request = crawl.next()
    assert request is not None
    assert request.url == RULED_URL
    assert crawl.next() is None
    crawl.scheduler.close("finished")
    assert crawl.stat("altsched/url_rules/sessions") == 2
    assert crawl.stat("dupefilter/filtered") == 2


class OwnRules(Spider):
    name = "own"
    url_rules = [{"include": "example.com", "ignore_path_case": True}]


class ReplacedRules(Spider):
    name = "replaced"
    custom_settings = {"ALTSCHED_URL_RULES": OwnRules.url_rules}


@pytest.mark.parametrize(("spider", "expected"), [(OwnRules, 1), (ReplacedRules, 2)])
def test_a_spider_adds_rules_or_replaces_them(spider: type[Spider], expected: int) -> None:
    crawl = StandIn({**OURS, "ALTSCHED_URL_RULES": SESSIONS}, spider)
    for url in ("http://example.com/?sid=1", "http://example.com/"):
        crawl.scheduler.enqueue_request(Request(url))
    assert len(crawl.scheduler) == expected
    assert not crawl.scheduler.enqueue_request(Request("http://example.com/?sid=1"))
    crawl.scheduler.enqueue_request(Request("http://example.com/A"))
    assert not crawl.scheduler.enqueue_request(Request("http://example.com/a"))
    crawl.scheduler.close("finished")


def test_a_rule_that_cannot_be_meant_stops_the_crawl_at_its_start(
    caplog: pytest.LogCaptureFixture,
) -> None:
    values = {"ALTSCHED_URL_RULES": [{"ignore_parms": "a"}]}
    with pytest.raises(ConfigError, match="ignore_params"):
        StandIn({**OURS, **values})
    name = "scrapy_altsched.RequestFingerprinter"
    with pytest.raises(ConfigError, match="ignore_params"):
        get_crawler(Spider, {"REQUEST_FINGERPRINTER_CLASS": name, **values})
    assert [record.levelno for record in caplog.records] == [logging.CRITICAL] * 2


@pytest.mark.parametrize("name", ["ALTSCHED_URL_RULE", "ALTSCHED_RULES", "ALTSCHED_url_rules"])
def test_a_misspelled_setting_is_refused_by_the_fingerprinter_alone(name: str) -> None:
    settings = {"REQUEST_FINGERPRINTER_CLASS": "scrapy_altsched.RequestFingerprinter", name: []}
    with pytest.raises(ConfigError, match=rf"{name} \(did you mean ALTSCHED_URL_RULES\?\)"):
        get_crawler(Spider, settings)


def test_no_other_setting_is_mistaken_for_misspelled_rules() -> None:
    names = [item.name for item in dataclasses.fields(Config) if "check" in item.metadata]
    settings = {f"ALTSCHED_{name.upper()}": None for name in names}
    RequestFingerprinter.from_crawler(get_crawler(Spider, settings))


def run(jobdir: Path, url: str, spider: type[Spider] = Spider, **values: Any) -> bool:
    """Open a job, schedule a request, and close; whether it was accepted."""
    crawl = StandIn({**OURS, "JOBDIR": str(jobdir), **values}, spider)
    accepted: bool = crawl.scheduler.enqueue_request(Request(url))
    crawl.scheduler.close("shutdown")
    return accepted


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    caplog.clear()
    return found


def test_a_job_that_goes_on_with_other_rules_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert run(tmp_path, PLAIN_URL)
    assert run(tmp_path, "http://example.com/")
    assert warnings(caplog) == []
    assert not run(tmp_path, RULED_URL, ALTSCHED_URL_RULES=SESSIONS)
    (warning,) = warnings(caplog)
    assert str(tmp_path) in warning
    assert "other URL rules" in warning
    assert f"scrapy altsched refingerprint {tmp_path}" in warning
    # From now on these are the job's.
    run(tmp_path, RULED_URL, ALTSCHED_URL_RULES=SESSIONS)
    assert warnings(caplog) == []
    run(tmp_path, RULED_URL, OwnRules, ALTSCHED_URL_RULES=SESSIONS)
    (warning,) = warnings(caplog)
    run(tmp_path, RULED_URL)
    (warning,) = warnings(caplog)


class OtherFingerprinter(ScrapyFingerprinter):
    """Of the project's own making."""


def test_a_job_that_goes_on_with_another_fingerprinter_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run(tmp_path, PLAIN_URL)
    # It makes the same ones.
    ours = "scrapy_altsched.RequestFingerprinter"
    run(tmp_path, PLAIN_URL, REQUEST_FINGERPRINTER_CLASS=ours)
    assert warnings(caplog) == []
    run(tmp_path, PLAIN_URL, REQUEST_FINGERPRINTER_CLASS=OtherFingerprinter)
    (warning,) = warnings(caplog)
    assert "scrapy.utils.request.RequestFingerprinter as REQUEST_FINGERPRINTER_CLASS" in warning
    assert "rules" not in warning


@pytest.mark.parametrize("first", [SESSIONS, None])
def test_the_filter_by_itself_says_so_too(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, first: Any
) -> None:
    for rules, expected in ((first, 0), (first, 0), (OwnRules.url_rules, 1), (first, 1)):
        crawler = get_crawler(
            Spider,
            {"JOBDIR": str(tmp_path), **({"ALTSCHED_URL_RULES": rules} if rules else {})},
        )
        crawler.spider = Spider.from_crawler(crawler, name="spider")
        dupefilter = DupeFilter.from_crawler(crawler)
        dupefilter.open()
        dupefilter.request_seen(Request(RULED_URL))
        dupefilter.request_seen(Request(PLAIN_URL))
        dupefilter.close("finished")
        found = [text for text in warnings(caplog) if "SCHEDULER" not in text]
        assert len(found) == expected
        assert all("other URL rules" in warning for warning in found)


def test_a_job_from_before_there_was_a_note_had_no_rules() -> None:
    rules = Rules.load(SESSIONS)
    plain = ScrapyFingerprinter()
    assert differences(None, describe(plain, Rules())) == []
    assert differences(None, describe(Observer(), Rules())) == []
    assert len(differences(None, describe(plain, rules))) == 1
    both = differences(describe(plain, rules), describe(Observer(), Rules()))
    assert len(both) == 2


def test_rules_are_not_asked_for_a_url_that_they_cannot_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fingerprinter = RequestFingerprinter(Rules.load([{"preset": ["tracking", "sessions"]}]))
    tracked = fingerprinter.fingerprint(Request("https://example.com/a?utm_id=1"))

    def fail(*arguments: object, **named: object) -> None:
        raise AssertionError("the rules were asked")

    monkeypatch.setattr(Rules, "canonicalize", fail)
    assert fingerprinter.fingerprint(Request("https://example.com/a")) == tracked
    with pytest.raises(AssertionError):
        fingerprinter.fingerprint(Request("https://example.com/a?b=1"))


class OwnFingerprints(DupeFilter):
    def fingerprint(self, request: Request) -> bytes:
        return request.url.encode()[-20:]


@pytest.mark.parametrize(
    ("fingerprinter", "dupefilter", "expected"),
    [
        (ScrapyFingerprinter(), DupeFilter, True),
        (RequestFingerprinter(), DupeFilter, True),
        (ScrapyRedisFingerprinter(), DupeFilter, True),
        (Observer(), DupeFilter, False),
        (ScrapyFingerprinter(), OwnFingerprints, False),
    ],
)
def test_fingerprints_that_are_sha1_are_known(
    fingerprinter: Any, dupefilter: type[DupeFilter], expected: bool
) -> None:
    for rules in (Rules(), Rules.load(SESSIONS)):
        found = dupefilter(fingerprinter=fingerprinter)
        found.use_rules(rules)
        assert found.identity.are_sha1 is expected
