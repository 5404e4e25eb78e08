"""The filter by itself and under Scrapy's own scheduler, beside Scrapy's own filter."""

from __future__ import annotations

import hashlib
import logging
import shutil
import tempfile
from collections import defaultdict
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scrapy import Request, Spider
from scrapy.core.scheduler import Scheduler as StockScheduler
from scrapy.crawler import Crawler
from scrapy.dupefilters import RFPDupeFilter
from scrapy.pqueues import ScrapyPriorityQueue
from scrapy.utils.misc import build_from_crawler
from scrapy.utils.test import get_crawler

from scrapy_altsched import DupeFilter
from scrapy_altsched.errors import ConfigError, JobdirError, JobdirLockedError, JobdirLostError
from scrapy_altsched.frontier import Entry
from scrapy_altsched.maintenance.opening import open_frontier

from ..engines import OURS as BOTH
from ..engines import StandIn

OURS = "scrapy_altsched.DupeFilter"
STOCK = "scrapy.dupefilters.RFPDupeFilter"


class OwnPriorityQueue(ScrapyPriorityQueue):
    """Of the project's own making, which Scrapy's scheduler takes."""


class LongFingerprinter:
    """Makes fingerprints of more bytes than a key may have, different at their ends only."""

    def fingerprint(self, request: Request) -> bytes:
        return b"x" * 1000 + request.url.encode()


def make_crawler(jobdir: Path | None = None, **values: Any) -> Crawler:
    crawler = get_crawler(
        Spider,
        {
            "DUPEFILTER_CLASS": OURS,
            "SCHEDULER_PRIORITY_QUEUE": OwnPriorityQueue,
            "JOBDIR": str(jobdir) if jobdir is not None else None,
            **values,
        },
    )
    crawler.spider = Spider.from_crawler(crawler, name="spider")
    return crawler


class Run:
    """Scrapy's own scheduler with the filter that the settings name."""

    def __init__(self, jobdir: Path | None = None, **values: Any) -> None:
        self.crawler = make_crawler(jobdir, **values)
        assert self.crawler.spider is not None
        self.spider = self.crawler.spider
        self.scheduler = build_from_crawler(StockScheduler, self.crawler)
        self.scheduler.open(self.spider)

    def add(self, *names: str, **arguments: Any) -> list[bool]:
        return [
            self.scheduler.enqueue_request(Request(f"http://example.com/{name}", **arguments))
            for name in names
        ]

    def stat(self, name: str) -> Any:
        assert self.crawler.stats is not None
        return self.crawler.stats.get_value(name)

    def close(self) -> None:
        self.scheduler.close("finished")


def mark(dupefilter: DupeFilter, *names: str) -> list[bool]:
    return [dupefilter.request_seen(Request(f"http://example.com/{name}")) for name in names]


@pytest.mark.parametrize("on_disk", [False, True])
def test_scrapys_own_scheduler_drops_duplicates_with_it(tmp_path: Path, on_disk: bool) -> None:
    run = Run(tmp_path / "job" if on_disk else None)
    assert type(run.scheduler.df) is DupeFilter
    assert run.add("a", "b", "a", "a?", "b#fragment") == [True, True, False, False, False]
    assert run.add("a", dont_filter=True) == [True]
    assert run.add("a", method="POST", body=b"x") == [True]
    assert run.stat("dupefilter/filtered") == 3
    assert len(run.scheduler) == 4
    run.close()


def test_in_memory_nothing_is_kept_from_run_to_run() -> None:
    for _ in range(2):
        run = Run()
        assert run.add("a", "a") == [True, False]
        run.close()


def test_on_disk_duplicates_are_dropped_in_later_runs_too(tmp_path: Path) -> None:
    for expected in ([True, True], [False, False], [False, False]):
        run = Run(tmp_path)
        assert run.add("a", "b") == expected
        run.close()
    run = Run(tmp_path)
    assert run.add("c", "a") == [True, False]
    run.close()


