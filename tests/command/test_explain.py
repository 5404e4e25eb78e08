"""``scrapy altsched explain``, as a user types it."""

from __future__ import annotations

import gzip
import json
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
from scrapy import Request
from scrapy.utils.request import fingerprint as scrapys
from w3lib.url import canonicalize_url

from example_project.example_project.site import DATA
from scrapy_altsched.command.explain import read_links
from scrapy_altsched.errors import InputError

from ..crawls import altsched, write_project
from ..docs.test_docs import code_blocks

SETTINGS = """
SPIDER_MODULES = ["spiders"]
ADDONS = {"scrapy_altsched.Addon": 500}
ALTSCHED_URL_RULES = "rules.toml"
"""
RULES = """
[[rules]]
name = "tracking"
preset = "tracking"

[[rules]]
include = "shop.example"
ignore_www = true
ignore_trailing_slash = true
count_headers = "Accept-Language"
"""
SPIDERS = """
from scrapy import Spider

class Counting:
    made = 0
    def fingerprint(self, request):
        self.made += 1
        return bytes([self.made])

class Shop(Spider):
    name = "shop"
    custom_settings = {"ALTSCHED_URL_RULES": [{"name": "of settings", "ignore_params": "page"}]}
    url_rules = [{"name": "of the spider", "ignore_params": "sort"}]
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return write_project(
        tmp_path, **{"settings.py": SETTINGS, "rules.toml": RULES, "spiders.py": SPIDERS}
    )


def explain(project: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    return altsched("explain", *arguments, cwd=project, COLUMNS="80")


def answer(project: Path, *arguments: object) -> Any:
    run = explain(project, "--json", *arguments)
    assert (run.returncode, run.stderr) == (0, "")
    return json.loads(run.stdout)


# URLs


@pytest.mark.smoke
def test_a_url_is_explained_step_by_step(project: Path) -> None:
    run = explain(project, "http://www.shop.example/a/?utm_source=x&b=1#top")
    assert (run.returncode, run.stderr) == (0, "")
    *lines, fingerprint, _ = run.stdout.splitlines()
    assert lines == [
        "http://www.shop.example/a/?utm_source=x&b=1#top",
        "  ignore_www, by rules.toml[1]",
        "    → http://shop.example/a/?b=1&utm_source=x",
        "  ignore_trailing_slash, by rules.toml[1]",
        "    → http://shop.example/a?b=1&utm_source=x",
        "  ignore_params, by tracking",
        "    → http://shop.example/a?b=1",
        "  headers that count: accept-language",
        "  canonical form: http://shop.example/a?b=1",
    ]
    assert fingerprint == f"  fingerprint: {scrapys(Request('http://shop.example/a?b=1')).hex()}"


def test_a_rule_that_changes_nothing_and_no_rule_at_all_are_told_apart(project: Path) -> None:
    run = explain(project, "http://shop.example/a")
    assert "  tracking matches, and changes nothing\n" in run.stdout
    run = explain(project, "http://shop.example/a", "-s", "ALTSCHED_URL_RULES=")
    assert "  no rule matches\n" in run.stdout


def test_how_old_a_page_has_to_be_is_told_with_the_rule_that_says_so(project: Path) -> None:
    rules = '[{"include": "shop.example/lists/*", "recrawl_after": "run"}]'
    urls = "http://shop.example/lists/1", "http://shop.example/1"
    run = explain(project, *urls, "-s", f"ALTSCHED_URL_RULES={rules}")
    (line,) = (line for line in run.stdout.splitlines() if "old enough" in line)
    assert line == "  crawled again if it is old enough: run, by ALTSCHED_URL_RULES[0]"
    assert run.stdout.count("no rule matches") == 1
    settings = "-s", f"ALTSCHED_URL_RULES={rules}", "-s", "ALTSCHED_RECRAWL_AFTER=7d"
    found = [it["recrawl_after"] for it in answer(project, *urls, *settings)["urls"]]
    assert found == ["run", "604800 s"]
    assert answer(project, *urls)["urls"][0]["recrawl_after"] is None


def test_long_urls_are_not_broken(project: Path) -> None:
    url = f"http://shop.example/{'a' * 500}?[b]=:smile:"
    run = explain(project, url)
    assert run.stdout.splitlines()[0] == url


def test_two_urls_that_are_one(project: Path) -> None:
    urls = ["http://www.shop.example/a/", "http://shop.example/a?gclid=5"]
    run = explain(project, *urls)
    assert run.stdout.endswith("\nThe same as the first: crawled once.\n")
    found = answer(project, *urls)["urls"]
    assert [url["canonical"] for url in found] == ["http://shop.example/a"] * 2
    assert found[0]["fingerprint"] == found[1]["fingerprint"]
    assert found[1]["is_first"]
    assert found[1]["differences"] == []
    assert found[1]["rules"][0] == {"index": 0, "label": "tracking"}
    assert found[1]["steps"] == [
        {
            "rule": 0,
            "key": "ignore_params",
            "before": "http://shop.example/a?gclid=5",
            "after": "http://shop.example/a",
        }
    ]


def test_two_urls_that_differ_are_said_to_differ_in_what(project: Path) -> None:
    first = "http://a.com/x?b=1&c=2&d=3&d=4"
    differences = {
        "https://a.com/x?b=1&c=2&d=3&d=4": ["The scheme differs: http and https."],
        "http://b.com/x?b=1&c=2&d=3&d=4": ["The host differs: a.com and b.com."],
        "http://a.com/X?b=1&c=2&d=3&d=4": ["The path differs: /x and /X."],
        "http://a.com/x?a=&c=3&d=4&d=5": [
            "Only the first has the parameter b (1).",
            "The parameter c differs: 2 and 3.",
            "The parameter d differs: 3, 4 and 4, 5.",
            "Only the second has the parameter a ().",
        ],
    }
    found = answer(project, first, *differences)["urls"]
    assert {url["url"]: url["differences"] for url in found[1:]} == differences
    for url, expected in list(differences.items())[-1:]:
        run = explain(project, first, url)
        tail = ["Not the same as the first: crawled both.", *(f"  {text}" for text in expected)]
        assert run.stdout.splitlines()[-len(tail) :] == tail


def test_a_fingerprinter_may_tell_apart_what_the_rules_do_not(project: Path) -> None:
    one = "http://a.com/1"
    name = "REQUEST_FINGERPRINTER_CLASS=spiders.Counting"
    run = explain(project, one, f"{one}?utm_id=1", "-s", name)
    assert "Their canonical forms are the same: it is the fingerprinter that differs." in run.stdout


def test_the_order_of_the_query_and_the_fragment_differ_where_a_rule_keeps_them(
    project: Path,
) -> None:
    rules = '[{"sort_query": false, "keep_fragment": true}]'
    urls = ["http://a.com/?a&b#c", "http://a.com/?b&a#d"]
    found = answer(project, *urls, "-s", f"ALTSCHED_URL_RULES={rules}")["urls"]
    assert found[1]["differences"] == [
        "The parameters are in another order, which a rule keeps.",
        "The fragment differs: c and d.",
    ]


def test_more_urls_are_compared_with_the_first(project: Path) -> None:
    run = explain(project, "http://a.com/1", "http://a.com/2", "http://a.com/1?utm_id=1")
    assert "\nhttp://a.com/2: Not the same as the first" in run.stdout
    assert "\nhttp://a.com/1?utm_id=1: The same as the first" in run.stdout


def test_the_rules_are_those_of_the_spider(project: Path) -> None:
    url = "http://shop.example/a?page=1&sort=2"
    assert answer(project, url)["urls"][0]["canonical"] == url
    found = answer(project, url, "--spider", "shop")["urls"][0]
    assert found["canonical"] == "http://shop.example/a"
    assert [rule["label"] for rule in found["rules"]] == ["of settings", "of the spider"]


# Files of links


LINKS = """
http://shop.example/1
http://www.shop.example/1/
http://shop.example/1?utm_source=a
http://shop.example/1?utm_source=a
http://shop.example/2#top
http://shop.example/2
http://shop.example/3?fbclid=1

