"""What a crawl says: each text can be logged, with words that go with its numbers."""

from __future__ import annotations

import pytest
from scrapy import Spider
from scrapy.utils.test import get_crawler

from scrapy_altsched.crawl import messages
from scrapy_altsched.crawl.messages import Message
from scrapy_altsched.crawl.reports import Reports

TABLES = [*vars(messages).values(), *messages.EVENTS.values(), *messages.END.values()]
MESSAGES = [it for it in [*TABLES, *messages.CLOSED.values()] if isinstance(it, Message)]


class Asked(dict[str, int]):
    """Has a number under each name, and knows which were asked for."""

    def __missing__(self, key: str) -> int:
        self[key] = 1
        return 1


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.text[:40])
def test_a_text_names_values_and_at_most_two_words_for_each(message: Message) -> None:
    asked = Asked()
    assert message.text % asked is not None
    for key in asked:
        number, *words = key.split("|")
        assert number.isidentifier()
        assert len(words) <= 2


@pytest.fixture
def reports() -> Reports:
    crawler = get_crawler(Spider)
    assert crawler.stats is not None
    return Reports(Spider("books"), crawler.stats, "/job", None, "/job", logs_reason=False)


def test_words_go_with_numbers(reports: Reports, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    reports.log(messages.SKIPPED_STARTS, count=1)
    reports.log(messages.SKIPPED_STARTS, count=2)
    assert "1 start request was skipped: accepted by earlier runs of this job" in caplog.text
    assert "2 start requests were skipped" in caplog.text


def test_a_message_that_counts_nothing_is_not_logged(
    reports: Reports, caplog: pytest.LogCaptureFixture
) -> None:
    reports.log(messages.UNRECORDED_LEASES, count=0)
    assert caplog.text == ""
    assert reports._stats.get_value("altsched/unrecorded_leases") is None
    reports.log(messages.UNRECORDED_LEASES, count=3)
    assert "that 3 requests were in flight" in caplog.text
    assert reports._stats.get_value("altsched/unrecorded_leases") == 3
