"""Requests that cannot be serialized live in memory only: what led to them brings them again."""

import random
import signal

import pytest

from ..crawls import Crawl, altsched
from ..sites import Page, Site

_EXPECTED = {
    f"/list/{number}/{page}{more}"
    for number in range(10)
    for page in range(20)
    for more in ("", "/more")
}


def _finish(crawl: Crawl) -> None:
    assert crawl.run() == 0, crawl.log
    assert set(crawl.item_paths()) == _EXPECTED
    assert "is finished: " in crawl.log
    assert "dead letter" not in crawl.log


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_all_are_there_however_the_crawl_is_interrupted(tmp_path, how):
    seed = random.randrange(1_000_000)
    print("seed", seed)
    moments = sorted(random.Random(seed).sample(range(5, 350), 3))
    with Site(lambda path, before: Page()) as site:
        crawl = Crawl(tmp_path, "lambdas", site.url)
        for moment in moments:
            process = crawl.start()
            site.wait_for(lambda site, moment=moment: len(site.hits) > moment)
            process.send_signal(how)
            process.communicate(timeout=60)
        _finish(crawl)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_workers_find_again_what_another_one_had_in_memory(tmp_path, server, how):
    seed = random.randrange(1_000_000)
    print("seed", seed)
    moment = random.Random(seed).randrange(20, 300)
    with Site(lambda path, before: Page()) as site:
        settings = {
            "JOBDIR": None,
            "ALTSCHED_SHARED": True,
            "ALTSCHED_SHARED_PREFETCH": 4,
            "ALTSCHED_LEASE_TIMEOUT": 5,
            "REDIS_PORT": server.port,
        }
        workers = []
        for name in ("one", "two"):
            (tmp_path / name).mkdir()
            workers.append(Crawl(tmp_path / name, "lambdas", site.url))
        interrupted, other = workers
        process = interrupted.start(**settings)
        site.wait_for(lambda site: len(site.hits) > moment)
        process.send_signal(how)
        process.communicate(timeout=60)
        assert other.run(**settings) == 0, other.log
        assert {*interrupted.item_paths(), *other.item_paths()} == _EXPECTED
        assert other.stat("altsched/outcome") == "finished"


def test_a_page_is_held_for_its_own_requests_only(tmp_path):
    """Those that led to none are done as soon as they were."""
    with Site(lambda path, before: Page()) as site:
        crawl = Crawl(tmp_path, "lambdas", site.url)
        _finish(crawl)
        assert crawl.stat("altsched/done") == 1 + 10 + len(_EXPECTED)
        assert max(site.hits.values()) == 1


@pytest.mark.parametrize("how", ["kill", "close"])
def test_a_job_that_lost_one_without_a_parent_is_not_finished(tmp_path, how):
    """It says why, and how to go on without it."""
    lost = "1 request that could not be serialized, and that no page and no start() brings again"
    with Site(lambda path, before: Page()) as site:
        crawl = Crawl(tmp_path, "orphan", site.url, end=how)
        crawl.run()
        check = altsched("check", crawl.jobdir)
        assert check.returncode == 1
        assert lost in " ".join(check.stdout.split())
        crawl.arguments["end"] = ""
        crawl.run()
        assert crawl.stat("altsched/outcome") == "not_finished"
        assert lost in crawl.log
        assert f"`scrapy altsched check {crawl.jobdir} --accept-loss` to go on" in crawl.log
        assert altsched("check", crawl.jobdir, "--accept-loss").returncode == 0
        crawl.run()
    assert crawl.stat("altsched/outcome") == "finished"