http://shop.example/3
mailto:shop@shop.example
#top
"""


def test_the_urls_of_a_file_that_merge_are_shown_largest_group_first(project: Path) -> None:
    (project / "links.txt").write_text(LINKS)
    found = answer(project, "--links", "links.txt")
    assert found == {
        "rules": 2,
        "links": 10,
        "urls": 9,
        "refused": 2,
        "requests_without_rules": 6,
        "requests_with_rules": 3,
        "kept_apart": 0,
        "groups": [
            {
                "canonical": "http://shop.example/1",
                "urls": [
                    "http://shop.example/1",
                    "http://www.shop.example/1/",
                    "http://shop.example/1?utm_source=a",
                ],
            },
            {
                "canonical": "http://shop.example/3",
                "urls": ["http://shop.example/3?fbclid=1", "http://shop.example/3"],
            },
        ],
    }
    run = explain(project, "--links", "links.txt", "--limit", 1)
    assert (run.returncode, run.stderr) == (0, "")
    assert "│    3 │ http://shop.example/1" in run.stdout
    assert "http://shop.example/3" not in run.stdout
    assert "And 1 more group; --limit 0 shows all." in run.stdout
    assert "Without the rules 6 requests, with them 3." in run.stdout
    assert "2 URLs cannot be crawled, for example 'mailto:shop@shop.example'" in run.stdout


def test_what_the_rules_keep_apart_is_counted(project: Path) -> None:
    (project / "links.txt").write_text("http://a.com/#!1\nhttp://a.com/#!2\nhttp://a.com/#top\n")
    rules = '[{"keep_fragment": "hashbang"}]'
    found = answer(project, "--links", "links.txt", "-s", f"ALTSCHED_URL_RULES={rules}")
    assert found["kept_apart"] == 1
    assert (found["requests_without_rules"], found["requests_with_rules"]) == (1, 3)


def test_without_rules_nothing_merges_and_that_is_said(project: Path) -> None:
    (project / "links.txt").write_text("http://a.com/1\nhttp://a.com/2\n")
    run = explain(project, "--links", "links.txt", "-s", "ALTSCHED_URL_RULES=")
    assert "There are no rules: set ALTSCHED_URL_RULES" in run.stdout
    assert "Without the rules 2 requests, with them 2." in run.stdout


def test_a_recorded_crawl_is_read(project: Path) -> None:
    rules = '[{"include": "docs.python.org", "remove_segments": 0}]'
    found = answer(project, "--links", DATA, "--limit", 0, "-s", f"ALTSCHED_URL_RULES={rules}")
    with gzip.open(DATA, "rt") as lines:
        links = [
            link for line in lines for page in [json.loads(line)] for link in (page[0], *page[1])
        ]
    assert found["links"] == len(links)
    assert found["urls"] == len(set(links))
    crawlable = {canonicalize_url(link) for link in links if link.startswith("http")}
    assert found["requests_without_rules"] == len(crawlable)
    assert found["requests_with_rules"] < len(crawlable)
    assert sum(len(group["urls"]) - 1 for group in found["groups"]) == (
        found["requests_without_rules"] - found["requests_with_rules"]
    )


def test_links_of_a_page_may_be_relative(project: Path) -> None:
    (project / "links.jsonl").write_text(
        '["http://a.com/x/", ["../y?utm_id=1", "/y", "http://[::1"]]'
    )
    found = answer(project, "--links", "links.jsonl")
    assert found["groups"] == [
        {"canonical": "http://a.com/y", "urls": ["http://a.com/y?utm_id=1", "http://a.com/y"]}
    ]
    assert found["refused"] == 1


# Bad input


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ((), 2, "explain needs either URLs or --links FILE."),
        (("http://a.com", "--links", "empty.txt"), 2, "explain needs either URLs or --links FILE."),
        (("a.com",), 2, "'a.com' cannot be crawled: Missing scheme"),
        (("http://[::1",), 2, "'http://[::1' cannot be crawled"),
        (("x" * 5_000,), 2, "cannot be crawled: Missing scheme"),
        (("http://a.com", "--spider", "shopp"), 2, "no spider 'shopp'. Did you mean 'shop'?"),
        (("--links", "links.txt", "--limit", "-1"), 2, "--limit must be 0 or more"),
        (("--links", "nowhere.txt"), 1, "nowhere.txt cannot be read: No such file or directory."),
        (("--links", "empty.txt"), 1, "empty.txt has no URL that can be crawled."),
        (("--links", "words.txt"), 1, "no URL that can be crawled, for example 'hello' (Missing"),
        (("--links", "torn.jsonl.gz"), 1, "torn.jsonl.gz is damaged"),
        (("http://a.com", "-s", "ALTSCHED_URL_RULES=no.toml"), 1, "'no.toml' cannot be read"),
        (
            ("http://a.com", "-s", 'ALTSCHED_URL_RULES=[{"ignore": "a"}]'),
            1,
            "ALTSCHED_URL_RULES[0], line 1: unknown key 'ignore' (did you mean",
        ),
    ],
)
def test_bad_input_is_refused_in_one_sentence(
    arguments: tuple[str, ...], code: int, message: str, project: Path
) -> None:
    (project / "empty.txt").write_text("\n")
    (project / "words.txt").write_text("hello\n")
    (project / "torn.jsonl.gz").write_bytes(gzip.compress(PAGES, mtime=0)[:-20])
    run = explain(project, *arguments)
    assert (run.returncode, run.stdout) == (code, "")
    assert message in run.stderr
    assert len(run.stderr.strip().splitlines()) == 1 or "usage" in run.stderr.lower()
    assert "Traceback" not in run.stderr


PAGES = b'["http://a.com/", []]\n' * 1_000


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("bytes.txt", b"http://a.com\n\xff\n", "bytes.txt, line 2: this is not UTF-8."),
        (
            "plain.gz",
            b"http://a.com\n",
            "plain.gz is not a gzip file, though its name ends in .gz.",
        ),
        ("torn.gz", gzip.compress(PAGES, mtime=0)[:-20], "torn.gz is damaged"),
        ("bent.gz", gzip.compress(PAGES, mtime=0)[:20] + b"bent" * 9, "bent.gz is damaged"),
        ("broken.jsonl", PAGES + b"[", "broken.jsonl, line 1001: this is not a page, as in .url,"),
        ("other.jsonl", b'{"url": "http://a.com/"}', "line 1: this is not a page"),
        ("number.jsonl", b'["http://a.com/", [1]]', "line 1: this is not a page"),
        ("deep.jsonl.gz", gzip.compress(b"[" * 100_000, mtime=0), "line 1: this is not a page"),
    ],
)
def test_a_file_of_links_that_cannot_be_read_is_refused(
    name: str, content: bytes, message: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        list(read_links(path))


def test_a_folder_is_no_file_of_links(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read: Is a directory"):
        list(read_links(tmp_path))


def test_a_file_of_links_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "links.txt"
    path.write_text("http://a.com/\r\n\r\n http://b.com/ü", encoding="utf-8-sig")
    assert list(read_links(path)) == ["http://a.com/", "http://b.com/ü"]


# The documentation


def test_the_output_in_the_documentation_is_what_the_command_prints(project: Path) -> None:
    rules = [text for text in code_blocks("fingerprints.rst", "toml") if "old.example" not in text]
    commands = [text for text in code_blocks("fingerprints.rst", "bash") if " explain " in text]
    outputs = code_blocks("fingerprints.rst", "text")
    assert len(rules) == len(commands) == len(outputs) == 2
    for text, command, output, folder in zip(
        rules, commands, outputs, (project, DATA.parent.parent), strict=True
    ):
        path = project / "rules.toml"
        path.write_text(text)
        program, altsched, verb, *arguments = shlex.split(command)
        assert (program, altsched, verb) == ("scrapy", "altsched", "explain")
        # The first, in a project that names the file; the second, in the example project.
        given = [
            "-s",
            "ALTSCHED_URL_RULES=rules.toml" if folder is project else f"ALTSCHED_URL_RULES={path}",
        ]
        run = explain(folder, *arguments, *given)
        assert run.stdout.rstrip() == output.rstrip()
