"""A site that yields links without end, under a budget."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest

from scrapy_altsched.steering.actions import Discard, Effect, Push, tell_over_budget

from ..crawls import Crawl, altsched
from ..sites import Page, Site
from .test_steering import SITE, ask, open_crawl, urls


@pytest.mark.parametrize("stored", [True, False])
def test_a_trap_of_links_ends(tmp_path: Path, stored: bool) -> None:
    numbers = count(1)
    with Site(lambda _, __: Page([f"/{next(numbers)}" for _ in range(5)])) as site:
        crawl = Crawl(tmp_path, "pages", f"{site.url}/")
        settings = {} if stored else {"JOBDIR": None}
        assert crawl.run(ALTSCHED_SLOT_BUDGET=40, **settings) == 0
        assert site.hits.total() == 40
    assert crawl.stat("altsched/over_budget") == 40 * 5 - 39
    assert "161 requests were dropped, as ALTSCHED_SLOT_BUDGET says" in crawl.log
    assert "127.0.0.1 (161)" in crawl.log
    if stored:
        assert "is finished: 40 requests done" in crawl.log
        assert altsched("check", crawl.jobdir).returncode == 0


def test_a_discard_makes_room_also_in_one_queue_for_all(tmp_path: Path) -> None:
    jobdir, queue = tmp_path / "job", "scrapy.pqueues.ScrapyPriorityQueue"
    settings = {"SCHEDULER_PRIORITY_QUEUE": queue, "ALTSCHED_SLOT_BUDGET": 3}
    crawl = open_crawl(jobdir, **settings)
    effect = ask(crawl, jobdir, Push(urls(5)))
    assert (effect.changed, effect.refused) == (3, 2)
    assert effect.reason == tell_over_budget(f"{SITE}/3")
    assert "ALTSCHED_SLOT_BUDGET permits. --dont-filter pushes it" in effect.reason
    assert ask(crawl, jobdir, Push(urls(3))) == Effect(refused=3)
    [over] = urls(1, "other")
    assert ask(crawl, jobdir, Push([{**over, "dont_filter": True}])) == Effect(changed=1)
    crawl.scheduler.close("shutdown")
    crawl = open_crawl(jobdir, **settings)
    assert ask(crawl, jobdir, Discard(depth_over=-1)) == Effect(changed=4)
    effect = ask(crawl, jobdir, Push(urls(5, "new")))
    assert (effect.changed, effect.refused) == (3, 2)
    crawl.scheduler.close("shutdown")
