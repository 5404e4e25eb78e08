"""Rules that say how old pages have to be to be crawled again."""

from __future__ import annotations

import pytest
from scrapy.settings import Settings

from scrapy_altsched.age import Age
from scrapy_altsched.canonical import Rules
from scrapy_altsched.errors import ConfigError
from scrapy_altsched.settings import Config

LISTS = {"include": "shop.example/lists/", "recrawl_after": "run"}
ALL = {"include": "shop.example", "recrawl_after": "30d"}
PLAIN = {"include": "shop.example", "ignore_params": "utm_*"}


def test_the_later_one_of_two_rules_counts() -> None:
    rules = Rules.load([ALL, LISTS])
    assert rules.find_age("https://shop.example/lists/1") == Age(period="run")
    assert rules.find_age("https://shop.example/items/1") == Age(30 * 86_400)
    assert rules.find_age("https://other.example/") is None
    assert rules.find_age("http://[") is None
    assert Rules.load([{**LISTS, "order": 900}, ALL]).find_age(
        "https://shop.example/lists/1"
    ) == Age(period="run")


def test_an_age_changes_no_fingerprint() -> None:
    url = "https://shop.example/lists/1?utm_x=1"
    assert Rules.load([LISTS]).digest == Rules.load(None).digest
    both, plain = Rules.load([PLAIN, LISTS]), Rules.load([PLAIN])
    assert both.digest == plain.digest
    assert both.canonicalize(url) == plain.canonicalize(url)
    together = Rules.load([{**PLAIN, "recrawl_after": 60}])
    assert together.digest == plain.digest
    assert together.canonicalize(url) == plain.canonicalize(url)
    assert together.find_age(url) == Age(60)
    # Nor does it take the place of a rule that is for what no other one is for.
    rest = {"ignore_params": "page", "fallback": True}
    with_rest = Rules.load([rest, LISTS]).canonicalize("https://shop.example/lists/1?page=2")
    assert with_rest.url == "https://shop.example/lists/1"


@pytest.mark.parametrize("value", [0, -1, "soon", "", True, None, []])
def test_what_is_no_age_is_refused(value: object) -> None:
    with pytest.raises(
        ConfigError, match=r"recrawl_after = .* cannot be used: it must be a number"
    ):
        Rules.load([{"include": "shop.example", "recrawl_after": value}])


def test_a_spiders_rules_come_after_the_settings() -> None:
    class Spider:
        url_rules = (LISTS,)

    rules = Rules.load([ALL]).with_spider(Spider())
    assert rules.find_age("https://shop.example/lists/1") == Age(period="run")


def test_rules_of_the_setting_count_though_all_of_them_are_only_about_ages() -> None:
    config = Config.from_settings(Settings({"ALTSCHED_URL_RULES": [ALL, LISTS]}), disk=None)
    rules = config.rules_of(None)
    assert rules.find_age("https://shop.example/lists/1") == Age(period="run")
    expected = Age(30 * 86_400), "ALTSCHED_URL_RULES[0]"
    assert rules.explain_age("https://shop.example/1") == expected
    assert rules.explain_age("https://other.example/") is None