def test_many_fingerprints_are_all_known_in_the_next_run(tmp_path: Path) -> None:
    names = [str(number) for number in range(6_000)]
    for expected in (False, True):
        dupefilter = DupeFilter(str(tmp_path))
        dupefilter.open()
        assert set(mark(dupefilter, *names)) == {expected}
        dupefilter.close("finished")


def test_what_was_seen_survives_a_death_from_the_next_commit_on(tmp_path: Path) -> None:
    jobdir = tmp_path / "job"
    dupefilter = DupeFilter.from_crawler(make_crawler(jobdir, ALTSCHED_COMMIT_INTERVAL=600))
    dupefilter.open()
    assert mark(dupefilter, "a", "b") == [False, False]
    # What a process that dies now leaves: the first is committed at once, the second is not yet.
    shutil.copytree(jobdir, tmp_path / "copy")
    dupefilter.close("finished")
    after = DupeFilter.from_crawler(make_crawler(tmp_path / "copy"))
    after.open()
    assert mark(after, "a", "b") == [True, False]
    after.close("finished")


def test_each_interval_has_its_commit(tmp_path: Path) -> None:
    crawler = make_crawler(tmp_path, ALTSCHED_COMMIT_INTERVAL=0.01)
    dupefilter = DupeFilter.from_crawler(crawler)
    dupefilter.open()
    frontier = dupefilter._frontier
    assert frontier is not None
    before = frontier.run.commit_number
    names = count()
    while frontier.run.commit_number < before + 3:
        mark(dupefilter, str(next(names)))
    dupefilter.close("finished")


@pytest.mark.parametrize("on_disk", [False, True])
def test_fingerprints_of_any_length_are_told_apart(tmp_path: Path, on_disk: bool) -> None:
    values = {"REQUEST_FINGERPRINTER_CLASS": LongFingerprinter}
    run = Run(tmp_path if on_disk else None, **values)
    assert run.add("a", "b", "a") == [True, True, False]
    run.close()
    again = Run(tmp_path if on_disk else None, **values)
    assert again.add("a", "c") == [not on_disk, True]
    again.close()


def test_only_fingerprints_longer_than_255_bytes_are_shortened() -> None:
    class Fingerprinter:
        length = 255

        def fingerprint(self, request: Request) -> bytes:
            return b"f" * self.length

    dupefilter = DupeFilter(fingerprinter=Fingerprinter())
    request = Request("http://example.com")
    assert dupefilter.fingerprint(request) == b"f" * 255
    Fingerprinter.length = 256
    assert dupefilter.fingerprint(request) == hashlib.sha1(b"f" * 256).digest()


# As Scrapy's own filter

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "c?x=1&y=2", "c?y=2&x=1", "a#b"]),
        st.sampled_from(["GET", "HEAD"]),
        st.booleans(),  # dont_filter
        st.sampled_from([{}, {"Referer": "http://example.com/r"}]),
        st.sampled_from(["add", "add", "add", "restart"]),
    ),
    max_size=10,
)


def drive(name: str, jobdir: Path | None, debug: bool, steps: list[Any]) -> list[Any]:
    """Answers, log records and stats of a scheduler with the filter of that name."""
    records: list[Any] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            spider = getattr(record, "spider", None)
            records.append((record.levelno, record.getMessage(), getattr(spider, "name", None)))

    logger = logging.getLogger("scrapy.dupefilters")
    handler = Handler()
    logger.addHandler(handler)
    level = logger.level
    logger.setLevel(logging.DEBUG)
    try:
        values = {"DUPEFILTER_CLASS": name, "DUPEFILTER_DEBUG": debug}
        run = Run(jobdir, **values)
        answers: list[Any] = []
        for path, method, dont_filter, headers, step in steps:
            if step == "restart":
                answers.append(run.stat("dupefilter/filtered"))
                run.close()
                run = Run(jobdir, **values)
            answers += run.add(path, method=method, dont_filter=dont_filter, headers=headers)
        answers.append(run.stat("dupefilter/filtered"))
        run.close()
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
    return [answers, records]


