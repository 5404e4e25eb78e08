"""Rules of duplicate-url-discarder mean here what they mean there."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from duplicate_url_discarder.url_canonicalizer import UrlCanonicalizer
from duplicate_url_discarder_rules import RULE_PATHS
from w3lib.url import canonicalize_url

from scrapy_altsched.canonical import Rules
from scrapy_altsched.canonical.discarder import PROCESSORS
from scrapy_altsched.canonical.rule import KEYS
from scrapy_altsched.errors import ConfigError

from ..docs.test_docs import literals, rows, section

S = "http://example.com/"


def canonical(url: str, rule: dict[str, Any]) -> str:
    return Rules.load([rule]).canonicalize(url).url


def foreign(processor: str, *arguments: Any, include: Sequence[str] = (), order: int = 100) -> Any:
    return {
        "args": list(arguments),
        "order": order,
        "processor": processor,
        "urlPattern": {"include": list(include)},
    }


@pytest.mark.parametrize(
    ("rule", "url", "expected"),
    [
        (foreign("queryRemoval", "foo", "b*"), S + "?foo=1&bar=2&foo=3&b*=4", S + "?bar=2"),
        (foreign("queryRemoval", "a%5B%5D"), S + "?a[]=1&b=2", S + "?b=2"),
        (foreign("queryRemovalExcept", "foo", "b*"), S + "?foo=1&bar=2&foo=3", S + "?foo=1&foo=3"),
        (foreign("queryRemovalExcept"), S + "?foo=1", S),
        (foreign("subpathRemoval", 0, 2, -1), S + "a/b/c/d", S + "b/d"),
        (foreign("normalizer"), "http://www2.example.com/a/", S + "a"),
        ({**foreign("normalizer"), "args": None}, "http://www.example.com/a//", S + "a"),
        (foreign("queryRemoval", ""), S + "?a=1&=2", S + "?a=1"),
        (foreign("queryRemoval", "a=1"), S + "?a=1", S + "?a=1"),
        (foreign("queryRemoval"), S + "?a=1", S + "?a=1"),
    ],
)
def test_a_rule_of_duplicate_url_discarder_means_the_same(
    rule: dict[str, Any], url: str, expected: str
) -> None:
    assert canonical(url, rule) == expected


def test_a_file_of_duplicate_url_discarder_loads_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "rules.json"
    path.write_text(
        json.dumps(
            [
                foreign("queryRemoval", "foo", include=["example.com"]),
                foreign("queryRemoval", "PHPSESSIONID"),
                foreign("subpathRemoval", include=["idle.example"]),
            ]
        )
    )
    rules = Rules.load(path)
    assert rules.canonicalize(S + "?foo=1&PHPSESSIONID=2").url == S + "?PHPSESSIONID=2"
    # As there, rules without a pattern apply only where none with a pattern does.
    assert rules.canonicalize("http://other.example/?PHPSESSIONID=2").url == "http://other.example/"
    idle = "http://idle.example/?PHPSESSIONID=2"
    assert rules.canonicalize(idle).url == idle


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"processor": "queryRemoveal"},
            "unknown processor 'queryRemoveal' .did you mean 'queryRemoval'",
        ),
        ({"processor": 5}, "unknown processor 5"),
        ({"argss": []}, "unknown key 'argss' .did you mean 'args'"),
        ({"args": "foo"}, "args = 'foo' cannot be used: must be a list"),
        ({"args": [1]}, "1 is not the name of a parameter"),
        ({"processor": "subpathRemoval", "args": ["1"]}, "'1' is not a whole number"),
        ({"processor": "normalizer", "args": [1]}, "the processor normalizer takes none"),
        ({"urlPattern": "a.com"}, "must hold include and exclude"),
        (
            {"urlPattern": {"includ": []}},
            "unknown key of urlPattern 'includ' .did you mean 'include'",
        ),
        ({"urlPattern": {"include": ["/a"]}}, "has no host"),
        ({"order": None}, "order = None cannot be used"),
    ],
)
def test_a_bad_rule_of_duplicate_url_discarder_is_refused(
    change: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=rf"^ALTSCHED_URL_RULES\[0\]: .*{message}"):
        Rules.load([{**foreign("queryRemoval", "a"), **change}])


def test_every_processor_of_duplicate_url_discarder_is_documented() -> None:
    table = rows(section("fingerprints.rst", "Rules of duplicate-url-discarder"))
    assert [literals(row[0])[0] for row in table] == list(PROCESSORS)
    for processor, (_, effect) in zip(PROCESSORS, table, strict=True):
        arguments = () if processor == "normalizer" else (1,) if "sub" in processor else ("a",)
        keys = PROCESSORS[processor](arguments)
        assert list(keys) == [text for text in literals(effect) if text in KEYS]


def urls_for(published: Sequence[dict[str, Any]], source: random.Random) -> str:
    """A URL that one of the rules, or a few of them, may be for."""
    rule = source.choice(published)
    include = source.choice(rule["urlPattern"]["include"] or ["nowhere.example"]) or "any.example"
    url = include.replace("*", "zz").rstrip("|").partition("#")[0]
    if "://" not in url:
        url = source.choice(["http://", "https://", "http://www.", "https://www2."]) + url
    if "?" not in url:
        slash = "" if "/" in url.partition("://")[2] else "/"
        url += slash + source.choice(["", "a/b/c", "a/", "p/q/r/s/t"])
    known = [str(argument) for argument in rule["args"] or ["x"]]
    more = [str(argument) for argument in source.choice(published)["args"] or ["y"]]
    fields = [
        f"{source.choice([*known, *more, 'keep'])}={source.choice(['1', '2', ''])}"
        for _ in range(source.randrange(6))
    ]
    if fields:
        url += ("&" if "?" in url else "?") + "&".join(fields)
    return url


def test_their_published_rules_give_the_same_canonical_forms_as_there() -> None:
    paths = sorted(RULE_PATHS)
    published = [rule for path in paths for rule in json.loads(Path(path).read_text())]
    ours, theirs = Rules.load(paths), UrlCanonicalizer(paths)
    assert len(ours) == len(published) > 300
    seed = random.randrange(2**32)
    print(f"{seed=}")
    source = random.Random(seed)
    changed = 0
    for _ in range(2_000):
        url = urls_for(published, source)
        expected = canonicalize_url(theirs.process_url(url))
        assert ours.canonicalize(url).url == expected, url
        changed += expected != canonicalize_url(url)
    assert changed > 500
