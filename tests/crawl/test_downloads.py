"""When downloads start where somebody has a say in that, and which limits they have."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from scrapy import Spider
from scrapy.core.downloader import Downloader

from scrapy_altsched.crawl.limits import find_limits
from scrapy_altsched.crawl.setup import Setup
from scrapy_altsched.errors import ConfigError
from scrapy_altsched.frontier.shared.keys import Keys
from scrapy_altsched.limit import Limit, Limits

from ..crawls import BY_SLOT, LONG_DELAY, Crawl
from ..engines import ONE, OURS, SLOTS, StandIn
from ..servers import RedisServer
from ..sites import Page, Site

HOST = "127.0.0.1"

# In a real engine


def command(url: str, *paths: str, enough: int | None = None, **settings: object) -> list[str]:
    """A crawl of the spider in ``admitting.py``."""
    arguments = {"url": url, "paths": paths, "enough": enough}
    return [sys.executable, "-m", "tests.admitting", json.dumps([arguments, settings])]


def crawl(*paths: str, **settings: Any) -> tuple[list[dict[str, Any]], Site]:
    """What has happened, and the site that was crawled."""
    with Site({path: Page() for path in paths}) as site:
        words = command(site.url, *paths, **settings)
        done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=True)
    assert "Traceback" not in done.stderr
    told: list[dict[str, Any]] = json.loads(done.stdout)
    return told, site


def paths_of(told: list[dict[str, Any]], what: str) -> list[str]:
    return [each["path"] for each in told if each["what"] == what]


def test_a_request_starts_when_it_may() -> None:
    told, site = crawl("/late/1", "/late/2", "/now")
    assert site.order[0] == "/now"
    assert sorted(site.order) == ["/late/1", "/late/2", "/now"]
    assert sorted(paths_of(told, "response")) == sorted(paths_of(told, "ended"))
    # Nothing but the plain name of its slot is left in it.
    assert {each["slot"] for each in told if each["what"] == "response"} == {HOST}


def test_what_is_said_to_be_sent_is_known_to_its_host() -> None:
    paths = [f"/late/watched/{number}" for number in range(40)]
    missing: list[str] = []

    def answer(path: str, _: int) -> Page:
        sent = path.removeprefix("/sent")
        if sent != path:
            # The crawl waits for this answer, so that it would not send anything meanwhile.
            with site.changed:
                if not site.changed.wait_for(lambda: site.hits[sent], 10):
                    missing.append(sent)
        return Page()

    with Site(answer) as site:
        words = command(site.url, *paths, "/now", CONCURRENT_REQUESTS=41)
        done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=True)
    assert not missing
    told = json.loads(done.stdout)
    # Each is said once; some that were over before are said to be sent all the same.
    assert sorted(paths_of(told, "sent")) == sorted(["/now", *paths])


def test_a_request_that_may_not_start_is_ignored_and_has_ended() -> None:
    told, site = crawl("/never", "/now")
    assert site.order == ["/now"]
    assert paths_of(told, "IgnoreRequest") == ["/never"]
    assert sorted(paths_of(told, "ended")) == ["/never", "/now"]


def test_a_request_that_has_no_pace_is_scrapys_own_matter() -> None:
    # The second one has no end in sight, and the others none of its delay.
    paths = "/free/1", "/free/2", "/now/1", "/now/2", "/now/3"
    told, site = crawl(*paths, enough=4, DOWNLOAD_DELAY=LONG_DELAY)
    assert sorted(site.order) == ["/free/1", "/now/1", "/now/2", "/now/3"]
    assert sorted(paths_of(told, "asked")) == sorted(paths)
    assert not {"/free/1", "/free/2"} & {*paths_of(told, "ended")}
    # Extensions find the slot as ever.
    *_, last = told
    assert (last["slot"], last["delay"], last["waiting"]) == (HOST, LONG_DELAY, 1)


def test_a_request_that_may_start_does_not_count_among_others_of_its_slot() -> None:
    held = threading.Event()
    pages = {"/free/1": Page(held=held), "/free/2": Page(), "/now/1": Page(held=held)}
    with Site({**pages, "/now/2": Page(held=held)}) as site:
        words = command(site.url, *pages, "/now/2", CONCURRENT_REQUESTS_PER_DOMAIN=1)
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
            site.wait_for(lambda site: len(site.hits) == 3)
            assert set(site.hits) == {"/free/1", "/now/1", "/now/2"}
            held.set()
            output, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    assert len(paths_of(json.loads(output), "response")) == 4


# In a shared crawl


@pytest.mark.parametrize("closes", ["while it waits", "before it waits"])
def test_a_request_that_has_not_started_goes_back_when_the_spider_is_closed(
    tmp_path: Path, server: RedisServer, closes: str
) -> None:
    robots = threading.Event()
    keys = Keys("pages")
    with Site({"/robots.txt": Page(held=robots, text=""), "/0": Page()}) as site:
        crawl = Crawl(tmp_path, "pages", f"{site.url}/0")
        process = crawl.start(
            JOBDIR=None,
            ALTSCHED_SHARED=1,
            REDIS_PORT=server.port,
            ROBOTSTXT_OBEY=True,
            LOG_LEVEL="DEBUG",
            DOWNLOAD_DELAY=LONG_DELAY,
            **BY_SLOT,
            RANDOMIZE_DOWNLOAD_DELAY=False,
        )
        site.wait_for(lambda site: site.hits["/robots.txt"])
        with server.client() as client:

            def is_too_late() -> bool:
                """Whether it has to wait for another permit, for long."""
                seconds, rest = client.time(), client.zrange(keys.resting, 0, 0, withscores=True)
                return bool(rest) and seconds[0] > rest[0][1] / 1000 - LONG_DELAY

            crawl.wait_until(process, is_too_late)
            if closes == "while it waits":
                robots.set()
                crawl.wait_for_log(process, "/robots.txt> (referer")
                process.send_signal(signal.SIGINT)
            else:
                process.send_signal(signal.SIGINT)
                crawl.wait_for_log(process, "Closing spider (shutdown)")
                robots.set()
            process.communicate(timeout=60)
            assert set(site.hits) == {"/robots.txt"}
            done, leased = map(int, client.hmget(keys.meta, ("done", "leased")))
            assert (client.zcard(keys.pending), leased, done) == (1, 0, 0)
    assert "Traceback" not in crawl.log
    assert not re.search(r"scrapy_altsched\S*\] (ERROR|CRITICAL)", crawl.log)


# From settings


class Slow(Spider):
    custom_settings = {"DOWNLOAD_DELAY": 3}


def limits_of(spider: type[Spider] = Spider, **settings: Any) -> Limits | None:
    """The limits of a shared crawl's worker, by the downloader that it has."""
    base = {**OURS, "ALTSCHED_SHARED": True, "SCHEDULER_PRIORITY_QUEUE": SLOTS}
    stand_in = StandIn({**base, **settings}, spider, opens=False)
    stand_in.engine.downloader = Downloader(stand_in.crawler)  # type: ignore[assignment]
    stand_in.scheduler.spider = stand_in.spider
    return find_limits(Setup(stand_in.scheduler, None))