@pytest.mark.parametrize("on_disk", [False, True])
@given(debug=st.booleans(), steps=STEPS)
@settings(max_examples=12, deadline=None)
def test_answers_log_lines_and_stats_are_those_of_scrapys_own_filter(
    on_disk: bool, debug: bool, steps: list[Any]
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        results = []
        for name in (OURS, STOCK):
            jobdir = Path(directory, name) if on_disk else None
            results.append(drive(name, jobdir, debug, steps))
    assert results[0] == results[1]


def test_with_debug_each_duplicate_is_logged_else_the_first(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, "scrapy.dupefilters")
    for debug, expected in ((True, 3), (False, 1)):
        caplog.clear()
        run = Run(DUPEFILTER_DEBUG=debug)
        run.add("a", "a", "a", "a")
        assert run.stat("dupefilter/filtered") == 3
        found = [item for item in caplog.records if item.name == "scrapy.dupefilters"]
        assert len(found) == expected
        assert all("Filtered duplicate request: <GET http" in item.getMessage() for item in found)
        run.close()


# By itself


def test_a_filter_without_a_crawler_works_in_memory() -> None:
    dupefilter = DupeFilter()
    assert dupefilter.open() is None
    assert mark(dupefilter, "a", "b", "a") == [False, False, True]
    assert dupefilter.close("finished") is None
    dupefilter.open()
    assert mark(dupefilter, "a") == [False]
    dupefilter.close("finished")


def test_a_filter_without_a_crawler_works_on_disk(tmp_path: Path) -> None:
    for expected in (False, True):
        dupefilter = DupeFilter(str(tmp_path / "job"))
        dupefilter.open()
        assert mark(dupefilter, "a") == [expected]
        dupefilter.close("finished")


def test_a_filter_that_nobody_opened_opens_itself(tmp_path: Path) -> None:
    dupefilter = DupeFilter(str(tmp_path))
    assert mark(dupefilter, "a", "a") == [False, True]
    dupefilter.close("finished")
    assert mark(dupefilter, "a") == [True]
    dupefilter.close("finished")


def test_the_parameters_are_those_of_scrapys_own_filter() -> None:
    for filter_class in (DupeFilter, RFPDupeFilter):
        dupefilter: Any = filter_class(None, True, fingerprinter=LongFingerprinter())
        assert dupefilter.debug is True
        assert dupefilter.logdupes is True
        assert isinstance(dupefilter.fingerprinter, LongFingerprinter)


def test_opening_twice_and_closing_twice_does_no_harm(tmp_path: Path) -> None:
    dupefilter = DupeFilter(str(tmp_path))
    dupefilter.open()
    mark(dupefilter, "a")
    dupefilter.open()
    assert mark(dupefilter, "a") == [True]
    dupefilter.close("finished")
    dupefilter.close("finished")


def test_a_shared_frontier_is_the_schedulers_to_close(tmp_path: Path) -> None:
    frontier = open_frontier(tmp_path, "spider")
    frontier.mark_seen(DupeFilter().fingerprint(Request("http://example.com/a")))
    dupefilter = DupeFilter()
    dupefilter.share(frontier, defaultdict(int))
    dupefilter.open()
    assert mark(dupefilter, "a", "b") == [True, False]
    dupefilter.close("finished")
    assert frontier.mark_seen(b"x") is False, "it is open"
    frontier.close()
    assert dupefilter.open() is None
    assert mark(dupefilter, "a") == [False], "the frontier of another crawl must not be found"


@pytest.mark.parametrize("on_disk", [False, True])
def test_what_is_forgotten_is_not_seen_any_more(tmp_path: Path, on_disk: bool) -> None:
    dupefilter = DupeFilter(str(tmp_path) if on_disk else None)
    request = Request("http://example.com/a?x=1&y=2")
    assert dupefilter.forget(request) is False
    for _ in range(2):
        assert dupefilter.request_seen(request) is False
        # In whatever way the same page is written.
        assert dupefilter.forget(Request("http://example.com/a?y=2&x=1#top")) is True
        assert dupefilter.forget(request) is False
    assert dupefilter.request_seen(request) is False
    dupefilter.close("finished")
    if on_disk:
        assert dupefilter.request_seen(request) is True
        assert dupefilter.forget(request) is True
        dupefilter.close("finished")
        assert dupefilter.request_seen(request) is False
        dupefilter.close("finished")


@pytest.mark.parametrize("on_disk", [False, True])
def test_what_is_forgotten_is_scheduled_and_crawled_again(tmp_path: Path, on_disk: bool) -> None:
    jobdir = str(tmp_path) if on_disk else None
    crawl = StandIn({**BOTH, "JOBDIR": jobdir})
    request = Request("http://example.com/a")
    for _ in range(2):
        assert crawl.scheduler.enqueue_request(request)
        assert not crawl.scheduler.enqueue_request(request)
        assert crawl.next() is not None
        assert crawl.scheduler.df.forget(request) is True
    crawl.scheduler.close("finished")


# When something is wrong


@pytest.mark.parametrize("on_disk", [True, False])
def test_with_a_jobdir_another_scheduler_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, on_disk: bool
) -> None:
    Run(tmp_path if on_disk else None).close()
    found = [item.getMessage() for item in caplog.records if item.levelno == logging.WARNING]
    assert len(found) == on_disk
    for text in found:
        assert "SCHEDULER is scrapy.core.scheduler.Scheduler, not 'scrapy_altsched.Sch" in text
        assert "If an addon sets the other one, put 'scrapy_altsched.Addon' after it" in text


