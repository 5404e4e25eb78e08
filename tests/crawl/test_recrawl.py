"""Crawls that come to a page again once it is old enough, or by themselves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ..crawls import BY_SLOT, Crawl, altsched
from ..servers import RedisServer
from ..sites import Page, Site
from ..workers import Workers

GRAPH = {"/": Page(["/news/1", "/a"]), "/news/1": Page(["/a"]), "/a": Page(["/"])}


def test_each_run_crawls_all_that_it_meets_again(tmp_path: Path) -> None:
    with Site(GRAPH) as site:
        crawl = Crawl(tmp_path, "again", site.url)
        for run in (1, 2, 3):
            assert crawl.run(ALTSCHED_RECRAWL_AFTER="run") == 0
            assert dict(site.hits) == dict.fromkeys(GRAPH, run)
        assert "whatever is new or old enough (ALTSCHED_RECRAWL_AFTER)." in crawl.log
        assert crawl.run() == 0
        assert dict(site.hits) == dict.fromkeys(GRAPH, 3)
    assert altsched("check", crawl.jobdir).returncode == 0


def test_a_request_has_an_age_of_its_own(tmp_path: Path) -> None:
    with Site(GRAPH) as site:
        crawl = Crawl(tmp_path, "again", site.url, after="1000w")
        for _ in range(2):
            crawl.run(ALTSCHED_RECRAWL_AFTER="run")
    assert dict(site.hits) == {"/": 2, "/a": 2, "/news/1": 1}


def test_workers_of_a_shared_crawl_meet_lists_again(tmp_path: Path, server: RedisServer) -> None:
    lists = [f"/list/{number}" for number in range(4)]
    pages = {"/": Page(lists), **{path: Page(["/", f"{path}/news/0"]) for path in lists}}
    pages |= {f"{path}/news/0": Page(lists) for path in lists}
    given = {"arguments": {"after": "1000w"}, "ALTSCHED_RECRAWL_AFTER": "run", **BY_SLOT}
    with Site(pages) as site, Workers(tmp_path, "again", site.url, server.port, **given) as workers:
        workers.launch().wait()
        assert dict(site.hits) == dict.fromkeys(pages, 1)
        for number in (1, 2):
            done = altsched(
                "restart", "--shared", "again", "--keep-seen", "-s", f"REDIS_PORT={server.port}"
            )
            assert done.returncode == 0, done.stderr
            site.hits.clear()
            new = f"/list/3/news/{number}"
            pages["/list/3"].links.append(new)
            pages[new] = Page(lists)
            workers.launch().wait()
            assert dict(site.hits) == dict.fromkeys(["/", *lists, new], 1)


def test_an_age_in_a_job_that_records_none_is_told(tmp_path: Path) -> None:
    with Site(GRAPH) as site:
        crawl = Crawl(tmp_path, "again", site.url, after="1d")
        crawl.run()
        assert "is ignored: when pages are finished is recorded only with the setting" in crawl.log
        crawl.run(ALTSCHED_RECRAWL_AFTER="run")
        assert "is recorded only" not in crawl.log


def test_an_age_of_nonsense_counts_as_none_and_is_told(tmp_path: Path) -> None:
    with Site(GRAPH) as site:
        crawl = Crawl(tmp_path, "again", site.url, after="soon")
        for _ in range(2):
            crawl.run(ALTSCHED_RECRAWL_AFTER="run")
    assert dict(site.hits) == dict.fromkeys(GRAPH, 2)
    assert "meta['altsched_recrawl_after']" in crawl.log
    assert "it must be a number of seconds above 0, '12h'" in crawl.log
    assert crawl.stat("altsched/delay/ignored") == 1


@pytest.mark.parametrize("stored", [True, False])
def test_a_request_comes_back_by_itself(tmp_path: Path, stored: bool) -> None:
    with Site(GRAPH) as site:
        crawl = Crawl(tmp_path, "again", site.url, revisit="0.2", times="4")
        settings = {} if stored else {"JOBDIR": None}
        crawl.run(**settings)
        assert site.hits["/news/1"] == 4
        assert site.hits["/"] == site.hits["/a"] == 1
    rows = [json.loads(line) for line in crawl.items.read_text().splitlines()]
    metas = {tuple(row["meta"]) for row in rows if "news" in row["url"]}
    # As it was scheduled at first, each time.
    assert len(metas) == 1
    if stored:
        assert "1 is delayed" in crawl.log or "1 pending" in crawl.log
        assert altsched("check", crawl.jobdir).returncode == 0


def test_a_crawl_that_does_not_wait_goes_on_with_them_later(tmp_path: Path) -> None:
    with Site(GRAPH) as site:
        crawl = Crawl(tmp_path, "again", site.url, revisit="0.3")
        for run in (1, 2, 3):
            while site.hits["/news/1"] < run:  # until it is due
                crawl.run(ALTSCHED_WAIT_AT_CLOSE=False)
            assert "is delayed, the first one until" in crawl.log
    assert site.hits["/a"] == 1
