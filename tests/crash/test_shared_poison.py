"""A page of a shared crawl that kills each worker that it comes to."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..servers import RedisServer
from ..sites import Page, Site, random_graph
from ..workers import Crawled, Workers


def crawl_poison(tmp_path: Path, spider: str, *, has_jobdir: bool, timeout: float) -> int:
    """Crawl with three workers until all end, and see that one page alone is dead; the deaths."""
    graph = random_graph(40, 3, 5)
    with (
        RedisServer(tmp_path / "redis", appendonly=True) as server,
        Site(graph) as site,
        Workers(
            tmp_path,
            spider,
            f"{site.url}/0",
            server.port,
            has_jobdir=has_jobdir,
            arguments={"poison": "/7"},
            ALTSCHED_LEASE_TIMEOUT=timeout,
        ) as workers,
    ):
        deaths = workers.launch().wait_through_deaths(60)
        crawled = Crawled(server.client(), spider)
        assert crawled.meta("state") == "finished"
        assert crawled.count("dead") == 1
        assert crawled.count("done") == crawled.count("accepted") - 1
        assert f"The request {site.url}/7 is now a dead letter" in "".join(
            worker.logs for worker in workers
        )
        # No innocent page is missing but those that only the dead one leads to.
        assert set(workers.item_paths()) == reachable_without(graph, "/7")
    print(f"{deaths} deaths")
    return deaths


def reachable_without(graph: dict[str, Page], poison: str) -> set[str]:
    """The pages that links lead to from the first one, none of them on *poison*."""
    reached: set[str] = set()
    waiting = ["/0"]
    while waiting:
        path = waiting.pop()
        if path not in reached and path != poison:
            reached.add(path)
            waiting += graph[path].links
    return reached


@pytest.mark.slow
def test_a_callback_that_kills_is_found_by_workers_with_job_directories(tmp_path: Path) -> None:
    # Killed workers are back before their leases go to others.
    assert crawl_poison(tmp_path, "pages", has_jobdir=True, timeout=60) == 5


@pytest.mark.slow
def test_a_download_that_kills_is_found_by_workers_with_job_directories(tmp_path: Path) -> None:
    assert 24 <= crawl_poison(tmp_path, "early", has_jobdir=True, timeout=60) <= 33


@pytest.mark.slow
def test_a_page_that_kills_is_found_by_workers_that_keep_nothing(tmp_path: Path) -> None:
    # Three times among others, once as the suspect beside them, then 20 times alone.
    assert crawl_poison(tmp_path, "pages", has_jobdir=False, timeout=2) == 24