def test_a_setting_that_cannot_be_meant_is_logged_and_raised(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with pytest.raises(ConfigError, match="ALTSCHED_SYNC"):
        Run(ALTSCHED_SYNC="?")
    (record,) = [item for item in caplog.records if item.levelno == logging.CRITICAL]
    assert "ALTSCHED_SYNC = '?'" in record.getMessage()


def test_a_job_directory_in_use_is_logged_and_raised(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run(tmp_path)
    with pytest.raises(JobdirLockedError):
        Run(tmp_path)
    (record,) = [item for item in caplog.records if item.levelno == logging.CRITICAL]
    assert str(tmp_path) in record.getMessage()
    run.close()


def test_a_job_directory_that_cannot_be_made_is_logged_and_raised(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(JobdirError, match="Not a directory"):
        DupeFilter(str(tmp_path / "file" / "job")).open()
    assert caplog.records[-1].levelno == logging.CRITICAL


def test_a_commit_that_fails_costs_no_answer_and_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    dupefilter = DupeFilter(str(tmp_path / "job"))
    dupefilter.open()
    shutil.rmtree(tmp_path / "job")
    assert mark(dupefilter, "a", "b", "a") == [False, False, True]
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert "was deleted" in record.getMessage()
    with pytest.raises(JobdirLostError):
        dupefilter.close("finished")


def test_requests_that_this_scheduler_will_not_crawl_are_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    frontier = open_frontier(tmp_path, "spider")
    frontier.add(Entry(b"f" * 20, payload=b"p"))
    frontier.close()
    run = Run(tmp_path)
    *_, record = [item for item in caplog.records if item.levelno == logging.WARNING]
    assert "1 pending request in JOBDIR" in record.getMessage()
    assert "SCHEDULER = 'scrapy_altsched.Scheduler'" in record.getMessage()
    run.close()
    frontier = open_frontier(tmp_path, "spider")
    assert frontier.pending == 1
    frontier.close()
