"""Numbers and the words that go with them."""

from __future__ import annotations

import pytest

from scrapy_altsched.inflection import inflect


@pytest.mark.parametrize(("count", "word"), [(0, "runs"), (1, "run"), (2, "runs"), (1_000, "runs")])
def test_a_word_goes_with_its_number(count: int, word: str) -> None:
    assert inflect(count, "run") == word


def test_another_plural_can_be_named() -> None:
    assert [inflect(count, "request is", "requests are") for count in (1, 2)] == [
        "request is",
        "requests are",
    ]
