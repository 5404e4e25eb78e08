"""Rules for URLs: what they say, which URLs they match, and what they make of these."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import FrozenInstanceError, fields
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from url_matcher.matcher import PatternsMatcher
from w3lib.url import canonicalize_url

from example_project.example_project.site import load_graph
from scrapy_altsched.canonical import Rule, Rules, globs, patterns
from scrapy_altsched.canonical import rules as rules_module
from scrapy_altsched.canonical.patterns import Index, compile_patterns
from scrapy_altsched.canonical.rule import presets
from scrapy_altsched.errors import ConfigError

from ..docs.test_docs import code_blocks, first_column, literals, rows, section

#: Since w3lib 2.5 only & stands between fields, .. is a step up, each IP address has one form, and
#: a port is in range.  What is canonical is what the w3lib at hand makes of a URL.
IS_STRICT = canonicalize_url("http://example.com/a/../b") == "http://example.com/b"


def canonical(url: str, *rules: Mapping[str, Any]) -> str:
    return Rules.load(list(rules)).canonicalize(url).url


# Generated URLs

NAMES = st.sampled_from(["a", "b", "utm_source", "Utm_Source", "q[]", "ü", "sid", "", "a b", "x;y"])
VALUES = st.one_of(st.none(), st.sampled_from(["", "1", "2", "ü", "a b", "%", "a=b", "https://x/"]))
FIELDS = st.lists(st.tuples(NAMES, VALUES), max_size=6)
SEGMENTS = st.lists(
    st.sampled_from(
        ["", "A", "b", "É", "a b", "a%2Fb", "x;jsessionid=1", "..", ".", "y;v=1;w", "~"]
    ),
    max_size=5,
)
NETLOCS = st.sampled_from(
    [
        "example.com",
        "www.example.com",
        "WWW.Example.com",
        "shop.example.com",
        "www2.shop.example.com",
        "user:pass@example.com",
        "example.com:80",
        "example.com:443",
        "example.com:8080",
        "bücher.example",
        "xn--bcher-kva.example",
        "[::1]:8000",
        "127.0.0.1",
        "other.example",
    ]
)
FRAGMENTS = st.sampled_from(["", "top", "!/a", "!/ü?b=1"])
SCHEMES = st.sampled_from(["http", "https", "HTTP", "ftp"])


def query_of(pairs: Sequence[tuple[str, str | None]], encode: Callable[[str], str] = quote) -> str:
    return "&".join(
        encode(name) if value is None else f"{encode(name)}={quote(value)}" for name, value in pairs
    )


@st.composite
def urls(draw: st.DrawFn) -> str:
    url = f"{draw(SCHEMES)}://{draw(NETLOCS)}/{'/'.join(draw(SEGMENTS))}"
    query, fragment = query_of(draw(FIELDS)), draw(FRAGMENTS)
    return url + (f"?{query}" if query else "") + (f"#{fragment}" if fragment else "")


RECORDED = sorted(
    {
        href if "://" in href else f"https://docs.python.example{href}"
        for path, hrefs in load_graph().items()
        for href in (path, *hrefs)
    }
)
EVERYTHING = {
    "preset": ["tracking", "sessions"],
    "ignore_path_params": True,
    "ignore_path_case": True,
    "ignore_trailing_slash": True,
    "ignore_www": True,
    "ignore_scheme": True,
    "ignore_default_port": True,
    "keep_fragment": "hashbang",
    "sort_query": False,
}


# What is canonical


@given(st.one_of(urls(), st.text(), st.builds("http://{}".format, st.text())))
def test_without_a_rule_the_form_is_w3libs_and_nothing_raises(url: str) -> None:
    try:
        expected = canonicalize_url(url)
    except ValueError:
        expected = url
    elsewhere = {"include": "elsewhere.test/never", "ignore_www": True}
    for rules in (Rules.load(None), Rules.load([elsewhere])):
        found = rules.canonicalize(url, body=b"b")
        assert (found.url, found.body, found.headers, found.steps) == (expected, b"b", (), ())


def test_without_a_rule_the_form_is_w3libs_for_recorded_urls() -> None:
    rules = Rules.load([{"include": "elsewhere.test", "ignore_www": True}])
    assert len(RECORDED) > 1_000
    for url in RECORDED:
        assert rules.canonicalize(url).url == canonicalize_url(url)


@given(st.one_of(urls(), st.text(), st.builds("http://{}".format, st.text())))
def test_no_url_makes_rules_raise(url: str) -> None:
    rules = Rules.load([{**EVERYTHING, "remove_segments": [0, -1]}])
    rules.canonicalize(url, body=url.encode("utf-8", "surrogatepass"))
    rules.marks(url)


@given(urls())
def test_a_canonical_url_is_its_own_canonical_form(url: str) -> None:
    # w3lib's own form is none in a few cases, such as %%32%66.
    assume(canonicalize_url(canonicalize_url(url)) == canonicalize_url(url))
    for rule in (EVERYTHING, {**EVERYTHING, "sort_query": True, "keep_fragment": True}):
        rules = Rules.load([rule])
        once = rules.canonicalize(url).url
        assert rules.canonicalize(once).url == once


@pytest.mark.parametrize(
    "url",
    [
        "mailto:a@b?utm_source=1",
        "data:,http://example.com/?utm_source=1",
        "file:///a?utm_source=1",
        "http#://example.com/?utm_source=1",
        "/a?utm_source=1",
        "",
    ],
)
def test_rules_are_for_urls_that_have_a_host(url: str) -> None:
    assert canonical(url, EVERYTHING) == canonicalize_url(url)


# Parameters


def every_escape(text: str) -> str:
    return "".join(f"%{byte:02x}" for byte in text.encode())


IGNORED = {"utm_source", "ü", "q[]", "a b", ""}


@given(FIELDS, NETLOCS, SEGMENTS, st.sampled_from([quote, every_escape]))
def test_what_is_left_is_what_w3lib_makes_of_the_url_without_the_ignored_parameters(
    pairs: list[tuple[str, str | None]],
    netloc: str,
    segments: list[str],
    encode: Callable[[str], str],
) -> None:
    start = f"http://{netloc}/{'/'.join(segments)}"
    # A field without a name and a value is not a field to w3lib.
    pairs = [pair for pair in pairs if pair != ("", None)]
    ignored = [name for name in IGNORED if name]
    left = [pair for pair in pairs if pair[0] not in ignored]
    expected = canonicalize_url(f"{start}?{query_of(left)}")
    url = f"{start}?{query_of(pairs, encode)}"
    assert canonical(url, {"ignore_params": ignored}) == expected
    kept = [pair for pair in pairs if pair[0] in ignored]
    expected = canonicalize_url(f"{start}?{query_of(kept)}")
    assert canonical(url, {"keep_params": ignored}) == expected


@given(FIELDS)
def test_the_order_of_the_query_is_kept_and_its_fields_are_written_as_w3lib_does(
    pairs: list[tuple[str, str | None]],
) -> None:
    url = f"http://example.com/?{query_of(pairs)}"
    one_by_one = [
        urlsplit(canonicalize_url(f"http://h/?{query_of([pair])}")).query for pair in pairs
    ]
    kept = canonical(url, {"sort_query": False})
    assert urlsplit(kept).query == "&".join(filter(None, one_by_one))
    assert canonicalize_url(kept) == canonicalize_url(url)


S = "http://example.com/"


@pytest.mark.parametrize(
    ("rule", "url", "expected"),
    [
        # Names are compared decoded, with upper and lower case; globs have two wildcards.
        ({"ignore_params": "utm_*"}, S + "?utm_source=1&a=2&utm_=3&xutm_a=4", S + "?a=2&xutm_a=4"),
        ({"ignore_params": "utm_source"}, S + "?%75tm_source=1&a=2", S + "?a=2"),
        ({"ignore_params": "sid"}, S + "?SID=1&sid=2", S + "?SID=1"),
        ({"ignore_params": "v?"}, S + "?v1=1&v=2&v22=3", S + "?v=2&v22=3"),
        ({"ignore_params": "a b"}, S + "?a+b=1&a%20b=2&ab=3", S + "?ab=3"),
        ({"ignore_params": "größe"}, S + "?gr%C3%B6%C3%9Fe=1&a=1", S + "?a=1"),
        ({"ignore_params": "a*"}, S + "?a%0Ab=1&b", S + "?b="),
        # Brackets stand for themselves.
        ({"ignore_params": "ids[]"}, S + "?ids[]=1&ids%5B%5D=2&ids=3", S + "?ids=3"),
        ({"ignore_params": "f[*]"}, S + "?f[a]=1&f[b]=2&f=3", S + "?f=3"),
        ({"ignore_params": r"a\*"}, S + "?a*=1&ab=2", S + "?ab=2"),
        ({"ignore_params": r"a\["}, S + "?a[=1&ab=2", S + "?ab=2"),
        # Each occurrence goes, with and without a value.
        ({"ignore_params": "a"}, S + "?a=1&b=1&a=2&a=&a", S + "?b=1"),
        ({"ignore_params": "a"}, S + "?a", S),
        ({"ignore_params": "*"}, S + "?a=1&b", S),
        ({"keep_params": "id"}, S + "?id=2&a=1&id=1&b", S + "?id=1&id=2"),
        ({"keep_params": []}, S + "?a=1&=2", S),
        # What stands between fields is what w3lib says.
        ({"ignore_params": "b"}, S + "?a=1;b=2", S + ("?a=1%3Bb%3D2" if IS_STRICT else "?a=1")),
        ({"ignore_params": "b"}, S + "?a=1&&b=2&", S + "?a=1"),
        # A value that looks like a field is none.
        ({"ignore_params": "b"}, S + "?a=b%3D1%26b%3D2", S + "?a=b%3D1%26b%3D2"),
        ({"ignore_params": "b"}, S + "?a=1#?b=1", S + "?a=1"),
        ({"sort_query": False}, S + "?b=2&a=1&b=1", S + "?b=2&a=1&b=1"),
        ({"sort_query": False, "ignore_params": "x"}, S + "?b=2&x=1&a=1", S + "?b=2&a=1"),
        ({"keep_fragment": True}, S + "?b=2&a=1#top", S + "?a=1&b=2#top"),
        ({"keep_fragment": True}, S + "#", S),
        ({"keep_fragment": "hashbang"}, S + "#!/page/1", S + "#!/page/1"),
        ({"keep_fragment": "hashbang"}, S + "#top", S),
        ({"ignore_path_params": True}, S + "a;x=1/b;y;z=2?q=1", S + "a/b?q=1"),
        ({"ignore_path_params": "jsessionid"}, S + "a;jsessionid=1;x=2", S + "a;x=2"),
        ({"ignore_path_params": "v*"}, S + "a;v=1/b;%76w=1;x", S + "a/b;x"),
        ({"ignore_path_params": "a b"}, S + "x;a+b=1;a%20b", S + "x;a+b=1"),
        # What is not touched stays, although w3lib's form of this is none to w3lib.
        ({"ignore_path_params": "a"}, S + "%%32%66;b=1", S + "%2f;b=1"),
        # What is left may be a step up, which w3lib goes.
        ({"ignore_path_params": True}, S + "a/..;x=1/b", S + ("b" if IS_STRICT else "a/../b")),
        ({"ignore_path_case": True}, S + "A/%C3%9C/%c3/b%2fC", S + "a/%C3%BC/%C3/b%2Fc"),
        ({"ignore_path_case": True}, S + "A?B=C", S + "a?B=C"),
        ({"ignore_trailing_slash": True}, S + "a/?b=1", S + "a?b=1"),
        ({"ignore_trailing_slash": True}, S + "a//", S + "a"),
        ({"ignore_trailing_slash": True}, S, S),
        ({"ignore_www": True}, "http://www.example.com/", S),
        ({"ignore_www": True}, "http://WWW2.example.com/", S),
        ({"ignore_www": True}, "http://u:p@www.example.com:81/", "http://u:p@example.com:81/"),
        ({"ignore_www": True}, "http://www.com/", "http://www.com/"),
        ({"ignore_www": True}, "http://wwwx.example.com/", "http://wwwx.example.com/"),
        ({"ignore_scheme": True}, S, "https://example.com/"),
        ({"ignore_scheme": True}, "ftp://example.com/", "ftp://example.com/"),
        ({"ignore_default_port": True}, "http://example.com:80/", S),
        ({"ignore_default_port": True}, "https://example.com:443/", "https://example.com/"),
        ({"ignore_default_port": True}, "http://example.com:443/", "http://example.com:443/"),
        ({"ignore_default_port": True}, "http://[::1]:80/", "http://[::1]/"),
        (
            {"ignore_default_port": True, "ignore_scheme": True},
            "http://example.com:443/",
            "https://example.com/",
        ),
        ({"remove_segments": [0, 2]}, S + "a/b/c/d", S + "b/d"),
        ({"remove_segments": -1}, S + "a/b/c", S + "a/b"),
        ({"remove_segments": [0, 7]}, S + "a", S),
        ({"remove_segments": 1}, S + "a/", S + "a"),
        (
            {"preset": "tracking"},
            S + "?utm_source=x&fbclid=1&gclid=2&id=3&ref=4",
            S + "?id=3&ref=4",
        ),
        ({"preset": "sessions"}, S + "a;jsessionid=1?PHPSESSID=2&id=3", S + "a?id=3"),
        ({"preset": "tracking", "ignore_params": "id"}, S + "?utm_source=x&id=3&a=4", S + "?a=4"),
    ],
)
def test_each_key_does_what_it_says(rule: dict[str, Any], url: str, expected: str) -> None:
    rules = Rules.load([rule])
    assert rules.canonicalize(url).url == expected
    if expected != canonicalize_url(url):
        assert not spares(rules, url)


def test_each_key_is_tried_above() -> None:
    (mark,) = test_each_key_does_what_it_says.pytestmark  # type: ignore[attr-defined]
    tried = {key for rule, _, _ in mark.args[1] for key in rule}
    elsewhere = {"include", "exclude", "order", "name", "fallback", "count_headers"}
    elsewhere |= {"ignore_body", "ignore_body_fields", "recrawl_after"}
    assert tried | elsewhere == {field.name for field in fields(Rule)}


# Bodies and headers


@pytest.mark.parametrize(
    ("names", "content_type", "body", "expected"),
    [
        ("ts", "application/json", b'{"ts": 1, "b": 2, "a": [3]}', b'{"a":[3],"b":2}'),
        ("ts", "application/json; charset=utf-8", b'{"b":2,"a":[3]}', b'{"a":[3],"b":2}'),
        ("ts", "application/ld+json", b'{"ts":1}', b"{}"),
        ("ts", "", b' {"ts":1}', b"{}"),
        (
            "meta.ts",
            "application/json",
            b'{"meta":{"ts":1,"x":2},"ts":3}',
            b'{"meta":{"x":2},"ts":3}',
        ),
        ("meta", "application/json", b'{"meta":{"ts":1,"x":2}}', b"{}"),
        ("*.ts", "application/json", b'[{"ts":1,"a":2},{"ts":3}]', b'[{"a":2},{}]'),
        ("ts", "application/json", '{"ü":"ü","ts":1}'.encode(), b'{"\\u00fc":"\\u00fc"}'),
        # A body that is not what it is said to be stays as it is.
        ("ts", "application/json", b'{"ts": 1', b'{"ts": 1'),
        ("ts", "application/json", b"\xff", b"\xff"),
        ("ts", "application/json", b"[" * 100_000, b"[" * 100_000),
        ("ts", "text/plain", b'{"ts": 1}', b'{"ts": 1}'),
        ("ts", "", b"ts=1&b=2", b"ts=1&b=2"),
        ("ts", "application/x-www-form-urlencoded", b"b=2&%74s=1&a=%7e&a", b"a=&a=~&b=2"),
        ("ts", "application/x-www-form-urlencoded", b"\xfc=1&ts=2", b"%C3%BC=1"),
        ("user.*", "application/x-www-form-urlencoded", b"user.id=1&user=2", b"user=2"),
    ],
)
def test_some_fields_of_a_body_are_ignored(
    names: str, content_type: str, body: bytes, expected: bytes
) -> None:
    rules = Rules.load([{"ignore_body_fields": names}])
    found = rules.canonicalize(S, body=body, content_type=content_type)
    assert found.body == expected
    again = rules.canonicalize(S, body=found.body, content_type=content_type)
    assert again.body == found.body


def test_the_whole_body_is_ignored() -> None:
    found = Rules.load([{"ignore_body": True}]).canonicalize(S, body=b"\xff")
    assert found.body == b""
    assert [(step.what, step.before) for step in found.steps] == [("ignore_body", "\\xff")]


def test_headers_of_all_rules_count_together() -> None:
    rules = Rules.load([{"count_headers": ["X-B", "accept"]}, {"count_headers": "ACCEPT"}])
    assert rules.canonicalize(S).headers == ("accept", "x-b")


# Several rules


def test_all_rules_that_match_apply_in_their_order() -> None:
    rules = Rules.load(
        [
            {"ignore_params": "a", "order": 600},
            {"include": "example.com", "ignore_params": "b"},
            {"include": "other.com", "ignore_params": "c"},
            {"ignore_params": "d", "order": 100},
        ]
    )
    found = rules.canonicalize(S + "?a&b&c&d")
    assert found.url == S + "?c="
    assert found.rules == (3, 1, 0)
    assert [step.rule for step in found.steps] == [3, 1, 0]


def test_the_last_rule_decides_on_a_flag() -> None:
    everywhere = {"ignore_www": True, "keep_fragment": True, "sort_query": False}
    here = {"include": "example.com", **dict.fromkeys(everywhere)}
    here.update(ignore_www=False, keep_fragment=False, sort_query=True)
    url = "http://www.example.com/?b&a#c"
    assert canonical(url, everywhere, here) == canonicalize_url(url)
    assert canonical(url, here, everywhere) == S + "?b=&a=#c"
    assert canonical(url, {**here, "order": 501}, everywhere) == canonicalize_url(url)


def test_what_several_rules_keep_adds_up() -> None:
    by_id, by_page = {"keep_params": "id"}, {"include": "example.com", "keep_params": ["page"]}
    queries = ("?id=1", "?id=2", "?id=1&page=2")
    for rules in ((by_id, by_page), (by_page, by_id), (by_id, {"keep_params": []}, by_page)):
        assert [canonical(S + query + "&a=1", *rules) for query in queries] == [
            S + query for query in queries
        ]
    # What one keeps is ignored all the same if another rule says so, whichever comes first.
    for rules in (
        (by_id, by_page, {"ignore_params": "i*"}),
        ({"ignore_params": "i*"}, by_id, by_page),
    ):
        assert canonical(S + "?id=1&page=2&a=1", *rules) == S + "?page=2"
    found = Rules.load([by_id, by_page]).canonicalize(S + "?a=1&id=2")
    assert [(step.rule, step.what) for step in found.steps] == [(1, "keep_params")]


@pytest.mark.parametrize(
    ("rules", "digest"),
    [
        # As long as one rule at most keeps anything of a URL, jobs go on with their fingerprints.
        (["", ""], "7f639d791616cc44ded265e755ad12429340f254"),
        (["a.example", "b.example"], "72105e83b954433969361c472aeae7797554488d"),
    ],
)
def test_a_job_of_which_several_rules_kept_what_all_of_them_named_is_another_one(
    rules: list[str], digest: str
) -> None:
    """The digests are those of the version before what they keep added up."""
    kept = ("id", "page")
    now = Rules.load(
        [
            {**({"include": host} if host else {}), "keep_params": name}
            for host, name in zip(rules, kept, strict=True)
        ]
    )
    assert (now.digest == digest) is bool(rules[0])


@pytest.mark.parametrize("other", ["shop.a.example", "a.example/list", "a.example:8080/", ""])
def test_rules_that_may_keep_together_are_found_by_their_hosts(other: str) -> None:
    rules = [{"include": "a.example", "keep_params": "id"}, {"keep_params": "page"}]
    rules[1] |= {"include": other} if other else {}
    assert Rules.load(rules)._may_keep_together()
    assert Rules.load(rules[::-1])._may_keep_together()


def test_what_is_kept_by_one_rule_can_be_ignored_by_another() -> None:
    assert canonical(S + "?a&b&c", {"keep_params": ["a", "b"]}, {"ignore_params": "a"}) == S + "?b="


def test_each_step_says_what_it_did() -> None:
    found = Rules.load([{"ignore_www": True, "preset": "tracking"}]).canonicalize(
        "http://www.example.com/?b=1&utm_a=2#top"
    )
    assert [(step.rule, step.what, step.before, step.after) for step in found.steps] == [
        (0, "ignore_www", "http://www.example.com/?b=1&utm_a=2", S + "?b=1&utm_a=2"),
        (0, "ignore_params", S + "?b=1&utm_a=2", S + "?b=1"),
    ]


def test_the_rules_that_apply_are_chosen_before_any_change() -> None:
    rule = {"include": "example.com/?print=1", "ignore_params": "print"}
    other = {"include": "example.com", "exclude": "example.com/?print=*", "ignore_www": True}
    assert canonical("http://www.example.com/?print=1", rule, other) == "http://www.example.com/"


def test_a_fallback_stands_back_where_a_rule_of_its_source_names_the_url() -> None:
    rules = Rules.load(
        [
            {"ignore_params": "a", "fallback": True},
            {"include": "example.com", "ignore_params": "b"},
            {"ignore_params": "c"},
        ]
    )
    assert rules.canonicalize(S + "?a&b&c&d").url == S + "?a=&d="
    assert rules.canonicalize("http://other.com/?a&b&c&d").url == "http://other.com/?b=&d="
    alone = {"include": "example.com", "ignore_params": "a", "fallback": True}
    assert canonical(S + "?a&b", alone) == S + "?b="
    spider = Rules.load([{"ignore_params": "a", "fallback": True}]).extended(
        [{"include": "example.com", "ignore_params": "b"}], name="spider"
    )
    assert spider.canonicalize(S + "?a&b&c").url == S + "?c="


def test_a_spiders_rules_come_after_the_projects() -> None:
    project = Rules.load([{"ignore_www": True, "name": "no www"}, {"ignore_params": "a"}])
    both = project.extended([{"ignore_www": False}], name="DocsSpider.url_rules")
    assert (len(project), len(both)) == (2, 3)
    assert both.canonicalize("http://www.example.com/?a").url == "http://www.example.com/"
    assert [both.label(index) for index in range(3)] == [
        "no www",
        "ALTSCHED_URL_RULES[1]",
        "DocsSpider.url_rules[0]",
    ]
    with pytest.raises(ConfigError, match=r"^DocsSpider.url_rules\[0\]: unknown key"):
        project.extended([{"x": 1}], name="DocsSpider.url_rules")


def test_a_rule_is_frozen() -> None:
    rule = Rules.load([{"ignore_www": True}])[0]
    with pytest.raises(FrozenInstanceError):
        rule.ignore_www = False  # type: ignore[misc]


def test_the_digest_is_of_what_the_rules_mean() -> None:
    def digest(*rules: dict[str, Any]) -> str:
        return Rules.load(list(rules)).digest

    first, second = {"include": "a.com", "ignore_params": "a"}, {"ignore_params": "b"}
    assert Rules.load(None).digest == Rules.load([]).digest == ""
    assert re.fullmatch("[0-9a-f]{40}", digest(first))
    same = digest(first, second)
    assert digest({**first, "name": "x"}, second) == same
    assert digest({**second, "order": 501}, {**first, "order": 12}) == same
    assert Rules.load([first]).extended([second], name="spider").digest == same
    others = [digest(second, first), digest(first), digest({**first, "exclude": "a.com/b"}, second)]
    fallback = {**second, "fallback": True}
    others.append(digest(first, fallback))
    # It does not stand back for a rule of another source.
    others.append(Rules.load([first]).extended([fallback], name="spider").digest)
    assert len({same, *others}) == 6
    assert digest({"ignore_params": {"c", "b", "a"}}) == digest({"ignore_params": ["a", "b", "c"]})
    listed = {"ignore_params": list(presets()["tracking"]["ignore_params"])}
    assert digest({"preset": "tracking"}) == digest(listed)


# Which URLs are matched


@pytest.mark.parametrize(
    ("include", "url"),
    [
        ("example.com", "https://example.com:443/a?b#c"),
        ("example.com", "http://deep.shop.EXAMPLE.com/"),
        ("example.com:8080", "http://example.com:8080/"),
        ("https://example.com", "https://example.com:443/"),
        ("example.com/a", "http://www.example.com/About"),
        ("example.com/a|", "http://example.com/a?b"),
        ("example.com/*/c", "http://example.com/a/b/c/d"),
        ("example.com/{}/c", "http://example.com/a/c"),
        ("example.com/{lang}/c", "http://example.com/a/c"),
        ("example.com?a=*&b=1", "http://example.com/x?b=1&c&a=2"),
        ("example.com/#!", "http://example.com/#!/a"),
        ("example.com", "http://user:pass@example.com/"),
        ("bücher.example/größe", "http://xn--bcher-kva.example/gr%c3%b6%C3%9Fe"),
        ("[::1]:80/a", "http://[0::1]:80/a" if IS_STRICT else "http://[::1]:80/a"),
        ("127.0.0.1", "http://127.0.0.1:80/"),
        ("localhost/a b", "http://localhost/a%20b"),
        (["a.com", "b.com/x"], "http://b.com/x"),
    ],
)
def test_a_pattern_matches(include: Any, url: str) -> None:
    rules = Rules.load([{"include": include, "ignore_path_case": True}])
    assert rules.marks(urlsplit(url).netloc) == ("",)
    assert rules.canonicalize(url).rules == (0,)


@pytest.mark.parametrize(
    ("pattern", "url"),
    [
        ({"include": "example.com"}, "http://myexample.com/"),
        ({"include": "example.com"}, "http://example.com.other/"),
        ({"include": "example.com"}, "http://example.com:8080/"),
        ({"include": "example.com/a"}, "http://shop.example.com/a"),
        ({"include": "https://example.com"}, "http://example.com/"),
        ({"include": "example.com:8080"}, "http://example.com/"),
        ({"include": "example.com/a|"}, "http://example.com/ab"),
        ({"include": "example.com?a=1"}, "http://example.com/?a=2"),
        ({"include": "example.com/#!"}, "http://example.com/#a"),
        ({"include": "example.com", "exclude": "example.com/a"}, "http://example.com/a/b"),
        ({"exclude": "/search"}, "http://example.com/search?q"),
    ],
)
def test_a_pattern_does_not_match(pattern: dict[str, Any], url: str) -> None:
    assert Rules.load([{**pattern, "ignore_www": True}]).canonicalize(url).rules == ()


PATTERNS = st.lists(
    st.tuples(
        st.lists(
            st.sampled_from(
                [
                    "example.com",
                    "shop.example.com",
                    "com/a",
                    "example.com/a",
                    "example.com/a/*",
                    "www.example.com/A",
                    "example.com/*/b",
                    "example.com/A|",
                    "http://example.com",
                    "example.com:8080",
                    "example.com/?a=1",
                    "example.com/#!",
                    "bücher.example",
                    "[::1]:8000/b",
                    "127.0.0.1/b/b",
                ]
            ),
            max_size=3,
        ).map(tuple),
        st.lists(st.sampled_from(["/b/b/", "shop.example.com/a b", "/?b=1"]), max_size=1).map(
            tuple
        ),
    ),
    max_size=6,
)


@given(PATTERNS, urls())
def test_the_look_up_finds_what_trying_each_pattern_finds(
    pairs: list[tuple[tuple[str, ...], tuple[str, ...]]], url: str
) -> None:
    matchers = [compile_patterns(*pair) for pair in pairs]
    index = Index(matchers)
    url = canonicalize_url(url, keep_fragments=True)
    assume("@" not in url)  # url-matcher takes user and password for a part of the host
    expected = [number for number, matcher in enumerate(matchers) if matcher.match(url)]
    assert index.match(url) == expected


@given(PATTERNS, urls())
def test_a_host_that_no_rule_concerns_has_no_url_that_one_matches(
    pairs: list[tuple[tuple[str, ...], tuple[str, ...]]], url: str
) -> None:
    rules = Rules.load([{"include": a, "exclude": b, "ignore_path_case": True} for a, b in pairs])
    if rules.canonicalize(url).rules:
        assert rules.marks(urlsplit(url).netloc) == ("",)


def test_a_host_of_no_rule_is_of_no_concern() -> None:
    rules = Rules.load([{"include": ["example.com", "a.b.com/x"], "ignore_path_case": True}])
    concerned = ["example.com", "x.Example.com:1", "u@example.com", "a.b.com", "www.a.b.com"]
    assert [netloc for netloc in concerned if not rules.marks(netloc)] == []
    others = ["b.com", "com", "", "myexample.com", "[::1", "\x00", "example.com.", "a.com:b:c"]
    assert [netloc for netloc in others if rules.marks(netloc)] == []
    assert Rules.load([{"ignore_path_case": True}]).marks("any.com")
    assert not Rules.load(None).marks("any.com")


def spares(rules: Rules, url: str) -> bool:
    """Whether no rule can change a URL, as it is written."""
    netloc = re.split("[/?#]", url.partition("://")[2])[0]
    return not any(mark in url for mark in rules.marks(netloc))


ONE_KEY_EACH = [
    {key: value} for key, value in {**EVERYTHING, "ignore_params": "a", "keep_params": "b"}.items()
]
ONE_KEY_EACH += [{"remove_segments": 0}, {"keep_fragment": True}, {"count_headers": "a"}]
ONE_KEY_EACH += [{"ignore_body": True}, {"ignore_www": False}, {"sort_query": True}]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(ONE_KEY_EACH),
            st.sampled_from([{}, {"include": "example.com"}, {"include": "example.com/a"}]),
        ),
        max_size=3,
    ),
    urls(),
)
def test_a_url_that_is_spared_is_changed_by_no_rule(
    pairs: list[tuple[dict[str, Any], dict[str, Any]]], url: str
) -> None:
    rules = Rules.load([{**pattern, **rule} for rule, pattern in pairs])
    if spares(rules, url):
        found = rules.canonicalize(url)
        assert (found.url, found.headers, found.steps) == (canonicalize_url(url), (), ())


def test_plain_urls_are_spared_by_the_presets() -> None:
    rules = Rules.load([{"preset": ["tracking", "sessions"], "ignore_www": True}])
    assert spares(rules, "https://example.com/a/b.html")
    assert not spares(rules, "https://example.com/a/b.html?c=1")
    assert not spares(rules, "https://example.com/a;b=1")
    assert not spares(rules, "https://www.example.com/a")
    assert spares(Rules.load(None), "https://example.com/?a")


def test_of_a_thousand_rules_only_those_that_may_match_are_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rules = Rules.load(
        [{"include": f"example.com/{at}/", "ignore_params": "a"} for at in range(500)]
        + [{"include": f"site{at}.example", "ignore_params": "a"} for at in range(500)]
    )
    tried = []
    match = PatternsMatcher.match

    def count(self: PatternsMatcher, url: str) -> bool:
        tried.append(self)
        return match(self, url)

    monkeypatch.setattr(PatternsMatcher, "match", count)
    assert rules.canonicalize("http://example.com/77/?a").rules == (77,)
    assert rules.canonicalize("http://site7.example/?a").rules == (507,)
    assert rules.canonicalize("http://example.com/nowhere").rules == ()
    assert rules.canonicalize("http://other.example/").rules == ()
    assert len(tried) == 2


def test_memory_does_not_grow_with_hosts_and_names(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (patterns, rules_module, globs):
        monkeypatch.setattr(module, "_MEMO_LIMIT", 100)
    rules = Rules.load([{"include": "example.com", "ignore_params": "a*"}])
    for at in range(1_000):
        netloc = f"shop{at}.example.com"
        assert rules.marks(netloc) == ("?",)
        assert not rules.marks(f"shop{at}.example.org")
        assert rules.canonicalize(f"http://{netloc}/?a{at}&b{at}").url == f"http://{netloc}/?b{at}="
    ((_, _, names),) = rules._changes((0,))._changes
    for memo in (rules._index._hosts_of, rules.marks, names._match):
        assert 0 < memo.cache_info().currsize <= 100


def test_a_url_that_url_matcher_cannot_read_matches_nothing() -> None:
    assert Index([compile_patterns((), ("/a",))]).match("http://[::1/b") == []


def test_patterns_are_read_without_asking_for_a_list_of_domains(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*arguments: object, **named: object) -> None:
        raise AssertionError("tldextract would fetch its list from the network")

    monkeypatch.setattr("tldextract.tldextract.TLDExtract.__call__", fail)
    rules = Rules.load([{"include": "never-seen-before.co.uk/a", "ignore_www": True}])
    assert rules.canonicalize("http://www.never-seen-before.co.uk/a").steps


# Presets


@pytest.mark.parametrize("name", presets())
def test_a_preset_is_a_rule_by_itself(name: str) -> None:
    rule = Rules.load([{"preset": name}])[0]
    assert rule.ignore_params
    for key, names in presets()[name].items():
        assert getattr(rule, key) == names
        assert len(set(names)) == len(names)


# Bad input


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({"ignore_param": "a"}, "unknown key 'ignore_param' .did you mean 'ignore_params'."),
        ({"ignore": True}, "unknown key 'ignore' .did you mean '.*'. Known: count_headers, "),
        ({"Include": "a.com"}, "unknown key 'Include' .did you mean 'include'."),
        ({1: 2}, "unknown key 1 .did you mean"),
        ({"ignore_params": ""}, "an empty name matches nothing"),
        ({"ignore_params": "a["}, "has an unmatched bracket"),
        ({"ignore_params": "a]"}, "has an unmatched bracket"),
        ({"ignore_params": "a[[]"}, "has an unmatched bracket"),
        ({"ignore_params": "[a-z]*"}, "looks like a set of characters"),
        ({"ignore_params": "[!a]"}, "looks like a set of characters"),
        ({"ignore_params": "a\\"}, "has a backslash before none of"),
        ({"ignore_params": r"\d"}, "has a backslash before none of"),
        ({"ignore_params": "a=1"}, "'a=1' is not the name of a parameter"),
        ({"ignore_params": "a%5B"}, "is encoded: names are compared decoded"),
        ({"ignore_params": []}, "is an empty list, which does nothing"),
        ({"ignore_params": ["a", 1]}, "must be a name or a list of names, and 1 is not"),
        ({"ignore_params": {"a": 1}}, "must be a name or a list of names"),
        ({"ignore_params": None}, "must be a name or a list of names"),
        ({"keep_params": "a", "ignore_params": "b"}, "cannot be combined"),
        (
            {"keep_params": "a", "preset": "tracking"},
            r"ignore_params \(of the preset\) cannot be combined",
        ),
        ({"ignore_body": True, "ignore_body_fields": "a"}, "cannot be combined"),
        ({"preset": "traking"}, "'traking' is not a preset .did you mean 'tracking'"),
        ({"sort_query": "no"}, "sort_query = 'no' cannot be used: must be true or false"),
        ({"ignore_www": 1}, "must be true or false"),
        ({"keep_fragment": "hash"}, "must be true, false or 'hashbang'"),
        ({"ignore_path_params": False}, "must be a name or a list of names"),
        ({"remove_segments": [True]}, "must be a whole number or a list of them"),
        ({"remove_segments": "1"}, "must be a whole number or a list of them"),
        ({"ignore_www": True, "order": 1.5}, "must be a whole number"),
        ({"ignore_www": True, "name": " "}, "must be a string"),
        ({"count_headers": "a: b"}, "'a: b' is not the name of a header"),
        ({}, "the rule does nothing"),
        ({"include": "a.com", "order": 3}, "the rule does nothing"),
        ({"include": "/a"}, "'/a' has no host: write it as example.com/path"),
        ({"include": ["a.com", " "]}, "is empty: leave it out for every URL"),
        ({"include": "*.a.com"}, "has a wildcard in its host"),
        ({"include": "a.com?b*=1"}, "has a wildcard in the name of a parameter"),
        ({"include": "htp://a.com"}, "has none of the schemes http, https"),
        ({"include": "http:/a.com"}, "a scheme is followed by ://"),
        *([({"include": "a.com:99999"}, "cannot be read: Port out of range")] * IS_STRICT),
        ({"include": "http://[::1"}, "cannot be read: Invalid IPv6 URL"),
        ({"include": "user@a.com"}, "never matches: 'user@a.com' is not a host"),
        ({"include": "a b.com"}, "never matches: 'a b.com' is not a host"),
        ({"include": "a.com", "exclude": "a.com"}, "never matches a URL .exclude removes all"),
        ({"include": "a.com/b|", "exclude": "/b"}, "never matches a URL .exclude removes all"),
        ({"exclude": "/"}, "exclude leaves no URL at all"),
        ({"exclude": "http:///a"}, "has a scheme, but no host"),
        ({"processor": "queryRemoval", "args": ["a"]}, "the rule has no 'urlPattern'"),
    ],
)
def test_a_rule_that_is_invalid_is_refused(rule: dict[Any, Any], message: str) -> None:
    if not any(key in rule for key in ("ignore_params", "preset", "ignore_www", "processor")):
        rule = {"count_headers": "a", **rule} if "include" in rule or "exclude" in rule else rule
        if rule.get("include") == "a.com" and "order" in rule:
            del rule["count_headers"]
    with pytest.raises(ConfigError, match=rf"^ALTSCHED_URL_RULES\[1\]: .*{message}"):
        Rules.load([{"ignore_www": True}, rule])


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            {"ignore_www": True},
            "must be a list of rules, or the path of a file.*Put it into a list",
        ),
        (5, "must be a list of rules, or the path of a file"),
        ([5], r"\[0\]: 5 is not a rule: it must be a dict"),
        ("rules.yaml", "'rules.yaml' cannot be used: a file with rules ends in .json or .toml"),
        ("nowhere.toml", "'nowhere.toml' cannot be read: No such file or directory"),
        (["nowhere.json"], "'nowhere.json' cannot be read: No such file or directory"),
        ("folder.json", "'folder.json' cannot be read: Is a directory"),
        ("bytes.json", "'bytes.json' is not UTF-8: byte 1 is not"),
        ('[{"a"]', "ALTSCHED_URL_RULES, line 1, column 6: not JSON"),
        ("broken.json", "broken.json, line 2, column 1: not JSON: Expecting"),
        ("deep.json", "deep.json.*not JSON"),
        ("object.json", "object.json: a JSON file with rules must hold a list"),
        ("unknown.json", r"unknown.json\[1\], line 3: unknown key 'ignore_ww' .did you mean"),
        ("broken.toml", "broken.toml: not TOML: .*line 1"),
        ("table.toml", "table.toml: unknown table 'rule' .did you mean 'rules'."),
        ("single.toml", r"single.toml: each rule must be a table of its own, below \[\[rules\]\]"),
        ("unknown.toml", r"unknown.toml\[1\], line 3: unknown key 'a'"),
        ("inline.toml", r"inline.toml\[0\]: unknown key 'a'"),
    ],
)
def test_a_source_that_cannot_be_read_is_refused(
    source: Any, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("folder.json").mkdir()
    Path("bytes.json").write_bytes(b"[\xff]")
    for name, text in {
        "broken.json": "[\n}",
        "deep.json": "[" * 100_000,
        "object.json": '{"rules": []}',
        "unknown.json": '[{"ignore_www": true}\n,\n{"ignore_ww": true}]',
        "broken.toml": "[[rules]\n",
        "table.toml": "[[rule]]\nignore_www = true",
        "single.toml": "[rules]\nignore_www = true",
        "unknown.toml": "[[rules]]\nignore_www = true\n [[ rules ]]\na = 1",
        "inline.toml": "rules = [{a = 1}]",
    }.items():
        Path(name).write_text(text)
    with pytest.raises(ConfigError, match=message):
        Rules.load(source)


# Files


def test_rules_are_read_from_files(tmp_path: Path) -> None:
    as_toml, as_json = tmp_path / "rules.toml", tmp_path / "rules.JSON"
    as_toml.write_text(
        textwrap.dedent(
            """
            [[rules]]
            name = "lists"
            include = "example.com/list"
            keep_params = ["page", "größe"]

            [[rules]]
            ignore_www = true
            """
        ),
        encoding="utf-8",
    )
    listed = [
        {"name": "lists", "include": "example.com/list", "keep_params": ["page", "größe"]},
        {"ignore_www": True},
    ]
    as_json.write_text(json.dumps(listed), encoding="utf-8-sig")
    expected = Rules.load(listed).digest
    for source in (as_toml, str(as_toml), as_json, json.dumps(listed), tuple(listed)):
        assert Rules.load(source).digest == expected
    both = Rules.load([as_toml, {"ignore_scheme": True}, str(as_json)])
    assert [both.label(index) for index in range(5)] == [
        "lists",
        f"{as_toml}[1]",
        "ALTSCHED_URL_RULES[1]",
        "lists",
        f"{as_json}[1]",
    ]
    as_toml.write_text("")
    assert len(Rules.load(as_toml)) == 0


# The documentation


def test_the_rules_in_the_readme_can_be_loaded(tmp_path: Path) -> None:
    (code,) = code_blocks("README.rst", "toml")
    path = tmp_path / "rules.toml"
    path.write_text(code)
    rules = Rules.load(path)
    assert len(rules) == 2
    first, second = [
        rules.canonicalize(f"https://shop.example/item?id=1{more}").url
        for more in ("", "&utm_source=mail&callback=f&_=123")
    ]
    assert first == second


def test_the_examples_of_pages_with_several_urls_are_true(tmp_path: Path) -> None:
    (code,) = [code for code in code_blocks("fingerprints.rst", "toml") if "old.example" in code]
    path = tmp_path / "rules.toml"
    path.write_text(code)
    rules = Rules.load(path)
    table = rows(section("fingerprints.rst", "Pages that have several URLs"))
    assert len(table) >= 9
    used = set()
    for one, other, same in table:
        found = [rules.canonicalize(literals(cell)[0]) for cell in (one, other)]
        assert (found[0].url == found[1].url) is (same.astext() == "yes"), one.astext()
        used |= {rule for item in found for rule in item.rules}
    # The last one is for bodies and headers.
    assert used == set(range(len(rules) - 1))
    url = "https://api.example/query"
    bodies = [b'{"q": 1, "timestamp": 2}', b'{"timestamp": 3, "q": 1}']
    first, second = [
        rules.canonicalize(url, body=body, content_type="application/json") for body in bodies
    ]
    assert first.body == second.body != b""
    assert first.headers == ("accept-language",)


def test_every_key_is_documented_and_the_other_way_round() -> None:
    assert first_column("fingerprints.rst", "The keys") == [field.name for field in fields(Rule)]


def test_every_preset_is_documented_with_all_of_its_names() -> None:
    table = rows(section("fingerprints.rst", "Presets"))
    documented = {literals(row[0])[0]: literals(row[1]) for row in table}
    assert documented == {
        name: [item for names in preset.values() for item in names]
        for name, preset in presets().items()
    }


def test_every_example_of_rules_in_the_reference_can_be_loaded(tmp_path: Path) -> None:
    blocks = code_blocks("fingerprints.rst", "toml")
    assert blocks
    for code in blocks:
        path = tmp_path / "rules.toml"
        path.write_text(code)
        assert len(Rules.load(path)) == code.count("[[rules]]")