def test_without_settings_limits_are_what_scrapy_does() -> None:
    for own in ({}, {"AUTOTHROTTLE_ENABLED": False, "DOWNLOAD_SLOTS": {}}):
        assert limits_of(DOWNLOAD_DELAY=0, **own) == Limits(Limit(0, 0.5, 8), are_set=False)


def test_a_delay_is_a_limit_and_scrapys_cap_with_it() -> None:
    assert limits_of(DOWNLOAD_DELAY=2) == Limits(Limit(2, 0.5, 8))
    own = {"RANDOMIZE_DOWNLOAD_DELAY": False, "CONCURRENT_REQUESTS_PER_DOMAIN": 3}
    assert limits_of(DOWNLOAD_DELAY=2, **own) == Limits(Limit(2, 0, 3))


def test_a_delay_of_a_spiders_own_is_a_limit() -> None:
    assert limits_of(Slow) == Limits(Limit(3, 0.5, 8))


@pytest.mark.parametrize("cap", [1, 8, 100])
def test_a_cap_is_a_limit_if_it_is_set(cap: int) -> None:
    found = limits_of(DOWNLOAD_DELAY=0, CONCURRENT_REQUESTS_PER_DOMAIN=cap)
    assert found == Limits(Limit(0, 0.5, cap))


def test_settings_of_single_slots_are_limits() -> None:
    slots = {
        "a.test": {"delay": 5, "concurrency": 2},
        "b.test": {"concurrency": 1},
        "c.test": {"delay": 1, "randomize_delay": False},
    }
    assert limits_of(DOWNLOAD_DELAY=0, DOWNLOAD_SLOTS=slots) == Limits(
        Limit(0, 0.5, 8),
        {"a.test": Limit(5, 0.5, 2), "b.test": Limit(0, 0.5, 1), "c.test": Limit(1, 0, 8)},
    )


def test_a_throttled_crawl_begins_with_the_delay_that_its_extension_sets() -> None:
    own = {"AUTOTHROTTLE_ENABLED": True, "AUTOTHROTTLE_START_DELAY": 4}
    assert limits_of(DOWNLOAD_DELAY=0, **own) == Limits(Limit(4, 0.5, 8))
    assert limits_of(DOWNLOAD_DELAY=6, **own) == Limits(Limit(6, 0.5, 8))


def test_limits_with_which_nothing_is_downloaded_are_refused() -> None:
    with pytest.raises(ConfigError, match="CONCURRENT_REQUESTS_PER_DOMAIN = 0 lets nothing be"):
        limits_of(CONCURRENT_REQUESTS_PER_DOMAIN=0)
    with pytest.raises(ConfigError, match=r"DOWNLOAD_SLOTS\['a.test'\] lets nothing be downloaded"):
        limits_of(DOWNLOAD_SLOTS={"a.test": {"concurrency": 0}})
    off = {"CONCURRENT_REQUESTS_PER_DOMAIN": 0, "ALTSCHED_SHARED_PACE": False}
    assert limits_of(**off) is None


def test_each_worker_has_limits_of_its_own_if_that_is_set() -> None:
    assert limits_of(DOWNLOAD_DELAY=2, ALTSCHED_SHARED_PACE=False) is None


def test_a_crawl_whose_requests_are_in_one_queue_has_no_limits_and_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert limits_of(DOWNLOAD_DELAY=2, SCHEDULER_PRIORITY_QUEUE=ONE) is None
    words = "Download slots are asked by each worker as its settings say, not by all together"
    assert words in caplog.text
    caplog.clear()
    assert limits_of(DOWNLOAD_DELAY=0, SCHEDULER_PRIORITY_QUEUE=ONE) is None
    assert words not in caplog.text
