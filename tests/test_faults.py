"""Real crawls whose disk or files break under them."""

from __future__ import annotations

from pathlib import Path

from scrapy_altsched.frontier import open_frontier

from .crawls import Crawl
from .sites import Site, random_graph
from .test_command import altsched
from .test_crash import KILLED, assert_complete
from .test_repair import overwrite_middle


def have_tables_written(crawl: Crawl) -> Path:
    """Have all that is stored in tables; the one with the pending requests."""
    frontier = open_frontier(crawl.jobdir, crawl.spider)
    assert frontier._journal is not None
    frontier._journal.flush()
    frontier.abandon()
    tables = (crawl.jobdir / "frontier").glob("*.sst")
    return max(tables, key=lambda path: path.stat().st_size)


# Damaged files


def test_a_crawl_whose_log_was_lost_goes_back_and_completes(tmp_path: Path) -> None:
    graph = random_graph(60, 3, 1)
    with Site(graph) as site:
        crawl = Crawl(tmp_path, "pages", f"{site.url}/0")
        assert crawl.run(KILL_AT=30, KILL_ON="item") == KILLED
        have_tables_written(crawl)
        assert crawl.run(KILL_AT=10, KILL_ON="item", ALTSCHED_COMMIT_EVERY=1) == KILLED
        for log in (crawl.jobdir / "frontier").glob("*.log"):
            log.unlink()
        assert crawl.run() == 0
        assert "the job goes back from commit" in crawl.log
        assert crawl.stat("altsched/setback") > 0
        assert_complete(crawl, site, set(graph))


def test_a_crawl_that_meets_a_damaged_table_ends_unfinished_until_it_is_repaired(
    tmp_path: Path,
) -> None:
    graph = random_graph(300, 2, 1)
    with Site(graph) as site:
        crawl = Crawl(tmp_path, "pages", f"{site.url}/0")
        # As many pending requests as there can be, each read from the store.
        settings = {"CONCURRENT_REQUESTS": 1, "ALTSCHED_MEMORY_REQUESTS": 1}
        assert crawl.run(KILL_AT=100, KILL_ON="item", **settings) == KILLED
        overwrite_middle(have_tables_written(crawl))
        for _ in range(2):
            crawl.run(**settings)
            assert "Spider closed (store_damaged)" in crawl.log
            assert f"scrapy altsched check {crawl.jobdir}" in crawl.log
            assert "is finished" not in crawl.log
        check = altsched("check", crawl.jobdir)
        assert check.returncode == 1
        assert "Not all of 'pending' can be read" in check.stdout
        repaired = altsched("check", "--repair", crawl.jobdir)
        assert repaired.returncode == 1
        for _ in range(2):
            assert crawl.run(**settings) == 0
            assert "Spider closed (finished)" in crawl.log
            assert "could not be read. The job cannot be finished" in crawl.log
            assert "is not finished" in crawl.log
        missing = set(graph) - set(site.hits)
        assert missing
        assert crawl.stat("altsched/unaccounted") > 0
        assert altsched("check", "--accept-loss", crawl.jobdir).returncode == 0
        assert crawl.run(**settings) == 0
        assert "is finished" in crawl.log
